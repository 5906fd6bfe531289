/**
 * The queue policies of Triton's dynamic batching: timeouts, limits, priorities and the order of
 * answers; and the offered load. The tests decide when a batch ends and what time it is.
 */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { createLogger } from '../../../lib/platform/logs.ts';
import { Batcher, type BatchRunner } from '../../../serving/engine/batcher.ts';
import { DeclaredGraph } from '../../../serving/engine/declared-graph.ts';
import { DEFAULT_BATCHING, type QueuePolicy } from '../../../serving/engine/engine-options.ts';
import { EngineStats } from '../../../serving/engine/engine-stats.ts';
import { LoadedGraph } from '../../../serving/engine/loaded-graph.ts';
import type { PredictOptions } from '../../../serving/engine/prediction.ts';
import {
  type Batch,
  type BatchScheduler,
  QueuedRequest,
  type QueueEntry,
} from '../../../serving/engine/queued-request.ts';
import type { Scheduling } from '../../../serving/engine/tensor-model.ts';
import { FLOAT, model, node, value } from '../../tools/prune-model/support/onnx-builder.ts';
import { assertRejected, nextTurn } from './support/engine-fixture.ts';

class NamedRequest extends QueuedRequest {
  readonly name: string;

  constructor(name: string, entry: QueueEntry) {
    super(1, entry);
    this.name = name;
  }
}

// The scheduler's timers do not keep a process alive.
const keepAlive = setInterval(() => undefined, 1_000);
after(() => clearInterval(keepAlive));

/** One instance with batches of one row, each of which runs until `finishBatch`. */
class ManualEngine implements BatchRunner<string, NamedRequest> {
  /** Names of requests, in the order in which they ran. */
  readonly ran: string[] = [];
  nowMs = 0;
  readonly #running: (() => void)[] = [];
  readonly #batcher: Batcher<string, NamedRequest>;

  constructor(policies: readonly QueuePolicy[]) {
    this.#batcher = new Batcher({
      runner: this,
      pool: { aliveInstances: 1, onInstanceAdded: () => undefined },
      batching: {
        ...DEFAULT_BATCHING,
        maxBatch: 1,
        maxQueueDelayMicros: 0,
        priorityLevels: policies.length,
        queuePolicies: policies,
      },
      stats: new EngineStats(1),
      clock: { ...DEFAULT_CLOCK, nowMs: () => this.nowMs },
      waitsForLookups: false,
    });
  }

  createRequest(name: string, entry: QueueEntry): NamedRequest {
    return new NamedRequest(name, entry);
  }

  runBatch(batch: Batch<NamedRequest>, scheduler: BatchScheduler<NamedRequest>): Promise<void> {
    return new Promise((resolve) => {
      this.#running.push(() => {
        for (const { request, rowCount } of batch.slices) {
          this.ran.push(request.name);
          if (request.finishSlice(rowCount)) scheduler.complete(request);
        }
        resolve();
      });
    });
  }

  recordOutcome(): void {}

  send(name: string, options: Partial<PredictOptions> = {}): Promise<unknown> {
    const done = this.#batcher.submit(name, { deadlineMs: 1e9, ...options }, () => undefined);
    done.catch(() => undefined);
    return done;
  }

  recordOffer(): number {
    return this.#batcher.recordOffer();
  }

  /** Sends two requests that occupy the instance. */
  async occupy(): Promise<void> {
    for (const name of ['running', 'ready']) void this.send(name, { priority: 0 });
    await nextTurn();
  }

  /** @param runMs the time that each request takes */
  async finishAll(runMs = 0): Promise<string[]> {
    for (;;) {
      const finish = this.#running.shift();
      if (finish === undefined) return this.ran.filter((name) => !OCCUPYING.includes(name));
      this.nowMs += runMs;
      finish();
      await nextTurn();
    }
  }
}

const OCCUPYING = ['running', 'ready'];
const DEFAULT_CLOCK = {
  isoTime: () => '',
  sleep: () => Promise.resolve(),
};

function policy(options: Partial<QueuePolicy> = {}): QueuePolicy {
  const byDefault = { timeoutAction: 'reject', timeoutMs: 0, allowsShorterTimeout: false } as const;
  return { ...byDefault, requestsMax: 0, ...options };
}

test('the offered load counts every request, and fades', async () => {
  const engine = new ManualEngine([policy()]);
  assert.equal(engine.recordOffer(), 0, 'no rate is known');
  for (let i = 0; i < 100; i++) void engine.send(`${i}`);
  await nextTurn();
  // 200 rows a second; offered requests count for half a second.
  await engine.finishAll(5);
  assert.ok(Math.abs(engine.recordOffer() - 0.01) < 1e-6, 'one request');
  let load = 0;
  for (let i = 1; i < 150; i++) load = engine.recordOffer();
  assert.ok(Math.abs(load - 1.5) < 1e-6, `${load} for 150 requests`);
  engine.nowMs += 10_000;
  assert.ok(engine.recordOffer() < 0.011, 'the others were long ago');
});

