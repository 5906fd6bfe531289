/**
 * Load on a real serving process: schedules, stops and deaths in the middle, version switches,
 * matrix and comparison.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { LatencyHistogram } from '../../../tools/ctr-client/load/latency-histogram.ts';
import { LoadGenerator } from '../../../tools/ctr-client/load/load-generator.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import type { ServingProcess } from '../../serving/support/serving-process.ts';
import { ToyBundle, toTsv, toyRows } from '../../serving/support/toy-bundle.ts';
import { startLocal, type ToyRepository } from '../../serving/support/toy-service.ts';
import { ctrClient, startClient, startProxy } from './client-process.ts';
import { assertScores } from './scores.ts';

// biome-ignore lint/suspicious/noExplicitAny: a report, looked at by the tests
type Json = any;

interface Service {
  readonly toys: ToyRepository;
  readonly serving: ServingProcess;
  /** `--rows` and a file of 200 labelled rows. */
  readonly rows: readonly string[];
  readonly folder: string;
}

async function startService(
  t: TestContext,
  versions: readonly ToyBundle[],
  isProcess = false,
): Promise<Service> {
  const started = await startLocal(t, versions, [], isProcess);
  const folder = temporaryFolder(t);
  const rows = toyRows(200);
  const file = join(folder, 'rows.tsv');
  writeFileSync(
    file,
    toTsv(
      rows,
      rows.map((_, i) => (i % 4 === 0 ? 1 : 0)),
    ),
  );
  return { ...started, folder, rows: ['--rows', file] };
}

async function stalledServer(t: TestContext, { serving, rows }: Service): Promise<void> {
  const stallMs = 700;
  const run = async (...pace: string[]): Promise<Json> => {
    const proxy = await startProxy(t, serving.url, async (prediction) => {
      if (prediction === 10) await sleep(stallMs);
    });
    const flags = [...rows, '--endpoint', proxy, '--batch', '2', '--concurrency', '1', '--json'];
    return JSON.parse((await ctrClient(...flags, ...pace)).stdout);
  };
  const closed = await run();
  const open = await run('--rps', '100');
  assert.deepEqual([closed.requests, open.requests], [100, 100]);
  assert.equal(closed.generator.waited, 0);
  assert.ok(open.generator.waited > 10);
  // One request stalls in both. One after another, latencies add up to no more than the run took;
  // due all the same, those of the seventy that wait add up to many stalls, however fast the
  // machine is.
  const sumMs = ({ latencyMs, requests }: Json): number => latencyMs.avg * requests;
  assert.ok(sumMs(closed) <= closed.seconds * 1_000);
  assert.ok(sumMs(open) > 10 * stallMs, JSON.stringify(open.latencyMs));
}

async function unsentRequests(t: TestContext, { serving, rows }: Service): Promise<void> {
  const proxy = await startProxy(t, serving.url, () => sleep(100));
  const pace = ['--batch', '1', '--concurrency', '2', '--rps', '200', '--duration', '1'];
  const { stdout } = await ctrClient(...rows, '--endpoint', proxy, ...pace);
  assert.match(stdout, /requests were due while all 2 connections were busy/);
  assert.match(stdout, /more requests were due but not sent before the end/);
}

test('distinguishes its own lateness from that of the server', async () => {
  const work = async (): Promise<boolean> => {
    const end = performance.now() + 10;
    while (performance.now() < end);
    await sleep(0);
    return true;
  };
  const { signal } = new AbortController();
  const busy = await new LoadGenerator({ concurrency: 50, rps: 1_000 }, 60, work, signal).run();
  assert.ok(busy.late > 10);
  assert.ok(busy.busyShare > 0.5);
});

test('sends batches in order, each once or repeatedly until the time is over', async () => {
  const sent: number[] = [];
  const work = async (batch: number): Promise<boolean> => {
    sent.push(batch);
    await sleep(1);
    return true;
  };
  const { signal } = new AbortController();
  await new LoadGenerator({ concurrency: 3 }, 7, work, signal).run();
  assert.deepEqual(
    sent.toSorted((a, b) => a - b),
    [0, 1, 2, 3, 4, 5, 6],
  );
  sent.length = 0;
  await new LoadGenerator({ concurrency: 2, durationMs: 200 }, 3, work, signal).run();
  assert.ok(sent.length > 3);
  assert.ok(sent.every((batch, i) => batch === i % 3));
});

