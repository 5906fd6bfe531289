/** The files of a pipeline: logs with both ids, tracer, Chrome trace. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
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

test('a tracer without a folder is refused', () => {
  const op = new Op({ name: 'a', inputs: [new RequestOp()] });
  assert.throws(
    () => new PipelineServer(new ResponseOp({ inputs: [op] }), { tracerIntervalMs: 1_000 }),
    (error) => error instanceof CubeError && /logFolder/.test(error.message),
  );
});
