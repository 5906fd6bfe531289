/** Ops in worker threads: what crosses the boundary; threads that die, block or cannot start. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { PIPELINE_ERROR } from '../../../proto/pipeline.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import {
  ONE_OP_SERVICE,
  runSteps,
  startThreads,
  type ThreadBehaviour,
  writeService,
} from '../support/thread-pipeline.ts';

const OPS = ['a', 'b', 'c', 'd'] as const;
type Does = Record<(typeof OPS)[number], ThreadBehaviour>;

const behaviour = fc.oneof(
  { weight: 30, arbitrary: fc.constantFrom<ThreadBehaviour>('pass', 'wait', 'skip', 'parts') },
  { weight: 2, arbitrary: fc.constant<ThreadBehaviour>('fail once') },
  {
    weight: 1,
    arbitrary: fc.constantFrom<ThreadBehaviour>('product error', 'throw', 'throw foreign', 'hang'),
  },
);
const does: fc.Arbitrary<Does> = fc.record({
  a: behaviour,
  b: behaviour,
  c: behaviour,
  d: behaviour,
});

/** The value of a request after an op, if no op fails it. */
function evaluate(op: keyof Does, x: number, wanted: Does): number {
  const added = (at: keyof Does): number => (wanted[at] === 'skip' ? 0 : OPS.indexOf(at) + 1);
  if (op === 'a') return x + added('a');
  if (op !== 'd') return evaluate('a', x, wanted) + added(op);
  return evaluate('b', x, wanted) + evaluate('c', x, wanted) + added('d');
}

/** Codes that a request may end with; b and c run at a time. Empty: it succeeds. */
function findCodes(wanted: Does): number[] {
  const codes = OPS.map((op, number) => {
    const all: Partial<Record<ThreadBehaviour, number>> = {
      'product error': 50 + number,
      throw: PIPELINE_ERROR.INPUT_PARAMS_ERROR,
      'throw foreign': PIPELINE_ERROR.UNKNOWN,
      hang: PIPELINE_ERROR.TIMEOUT,
      exit: PIPELINE_ERROR.CLIENT_ERROR,
      crash: PIPELINE_ERROR.CLIENT_ERROR,
      block: PIPELINE_ERROR.TIMEOUT,
    };
    return all[wanted[op]] ?? 0;
  });
  const [a = 0, b = 0, c = 0, d = 0] = codes;
  if (a !== 0) return [a];
  if (b !== 0 || c !== 0) return [b, c].filter((code) => code !== 0);
  return d === 0 ? [] : [d];
}

const OP_SETTINGS = { concurrency: 2, retry: 2, timeoutMs: 500 };
const ops = { a: OP_SETTINGS, b: OP_SETTINGS, c: OP_SETTINGS, d: OP_SETTINGS };

test('requests through worker threads answer as a recursive evaluator does', async (t) => {
  const server = await startThreads(t, writeService(t), { ops, channelSize: 2 });
  const cancelled = fc.array(fc.nat(11), { maxLength: 2 });
  await fc.assert(
    fc.asyncProperty(
      fc.array(does, { minLength: 12, maxLength: 12 }),
      cancelled,
      async (all, stopped) => {
        await Promise.all(
          all.map(async (wanted, x) => {
            const caller = new AbortController();
            const pending = runSteps(server, x, wanted, caller.signal);
            if (stopped.includes(x)) setImmediate(() => caller.abort());
            const { errNo, errMsg, values, logId, timings } = await pending;
            assert.equal(logId, BigInt(x));
            if (stopped.includes(x) && errNo === PIPELINE_ERROR.CLOSED) return;
            const codes = findCodes(wanted);
            if (codes.length > 0) {
              assert.ok(codes.includes(errNo), `${errNo} ${errMsg}, expected ${codes}`);
              return;
            }
            assert.equal(errNo, 0, errMsg);
            assert.equal(values['x'], evaluate('d', x, wanted));
            for (const { readyMs, startMs, processMs, postMs, endMs, outMs } of timings) {
              const times = [0, readyMs, startMs, processMs, postMs, endMs, outMs];
              // Clocks of threads agree to microseconds.
              for (const [i, time] of times.slice(1).entries()) assert.ok(time >= times[i]! - 0.5);
            }
          }),
        );
      },
    ),
    { numRuns: 15 },
  );
  assert.deepEqual(
    server.describe().ops.map(({ restarts }) => restarts),
    [0, 0, 0, 0],
  );
});

test('threads that die or block fail only their requests, and are replaced', async (t) => {
  const server = await startThreads(t, writeService(t), { ops });
  const deaths: readonly ThreadBehaviour[] = ['exit', 'crash', 'block'];
  const answers = await Promise.all(
    Array.from({ length: 60 }, async (_, x) => {
      const death = x % 20 === 0 ? deaths[x / 20] : undefined;
      const { errNo, values } = await runSteps(server, x, death === undefined ? {} : { b: death });
      return { death, errNo, x: values['x'] };
    }),
  );
  for (const [x, answer] of answers.entries()) {
    const { CLIENT_ERROR, TIMEOUT } = PIPELINE_ERROR;
    if (answer.death === undefined)
      assert.deepEqual(answer, { death: undefined, errNo: 0, x: 2 * x + 11 });
    else assert.equal(answer.errNo, answer.death === 'block' ? TIMEOUT : CLIENT_ERROR);
  }
  const countRestarts = () => server.describe().ops.find(({ name }) => name === 'b')?.restarts;
  while (countRestarts() !== deaths.length) await sleep(5);
  const { values } = await runSteps(server, 1);
  assert.equal(values['x'], 13);
});

