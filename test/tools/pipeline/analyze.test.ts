/** `pipeline analyze` on the files of tracers. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { analyze } from '../../../tools/pipeline/analysis.ts';
import { readLiveReport } from '../../../tools/pipeline/live-metrics.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runProcess } from '../../support/processes.ts';

const MAIN = 'tools/pipeline/main.js';

/** As pipelines here write it. */
function report(midp: number, queued: number): string {
  return `2026-11-24T14:00:00.000Z ==================== TRACER ======================
Op(bow):
\tin[0.5 ms]
\tprep[1 ms]
\tmidp[${midp} ms]
\tpostp[1 ms]
\tout[0.25 ms]
\tidle[0.2]
\tconcurrency[2]
Op(combine):
\tin[0 ms]
\tprep[0 ms]
\tmidp[1 ms]
\tpostp[0 ms]
\tout[0 ms]
\tidle[0.9]
\tconcurrency[1]
DAGExecutor:
\tQuery count[100]
\tQPS[50 q/s]
\tSucc[0.9]
\tLatency:
\t\tave[12 ms]
\t\t.50[10 ms]
Channel (server worker num[8]):
\tbow(In) size[${queued}/1024]
\tcombine(In) size[3/1024]
`;
}

/** A report without requests, which must not change the means. */
const IDLE = report(0, 1).replace('count[100]', 'count[0]').replace('QPS[50', 'QPS[0');

/** As the original writes it: a time before every line, no out, no concurrency. */
const ORIGINAL = `
2021-03-23 10:28:32,120 ==================== TRACER ======================
2021-03-23 10:28:32,121 Op(cnn):
2021-03-23 10:28:32,121 \tin[2.5 ms]
2021-03-23 10:28:32,121 \tprep[1.5 ms]
2021-03-23 10:28:32,121 \tmidp[8 ms]
2021-03-23 10:28:32,121 \tpostp[0.5 ms]
2021-03-23 10:28:32,121 \tout[0.5 ms]
2021-03-23 10:28:32,121 \tidle[0.3]
2021-03-23 10:28:32,122 DAGExecutor:
2021-03-23 10:28:32,122 \tQuery count[10]
2021-03-23 10:28:32,122 \tQPS[1 q/s]
2021-03-23 10:28:32,122 \tSucc[1.0]
2021-03-23 10:28:32,122 \tLatency:
2021-03-23 10:28:32,122 \t\tave[13 ms]
2021-03-23 10:28:32,122 \t\t.50[13 ms]
2021-03-23 10:28:32,122 Channel (server worker num[1]):
2021-03-23 10:28:32,122 \tchl0(In: ['@DAGExecutor'], Out: ['cnn']) size[0/0]
`;

function write(t: TestContext, text: string): string {
  const file = join(temporaryFolder(t), 'pipeline.tracer');
  writeFileSync(file, text);
  return file;
}

test('the formulas of cost, concurrency, throughput and batches are applied', async (t) => {
  const file = write(t, `a line before\n${report(6, 1)}${IDLE}${report(10, 9)}`);
  const flags = ['analyze', file, '--qps', '400', '--batch-size', '4'];
  const { code, stdout, stderr } = await runProcess(MAIN, ...flags, '--json');
  assert.equal(code, 0, stderr);
  const { ops, queues, ...rest } = JSON.parse(stdout);
  assert.deepEqual(rest, {
    intervals: 3,
    requests: 200,
    qps: 50,
    wantedQps: 400,
    success: 0.9,
    latencyMs: 12,
    batchSize: 4,
    slowest: 'bow',
  });
  assert.deepEqual(ops[0], {
    op: 'bow',
    stageMs: { in: 0.5, prep: 1, midp: 8, postp: 1, out: 0.25 },
    costMs: 10,
    share: 10 / 11,
    concurrency: 2,
    neededConcurrency: 4,
    maxQps: 200,
    batchedCostMs: (4 * 1 + 8 + 1) / 4,
  });
  assert.deepEqual(
    queues.map(({ queue, firstLength, lastLength, isGrowing }: Record<string, unknown>) => [
      queue,
      firstLength,
      lastLength,
      isGrowing,
    ]),
    [
      ['bow', 1, 9, true],
      ['combine', 3, 3, false],
    ],
  );
  const text = await runProcess(MAIN, ...flags);
  assert.match(text.stdout, /^- bow limits the pipeline to 200 requests\/s$/m);
  assert.match(text.stdout, /^- bow: concurrency 4 or more for 400 requests\/s$/m);
  assert.match(text.stdout, /^- bow: more requests arrive than leave/m);
  assert.match(text.stdout, /^- bow: batches of 4 save at most 67\.5 % of its cost/m);
  const last = await runProcess(MAIN, ...flags, '--last', '1', '--json');
  assert.equal(JSON.parse(last.stdout).ops[0].costMs, 12);
});

