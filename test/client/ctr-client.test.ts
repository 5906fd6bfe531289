/** CtrClient against a real serving process and against failing servers. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import { type AddressInfo, createServer as createTcp, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import {
  CtrClient,
  type CtrRow,
  type CtrRows,
  CubeError,
  formatClientMetrics,
} from '../../lib/client/index.ts';
import { hashKey, ToyBundle, type ToyRow, toTsv, toyRows } from '../serving/support/toy-bundle.ts';
import { startLocal } from '../serving/support/toy-service.ts';

const TOLERANCE = 1e-5;
const toy = new ToyBundle({ version: '6', seed: 51 });
const orNull = (value: number): number | null => (Number.isNaN(value) ? null : value);

function positional(rows: readonly ToyRow[]): CtrRow[] {
  return rows.map(({ dense, categorical }) => ({ dense: dense.map(orNull), categorical }));
}

function asKeys(rows: readonly ToyRow[]): CtrRow[] {
  return rows.map(({ dense: [i1 = Number.NaN, i2 = Number.NaN], categorical }) => {
    const log = Math.log1p(Math.max(Number.isNaN(i1) ? 0 : i1, 0));
    return {
      keys: categorical.map((text, slot) => hashKey(slot, text)),
      scaled: [(log - 1.25) * 0.5, (Number.isNaN(i2) ? -1 : i2) * 0.125],
    };
  });
}

function byName(rows: readonly ToyRow[]): CtrRow[] {
  return rows.map(({ dense: [i1 = Number.NaN, i2 = Number.NaN], categorical: [c1, c2, c3] }) => ({
    ...(Number.isNaN(i1) ? {} : { I1: i1 }),
    ...(Number.isNaN(i2) ? {} : { I2: i2 }),
    C1: c1!,
    C2: c2!,
    C3: c3!,
  }));
}

function createClient(t: TestContext, url: string, options = {}): CtrClient {
  const client = new CtrClient({ url, timeoutMs: 10_000, ...options });
  t.after(() => client.close());
  return client;
}

async function getErrorCode(promise: Promise<unknown>): Promise<string> {
  try {
    await promise;
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return error.code;
  }
  return 'none';
}

test('predicts and scores rows of every form over HTTP and gRPC', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const rows = toyRows(70);
  const check = (scores: ArrayLike<number>, of: readonly ToyRow[]): void => {
    assert.equal(scores.length, of.length);
    of.forEach((row, i) => {
      assert.ok(Math.abs(scores[i]! - toy.score(row)[1]) < TOLERANCE, `row ${i}`);
    });
  };
  const forms: CtrRows[] = [positional(rows), asKeys(rows), toTsv(rows), Buffer.from(toTsv(rows))];
  for (const url of [serving.url, serving.url.replace('http:', 'grpc:')]) {
    const client = createClient(t, url);
    const named = url.startsWith('http') ? [byName(rows)] : [];
    for (const form of [...forms, ...named]) {
      const { model, version, probabilities, slots, timings } = await client.predict(form);
      check(probabilities, rows);
      assert.deepEqual([model, version, slots, timings], ['toy', '6', undefined, undefined]);
    }
    const options = { model: 'toy', version: '6', priority: 0, detail: true, timings: true };
    const prediction = await client.predict(positional(rows), options);
    assert.deepEqual(
      prediction.slots!.map(({ slot }) => slot),
      ['C1', 'C2', 'C3'],
    );
    assert.ok(prediction.timings!.inferMicros > 0);
    const many = toyRows(1000, 9);
    const scores: number[] = [];
    for await (const { probability, version } of client.score(positional(many))) {
      assert.equal(version, '6');
      scores.push(probability);
    }
    check(scores, many);
    assert.equal(
      await getErrorCode(client.predict(positional(rows), { model: 'other' })),
      'NOT_FOUND',
    );
    assert.equal(
      await getErrorCode(client.predict([{ dense: [], categorical: [] }])),
      'INVALID_ARGUMENT',
    );
    client.close();
    assert.equal(await getErrorCode(client.predict(positional(rows))), 'STOPPING');
  }
  const grpc = createClient(t, serving.url.replace('http:', 'grpc:'));
  assert.equal(await getErrorCode(grpc.predict(byName(rows))), 'INVALID_ARGUMENT');
});

async function listen(t: TestContext, handler: RequestListener): Promise<string> {
  const server = createServer(handler).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => server.close().closeAllConnections());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const GOOD = JSON.stringify({
  model: 'm',
  version: '1',
  tables_version: '1',
  probabilities: [0.5],
  unseen: 0,
  unavailable: 0,
  degraded: false,
});
const ROW: CtrRow[] = [{ dense: [1], categorical: ['a'] }];

test('the path of the URL is kept as a prefix', async (t) => {
  const paths: (string | undefined)[] = [];
  const url = await listen(t, (request, response) => {
    paths.push(request.url);
    request.resume().once('end', () => response.end(GOOD));
  });
  for (const prefix of ['', '/', '/proxy/ctr', '/proxy/ctr/']) {
    await createClient(t, `${url}${prefix}`).predict(ROW, { model: 'm' });
  }
  const path = '/v1/ctr:predict?model=m';
  assert.deepEqual(paths, [path, path, `/proxy/ctr${path}`, `/proxy/ctr${path}`]);
});

test('only retryable errors are retried, on the same connection', async (t) => {
  const answers: [number, string][] = [
    [503, '{"code":"UNAVAILABLE","error":"a shard is down"}'],
    [429, 'a proxy says no'],
    [200, GOOD],
    [400, '{"code":"INVALID_ARGUMENT","error":"no"}'],
  ];
  const ports = new Set<number | undefined>();
  let calls = 0;
  const url = await listen(t, (request, response) => {
    ports.add(request.socket.remotePort);
    const [status, body] = answers[calls++]!;
    request.resume().once('end', () => response.writeHead(status).end(body));
  });
  const client = createClient(t, url);
  assert.deepEqual([...(await client.predict(ROW)).probabilities], [0.5]);
  assert.equal(calls, 3);
  assert.equal(ports.size, 1);
  assert.equal(await getErrorCode(client.predict(ROW)), 'INVALID_ARGUMENT');
  assert.equal(calls, 4);
});

test('the retry budget limits calls to a server that fails every call', async (t) => {
  let calls = 0;
  const url = await listen(t, (request, response) => {
    calls++;
    request.resume().once('end', () => response.writeHead(503).end());
  });
  const client = createClient(t, url);
  for (let i = 0; i < 50; i++) assert.equal(await getErrorCode(client.predict(ROW)), 'UNAVAILABLE');
  assert.ok(calls <= 50 + 10 + 5, `${calls} calls`);
  const { retries, failures, retryBudgetRefusals } = client.stats;
  assert.deepEqual([retries, failures, client.stats.calls], [calls - 50, 50, 50]);
  assert.ok(retryBudgetRefusals > 0);
  const single = createClient(t, url, { retryMax: 0 });
  calls = 0;
  assert.equal(await getErrorCode(single.predict(ROW)), 'UNAVAILABLE');
  assert.equal(calls, 1);
});

test('a client with a limit refuses calls that the server would queue', async (t) => {
  const waiting: (() => void)[] = [];
  const url = await listen(t, (request, response) => {
    const answer = (): unknown => response.writeHead(429).end();
    request.resume().once('end', () => waiting.push(answer));
  });
  const options = { timeoutMs: 600_000, retryMax: 0, connectionsMax: 100 };
  const limited = createClient(t, url, { ...options, concurrencyLimit: 'refuse' });
  const { concurrencyLimit } = limited.stats;
  const calls = Array.from({ length: concurrencyLimit }, () => getErrorCode(limited.predict(ROW)));
  assert.equal(limited.stats.inFlight, concurrencyLimit);
  await assert.rejects(limited.predict(ROW), /64 calls are in flight.*send fewer at once/);
  while (waiting.length < concurrencyLimit) await nextTurn();
  for (const answer of waiting) answer();
  assert.deepEqual(new Set(await Promise.all(calls)), new Set(['OVERLOADED']));
  // The server knows its own load best.
  assert.ok(limited.stats.concurrencyLimit < concurrencyLimit);
  assert.deepEqual([limited.stats.inFlight, limited.stats.concurrencyRefusals], [0, 1]);
  const text = formatClientMetrics({ 'a"b': limited.stats });
  assert.match(text, /# TYPE hypercube_client_concurrency_refusals_total counter\n/);
  assert.match(text, /hypercube_client_concurrency_refusals_total{client="a\\"b"} 1\n/);
  assert.match(text, /hypercube_client_in_flight{client="a\\"b",server=""} 0\n/);
  assert.doesNotMatch(text, /server_share|undefined|NaN/);
});

test('missing, partial and invalid responses have their own error codes', async (t) => {
  const sockets: Socket[] = [];
  const silent = createTcp((socket) => sockets.push(socket.resume())).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  t.after(() => {
    silent.close();
    for (const socket of sockets) socket.destroy();
  });
  const { port } = silent.address() as AddressInfo;
  for (const scheme of ['http', 'grpc']) {
    const client = createClient(t, `${scheme}://127.0.0.1:${port}`, { timeoutMs: 200 });
    assert.equal(await getErrorCode(client.predict(ROW)), 'DEADLINE_EXCEEDED');
    client.close();
    const nobody = createClient(t, `${scheme}://127.0.0.1:1`, { timeoutMs: 2000 });
    assert.equal(await getErrorCode(nobody.predict(ROW)), 'UNAVAILABLE');
  }
  const cut = await listen(t, (request, response) => {
    request.resume().once('end', () => {
      response.writeHead(200, { 'content-length': 100 }).write('{');
      setImmediate(() => response.destroy());
    });
  });
  assert.equal(await getErrorCode(createClient(t, cut).predict(ROW)), 'UNAVAILABLE');
  const strange = await listen(t, (request, response) => {
    request.resume().once('end', () => response.end('{"probabilities": ["x"]}'));
  });
  assert.equal(await getErrorCode(createClient(t, strange).predict(ROW)), 'INTERNAL');
});

test('an experiment key with a control character is refused before a request', async (t) => {
  let requests = 0;
  const url = await listen(t, (request, response) => {
    requests++;
    request.resume().once('end', () => response.end(GOOD));
  });
  for (const address of [url, url.replace('http:', 'grpc:')]) {
    const client = createClient(t, address);
    for (const experimentKey of ['a\nb', 'a\r\nx: y', 'a\0b', 'a\tb', 'a\x7f']) {
      assert.equal(await getErrorCode(client.predict([], { experimentKey })), 'INVALID_ARGUMENT');
    }
  }
  assert.equal(requests, 0);
  await createClient(t, url).predict(ROW, { experimentKey: 'Zoë 東京 😀' });
  assert.equal(requests, 1);
});

test('closing the client fails calls in flight, over HTTP and gRPC', async (t) => {
  const silent = createTcp((socket) => socket.on('error', () => undefined).resume());
  await once(silent.listen(0, '127.0.0.1'), 'listening');
  t.after(() => silent.close());
  const { port } = silent.address() as AddressInfo;
  for (const scheme of ['http', 'grpc']) {
    const url = `${scheme}://127.0.0.1:${port}`;
    const client = createClient(t, url, { timeoutMs: 600_000, retryMax: 0 });
    const connected = once(silent, 'connection');
    const code = getErrorCode(client.predict('1\t2\ta\tb\tc\n'));
    const [socket] = await connected;
    client.close();
    assert.equal(await code, 'UNAVAILABLE', scheme);
    (socket as Socket).destroy();
  }
});

test('an invalid URL is rejected at once', () => {
  for (const url of ['', 'localhost:80', 'ftp://h:1', 'grpc://h']) {
    assert.throws(() => new CtrClient({ url }), /url: expected http:/);
  }
});
