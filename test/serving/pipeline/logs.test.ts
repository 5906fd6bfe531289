/** The files of a pipeline: logs with both ids, tracer, Chrome trace. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { CubeError } from '../../../lib/core/errors.ts';
import {
  Op,
  type OpContext,
  type OpValues,
  productError,
  RequestOp,
  ResponseOp,
} from '../../../serving/pipeline/op.ts';
import { PipelineServer } from '../../../serving/pipeline/server.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { servePipeline } from '../support/served-pipeline.ts';

class LoggingOp extends Op {
  override preprocess(inputs: Record<string, OpValues>, { logger }: OpContext) {
    const { x } = inputs['@DAGExecutor'] as { x: number };
    logger.info({ x }, 'seen');
    return x === 2 ? productError(51, 'two is refused') : { x };
  }
}

test('logs have both ids, the tracer sums stages, the trace has a span for each', async (t) => {
  const logFolder = temporaryFolder(t);
  const op = new LoggingOp({ name: 'look', inputs: [new RequestOp()] });
  const server = new PipelineServer(new ResponseOp({ inputs: [op] }), {
    logFolder,
    tracerIntervalMs: 3_600_000,
    useProfile: true,
  });
  await server.start();
  for (const x of [1, 2, 3]) await server.run({ values: { x }, logId: BigInt(100 + x) });
  assert.equal(server.stats.requests, 3);
  assert.equal(server.stats.failures, 1);
  await server.stop();
  const read = (name: string): string => readFileSync(join(logFolder, name), 'utf8');
  const parse = (name: string) =>
    read(name)
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line));
  assert.deepEqual(
    parse('pipeline.log').map(({ data_id, log_id, x }) => [data_id, log_id, x]),
    [
      [0, '101', 1],
      [1, '102', 2],
      [2, '103', 3],
    ],
  );
  const [warning, ...others] = parse('pipeline.log.wf');
  assert.deepEqual(others, []);
  assert.deepEqual([warning.data_id, warning.log_id, warning.err_no], [1, '102', 51]);
  assert.match(read('pipeline.tracer'), /Op\(look\):\n(\t.*\n)+DAGExecutor:\n\tQuery count\[3\]/);
  assert.match(read('pipeline.tracer'), /\tout\[0 ms\]\n\tidle\[.*\]\n\tconcurrency\[1\]\n/);
  assert.match(read('pipeline.tracer'), /Succ\[0\.667\]/);
  const events = JSON.parse(`${read('pipeline.trace.json').trimEnd().slice(0, -1)}]`);
  assert.deepEqual(
    events.map(({ name, tid }: { name: string; tid: string }) => [name, tid]),
    [1, 3].flatMap(() => [
      ['look_prep', 'look/0'],
      ['look_midp', 'look/0'],
      ['look_postp', 'look/0'],
    ]),
  );
  assert.equal(readdirSync(logFolder).length, 4);
});

test('an output that waits for room in a full queue counts as out', async (t) => {
  const logFolder = temporaryFolder(t);
  let open: () => void = () => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  class WaitingOp extends Op {
    override async process(feeds: readonly OpValues[]) {
      await opened;
      return feeds;
    }
  }
  const fast = new Op({ name: 'fast', inputs: [new RequestOp()] });
  const slow = new WaitingOp({ name: 'slow', inputs: [fast] });
  const response = new ResponseOp({ inputs: [slow] });
  const settings = { channelSize: 1, logFolder, useProfile: true };
  const server = new PipelineServer(response, settings);
  await server.start();
  // The first runs, the second is in the queue, the third has no place.
  const answers = [1, 2, 3].map((x) => server.run({ values: { x } }));
  while (server.describe().ops.find(({ name }) => name === 'slow')?.queued !== 2) await nextTurn();
  open();
  const timings = (await Promise.all(answers)).map((answer) => answer.timings[0]);
  for (const timing of timings) assert.equal(timing?.op, 'fast');
  const outMs = timings.map((timing) => (timing?.outMs ?? 0) - (timing?.endMs ?? 0));
  assert.deepEqual(outMs.map(Math.sign), [0, 0, 1]);
  assert.equal(server.stats.ops.get('fast')?.outMs, outMs[2]);
  await server.stop();
  const trace = readFileSync(join(logFolder, 'pipeline.trace.json'), 'utf8');
  assert.equal(trace.match(/"fast_out"/g)?.length, 1);
});

test('config.yml turns the tracer and the trace of a served pipeline on', async (t) => {
  const logFolder = temporaryFolder(t);
  const op = new Op({ name: 'same', inputs: [new RequestOp()] });
  const serving = await servePipeline(
    t,
    { ops: new ResponseOp({ inputs: [op] }) },
    { config: 'dag: {use_profile: true, tracer: {interval_s: 3600}}', logFolder },
  );
  const response = await fetch(`http://${serving.address}/toy/prediction`, {
    method: 'POST',
    body: JSON.stringify({ key: ['x'], value: ['1'] }),
  });
  assert.equal(response.status, 200);
  await serving.stop();
  // What is logged is in the log of serving.
  assert.deepEqual(readdirSync(logFolder).sort(), ['pipeline.trace.json', 'pipeline.tracer']);
  assert.match(readFileSync(join(logFolder, 'pipeline.tracer'), 'utf8'), /Query count\[1\]/);
  assert.match(readFileSync(join(logFolder, 'pipeline.trace.json'), 'utf8'), /"same_midp"/);
});

test('a tracer without a folder is refused', () => {
  const op = new Op({ name: 'a', inputs: [new RequestOp()] });
  assert.throws(
    () => new PipelineServer(new ResponseOp({ inputs: [op] }), { tracerIntervalMs: 1_000 }),
    (error) => error instanceof CubeError && /logFolder/.test(error.message),
  );
});
