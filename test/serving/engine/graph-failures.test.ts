/** Workers of plain models that die, and ensembles whose caller stops waiting. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { CubeError } from '../../../lib/core/errors.ts';
import type { NamedTensor } from '../../../lib/core/tensor.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { DEFAULT_BATCHING } from '../../../serving/engine/engine-options.ts';
import { LoadedEnsemble } from '../../../serving/engine/loaded-ensemble.ts';
import { LoadedGraph } from '../../../serving/engine/loaded-graph.ts';
import type { PredictOptions } from '../../../serving/engine/prediction.ts';
import { waitFor } from '../../support/processes.ts';
import { INT64, ints, model, node, value } from '../../tools/prune-model/support/onnx-builder.ts';
import { FATAL_VALUE, SLOW_VALUE } from '../support/scripted-graph-worker.ts';
import { assertRejected } from './support/engine-fixture.ts';

const SCRIPT = new URL('../support/scripted-graph-worker.js', import.meta.url);

/** y [batch] = x [batch] + constant. */
async function load(t: TestContext, name: string, constant: number, instances = 1) {
  const bytes = model({
    inputs: [value('x', INT64, ['batch'])],
    outputs: [value('y', INT64, ['batch'])],
    initializers: [ints('c', [1], [constant])],
    nodes: [node('Add', ['x', 'c'], ['y'])],
  });
  const loaded = await LoadedGraph.load({
    name,
    version: '1',
    model: bytes,
    instances,
    logger: createLogger('test', { level: 'silent' }),
    batching: { ...DEFAULT_BATCHING, maxBatch: 1, preferredSizes: [] },
    workerScript: SCRIPT,
  });
  t.after(() => loaded.close());
  return loaded;
}

function ask(
  target: Pick<LoadedGraph, 'predict'>,
  x: number,
  options: Partial<PredictOptions> = {},
) {
  const data = new Uint8Array(BigInt64Array.of(BigInt(x)).buffer);
  const input: NamedTensor = { name: 'x', dataType: 'INT64', shape: [1], data };
  const deadlineMs = performance.now() + 60_000;
  return target.predict({ inputs: [input], outputs: [] }, { deadlineMs, ...options });
}

async function readAnswer(answer: ReturnType<typeof ask>): Promise<number> {
  const [output] = (await answer).outputs;
  return Number(new DataView((output!.data as Uint8Array).slice().buffer).getBigInt64(0, true));
}

test('a worker that dies fails only the batch that it runs, and is replaced', async (t) => {
  const served = await load(t, 'm', 1, 2);
  // The others wait behind the fatal batch, or run on the other instance.
  const fatal = ask(served, FATAL_VALUE);
  const values = [1, 2, 3, 4, 5];
  const answers = Promise.all(values.map((x) => readAnswer(ask(served, x))));
  await assertRejected(fatal, 'UNAVAILABLE', /worker died while it ran this batch/);
  assert.deepEqual(
    await answers,
    values.map((x) => x + 1),
  );
  await waitFor('both instances are back', () => served.pool.aliveInstances === 2);
  assert.equal(served.pool.workerDeaths, 1);
  assert.equal(await readAnswer(ask(served, 7)), 8);
  assert.equal(served.stats.pendingRequests, 0);
});

/** Adds 10 and then 100; the models of the steps are loaded here. */
async function loadEnsemble(t: TestContext) {
  const first = await load(t, 'first', 10);
  const second = await load(t, 'second', 100);
  const models = new Map([first, second].map((one) => [one.name, one]));
  const step = (name: string, from: string, to: string) => ({
    model: name,
    version: undefined,
    inputMap: new Map([['x', from]]),
    outputMap: new Map([['y', to]]),
    location: 'config.pbtxt:1',
  });
  const ensemble = new LoadedEnsemble({
    name: 'chain',
    version: '1',
    signature: {
      inputs: [{ name: 'x', dataType: 'INT64', dims: [''] }],
      outputs: [{ name: 'z', dataType: 'INT64', dims: [''] }],
    },
    isBatched: true,
    maxBatch: 4,
    steps: [step('first', 'x', 'y'), step('second', 'y', 'z')],
    source: 'config.pbtxt',
    labels: new Map(),
    find: ({ model: name }) => models.get(name)!,
  });
  return { ensemble, first, second };
}

test('the deadline and the cancellation of a request stop an ensemble between steps', async (t) => {
  const { ensemble, first, second } = await loadEnsemble(t);
  assert.equal(await readAnswer(ask(ensemble, 1)), 111);
  assert.equal(second.stats.executions, 1);
  const late = ask(ensemble, SLOW_VALUE, { deadlineMs: performance.now() + 50 });
  await assertRejected(late, 'DEADLINE_EXCEEDED', /step (first|second): /);
  let aborted = false;
  const signal = {
    get aborted(): boolean {
      return aborted;
    },
  };
  const abandoned = ask(ensemble, SLOW_VALUE, { signal });
  await waitFor('the first step runs', () => first.stats.pendingRequests === 1);
  aborted = true;
  await assert.rejects(abandoned, (error) => {
    assert.ok(error instanceof CubeError);
    return /step (first|second): /.test(error.message);
  });
  assert.equal(second.stats.executions, 1);
  assert.equal(ensemble.stats.pendingRequests, 0);
  assert.equal(await readAnswer(ask(ensemble, 2)), 112);
});

test('a step whose worker dies fails its request, with its name, and no other', async (t) => {
  const { ensemble, first } = await loadEnsemble(t);
  await assertRejected(ask(ensemble, FATAL_VALUE), 'UNAVAILABLE', /^step first: /);
  await waitFor('the worker is back', () => first.pool.aliveInstances === 1);
  assert.equal(await readAnswer(ask(ensemble, 3)), 113);
});

test('bodies that arrive for an ensemble are announced to its steps', async (t) => {
  const { ensemble, first } = await loadEnsemble(t);
  const announced: string[] = [];
  const { announce } = first.batcher;
  first.batcher.announce = () => {
    announced.push('begin');
    const end = announce.call(first.batcher);
    return () => {
      announced.push('end');
      end();
    };
  };
  ensemble.batcher.announce()();
  assert.deepEqual(announced, ['begin', 'end']);
});
