/** Ops that predict with models of this process. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { createLogger } from '../../../lib/platform/logs.ts';
import { PIPELINE_ERROR } from '../../../proto/pipeline.ts';
import { LoadedBundle } from '../../../serving/engine/loaded-bundle.ts';
import { Predictor } from '../../../serving/engine/predictor.ts';
import { LocalPredictor, OnnxFilePredictor } from '../../../serving/pipeline/local-predictor.ts';
import {
  type AnyOp,
  Op,
  type OpClient,
  type OpInputs,
  type OpValues,
  RequestOp,
  ResponseOp,
} from '../../../serving/pipeline/op.ts';
import type { PipelineTensor } from '../../../serving/pipeline/pipeline-tensor.ts';
import { PipelineServer } from '../../../serving/pipeline/server.ts';
import { VariableNames } from '../../../serving/pipeline/variable-names.ts';
import { readLocalRows } from '../../../serving/protocols/local-rows.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { FakeStore } from '../support/fake-store.ts';
import { multiply } from '../support/plain-models.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from '../support/toy-bundle.ts';
import { ToyRepository } from '../support/toy-service.ts';

const logger = createLogger('test', { level: 'silent' });
const TOYS = [new ToyBundle({ version: '1', seed: 3 }), new ToyBundle({ version: '2', seed: 4 })];

/** Predicts the request's rows, and hands its predecessor's scores on. */
class RankOp extends Op<OpInputs, OpValues> {
  override preprocess(inputs: OpInputs): OpValues {
    const { categorical, dense } = Object.values(inputs)[0] ?? {};
    return { categorical, dense };
  }

  override postprocess(inputs: OpInputs, fetched: OpValues): OpValues {
    const before = Object.values(inputs)[0] ?? {};
    return { ...before, [this.name]: fetched };
  }
}

async function loadToys(t: TestContext, store = new FakeStore(TOYS)): Promise<LoadedBundle[]> {
  const toys = new ToyRepository(t);
  for (const toy of TOYS) await toys.publish(toy);
  const { repository } = toys;
  return Promise.all(
    TOYS.map(({ options: { version } }) =>
      LoadedBundle.load(
        {
          repository,
          bundle: BUNDLE,
          store,
          instances: 1,
          logger,
          policy: { onUnavailable: 'default', maxUnavailableShare: 0 },
        },
        version,
      ),
    ),
  );
}

/** request → first → between → second → response, where `between` runs the given function. */
function createChain(client: OpClient, between: () => void): PipelineServer {
  const first = new RankOp({ name: 'first', inputs: [new RequestOp()], client });
  class Between extends Op {
    override process(feeds: readonly OpValues[]) {
      between();
      return feeds;
    }
  }
  const middle = new Between({ name: 'between', inputs: [first] });
  const second = new RankOp({ name: 'second', inputs: [middle], client });
  return new PipelineServer(new ResponseOp({ inputs: [second] }));
}

const rows = toyRows(5, 11);
const values = {
  categorical: {
    dataType: 'BYTES',
    shape: [5, 3],
    data: rows.flatMap(({ categorical }) => [...categorical]),
  },
  dense: {
    dataType: 'FP32',
    shape: [5, 2],
    data: Float32Array.from(rows.flatMap(({ dense }) => [...dense])),
  },
};

function assertScores(tensor: PipelineTensor, toy: ToyBundle): void {
  assert.deepEqual(tensor.shape, [5, 2]);
  const scores = rows.flatMap((row) => toy.score(row));
  for (const [at, score] of scores.entries()) {
    assert.ok(Math.abs((tensor.data[at] as number) - score) < 1e-5);
  }
}

test('a request keeps the version of its first prediction until it is answered', async (t) => {
  const [one, two] = await loadToys(t);
  let current = one as LoadedBundle;
  let closed: Promise<void> | undefined;
  const client = new LocalPredictor({
    models: { find: () => current },
    model: BUNDLE,
    predictor: new Predictor(),
    readRows: readLocalRows,
  });
  const server = createChain(client, () => {
    if (current !== one) return;
    current = two as LoadedBundle;
    closed = one?.close();
  });
  await server.start();
  for (const [at, toy] of TOYS.entries()) {
    const answer = await server.run({ values });
    assert.equal(answer.errNo, 0, answer.errMsg);
    assert.deepEqual(answer.versions, { [BUNDLE]: `${at + 1}` });
    assert.equal(answer.degraded, false);
    for (const op of ['first', 'second']) {
      assertScores((answer.values[op] as Record<string, PipelineTensor>)['prob']!, toy);
    }
  }
  // The version of the first request stops only because the request has released it.
  await closed;
  await server.stop();
  await two?.close();
});

