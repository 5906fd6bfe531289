/** Metrics under the names of Triton and Paddle Serving, after real requests. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { createLogger } from '../../lib/platform/logs.ts';
import { completeConfig } from '../../serving/config/serving-config.ts';
import type { ProcessSettings } from '../../serving/config/settings.ts';
import { startServing } from '../../serving/server.ts';
import { runProcess } from '../support/processes.ts';
import { FLOAT, model, node, value } from '../tools/prune-model/support/onnx-builder.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const VERSION_LABELS = 'model,version';
const SUMMARY_LABELS = 'model,quantile,version';
/** Types and labels as Triton and Paddle Serving document them. */
const FACTS: Readonly<Record<string, readonly [type: string, labels: string]>> = {
  nv_inference_request_success: ['counter', VERSION_LABELS],
  nv_inference_request_failure: ['counter', 'model,reason,version'],
  nv_inference_count: ['counter', VERSION_LABELS],
  nv_inference_exec_count: ['counter', VERSION_LABELS],
  nv_inference_pending_request_count: ['gauge', VERSION_LABELS],
  nv_inference_request_duration_us: ['counter', VERSION_LABELS],
  nv_inference_queue_duration_us: ['counter', VERSION_LABELS],
  nv_inference_compute_input_duration_us: ['counter', VERSION_LABELS],
  nv_inference_compute_infer_duration_us: ['counter', VERSION_LABELS],
  nv_inference_compute_output_duration_us: ['counter', VERSION_LABELS],
  nv_inference_request_summary_us: ['summary', SUMMARY_LABELS],
  nv_inference_queue_summary_us: ['summary', SUMMARY_LABELS],
  nv_inference_compute_input_summary_us: ['summary', SUMMARY_LABELS],
  nv_inference_compute_infer_summary_us: ['summary', SUMMARY_LABELS],
  nv_inference_compute_output_summary_us: ['summary', SUMMARY_LABELS],
  nv_cache_hit_summary_us: ['summary', SUMMARY_LABELS],
  nv_cache_miss_summary_us: ['summary', SUMMARY_LABELS],
  nv_cache_num_hits_per_model: ['counter', VERSION_LABELS],
  nv_cache_num_misses_per_model: ['counter', VERSION_LABELS],
  nv_cache_hit_duration_per_model: ['counter', VERSION_LABELS],
  nv_cache_miss_duration_per_model: ['counter', VERSION_LABELS],
  pd_query_request_success_total: ['counter', ''],
  pd_query_request_failure_total: ['counter', ''],
  pd_query_request_duration_us_total: ['counter', ''],
  pd_inference_count_total: ['counter', ''],
  pd_inference_duration_us_total: ['counter', ''],
};