async function interruption(t: TestContext, service: Service): Promise<void> {
  const { serving, rows, folder } = service;
  let arrived = (): void => undefined;
  const busy = new Promise<void>((resolve) => {
    arrived = resolve;
  });
  // The last requests are never answered.
  const proxy = await startProxy(t, serving.url, (prediction) => {
    if (prediction < 20) return Promise.resolve();
    arrived();
    return new Promise(() => undefined);
  });
  const output = join(folder, 'scores.tsv');
  const flags = [...rows, '--endpoint', proxy, '--batch', '5', '--concurrency', '1'];
  const { child, done } = startClient([...flags, '--output', output]);
  await busy;
  child.kill('SIGINT');
  const { exit, stdout, stderr } = await done;
  assert.equal(exit, 130, stderr);
  assert.match(stdout, /rows +100 of 200 predicted/);
  assert.match(stdout, /interrupted: figures up to then/);
  assert.ok(!existsSync(output));
}

async function sharedRun(_t: TestContext, { serving, rows, folder }: Service): Promise<void> {
  const run = async (workers: string): Promise<{ report: Json; scores: string }> => {
    const output = join(folder, `scores-${workers}.tsv`);
    const flags = [...rows, '--endpoint', serving.url, '--batch', '3', '--concurrency', '4'];
    const more = ['--workers', workers, '--output', output, '--json'];
    const { exit, stdout, stderr } = await ctrClient(...flags, ...more);
    assert.equal(exit, 0, stderr);
    return { report: JSON.parse(stdout), scores: readFileSync(output, 'utf8') };
  };
  const one = await run('1');
  const three = await run('3');
  assert.equal(three.scores, one.scores);
  assert.equal(three.report.versions[1].requests, 67);
  const names = ['requests', 'rowsPredicted', 'concurrency', 'auc', 'logloss', 'unseen', 'failed'];
  for (const name of names) assert.equal(three.report[name], one.report[name], name);
  const { p50, p999, max } = three.report.latencyMs;
  assert.ok(p50 > 0 && p50 <= p999 && p999 <= max);
}

async function sharedSchedules(_t: TestContext, { serving, rows }: Service): Promise<void> {
  const common = [...rows, '--endpoint', serving.url, '--workers', '2'];
  const pace = ['--batch', '10', '--rps', '50', '--duration', '1', '--concurrency', '8'];
  const open = await ctrClient(...common, ...pace, '--json');
  assert.equal(open.exit, 0, open.stderr);
  const { requests, rps, generator } = JSON.parse(open.stdout);
  assert.deepEqual([requests + generator.unsent, rps], [50, 50]);
  const axes = ['--matrix', 'batch=10,50', 'concurrency=2,3', '--json'];
  const { exit, stdout, stderr } = await ctrClient(...common, ...axes);
  assert.equal(exit, 0, stderr);
  assert.deepEqual(
    JSON.parse(stdout).cells.map((cell: Json) => [cell.concurrency, cell.requests]),
    [
      [2, 20],
      [3, 20],
      [2, 4],
      [3, 4],
    ],
  );
  const text = readFileSync(rows[1] ?? '', 'utf8');
  const piped = ['--rows', '-', ...common.slice(2), '--batch', '10', '--json'];
  const fromInput = await startClient(piped, text).done;
  assert.equal(fromInput.exit, 0, fromInput.stderr);
  assert.equal(JSON.parse(fromInput.stdout).rowsPredicted, 200);
  const few = await ctrClient(...common, '--batch', '200');
  assert.equal(few.exit, 1);
  assert.match(few.stderr, /--workers 2 needs at least 2 requests; lower --batch or --workers/);
  const narrow = await ctrClient(...common, '--concurrency', '1');
  assert.match(narrow.stderr, /--workers 2 needs a concurrency of at least 2, got 1/);
}

async function sharedInterruption(t: TestContext, { serving, rows }: Service): Promise<void> {
  let arrived = (): void => undefined;
  const busy = new Promise<void>((resolve) => {
    arrived = resolve;
  });
  const proxy = await startProxy(t, serving.url, (prediction) => {
    if (prediction < 20) return Promise.resolve();
    // Both threads wait.
    if (prediction === 21) arrived();
    return new Promise(() => undefined);
  });
  const flags = [...rows, '--endpoint', proxy, '--batch', '5', '--concurrency', '2'];
  const { child, done } = startClient([...flags, '--workers', '2']);
  await busy;
  child.kill('SIGINT');
  const { exit, stdout, stderr } = await done;
  assert.equal(exit, 130, stderr);
  assert.match(stdout, /rows +100 of 200 predicted/);
  assert.match(stdout, /interrupted: figures up to then/);
}

test('merges histograms into the one of all their values', () => {
  const latencies = fc.array(fc.double({ min: 0, max: 1e6, noNaN: true }));
  fc.assert(
    fc.property(fc.array(latencies), (parts) => {
      const merged = new LatencyHistogram();
      const whole = new LatencyHistogram();
      for (const part of parts) {
        const own = new LatencyHistogram();
        for (const ms of part) own.add(ms);
        for (const ms of part) whole.add(ms);
        merged.absorb(own.export());
      }
      assert.equal(merged.count, whole.count);
      const { avg, ...percentiles } = merged.summary();
      const { avg: expected, ...others } = whole.summary();
      assert.deepEqual(percentiles, others);
      assert.ok(Math.abs(avg - expected) <= 1e-9 * expected);
    }),
  );
});

