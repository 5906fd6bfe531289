/** PredictorApi with servers that fail, change, or answer late. */
import assert from 'node:assert/strict';
import { renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { InferenceResponse } from '../../lib/client/predictor.ts';
import { PredictorApi, type PredictorApiOptions } from '../../lib/client/predictor-api.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { waitFor } from '../support/processes.ts';
import { FakeModelServer } from './support/model-server.ts';

async function createApi(
  t: TestContext,
  cluster: string,
  rest = '',
  options: PredictorApiOptions = {},
): Promise<PredictorApi> {
  const folder = temporaryFolder(t);
  writeFileSync(
    join(folder, 'predictors.prototxt'),
    `predictors { name: "p" variants { tag: "v" naming_conf { cluster: "${cluster}" } ${rest} } }`,
  );
  const api = await PredictorApi.create(folder, undefined, options);
  t.after(() => api.destroy());
  return api;
}

const REQUEST = { tensors: { x: [[1], [2]] } };

function scores({ outputs }: InferenceResponse): number[] {
  const data = outputs[0]?.tensors['prob']?.data;
  assert.ok(data instanceof Float32Array);
  return [...data];
}

test('a call to a silent server is answered by another one after the hedge time', async (t) => {
  const silent = await FakeModelServer.start(t, 2);
  const healthy = await FakeModelServer.start(t, 3);
  silent.behavior = 'stay silent';
  const hedge = `connection_conf { hedge_request_timeout_ms: 5 rpc_timeout_ms: 60000 }
    naming_conf { load_balance_strategy: "rr" }`;
  const api = await createApi(t, `list://${silent.endpoint},${healthy.endpoint}`, hedge);
  for (let i = 0; i < 4; i++) {
    assert.deepEqual(scores(await api.fetchPredictor('p').inference(REQUEST)), [3, 6]);
  }
  const [stats] = api.stats();
  assert.ok(silent.requests.length > 0);
  assert.ok(stats!.backupsWon > 0 && stats!.backups <= 4);
  // No hedges: the call waits for its own server.
  const plain = await createApi(t, `list://${silent.endpoint}`);
  await assert.rejects(
    plain.fetchPredictor('p').inference(REQUEST, { timeoutMs: 50 }),
    (error) => error instanceof CubeError && error.code === 'DEADLINE_EXCEEDED',
  );
  assert.equal(plain.stats()[0]?.backups, 0);
});

test('a cancelled call rejects at once, by promise, callback and half-synchronous', async (t) => {
  const silent = await FakeModelServer.start(t, 2);
  silent.behavior = 'stay silent';
  const api = await createApi(t, `list://${silent.endpoint}`);
  const predictor = api.fetchPredictor('p');
  const controller = new AbortController();
  const byPromise = predictor.inference(REQUEST, { signal: controller.signal });
  const byCallback = new Promise((resolve) => {
    const call = predictor.inference(REQUEST, (error) => resolve((error as Error).name));
    setImmediate(() => call.cancel());
  });
  predictor.sendInference(REQUEST);
  await waitFor('the requests arrive', () => silent.requests.length === 3);
  controller.abort(new Error('not needed any more'));
  await assert.rejects(byPromise, /not needed any more/);
  assert.equal(await byCallback, 'AbortError');
  predictor.cancelInference();
  await assert.rejects(predictor.recvInference(), { name: 'AbortError' });
  silent.behavior = 'answer';
  assert.deepEqual(scores(await predictor.inference(REQUEST)), [2, 4]);
});

test('a file of servers is reread under load: no call fails', async (t) => {
  const servers = await Promise.all([2, 2, 2].map((factor) => FakeModelServer.start(t, factor)));
  const [first, second, third] = servers as [FakeModelServer, FakeModelServer, FakeModelServer];
  const folder = temporaryFolder(t);
  const list = join(folder, 'servers');
  const write = (text: string): void => {
    writeFileSync(`${list}.new`, text);
    renameSync(`${list}.new`, list);
  };
  write(`${first.endpoint} # the first\n${second.endpoint}\n`);
  const problems: string[] = [];
  const onInvalid = ({ message }: CubeError): unknown => problems.push(message);
  const api = await createApi(t, `file://${list}`, '', { onInvalid });
  let isOver = false;
  const lanes = Array.from({ length: 4 }, async () => {
    while (!isOver) {
      const response = await api.fetchPredictor('p').inference(REQUEST);
      assert.deepEqual(scores(response), [2, 4]);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  });
  const load = Promise.all(lanes);
  const until = (what: string, check: () => boolean): Promise<unknown> =>
    Promise.race([waitFor(what, check), load]);
  await until('both serve', () => first.requests.length > 5 && second.requests.length > 5);
  write(`${second.endpoint}\n${third.endpoint}\n`);
  await until('the new server is called', () => third.requests.length > 5);
  const served = first.requests.length;
  await first.stop();
  write('no server\n');
  await until('the invalid file is reported', () => problems.length > 0);
  assert.match(problems[0]!, /servers: server 1/);
  const before = third.requests.length;
  await until('the previous servers stay', () => third.requests.length > before + 5);
  isOver = true;
  await load;
  assert.equal(first.requests.length, served);
});

test('failed calls go to other servers, and to the only server again', async (t) => {
  const failing = await FakeModelServer.start(t, 2);
  const healthy = await FakeModelServer.start(t, 3);
  failing.behavior = 'UNAVAILABLE';
  const api = await createApi(t, `list://${failing.endpoint},${healthy.endpoint}`);
  for (let i = 0; i < 10; i++) {
    assert.deepEqual(scores(await api.fetchPredictor('p').inference(REQUEST)), [3, 6]);
  }
  const lonely = await createApi(t, `list://${failing.endpoint}`);
  const sent = failing.requests.length;
  await assert.rejects(lonely.fetchPredictor('p').inference(REQUEST), /as the test says/);
  // connect_retry_count is 2.
  assert.equal(failing.requests.length, sent + 3);
  const refused = await createApi(t, 'list://127.0.0.1:1');
  await assert.rejects(
    refused.fetchPredictor('p').inference(REQUEST),
    (error) => error instanceof CubeError && error.code === 'UNAVAILABLE',
  );
  failing.behavior = 'INVALID_ARGUMENT';
  await assert.rejects(lonely.fetchPredictor('p').inference(REQUEST), /as the test says/);
  assert.equal(failing.requests.length, sent + 4, 'an error of the caller is not retried');
});

test('lods travel both ways; a service with other messages is called with bytes', async (t) => {
  const server = await FakeModelServer.start(t, 2);
  const api = await createApi(t, `list://${server.endpoint}`, 'rpc_parameter { compress_type: 1 }');
  const predictor = api.fetch_predictor('p');
  const tensors = {
    x: { dataType: 'FP32', shape: [3, 1], data: Float32Array.of(1, 2, 3) },
  } as const;
  const response = await predictor.inference({ tensors, lods: { x: [0, 1, 3] }, fetch: ['prob'] });
  assert.deepEqual(response.outputs[0]?.tensors['prob']?.lod, Int32Array.of(0, 1, 3));
  const [request] = server.requests;
  assert.deepEqual([request?.compressType, request?.fetchNames], [1, ['prob']]);
  assert.deepEqual(request?.tensors[0]?.lod, Int32Array.of(0, 1, 3));
  assert.ok(request.timeoutMs > 0 && request.timeoutMs <= 20_000);
  for (const lod of [[0, 4], [1, 3], [0, 2, 1, 3], []]) {
    await assert.rejects(predictor.inference({ tensors, lods: { x: lod } }), /lod of x: expected/);
  }
  const unknown = { tensors, lods: { y: [0, 3] } };
  await assert.rejects(predictor.inference(unknown), /lods: there is no tensor "y"/);
  const bytes = await predictor.inferenceBytes(Uint8Array.of());
  assert.ok(bytes.length > 0);
  api.free_predictor(predictor);
  await assert.rejects(predictor.inferenceBytes(Uint8Array.of()), /was freed/);
});

test('equal requests go to one server with c_murmurhash and c_md5', async (t) => {
  const servers = await Promise.all([1, 1, 1].map((factor) => FakeModelServer.start(t, factor)));
  const cluster = `list://${servers.map(({ endpoint }) => endpoint).join()}`;
  for (const balancer of ['c_murmurhash', 'c_md5']) {
    const naming = `naming_conf { load_balance_strategy: "${balancer}" }`;
    const api = await createApi(t, cluster, naming);
    const predictor = api.fetchPredictor('p');
    const count = (): number[] => servers.map(({ requests }) => requests.length);
    // The first calls find out which servers are healthy.
    for (let code = 0; code < 64; code++) {
      await predictor.inference(REQUEST, { requestCode: code * 0x0400_0000 });
    }
    const before = count();
    for (let i = 0; i < 5; i++) await predictor.inference(REQUEST);
    const increments = count().map((after, i) => after - before[i]!);
    assert.deepEqual(
      increments.toSorted((a, b) => a - b),
      [0, 0, 5],
      balancer,
    );
  }
});

test('clusters that cannot be opened are refused with predictor and variant', async (t) => {
  const refuse = (cluster: string, message: RegExp): Promise<void> =>
    assert.rejects(createApi(t, cluster), message);
  await refuse('bns://group', /predictor p, variant v: cluster: naming: expected list:\/\//);
  await refuse('list://127.0.0.1', /predictor p, variant v: cluster: .*127\.0\.0\.1/);
  await refuse('file:///nothing/here', /predictor p, variant v: cluster: .*nothing/);
  const resolve = (): Promise<never> => Promise.reject(new Error('no such host'));
  await assert.rejects(createApi(t, 'dns://models:80', '', { resolve }), /cannot resolve models/);
  await assert.rejects(PredictorApi.create(temporaryFolder(t)), /predictors\.prototxt/);
});
