/** Threads of released graphs that run the graphs of later versions. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { Worker } from 'node:worker_threads';
import { parseTsvRows } from '../../../lib/core/tsv-rows.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { openRepository, type Repository } from '../../../lib/repository/repository.ts';
import { DEFAULT_BATCHING } from '../../../serving/engine/engine-options.ts';
import { LoadedBundle } from '../../../serving/engine/loaded-bundle.ts';
import { type GraphLoadOptions, LoadedGraph } from '../../../serving/engine/loaded-graph.ts';
import { ModelInstance } from '../../../serving/engine/model-instance.ts';
import { Predictor } from '../../../serving/engine/predictor.ts';
import { SpareThreads, spareThreads } from '../../../serving/engine/spare-threads.ts';
import { MemoryStore } from '../../../serving/stores/memory-store.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { waitFor } from '../../support/processes.ts';
import { INT64, ints, model, node, value } from '../../tools/prune-model/support/onnx-builder.ts';
import { FATAL_VALUE } from '../support/scripted-graph-worker.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from '../support/toy-bundle.ts';
import { assertRejected } from './support/engine-fixture.ts';

const GRAPH_WORKER = new URL('../../../serving/engine/graph-worker.js', import.meta.url);
const SCRIPTED_WORKER = new URL('../support/scripted-graph-worker.js', import.meta.url);
const PROCESS = join(import.meta.dirname, '..', 'support', 'spare-threads-process.js');
const logger = createLogger('test', { level: 'silent' });

/** The worker threads that a test starts; it begins and ends without spare ones. */
async function recordThreads(t: TestContext): Promise<Worker[]> {
  await spareThreads.end();
  const threads: Worker[] = [];
  const add = (worker: Worker): void => {
    threads.push(worker);
  };
  process.on('worker', add);
  t.after(async () => {
    process.off('worker', add);
    await spareThreads.end();
  });
  return threads;
}

/** y [batch] = x [batch] + constant, or another operator. */
function makeModel(constant: number, operator = 'Add'): Uint8Array {
  return model({
    inputs: [value('x', INT64, ['batch'])],
    outputs: [value('y', INT64, ['batch'])],
    initializers: [ints('c', [1], [constant])],
    nodes: [node(operator, ['x', 'c'], ['y'])],
  });
}

function load(
  bytes: Uint8Array,
  options: Partial<Pick<GraphLoadOptions, 'instances' | 'workerScript'>> = {},
): Promise<LoadedGraph> {
  const batching = { ...DEFAULT_BATCHING, maxBatch: 1, preferredSizes: [] };
  const common = { name: 'm', version: '1', instances: 1, logger, batching };
  return LoadedGraph.load({ ...common, model: bytes, ...options });
}

async function ask(loaded: LoadedGraph, x: number): Promise<number> {
  const data = new Uint8Array(BigInt64Array.of(BigInt(x)).buffer);
  const input = { name: 'x', dataType: 'INT64', shape: [1], data } as const;
  const deadlineMs = performance.now() + 60_000;
  const { outputs } = await loaded.predict({ inputs: [input], outputs: [] }, { deadlineMs });
  const bytes = outputs[0]?.data as Uint8Array;
  return Number(new DataView(bytes.slice().buffer).getBigInt64(0, true));
}

/** Many requests at once, so that the memories of batches are used in turn. */
async function assertAdds(loaded: LoadedGraph, constant: number): Promise<void> {
  const values = Array.from({ length: 20 }, (_, i) => i);
  const answers = await Promise.all(values.map((x) => ask(loaded, x)));
  assert.deepEqual(
    answers,
    values.map((x) => x + constant),
  );
}

test('a sequence of versions uses two threads in turn, each with its own graph', async (t) => {
  const threads = await recordThreads(t);
  let active = await load(makeModel(1_000));
  for (let version = 1; version <= 8; version++) {
    const next = await load(makeModel(version));
    const before = version === 1 ? 1_000 : version - 1;
    await Promise.all([assertAdds(active, before), assertAdds(next, version)]);
    await active.close();
    await assertAdds(next, version);
    active = next;
  }
  await active.close();
  assert.equal(threads.length, 2);
});

