/** The metrics of a pipeline, after real requests. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MetricsRegistry } from '../../../lib/platform/metrics.ts';
import { Op, productError, RequestOp, ResponseOp } from '../../../serving/pipeline/op.ts';
import { registerPipelineMetrics } from '../../../serving/pipeline/pipeline-metrics.ts';
import { PipelineServer } from '../../../serving/pipeline/server.ts';

test('metrics count requests, failures, ops and their stages', async () => {
  class PickyOp extends Op {
    override postprocess(_inputs: object, values: { readonly x?: unknown }) {
      return values.x === 2 ? productError(50, 'two') : {};
    }
  }
  const first = new Op({ name: 'first', inputs: [new RequestOp()] });
  const second = new PickyOp({ name: 'second', inputs: [first] });
  const server = new PipelineServer(new ResponseOp({ inputs: [second] }));
  await server.start();
  const registry = new MetricsRegistry(false);
  registerPipelineMetrics(registry, server);
  for (const x of [1, 2, 3]) await server.run({ values: { x } });
  const text = await registry.metricsText();
  const find = (series: string): string | undefined =>
    text.split('\n').find((line) => line.startsWith(`${series} `));
  assert.equal(find('hypercube_pipeline_requests_total'), 'hypercube_pipeline_requests_total 3');
  assert.match(find('hypercube_pipeline_failures_total') ?? '', / 1$/);
  assert.match(find('hypercube_pipeline_op_requests_total{op="first"}') ?? '', / 3$/);
  assert.match(find('hypercube_pipeline_op_requests_total{op="second"}') ?? '', / 2$/);
  assert.match(find('hypercube_pipeline_requests_in_progress') ?? '', / 0$/);
  assert.match(find('hypercube_pipeline_op_concurrency{op="first"}') ?? '', / 1$/);
  assert.match(find('hypercube_pipeline_queue_capacity{op="first"}') ?? '', / 1024$/);
  for (const stage of ['in', 'prep', 'midp', 'postp']) {
    const series = `hypercube_pipeline_op_stage_seconds_total{op="first",stage="${stage}"}`;
    assert.ok(Number(find(series)?.split(' ')[1]) >= 0, series);
  }
  await server.stop();
});