test('a log of the original is read; a file without requests is refused', async (t) => {
  const original = await runProcess(MAIN, 'analyze', write(t, ORIGINAL), '--json');
  const { ops, queues, qps } = JSON.parse(original.stdout);
  assert.equal(qps, 1);
  assert.deepEqual([ops[0].op, ops[0].costMs, ops[0].maxQps], ['cnn', 10, undefined]);
  assert.equal(queues[0].queue, 'chl0');
  const other = await runProcess(MAIN, 'analyze', write(t, readFileSync('package.json', 'utf8')));
  assert.equal(other.code, 1);
  assert.match(other.stderr, /found 0 reports and no requests/);
  const text = report(6, 1).replace('6 ms', 'x ms');
  const damaged = await runProcess(MAIN, 'analyze', write(t, text));
  assert.equal(damaged.code, 1);
  assert.match(damaged.stderr, /line 5: midp is "x"; expected a number from 0/);
});

test('live metrics of all workers give the analysis of the time between scrapes', async (t) => {
  let scrapes = 0;
  const server = createServer((_request, response) => {
    const n = ++scrapes;
    const lines = [0, 1].flatMap((worker) => [
      `hypercube_pipeline_requests_total{worker="${worker}"} ${50 * n}`,
      `hypercube_pipeline_failures_total{worker="${worker}"} ${5 * n}`,
      `hypercube_pipeline_request_seconds_total{worker="${worker}"} ${0.5 * n}`,
      `hypercube_pipeline_op_requests_total{op="rank",worker="${worker}"} ${50 * n}`,
      `hypercube_pipeline_op_stage_seconds_total{op="rank",stage="midp",worker="${worker}"} ` +
        `${0.2 * n}`,
      `hypercube_pipeline_op_concurrency{op="rank",worker="${worker}"} 2`,
      `hypercube_pipeline_queue_length{op="rank",worker="${worker}"} ${10 * n}`,
      `hypercube_pipeline_queue_capacity{op="rank",worker="${worker}"} 64`,
    ]);
    response.end(`${lines.join('\n')}\n`);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  const reports = await readLiveReport(`http://127.0.0.1:${port}`, 10);
  const { requests, success, latencyMs, ops, queues } = analyze(reports, { batchSize: 8 });
  assert.deepEqual([requests, success, Math.round(latencyMs)], [100, 0.9, 10]);
  assert.equal(ops[0]?.concurrency, 4);
  assert.ok(Math.abs((ops[0]?.costMs ?? 0) - 4) < 1e-6);
  assert.deepEqual(
    queues.map(({ queue, lastLength, capacity, isGrowing }) => [
      queue,
      lastLength,
      capacity,
      isGrowing,
    ]),
    [['rank', 40, 128, true]],
  );
  await assert.rejects(
    readLiveReport('http://127.0.0.1:1', 1),
    /cannot read http:\/\/127\.0\.0\.1:1\/metrics/,
  );
});