test('a graph with other tensors than the one before runs on its thread', async (t) => {
  const threads = await recordThreads(t);
  await (await load(makeModel(1))).close();
  const bytes = model({
    inputs: [value('a', INT64, ['batch', 2]), value('x', INT64, ['batch'])],
    outputs: [value('b', INT64, ['batch', 2]), value('y', INT64, ['batch'])],
    initializers: [ints('c', [1], [7])],
    nodes: [node('Add', ['a', 'c'], ['b']), node('Identity', ['x'], ['y'])],
  });
  const other = await load(bytes);
  t.after(() => other.close());
  const toInput = (name: string, shape: readonly number[], values: readonly bigint[]) => {
    const data = new Uint8Array(BigInt64Array.from(values).buffer);
    return { name, dataType: 'INT64', shape, data } as const;
  };
  const inputs = [toInput('a', [1, 2], [1n, 2n]), toInput('x', [1], [3n])];
  const deadlineMs = performance.now() + 60_000;
  const { outputs } = await other.predict({ inputs, outputs: [] }, { deadlineMs });
  const values = outputs.map(({ data }) => [
    ...new BigInt64Array((data as Uint8Array).slice().buffer),
  ]);
  assert.deepEqual(values, [[8n, 9n], [3n]]);
  assert.equal(threads.length, 1);
});

test('an idle thread that dies is replaced, also when it dies while it is taken', async (t) => {
  const threads = await recordThreads(t);
  await (await load(makeModel(1))).close();
  // A message that the worker does not know is an uncaught error in its thread.
  const [first] = threads;
  first?.postMessage('unknown');
  const second = await load(makeModel(2));
  assert.equal(threads.length, 2);
  await assertAdds(second, 2);
  await second.close();
  threads[1]?.postMessage('unknown');
  await new Promise((resolve) => threads[1]?.once('exit', resolve));
  const third = await load(makeModel(3));
  await assertAdds(third, 3);
  await third.close();
  assert.equal(threads.length, 3);
});

test('a thread that died with a batch is not used again; its successor is', async (t) => {
  const threads = await recordThreads(t);
  const workerScript = SCRIPTED_WORKER;
  const first = await load(makeModel(1), { workerScript });
  await assertRejected(ask(first, FATAL_VALUE), 'UNAVAILABLE', /died while it ran this batch/);
  await waitFor('the instance is back', () => first.pool.aliveInstances === 1);
  await assertAdds(first, 1);
  await first.close();
  const second = await load(makeModel(2), { workerScript });
  await assertAdds(second, 2);
  await second.close();
  assert.equal(threads.length, 2);
});

test('the thread of a graph that does not load ends; the next version loads', async (t) => {
  const threads = await recordThreads(t);
  await (await load(makeModel(1))).close();
  const exit = once(threads[0]!, 'exit');
  await assertRejected(load(makeModel(2, 'NoSuchOperator')), 'INVALID_ARGUMENT', /cannot load it/);
  await exit;
  const good = await load(makeModel(3));
  await assertAdds(good, 3);
  await good.close();
  assert.equal(threads.length, 2);
});

test('options that cannot be copied to the thread fail the start', async (t) => {
  const threads = await recordThreads(t);
  await (await load(makeModel(1))).close();
  const start = ModelInstance.start({
    script: GRAPH_WORKER,
    workerData: () => undefined,
    channel: { encode: () => undefined, decode: () => undefined },
    onReply: () => undefined,
    onDeath: () => undefined,
  });
  await assert.rejects(start, { name: 'DataCloneError' });
  const good = await load(makeModel(2));
  await assertAdds(good, 2);
  await good.close();
  assert.equal(threads.length, 3);
});

test('as many idle threads are kept as the machine has processors', async (t) => {
  const threads = await recordThreads(t);
  const kept = availableParallelism();
  const loaded = await load(makeModel(1), { instances: kept + 2 });
  const exits = { count: 0 };
  for (const thread of threads) thread.once('exit', () => exits.count++);
  await loaded.close();
  await waitFor('the others end', () => exits.count === 2);
  const next = await load(makeModel(2), { instances: kept });
  await assertAdds(next, 2);
  await next.close();
  assert.equal(threads.length, kept + 2);
});