const ON_ONE_SERVICE: [string, (t: TestContext, service: Service) => Promise<void>][] = [
  ['charges a server that stalls for all requests that were due meanwhile', stalledServer],
  ['reports requests that were due and never sent', unsentRequests],
  ['prints the figures so far when interrupted, and writes no scores', interruption],
  ['sends each row once from several threads and merges what they measured', sharedRun],
  ['repeats the rows at a fixed rate from several threads, also in a matrix', sharedSchedules],
  ['stops all threads when interrupted, and prints the figures so far', sharedInterruption],
  ['writes the scores there are when failures are allowed', allowedFailures],
  ['measures a matrix of batch sizes and concurrencies, and draws it', matrix],
];

test('drives a serving process', async (t) => {
  const service = await startService(t, [new ToyBundle({ version: '1', seed: 9 })]);
  for (const [name, run] of ON_ONE_SERVICE) await t.test(name, (inner) => run(inner, service));
});

test('counts requests that a dying server leaves unanswered', async (t) => {
  const { serving, rows, folder } = await startService(
    t,
    [new ToyBundle({ version: '1', seed: 9 })],
    true,
  );
  const proxy = await startProxy(t, serving.url, async (prediction) => {
    if (prediction !== 20) return;
    serving.child.kill('SIGKILL');
    await new Promise((resolve) => serving.child.once('exit', resolve));
  });
  const output = join(folder, 'scores.tsv');
  const flags = [...rows, '--endpoint', proxy, '--batch', '5', '--concurrency', '1'];
  const { exit, stdout, stderr } = await ctrClient(...flags, '--output', output, '--json');
  assert.equal(exit, 1);
  const report = JSON.parse(stdout);
  assert.deepEqual([report.rowsPredicted, report.requests, report.failed], [100, 40, 20]);
  assert.equal(report.failures.UNAVAILABLE.count, 20);
  assert.match(report.failures.UNAVAILABLE.first, /request of rows 101 to 105/);
  assert.match(stderr, /20 of 40 requests failed .*scores\.tsv was not written/);
  assert.ok(!existsSync(output));
});

async function allowedFailures(_t: TestContext, { serving, folder }: Service): Promise<void> {
  const file = join(folder, 'one-bad.tsv');
  writeFileSync(file, `${toTsv(toyRows(4))}bad\t2\ta\tb\tc\n`);
  const output = join(folder, 'scores.tsv');
  const flags = ['--rows', file, '--endpoint', serving.url, '--batch', '2', '--output', output];
  const { exit } = await ctrClient(...flags, '--max-errors', '1');
  assert.equal(exit, 0);
  const lines = readFileSync(output, 'utf8').split('\n');
  assert.equal(lines.length, 7);
  assert.match(lines[4]!, /^4\t\t0\.\d+\t1$/);
  assert.equal(lines[5], '5\t\t\t');
}

test('shows a switch of versions in the middle', async (t) => {
  const versions = ['1', '2'].map((version) => new ToyBundle({ version, seed: Number(version) }));
  const { serving, toys, rows } = await startService(t, versions);
  let switched: Promise<unknown> | undefined;
  const proxy = await startProxy(t, serving.url, async (prediction) => {
    if (prediction !== 20) return;
    switched = toys.activate('2').then(() => serving.waitUntilActive('2'));
    await switched;
  });
  const flags = [...rows, '--endpoint', proxy, '--batch', '5', '--concurrency', '1'];
  const { exit, stdout } = await ctrClient(...flags);
  assert.equal(exit, 0, stdout);
  assert.match(
    stdout,
    /versions +1 \(20 requests, .* to .* s\), then 2 \(20 requests, .* to .* s\)/,
  );
});

async function matrix(_t: TestContext, { serving, rows, folder }: Service): Promise<void> {
  const chart = join(folder, 'chart.svg');
  const axes = ['--matrix', 'batch=5,50', 'concurrency=1,2,4'];
  const common = [...rows, '--endpoint', serving.url, ...axes, '--chart', chart];
  const { exit, stdout, stderr } = await ctrClient(...common, '--json');
  assert.equal(exit, 0, stderr);
  const cells = JSON.parse(stdout).cells.map((cell: Record<string, unknown>) => [
    cell['batch'],
    cell['concurrency'],
    cell['requests'],
  ]);
  const expected = [5, 50].flatMap((batch) =>
    [1, 2, 4].map((lanes) => [batch, lanes, 200 / batch]),
  );
  assert.deepEqual(cells, expected);
  const svg = readFileSync(chart, 'utf8');
  assert.equal(svg.match(/<polyline/g)?.length, 4);
  assert.match(svg, /^<svg xmlns=.*Throughput.*5 rows.*50 rows.*Latency, p99.*<\/svg>\n$/s);
  assert.doesNotMatch(svg, /NaN|Infinity|undefined/);
  const text = await ctrClient(...common.slice(0, -2));
  assert.match(text.stdout, /^batch +concurrency +rows\/s .*\n5 +1 .*\n5 +2 /);
  assert.match(text.stdout, /^.* p50 ms +p80 ms +p90 ms +p99 ms +p99\.9 ms +failed\n/);
}

