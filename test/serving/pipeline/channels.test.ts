/** Slots, full channels, first arrivals, repeated requests, and the end of a pipeline. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { PIPELINE_ERROR } from '../../../proto/pipeline.ts';
import {
  type AnyOp,
  Op,
  type OpContext,
  type OpInputs,
  type OpValues,
  type ProcessContext,
  RequestOp,
  ResponseOp,
} from '../../../serving/pipeline/op.ts';
import { PipelineServer } from '../../../serving/pipeline/server.ts';
import type { PipelineSettings } from '../../../serving/pipeline/settings.ts';

/** Waits without a limit: the test runner has one. */
async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await nextTurn();
}

/** Its process ends when the test says so, whatever its signal says. */
class GatedOp extends Op {
  readonly waiting: (() => void)[] = [];
  started = 0;

  constructor(name: string, inputs: readonly AnyOp[], timeoutMs = -1) {
    super({ name, inputs, timeoutMs });
  }

  override process(feeds: readonly OpValues[]): Promise<readonly OpValues[]> {
    this.started++;
    return new Promise((resolve) => this.waiting.push(() => resolve(feeds)));
  }

  open(): void {
    this.waiting.shift()?.();
  }
}

async function serve(last: Op, settings: PipelineSettings = {}): Promise<PipelineServer> {
  const server = new PipelineServer(new ResponseOp({ inputs: [last] }), settings);
  await server.start();
  return server;
}

test('a process that ignores its timeout keeps its slot until it ends', async () => {
  // The second request must end within it, also on a busy machine.
  const op = new GatedOp('slow', [new RequestOp()], 1_000);
  const server = await serve(op);
  assert.equal((await server.run({ values: {} })).errNo, PIPELINE_ERROR.TIMEOUT);
  const second = server.run({ values: { second: true } });
  await nextTurn();
  assert.equal(op.started, 1, 'the slot is occupied');
  op.open();
  await until(() => op.started === 2);
  op.open();
  assert.deepEqual((await second).values, { second: true });
  await server.stop();
});

test('a full channel keeps its predecessor from starting more', async () => {
  class FastOp extends Op {
    count = 0;

    override process(feeds: readonly OpValues[]) {
      this.count++;
      return feeds;
    }
  }
  const fast = new FastOp({ name: 'fast', inputs: [new RequestOp()] });
  const slow = new GatedOp('slow', [fast]);
  const server = await serve(slow, { channelSize: 2 });
  const answers = Array.from({ length: 10 }, (_, x) => server.run({ values: { x } }));
  await nextTurn();
  // One in process, two in the channel, and one that its predecessor holds.
  assert.equal(slow.started, 1);
  assert.equal(fast.count, 4);
  for (let x = 0; x < 10; x++) {
    await until(() => slow.waiting.length > 0);
    slow.open();
  }
  for (const [x, answer] of answers.entries()) assert.deepEqual((await answer).values, { x });
  await server.stop();
});

test('requests that end leave a full channel to others', async () => {
  const slow = new GatedOp('slow', [new RequestOp()]);
  const server = await serve(slow, { channelSize: 1 });
  const caller = new AbortController();
  const first = server.run({ values: { first: true } });
  const cancelled = Array.from({ length: 5 }, () =>
    server.run({ values: {} }, { signal: caller.signal }),
  );
  const last = server.run({ values: { last: true } });
  await nextTurn();
  caller.abort();
  for (const answer of cancelled) assert.equal((await answer).errNo, PIPELINE_ERROR.CLOSED);
  slow.open();
  assert.deepEqual((await first).values, { first: true });
  await until(() => slow.started === 2);
  slow.open();
  assert.deepEqual((await last).values, { last: true });
  await server.stop();
});

test('with first arrival, an op starts with the first output and drops later ones', async () => {
  const request = new RequestOp();
  const late = new GatedOp('late', [request]);
  const early = new Op({ name: 'early', inputs: [request] });
  class CountOp extends Op {
    seen: string[][] = [];

    override preprocess(inputs: OpInputs): OpValues {
      this.seen.push(Object.keys(inputs));
      return {};
    }
  }
  const join = new CountOp({ name: 'join', inputs: [late, early] });
  const server = await serve(join, { firstArrival: true });
  assert.equal((await server.run({ values: {} })).errNo, 0);
  late.open();
  await server.stop();
  assert.deepEqual(join.seen, [['early']]);
});