test('default_timeout_microseconds with REJECT fails requests that waited longer', async () => {
  const engine = new ManualEngine([policy({ timeoutMs: 10 })]);
  await engine.occupy();
  const early = engine.send('early');
  engine.nowMs = 5;
  const late = engine.send('late');
  engine.nowMs = 11;
  await assertRejected(early, 'OVERLOADED', /waited 10 ms for a model instance/);
  assert.deepEqual(await engine.finishAll(), ['late']);
  await late;
});

test('timeout_action DELAY runs requests that waited longer after the others', async () => {
  const engine = new ManualEngine([policy({ timeoutMs: 10, timeoutAction: 'delay' }), policy()]);
  await engine.occupy();
  for (const name of ['a', 'b']) void engine.send(name, { priority: 0 });
  void engine.send('low', { priority: 1 });
  engine.nowMs = 15;
  for (const name of ['c', 'd']) void engine.send(name, { priority: 0 });
  assert.deepEqual(await engine.finishAll(), ['c', 'd', 'a', 'b', 'low']);
});

test('allow_timeout_override lets a request shorten the timeout, but not lengthen it', async () => {
  for (const allowsShorterTimeout of [true, false]) {
    const engine = new ManualEngine([policy({ timeoutMs: 10, allowsShorterTimeout })]);
    await engine.occupy();
    const short = engine.send('short', { queueTimeoutMs: 2 });
    const long = engine.send('long', { queueTimeoutMs: 60 });
    engine.nowMs = 5;
    if (allowsShorterTimeout) await assertRejected(short, 'OVERLOADED', /waited 2 ms/);
    engine.nowMs = 10;
    await assertRejected(long, 'OVERLOADED', /waited 10 ms/);
    await assertRejected(short, 'OVERLOADED', allowsShorterTimeout ? /2 ms/ : /10 ms/);
    assert.deepEqual(await engine.finishAll(), []);
  }
});

test('max_queue_size counts waiting requests of a level', async () => {
  const engine = new ManualEngine([policy({ requestsMax: 2 }), policy({ requestsMax: 1 })]);
  await engine.occupy();
  void engine.send('a', { priority: 0 });
  const cancel = { aborted: false };
  const leaving = engine.send('b', { priority: 0, signal: cancel });
  await assertRejected(
    engine.send('c', { priority: 0 }),
    'OVERLOADED',
    /2 requests of this priority wait/,
  );
  void engine.send('low', { priority: 1 });
  await assertRejected(engine.send('low 2', { priority: 1 }), 'OVERLOADED', /1 requests/);
  cancel.aborted = true;
  await assertRejected(leaving, 'DEADLINE_EXCEEDED', /cancelled/);
  void engine.send('d', { priority: 0 });
  assert.deepEqual(await engine.finishAll(), ['a', 'd', 'low']);
  // An idle instance takes requests at once, so that these do not wait.
  for (const name of ['e', 'f']) void engine.send(name, { priority: 1 });
  assert.deepEqual((await engine.finishAll()).slice(3), ['e', 'f']);
});

test('with policies a higher priority goes first however long the others wait', async () => {
  const engine = new ManualEngine([policy(), policy(), policy()]);
  await engine.occupy();
  void engine.send('low', { priority: 2 });
  void engine.send('middle', { priority: 1 });
  engine.nowMs = 100_000;
  void engine.send('high', { priority: 0 });
  assert.deepEqual(await engine.finishAll(), ['high', 'middle', 'low']);
});

/** y [n, s, s] = x [n, s, 64] times itself transposed: its time grows with s². */
const SQUARES = model({
  inputs: [value('x', FLOAT, ['n', 's', 64])],
  outputs: [value('y', FLOAT, ['n', 's', 's'])],
  nodes: [
    node('Transpose', ['x'], ['t'], { attributes: { perm: [0, 2, 1] } }),
    node('MatMul', ['x', 't'], ['y']),
  ],
});

const SCHEDULING: Scheduling = {
  priorityLevels: 2,
  defaultPriorityLevel: 2,
  preserveOrdering: true,
  hasQueuePolicy: true,
};

test('answers keep the order of the batches; unknown levels are the default one', async (t) => {
  const graph = await LoadedGraph.load({
    name: 'm',
    version: '1',
    model: SQUARES,
    instances: 2,
    batching: { ...DEFAULT_BATCHING, maxBatch: 4, priorityLevels: 2 },
    logger: createLogger('test', { level: 'silent' }),
  });
  t.after(() => graph.close());
  const declared = new DeclaredGraph(graph, {
    signature: graph.signature,
    reshapes: new Map(),
    labels: new Map(),
    defaults: new Map(),
    scheduling: SCHEDULING,
  });
  const answered: string[] = [];
  const send = async (name: string, size: number, priority?: number): Promise<void> => {
    const x = {
      name: 'x',
      dataType: 'FP32',
      shape: [1, size, 64],
      data: new Uint8Array(256 * size),
    } as const;
    const options = { deadlineMs: performance.now() + 60_000 };
    await declared.predict(
      { inputs: [x], outputs: [] },
      priority === undefined ? options : { ...options, priority },
    );
    answered.push(name);
  };
  const requests = [send('slow', 1500), send('fast', 1), send('unknown level', 2, 9)];
  requests.push(send('urgent', 3, 0));
  await Promise.all(requests);
  assert.deepEqual(answered, ['urgent', 'slow', 'fast', 'unknown level']);
});