test('a feed may have rows as tab-separated lines', async (t) => {
  const [bundle, other] = await loadToys(t);
  const client = new LocalPredictor({
    models: { find: () => bundle as LoadedBundle },
    model: BUNDLE,
    predictor: new Predictor(),
    readRows: readLocalRows,
  });
  const op = new Op({ name: 'rank', inputs: [new RequestOp()], client });
  const server = new PipelineServer(new ResponseOp({ inputs: [op] }));
  await server.start();
  const answer = await server.run({ values: { rows: toTsv(rows) } });
  assert.equal(answer.errNo, 0, answer.errMsg);
  assertScores(answer.values['prob'] as PipelineTensor, TOYS[0] as ToyBundle);
  for (const [wrong, message] of [
    ['', /op rank: rows: send at least one line/],
    ['1\t2', /op rank: .*row 1|op rank: .*columns/],
  ] as const) {
    const refused = await server.run({ values: { rows: wrong } });
    assert.equal(refused.errNo, PIPELINE_ERROR.INPUT_PARAMS_ERROR);
    assert.match(refused.errMsg, message);
  }
  await server.stop();
  await Promise.all([bundle?.close(), other?.close()]);
});

test('a degraded prediction marks the answer; bad rows are the caller’s error', async (t) => {
  const store = new FakeStore(TOYS);
  const [bundle, other] = await loadToys(t, store);
  const client = new LocalPredictor({
    models: { find: () => bundle as LoadedBundle },
    model: BUNDLE,
    predictor: new Predictor(),
    readRows: readLocalRows,
  });
  const server = createChain(client, () => undefined);
  await server.start();
  const wrong = await server.run({ values: { ...values, dense: [1, 2, 3] } });
  assert.equal(wrong.errNo, PIPELINE_ERROR.INPUT_PARAMS_ERROR);
  assert.match(wrong.errMsg, /op first: .*dense/);
  store.isDown = () => true;
  const degraded = await server.run({ values });
  assert.equal(degraded.errNo, 0, degraded.errMsg);
  assert.equal(degraded.degraded, true);
  await server.stop();
  await Promise.all([bundle?.close(), other?.close()]);
});

/** x → y by a file, with aliases and without. */
class ModelOp extends Op {
  constructor(name: string, inputs: readonly AnyOp[], client: OpClient) {
    super({ name, inputs, client, concurrency: 4 });
  }
}

test('a bare ONNX file takes lists and typed arrays, with aliases and a fetch list', async (t) => {
  const file = join(temporaryFolder(t), 'double.onnx');
  writeFileSync(file, multiply(2));
  const names = new VariableNames({
    feeds: new Map([['in', 'x']]),
    fetches: new Map([['out', 'y']]),
    fetchList: ['out'],
  });
  const client = new OnnxFilePredictor({ file, name: 'double', names, logger });
  const op = new ModelOp('double', [new RequestOp()], client);
  const server = new PipelineServer(new ResponseOp({ inputs: [op] }));
  await server.start();
  const forms = [
    [[1.5, 2]],
    { dataType: 'FP32', shape: [1, 2], data: Float32Array.of(1.5, 2) },
    { dataType: 'FP64', shape: [1, 2], data: Float64Array.of(1.5, 2) },
  ];
  for (const form of forms) {
    const { errMsg, values: result, versions } = await server.run({ values: { in: form } });
    assert.equal(errMsg, '');
    const expected = { dataType: 'FP32', shape: [1, 2], data: Float32Array.of(3, 4) };
    assert.deepEqual(result, { out: expected });
    assert.match(versions['double'] ?? '', /^[\da-f]{16}$/);
  }
  for (const bad of [['a'], [[1], [1, 2]], [[1, 'a']], null, {}]) {
    const { errNo, errMsg } = await server.run({ values: { in: bad } });
    assert.equal(errNo, PIPELINE_ERROR.INPUT_PARAMS_ERROR, errMsg);
    assert.match(errMsg, /"x"/);
  }
  await server.stop();
  const missing = new OnnxFilePredictor({ file: `${file}.not`, logger });
  await assert.rejects(missing.start(), /does not exist/);
});