test('initOp runs in every thread; logs have both ids; cancelling reaches the hooks', async (t) => {
  const logFolder = temporaryFolder(t);
  const server = await startThreads(t, writeService(t), {
    ops: { a: { concurrency: 2 } },
    logFolder,
  });
  const answers = await Promise.all(
    Array.from({ length: 8 }, () => runSteps(server, 5, { log: true })),
  );
  for (const { values } of answers) assert.equal(values['inits'], 1, 'a thread has one op');
  const caller = new AbortController();
  const hanging = runSteps(server, 77, { a: 'hang' }, caller.signal);
  while (server.describe().ops[0]?.running === 0) await sleep(1);
  caller.abort();
  const { errNo, dataId } = await hanging;
  assert.equal(errNo, PIPELINE_ERROR.CLOSED);
  const readLines = (name: string): { msg?: string; data_id?: number; log_id?: string }[] =>
    readFileSync(join(logFolder, name), 'utf8')
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line));
  const aborted = () => readLines('pipeline.log.wf').find(({ msg }) => msg === 'aborted');
  while (aborted() === undefined) await sleep(5);
  assert.deepEqual([aborted()?.data_id, aborted()?.log_id], [dataId, '77']);
  const done = readLines('pipeline.log').filter(({ msg }) => msg === 'done');
  assert.equal(done.length, 8 * 4);
  assert.ok(done.every(({ log_id: logId }) => logId === '5'));
});

test('the client of an op predicts in the thread of the pipeline; arrays move', async (t) => {
  const file = writeService(
    t,
    `
import { threadId } from 'node:worker_threads';
import { CubeError, Op, RequestOp, ResponseOp } from 'hypercube/pipeline';

let kept;
class Rank extends Op {
  async process(feeds, context) {
    const results = await this.client.predict(feeds, context);
    return results.map((result, i) => ({ ...result, fed: feeds[i].x[0], threadId }));
  }
  postprocess(inputs, { y, fed, model, threadId }) {
    const was = kept?.byteLength ?? -1;
    const output = { y, big: new Float32Array(4096).fill(fed), model, threadId, was };
    kept = output.big.buffer;
    return output;
  }
}
const rank = new Rank({ name: 'rank', inputs: [new RequestOp()], retry: 2 });
export default new ResponseOp({ inputs: [rank] });
`,
  );
  let calls = 0;
  const client = {
    async predict(
      feeds: readonly Readonly<Record<string, unknown>>[],
      context: { requests: unknown },
    ) {
      const requests = context.requests as {
        versions: { record(name: string, v: string): void };
      }[];
      if (++calls === 1) throw new Error('not yet');
      for (const { versions } of requests) versions.record('model', '7');
      return feeds.map(({ x }) => ({
        y: (x as Float32Array).map((value) => 2 * value),
        model: calls,
      }));
    },
  };
  const server = await startThreads(t, file, { ops: { rank: { client: client as never } } });
  const x = Float32Array.of(3, 4);
  for (const was of [-1, 0]) {
    const { errNo, errMsg, values, versions } = await server.run({ values: { x: x.subarray(1) } });
    assert.equal(errNo, 0, errMsg);
    assert.deepEqual(values['y'], Float32Array.of(8));
    assert.deepEqual(values['big'], new Float32Array(4096).fill(4));
    assert.deepEqual([values['was'], versions], [was, { model: '7' }]);
    assert.notEqual(values['threadId'], 0);
  }
  assert.deepEqual(x, Float32Array.of(3, 4), "the caller's values are still there");
  const bad = await server.run({ values: { x: () => 1 } });
  assert.equal(bad.errNo, PIPELINE_ERROR.TYPE_ERROR);
  assert.match(bad.errMsg, /op rank: its input cannot be sent between threads/);
});

test('a thread that cannot start ends the start; later, requests fail until one can', async (t) => {
  t.after(() => delete process.env['HYPERCUBE_TEST_INIT']);
  const file = writeService(t, ONE_OP_SERVICE);
  process.env['HYPERCUBE_TEST_INIT'] = 'fail';
  await assert.rejects(startThreads(t, file), /no init/);
  delete process.env['HYPERCUBE_TEST_INIT'];
  const server = await startThreads(t, file);
  process.env['HYPERCUBE_TEST_INIT'] = 'fail';
  await runSteps(server, 1, { a: 'exit' });
  const waiting = await runSteps(server, 2);
  assert.equal(waiting.errNo, PIPELINE_ERROR.CLIENT_ERROR);
  assert.match(waiting.errMsg, /op a: no worker thread can be started \(no init\)/);
  delete process.env['HYPERCUBE_TEST_INIT'];
  while ((await runSteps(server, 2)).errNo !== 0) await sleep(10);
});
