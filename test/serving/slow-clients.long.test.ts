/** Clients that read or write slowly, close their side or vanish; memory stays bounded. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import { encodeRequestFrame } from '../rpc/support/echo-server.ts';
import { encodeRequest } from './support/paddle-client.ts';
import { PROTOCOL_CLIENTS } from './support/protocol-clients.ts';
import type { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const toy = new ToyBundle({ version: '5', seed: 51 });
const ROWS = 10_000;
/** Twice the period of AnnouncedBodies. */
const ANNOUNCED_MS = 500;
const many = toyRows(ROWS);
/** Growth beyond this is a leak; garbage collection accounts for less. */
const GROWTH_BYTES_MAX = 96 << 20;

async function metric(serving: ServingProcess, line: string): Promise<number> {
  const { body } = await serving.get('/metrics');
  const found = body.split('\n').find((text: string) => text.startsWith(`${line} `));
  return Number(found?.slice(line.length) ?? 0);
}

async function open({ url }: ServingProcess, bytes: string | Uint8Array): Promise<Socket> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  socket.on('error', () => undefined);
  await once(socket, 'connect');
  socket.write(bytes);
  return socket;
}

function httpRequest(path: string, type: string, body: string): string {
  const head = `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-type: ${type}\r\n`;
  return `${head}content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
}

const asTsv = httpRequest('/v1/ctr:predict', 'text/tab-separated-values', toTsv(many));

function asFrame(correlation: number): Uint8Array {
  const tensor = [
    ...['C1', 'C2', 'C3'].map((name, slot) => ({
      name,
      elem_type: 20,
      shape: [ROWS],
      data: many.map(({ categorical }) => categorical[slot]!),
    })),
    { name: 'dense_input', shape: [ROWS, 2], float_data: new Array<number>(2 * ROWS).fill(0.5) },
  ];
  const payload = encodeRequest({ tensor });
  return encodeRequestFrame(correlation, payload, {
    service: GENERAL_MODEL_SERVICE,
    method: 'inference',
  });
}

test('10,000 rows over every protocol, repeatedly, without memory growth', async (t) => {
  // The process of the tests has garbage of others, and collects it when it wants to.
  const { serving } = await startLocal(t, [toy], [], true);
  const round = async (): Promise<void> => {
    for (const [name, ask] of PROTOCOL_CLIENTS) {
      if (/[1-4] blanks|streamed row by row|client over HTTP/.test(name)) continue;
      const { clicks } = await ask(serving, many);
      assert.equal(clicks.length, ROWS, name);
      for (const i of [0, 4_999, ROWS - 1]) {
        assert.ok(Math.abs(clicks[i]! - toy.score(many[i]!)[1]) < 1e-5, `${name}, row ${i}`);
      }
    }
  };
  await round();
  const before = await metric(serving, 'process_resident_memory_bytes');
  await round();
  const grown = (await metric(serving, 'process_resident_memory_bytes')) - before;
  assert.ok(grown < GROWTH_BYTES_MAX, `${grown} bytes more`);
  assert.equal(await serving.stop(), 0);
});

test('the request of a closed baidu_std connection is abandoned', async (t) => {
  const { serving } = await startLocal(t, [toy], ['--instances', '1']);
  const frames = Array.from({ length: 5 }, (_, i) => asFrame(i + 1));
  const dropped = 'hypercube_serving_requests_total{protocol="paddle",code="DEADLINE_EXCEEDED"}';
  // Retry when the server responded before the client closed.
  do {
    const socket = await open(serving, Buffer.concat(frames));
    let looks = 0;
    await serving.waitFor('/v1/status', ({ body }) => body.inFlight > 0 || ++looks === 50);
    socket.destroy();
    await serving.waitFor('/v1/status', ({ body }) => body.inFlight === 0);
  } while ((await metric(serving, dropped)) === 0);
  assert.equal((await serving.postTsv(toTsv(toyRows(1)))).status, 200);
  assert.equal(await serving.stop(), 0);
});

test('slow, half-closed and vanished clients do not delay others', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const descriptors = await metric(serving, 'process_open_fds');
  const json = JSON.stringify({ rows: many.map(({ categorical }) => ({ C1: categorical[0] })) });
  const asJson = httpRequest('/v1/ctr:predict', 'application/json', json);
  const idle: Socket[] = [];
  for (let i = 0; i < 4; i++) {
    for (const bytes of [asTsv, asJson, asFrame(1)]) {
      // Reads nothing: responses wait in buffers of bounded size.
      const deaf = await open(serving, bytes);
      deaf.pause();
      // Stops in the middle of a request.
      idle.push(deaf, await open(serving, bytes.slice(0, bytes.length / 2)));
      (await open(serving, bytes)).destroy();
    }
  }
  // More rows than the queue accepts: some of these requests are rejected.
  await serving.waitFor('/v1/status', ({ body }) => body.inFlight === 0);
  // For so long requests whose bodies have not arrived count as waiting.
  await sleep(ANNOUNCED_MS);
  const drops = (async () => {
    const rows = toyRows(1);
    const text = httpRequest('/v1/ctr:predict', 'text/tab-separated-values', toTsv(rows));
    const socket = await open(serving, '');
    socket.setNoDelay(true);
    const answer = readText(socket);
    for (const byte of text) {
      socket.write(byte);
      await sleep(1);
    }
    socket.end();
    assert.match(await answer, /200 OK[\s\S]*"probabilities":\[0\./);
  })();
  const half = await open(serving, asTsv);
  const whole = readText(half);
  half.end();
  assert.equal(JSON.parse((await whole).split('\r\n\r\n')[1]!).probabilities.length, ROWS);
  for (let i = 0; i < 20; i++) {
    const rows = toyRows(5, i + 1);
    const { body } = await serving.postTsv(toTsv(rows));
    assert.ok(Math.abs(body.probabilities[0] - toy.score(rows[0]!)[1]) < 1e-5);
  }
  await drops;
  for (const socket of idle) socket.destroy();
  for (let left = Number.POSITIVE_INFINITY; left > descriptors + 4; await sleep(20)) {
    left = await metric(serving, 'process_open_fds');
  }
  await serving.waitFor('/v1/status', ({ body }) => body.inFlight === 0);
  assert.equal(await serving.stop(), 0);
});

test('a model accepts requests only under its own name', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  for (const name of ['TOY', '..%2ftoy', 'toy%00', `${'x'.repeat(300)}`, '%F0%9F%98%80']) {
    const { status, body } = await serving.get(`/v2/models/${name}/ready`);
    assert.ok(status === 404 || status === 400 || status === 414, `${name}: ${status}`);
    assert.equal(typeof body.error, 'string');
  }
  assert.equal((await serving.get(`/v2/models/${BUNDLE}/ready`)).status, 200);
});

function readText(socket: Socket): Promise<string> {
  let text = '';
  socket.on('data', (chunk) => {
    text += chunk;
  });
  return new Promise((resolve) => socket.once('close', () => resolve(text)));
}