test('a request is tried again after a timeout only, within its deadline', async () => {
  class FlakyOp extends Op {
    tries = 0;
    override async process(feeds: readonly OpValues[], { signal }: OpContext) {
      this.tries++;
      if (this.tries % 3 === 0) return feeds;
      await new Promise((_resolve, reject) => {
        signal.addEventListener('abort', () => reject(signal.reason));
      });
      return feeds;
    }
  }
  const flaky = new FlakyOp({ name: 'flaky', inputs: [new RequestOp()], timeoutMs: 1 });
  const server = await serve(flaky, { retry: 3 });
  const answer = await server.run({ values: { x: 1 } });
  assert.deepEqual([answer.errNo, answer.values, flaky.tries], [0, { x: 1 }, 3]);
  await server.stop();
  const patient = new FlakyOp({ name: 'patient', inputs: [new RequestOp()] });
  const second = await serve(patient, { retry: 3 });
  const late = await second.run({ values: {} }, { timeoutMs: 1 });
  assert.deepEqual([late.errNo, patient.tries], [PIPELINE_ERROR.TIMEOUT, 1]);
  await second.stop();
});

test('stop answers the running requests, or ends them after the drain timeout', async () => {
  const slow = new GatedOp('slow', [new RequestOp()]);
  const server = await serve(slow);
  const running = server.run({ values: { x: 1 } });
  const stopped = server.stop();
  assert.equal((await server.run({ values: {} })).errNo, PIPELINE_ERROR.CLOSED);
  slow.open();
  assert.deepEqual((await running).values, { x: 1 });
  await stopped;

  const stuck = new GatedOp('stuck', [new RequestOp()]);
  const second = await serve(stuck);
  const lost = second.run({ values: {} });
  const end = second.stop({ drainTimeoutMs: 1 });
  assert.equal((await lost).errNo, PIPELINE_ERROR.CLOSED);
  stuck.open();
  await end;
});

/** Records the feeds of each call of `process`. */
class BatchOp extends Op {
  readonly calls: { x: unknown[]; dataIds: number[]; logIds: bigint[] }[] = [];

  override process(feeds: readonly OpValues[], { requests }: ProcessContext) {
    this.calls.push({
      x: feeds.map(({ x }) => x),
      dataIds: requests.map(({ dataId }) => dataId),
      logIds: requests.map(({ logId }) => logId),
    });
    return feeds.map(({ x }) => ({ y: x }));
  }
}

test('requests with feeds of equal shapes share a call of process', async () => {
  const op = new BatchOp({
    name: 'batch',
    inputs: [new RequestOp()],
    batchSize: 4,
    autoBatchingTimeoutMs: 60_000,
  });
  const server = await serve(op);
  const xs = [Float32Array.of(1, 2), Float32Array.of(3, 4), Float32Array.of(5), 'text'];
  const answers = xs.map((x, index) => server.run({ values: { x }, logId: BigInt(index) }));
  for (const [index, answer] of answers.entries()) {
    assert.deepEqual((await answer).values, { y: xs[index] });
  }
  assert.deepEqual(
    op.calls.map(({ x }) => x.length),
    [2, 1, 1],
  );
  assert.deepEqual(op.calls[0]?.logIds, [0n, 1n]);
  await server.stop();
});

test('an incomplete batch runs after the timeout, also without a setting', async () => {
  const op = new BatchOp({ name: 'batch', inputs: [new RequestOp()], batchSize: 4 });
  const server = await serve(op);
  const answers = await Promise.all([1, 2, 3].map((x) => server.run({ values: { x } })));
  assert.deepEqual(
    answers.map(({ values }) => values['y']),
    [1, 2, 3],
  );
  // One batch of three, or two where the machine was busy for longer than the timeout.
  assert.deepEqual(
    op.calls.flatMap(({ dataIds }) => dataIds),
    [0, 1, 2],
  );
  await server.stop();
});