test('an idle thread ends when it is not used for some time', async () => {
  const threads = new SpareThreads({ spareMax: 1, idleMs: 1 });
  const { worker } = threads.take(GRAPH_WORKER);
  threads.give(GRAPH_WORKER, worker);
  // An idle thread does not keep the process alive.
  worker.ref();
  await once(worker, 'exit');
  const next = threads.take(GRAPH_WORKER);
  assert.equal(next.isUsed, false);
  threads.give(GRAPH_WORKER, next.worker);
  await threads.end();
});

test('a process ends while threads are idle', (t) => {
  const path = join(temporaryFolder(t), 'model.onnx');
  writeFileSync(path, makeModel(1));
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, [PROCESS, path], {
    encoding: 'utf8',
  });
  assert.deepEqual([status, signal, stdout, stderr], [0, null, 'released\n', '']);
});

/** Versions of a toy bundle with different graphs, whose rows the workers look up. */
class ToyVersions {
  readonly #toys: readonly ToyBundle[];
  readonly #repository: Repository;

  private constructor(repository: Repository, toys: readonly ToyBundle[]) {
    this.#repository = repository;
    this.#toys = toys;
  }

  static async publish(t: TestContext, count: number): Promise<ToyVersions> {
    const folder = temporaryFolder(t);
    const repository = openRepository(join(folder, 'repo'), { create: true });
    const toys: ToyBundle[] = [];
    for (let i = 1; i <= count; i++) {
      const toy = new ToyBundle({ version: String(i), seed: i, wide: i % 2 === 0 });
      await repository.publish(toy.publication(join(folder, `layers-${i}`)));
      toys.push(toy);
    }
    return new ToyVersions(repository, toys);
  }

  openStore(): MemoryStore {
    return new MemoryStore({ repository: this.#repository, budgetBytes: 2 ** 28, workers: 2 });
  }

  load(version: number, store: MemoryStore): Promise<LoadedBundle> {
    const source = { repository: this.#repository, bundle: BUNDLE, store, logger };
    return LoadedBundle.load({ ...source, instances: 1 }, String(version));
  }

  async assertScores(bundle: LoadedBundle): Promise<void> {
    const toy = this.#toys[Number(bundle.version) - 1]!;
    for (const count of [1, 64, 100]) {
      const rows = toyRows(count, count);
      const columns = parseTsvRows(toTsv(rows), bundle.features, 1_000);
      const deadlineMs = performance.now() + 60_000;
      const { clickOutput } = await new Predictor().predict(bundle, columns, { deadlineMs });
      rows.forEach((row, i) => {
        const difference = Math.abs(clickOutput[2 * i + 1]! - toy.score(row)[1]);
        assert.ok(difference < 1e-6, `version ${bundle.version}, row ${i}: ${difference}`);
      });
    }
  }
}

test('versions of a bundle use two threads in turn, and look up in their own tables', async (t) => {
  const versions = await ToyVersions.publish(t, 5);
  const threads = await recordThreads(t);
  const store = versions.openStore();
  t.after(() => store.close());
  let active = await versions.load(1, store);
  let started = 0;
  for (let version = 2; version <= 5; version++) {
    const next = await versions.load(version, store);
    await Promise.all([versions.assertScores(active), versions.assertScores(next)]);
    await active.retire();
    await versions.assertScores(next);
    active = next;
    if (version === 2) started = threads.length;
  }
  await active.retire();
  assert.equal(threads.length, started);
});

/** Only memories for tables reserve so many addresses. */
function countTableMemories(): number {
  const ranges = readFileSync('/proc/self/maps', 'utf8').matchAll(/^([0-9a-f]+)-([0-9a-f]+) /gm);
  const sizes = Array.from(ranges, ([, from, to]) => Number(`0x${to}`) - Number(`0x${from}`));
  return sizes.filter((size) => size >= 2 ** 32).length;
}

const isLinux = process.platform === 'linux';

test('idle threads do not keep the tables of closed stores', { skip: !isLinux }, async (t) => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const versions = await ToyVersions.publish(t, 1);
  await recordThreads(t);
  const loadAndClose = async (): Promise<void> => {
    const store = versions.openStore();
    const bundle = await versions.load(1, store);
    await versions.assertScores(bundle);
    await bundle.retire();
    await store.close();
  };
  await loadAndClose();
  collect();
  const before = countTableMemories();
  for (let i = 0; i < 4; i++) await loadAndClose();
  await waitFor('the memories of tables are free', () => {
    collect();
    return countTableMemories() <= before;
  });
});
