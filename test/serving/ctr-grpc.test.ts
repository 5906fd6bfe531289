/** The CTR protocol over gRPC, and the response details over gRPC and HTTP. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type TestContext, test } from 'node:test';
import type { StatusObject } from '@grpc/grpc-js';
import {
  CTR_SERVICE,
  type CtrRequest,
  type CtrResponse,
  decodeCtrResponse,
  encodeCtrRequest,
} from '../../proto/ctr.ts';
import { callReflection, type GrpcResult, RawGrpcClient } from '../rpc/support/grpc-client.ts';
import { hashKey, ToyBundle, type ToyRow, toTsv, toyRows } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const TOLERANCE = 1e-5;
const PREDICT = `/${CTR_SERVICE}/Predict`;
const toy = new ToyBundle({ version: '4', seed: 31 });

const EMPTY: CtrRequest = {
  model: '',
  version: '',
  label: '',
  rowCount: 0,
  features: [],
  shared: undefined,
  priority: undefined,
  detail: false,
  timings: false,
  dense: new Float64Array(0),
  keys: new Uint32Array(0),
  scaled: new Float32Array(0),
  ends: new Uint32Array(0),
  tsv: new Uint8Array(0),
};

function asFeatures(rows: readonly ToyRow[]): CtrRequest {
  return {
    ...EMPTY,
    rowCount: rows.length,
    dense: Float64Array.from(rows.flatMap(({ dense }) => dense)),
    features: rows.flatMap(({ categorical }) => categorical),
  };
}

function asKeys(rows: readonly ToyRow[]): CtrRequest {
  const keys = rows.flatMap(({ categorical }) => categorical.map((text, i) => hashKey(i, text)));
  const scaled = rows.flatMap(({ dense: [i1, i2] }) => {
    const log = Math.log1p(Math.max(Number.isNaN(i1!) ? 0 : i1!, 0));
    return [(log - 1.25) * 0.5, (Number.isNaN(i2!) ? -1 : i2!) * 0.125];
  });
  return {
    ...EMPTY,
    rowCount: rows.length,
    keys: new Uint32Array(BigUint64Array.from(keys).buffer),
    scaled: Float32Array.from(scaled),
  };
}

function checkScores({ probabilities }: CtrResponse, rows: readonly ToyRow[]): void {
  assert.equal(probabilities.length, rows.length);
  rows.forEach((row, i) => {
    assert.ok(Math.abs(probabilities[i]! - toy.score(row)[1]) < TOLERANCE, `row ${i}`);
  });
}

async function start(t: TestContext) {
  const { serving } = await startLocal(t, [toy]);
  const port = Number(new URL(serving.url).port);
  const grpc = new RawGrpcClient(port);
  t.after(() => grpc.close());
  const ask = (request: CtrRequest): Promise<GrpcResult> =>
    grpc.call(PREDICT, encodeCtrRequest(request));
  return { serving, port, grpc, ask };
}

test('features, keys, lines and shared features give the expected scores', async (t) => {
  const { ask, serving } = await start(t);
  const rows = toyRows(90);
  const tsv = { ...EMPTY, tsv: Buffer.from(toTsv(rows)) };
  for (const request of [asFeatures(rows), asKeys(rows), tsv]) {
    const { bytes, code, details } = await ask(request);
    assert.equal(code, 0, details);
    const response = decodeCtrResponse(bytes);
    checkScores(response, rows);
    assert.deepEqual(
      [response.model, response.version, response.tablesVersion, response.unseen],
      ['toy', '4', '4', rows.reduce((sum, row) => sum + toy.unseen(row), 0)],
    );
  }
  const [{ categorical }] = rows as [ToyRow];
  const candidates = rows.map((row) => ({
    ...row,
    categorical: [categorical[0]!, row.categorical[1]!, categorical[2]!],
  }));
  const shared = {
    slots: Uint32Array.of(0, 2),
    features: [categorical[0]!, categorical[2]!],
    ends: new Uint32Array(0),
  };
  const own = { ...asFeatures(candidates), features: candidates.map((row) => row.categorical[1]!) };
  checkScores(decodeCtrResponse((await ask({ ...own, shared })).bytes), candidates);
  assert.equal(await serving.stop(), 0);
});

test('slots, timings, model, version and priority work over gRPC and HTTP', async (t) => {
  const { ask, serving } = await start(t);
  const rows = toyRows(20);
  const options = { model: 'toy', version: '4', priority: 0, detail: true, timings: true };
  const response = decodeCtrResponse((await ask({ ...asFeatures(rows), ...options })).bytes);
  assert.deepEqual(
    response.slots!.map(({ slot }) => slot),
    ['C1', 'C2', 'C3'],
  );
  const unseen = response.slots!.reduce((sum, slot) => sum + slot.unseen, 0);
  assert.equal(unseen, response.unseen);
  assert.ok(response.timings!.inferMicros > 0);
  const query = '?model=toy&version=4&priority=0&detail=true&timings=true';
  const { body } = await serving.post(`/v1/ctr:predict${query}`, toTsv(rows), {
    'content-type': 'text/tab-separated-values',
  });
  assert.deepEqual(body.slots, response.slots);
  assert.ok(body.timings.infer_micros > 0);
  const plain = await serving.postTsv(toTsv(rows));
  assert.deepEqual([plain.body.slots, plain.body.timings], [undefined, undefined]);
});

test('a stream responds to each message in order and ends at the first error', async (t) => {
  const { grpc } = await start(t);
  const stream = grpc.stream(`/${CTR_SERVICE}/PredictStream`);
  const answers: CtrResponse[] = [];
  stream.on('data', (bytes: Buffer) => answers.push(decodeCtrResponse(bytes)));
  const requests = [1, 7, 64, 3].map((count) => toyRows(count, count));
  for (const rows of requests) stream.write(Buffer.from(encodeCtrRequest(asFeatures(rows))));
  stream.end();
  await once(stream, 'end');
  assert.equal(answers.length, requests.length);
  requests.forEach((rows, i) => {
    checkScores(answers[i]!, rows);
  });
  const failing = grpc.stream(`/${CTR_SERVICE}/PredictStream`);
  const failed = new Promise<StatusObject>((resolve) => failing.once('status', resolve));
  failing.resume();
  failing.write(Buffer.from(encodeCtrRequest(EMPTY)));
  const status = await failed;
  assert.equal(status.code, 3);
  assert.match(status.details, /row_count/);
});

test('an invalid request is rejected with its field, and the process keeps serving', async (t) => {
  const { ask, grpc, serving, port } = await start(t);
  const rows = toyRows(2);
  const good = asFeatures(rows);
  const keys = asKeys(rows);
  const cases: [CtrRequest, number, RegExp][] = [
    [EMPTY, 3, /row_count: expected at least one row/],
    [{ ...good, rowCount: 3 }, 3, /dense: expected 6 values \(3 rows of 2\)/],
    [{ ...good, features: ['a'] }, 3, /1 values for 2 rows of 3 slots/],
    [{ ...good, dense: new Float64Array(4).fill(1e300) }, 3, /row 1 \(I2\): 1e\+300 is beyond/],
    [{ ...good, ends: Uint32Array.of(1, 2) }, 3, /2 bags of 2 values/],
    [
      { ...keys, scaled: Float32Array.of(1, Number.NaN, 1, 1) },
      3,
      /scaled\[1\]: expected a finite/,
    ],
    [{ ...keys, scaled: Float32Array.of(1) }, 3, /1 dense values for 2 rows of 2/],
    [{ ...good, keys: keys.keys }, 3, /only in one of these forms/],
    [{ ...good, rowCount: 10_001 }, 8, /10001 rows in one request/],
    [{ ...EMPTY, tsv: Uint8Array.of(0xff) }, 3, /tsv is not UTF-8/],
    [{ ...EMPTY, tsv: Buffer.from('1\t2\ta\n') }, 3, /row 1: expected 6/],
    [{ ...keys, priority: 3 }, 3, /priority 3 is not in 0\.\.2/],
    [{ ...keys, model: 'other' }, 5, /model "other" is not served/],
    [
      {
        ...good,
        shared: { slots: Uint32Array.of(2, 2), features: [], ends: new Uint32Array(0) },
        dense: new Float64Array(4),
      },
      3,
      /shared\.slots: expected slot positions in 0\.\.2, ascending/,
    ],
  ];
  for (const [request, code, message] of cases) {
    const answer = await ask(request);
    assert.match(answer.details, message);
    assert.equal(answer.code, code);
  }
  assert.equal((await grpc.call(PREDICT, Uint8Array.of(0xff))).code, 3);
  checkScores(decodeCtrResponse((await ask(keys)).bytes), rows);
  const { listServicesResponse } = await callReflection(port, 'v1', { listServices: '' });
  assert.ok(listServicesResponse);
  const names = listServicesResponse.service.map(({ name }) => name);
  for (const name of [
    CTR_SERVICE,
    'baidu.paddle_serving.predictor.general_model.GeneralModelService',
  ]) {
    assert.ok(names.includes(name), names.join());
  }
  assert.equal(await serving.stop(), 0);
});