test('sends the rows that serving recorded, at a fixed rate', async (t) => {
  const folder = temporaryFolder(t);
  const recording = join(folder, 'recorded.jsonl');
  const toy = new ToyBundle({ version: '1', seed: 9 });
  const { serving } = await startLocal(t, [toy], ['--record', recording, '--record-share', '1']);
  const rows = toyRows(20);
  await serving.postTsv(toTsv(rows));
  while (!existsSync(recording) || readFileSync(recording, 'utf8').split('\n').length <= 20) {
    await sleep(20);
  }
  const output = join(folder, 'scores.tsv');
  const flags = ['--rows', recording, '--endpoint', serving.url, '--limit', '20'];
  const pace = ['--batch', '1', '--rps', '100', '--json', '--output', output];
  const { exit, stdout, stderr } = await ctrClient(...flags, ...pace);
  assert.equal(exit, 0, stderr);
  const { requests, seconds } = JSON.parse(stdout);
  assert.equal(requests, 20);
  // The last of 20 requests is due 190 ms after the start; timers may be a millisecond early.
  assert.ok(seconds >= 0.189, `${seconds} s`);
  assertScores(output, toy, rows);
});

test('compares two endpoints and gives a verdict', async (t) => {
  const { serving, rows, folder } = await startService(t, [
    new ToyBundle({ version: '1', seed: 9 }),
  ]);
  const same = await startLocal(t, [new ToyBundle({ version: '7', seed: 9, inputs: 'many' })]);
  const page = join(folder, 'page.html');
  const common = [...rows, '--endpoint', serving.url, '--batch', '7', '--chart', page];
  const equal = await ctrClient(...common, '--against', same.serving.url, '--json');
  assert.equal(equal.exit, 0, equal.stderr);
  const report = JSON.parse(equal.stdout);
  assert.deepEqual([report.verdict, report.differences.rows], ['equal', 200]);
  assert.ok(report.differences.max < 1e-5 && report.latencyRatio.p50 > 0);
  assert.deepEqual(Object.keys(report.against.versions), ['7']);
  assert.match(readFileSync(page, 'utf8'), /against<\/text>.*verdict +equal/s);
  await same.toys.publish(new ToyBundle({ version: '8', seed: 10 }));
  await same.toys.activate('8');
  await same.serving.waitUntilActive('8');
  const other = await ctrClient(...common, '--against', same.serving.url);
  assert.equal(other.exit, 1);
  assert.match(other.stdout, /verdict +different: \d+ of 200 rows differ by more than 0\.00001/);
  assert.match(other.stdout, /200 rows compared: mean .*, p99 .*, max .* \(row \d+\)/);
  const allowed = await ctrClient(...common, '--against', same.serving.url, '--max-diff', '1');
  assert.equal(allowed.exit, 0);
});

test('percentiles are at most a 128th above the nearest rank, never below', () => {
  const latency = fc.oneof(
    fc.double({ min: 0, max: 1, noNaN: true }),
    fc.double({ min: 0, max: 1e6, noNaN: true }),
    fc.integer({ min: 0, max: 1_000 }),
  );
  fc.assert(
    fc.property(
      fc.array(latency, { minLength: 1, maxLength: 200 }),
      fc.double({ min: 0, max: 1, noNaN: true }),
      (values, share) => {
        const histogram = new LatencyHistogram();
        for (const value of values) histogram.add(value);
        const sorted = values.toSorted((a, b) => a - b);
        const exact = sorted[Math.max(Math.ceil(share * values.length) - 1, 0)]!;
        const got = histogram.percentile(share);
        // A microsecond is the finest step.
        assert.ok(got >= exact - 1e-9, `${got} < ${exact}`);
        assert.ok(got <= exact * (1 + 1 / 128) + 0.001 + 1e-9, `${got} > ${exact}`);
        assert.equal(histogram.percentile(1), sorted.at(-1));
        assert.equal(histogram.summary().max, sorted.at(-1));
      },
    ),
  );
  assert.equal(new LatencyHistogram().percentile(0.5), 0);
});