/** The metrics of other servers in a scrape, in the form of `FACTS`. */
function readForeignMetrics(text: string): Record<string, [string, string]> {
  const found: Record<string, [string, string]> = {};
  for (const [, name = '', type = ''] of text.matchAll(/^# TYPE ((?:nv|pd)_\S+) (\S+)$/gm)) {
    const labels = new Set<string>();
    for (const [, list = ''] of text.matchAll(new RegExp(`^${name}(?:{(.*)})? `, 'gm'))) {
      for (const [, label = ''] of list.matchAll(/(\w+)="/g)) labels.add(label);
    }
    found[name] = [type, [...labels].sort().join()];
  }
  return found;
}

/** A toy bundle with a request cache, and a plain model `copy`. */
async function serve(t: TestContext, settings: ProcessSettings): Promise<string> {
  const toys = new ToyRepository(t);
  await toys.publish(new ToyBundle({ version: '1', seed: 3 }));
  await toys.activate('1');
  const copy = join(toys.folder, 'copy.onnx');
  const [inputs, outputs] = ['x', 'y'].map((name) => [value(name, FLOAT, ['batch', 'n'])]);
  const nodes = [node('Identity', ['x'], ['y'])];
  writeFileSync(copy, model({ inputs: inputs!, outputs: outputs!, nodes }));
  const bundle = { repository: toys.location, bundle: BUNDLE, requestCache: 1 << 20 };
  const config = completeConfig({
    port: 0,
    timeoutMs: 60_000,
    ...settings,
    models: [
      { ...bundle, store: 'memory', instances: 1 },
      { model: copy, instances: 1 },
    ],
  });
  const serving = await startServing({ config, logger: createLogger('test', { level: 'silent' }) });
  t.after(() => serving.stop());
  const url = `http://${serving.address}`;
  while (!(await fetch(`${url}/readyz`)).ok) await sleep(20);
  return url;
}

async function predictToy(url: string, body: string): Promise<number> {
  const headers = { 'content-type': 'text/tab-separated-values' };
  const call = { method: 'POST', headers, body };
  const response = await fetch(`${url}/v1/ctr:predict?model=${BUNDLE}`, call);
  await response.text();
  return response.status;
}

async function scrape(url: string): Promise<string> {
  return (await fetch(`${url}/metrics`)).text();
}

test('metrics of Triton and Paddle count requests of bundles and plain models', async (t) => {
  const url = await serve(t, { metricNames: ['triton', 'paddle'] });
  const rows = toTsv(toyRows(5));
  // The second one is answered from the request cache.
  assert.deepEqual([await predictToy(url, rows), await predictToy(url, rows)], [200, 200]);
  assert.equal(await predictToy(url, 'not a row'), 400);
  const inputs = [{ name: 'x', datatype: 'FP32', shape: [2, 1], data: [1, 2] }];
  const call = { method: 'POST', body: JSON.stringify({ inputs }) };
  assert.equal((await fetch(`${url}/v2/models/copy/infer`, call)).status, 200);
  const text = await scrape(url);
  assert.deepEqual(readForeignMetrics(text), FACTS);
  const readValue = (series: string): number => {
    const line = text.split('\n').find((one) => one.startsWith(`${series} `));
    assert.ok(line !== undefined, `${series}\n${text}`);
    return Number(line.slice(series.length));
  };
  const labels = { toy: `{model="${BUNDLE}",version="1"}`, copy: '{model="copy",version="1"}' };
  const counts = (of: string): number[] =>
    ['request_success', 'count', 'exec_count', 'request_summary_us_count']
      .concat('compute_infer_summary_us_count', 'pending_request_count')
      .map((name) => readValue(`nv_inference_${name}${of}`));
  assert.deepEqual(counts(labels.toy), [2, 10, 1, 2, 1, 0]);
  assert.deepEqual(counts(labels.copy), [1, 2, 1, 1, 1, 0]);
  assert.equal(readValue(`nv_cache_num_hits_per_model${labels.toy}`), 1);
  assert.equal(readValue(`nv_cache_num_misses_per_model${labels.toy}`), 1);
  const timed = ['cache_hit_duration_per_model', 'inference_request_duration_us'];
  for (const name of [...timed, 'inference_compute_output_duration_us']) {
    assert.ok(readValue(`nv_${name}${labels.toy}`) > 0, name);
  }
  for (const kind of ['hit', 'miss']) {
    assert.equal(readValue(`nv_cache_${kind}_summary_us_count${labels.toy}`), 1, kind);
  }
  assert.ok(readValue(`nv_inference_compute_output_duration_us${labels.copy}`) > 0);
  const names = ['query_request_success', 'query_request_failure', 'inference_count'];
  assert.deepEqual(
    names.map((name) => readValue(`pd_${name}_total`)),
    [3, 1, 2],
  );
  assert.ok(readValue('pd_query_request_duration_us_total') > 0);
  assert.ok(readValue('pd_inference_duration_us_total') > 0);
});

test('a process exports only its own names by default, and refuses unknown ones', async (t) => {
  const url = await serve(t, {});
  const text = await scrape(url);
  assert.deepEqual(readForeignMetrics(text), {});
  assert.match(text, /^# TYPE hypercube_engine_requests_total counter$/m);
  const flags = ['--model', 'none.onnx', '--metric-names', 'triton,tensorflow'];
  const { code, stderr } = await runProcess('serving/main.js', ...flags);
  assert.notEqual(code, 0);
  assert.match(stderr, /metric-names.*expected one of triton, paddle.*tensorflow/s);
});
