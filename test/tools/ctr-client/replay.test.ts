/** ctr-client --replay: requests that serving recorded are sent again with their gaps. */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import type { Clock } from '../../../lib/platform/clock.ts';
import { LoadGenerator } from '../../../tools/ctr-client/load/load-generator.ts';
import { readRecording } from '../../../tools/ctr-client/rows/recording.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import type { ServingProcess } from '../../serving/support/serving-process.ts';
import { ToyBundle, type ToyRow, toTsv, toyRows } from '../../serving/support/toy-bundle.ts';
import { startLocal } from '../../serving/support/toy-service.ts';
import { ctrClient, startClient, startProxy } from './client-process.ts';
import { assertScores } from './scores.ts';

const toy = new ToyBundle({ version: '1', seed: 9 });
const REPORTED = 'requests';

interface Service {
  readonly serving: ServingProcess;
  readonly folder: string;
}

/** A row as serving records it. */
function line(at: number | undefined, { dense, categorical }: ToyRow): string {
  const shown = dense.map((value) => (Number.isNaN(value) ? null : value));
  return `${JSON.stringify({ at, dense: shown, categorical })}\n`;
}

/** A recording of 40 rows in requests of one to four rows, a few milliseconds apart. */
function writeRecording({ folder }: Service): { path: string; rows: ToyRow[]; sizes: number[] } {
  const rows = toyRows(40);
  const sizes = Array.from({ length: 16 }, (_, i) => (i % 4) + 1);
  const path = join(folder, 'recording.jsonl');
  const times = sizes.flatMap((size, i) => new Array<number>(size).fill(1_000_000 + 7.25 * i));
  writeFileSync(path, rows.map((row, i) => line(times[i], row)).join(''));
  return { path, rows, sizes };
}

test('replays what serving recorded: the same requests, scores and gaps', async (t) => {
  const folder = temporaryFolder(t);
  const recording = join(folder, 'recorded.jsonl');
  const flags = ['--record', recording, '--record-share', '1'];
  const { serving } = await startLocal(t, [toy], flags);
  const rows = toyRows(9);
  const json = rows.slice(0, 4).map((row) => JSON.parse(line(undefined, row)));
  const before = Date.now();
  await serving.post('/v1/ctr:predict', JSON.stringify({ rows: json.slice(0, 3) }));
  await sleep(120);
  await serving.post('/v1/ctr:predict', JSON.stringify({ rows: json.slice(3) }));
  await serving.postTsv(toTsv(rows.slice(4)));
  const recorded = (): string[] => readFileSync(recording, 'utf8').split('\n').slice(0, -1);
  while (!existsSync(recording) || recorded().length < 9) await sleep(10);
  const times = recorded().map((text): number => JSON.parse(text).at);
  const [one = 0, , , two = 0, three = 0] = times;
  assert.deepEqual(times, [one, one, one, two, three, three, three, three, three]);
  assert.ok(one > before - 1_000 && two - one >= 119 && three > two, times.join());

  const sent: number[] = [];
  const proxy = await startProxy(t, serving.url, async () => void sent.push(performance.now()));
  const output = join(folder, 'scores.tsv');
  const run = async (...more: string[]): Promise<Record<string, unknown>> => {
    sent.length = 0;
    const common = ['--replay', recording, '--limit', '9', '--endpoint', proxy, '--json'];
    const { exit, stdout, stderr } = await ctrClient(...common, '--output', output, ...more);
    assert.equal(exit, 0, stderr);
    assertScores(output, toy, rows);
    return JSON.parse(stdout);
  };
  const report = await run();
  assert.deepEqual([report[REPORTED], report['batch'], report['replaySpeed']], [3, null, 1]);
  // The first request may arrive late because it opens the first connection.
  assert.ok((report['seconds'] as number) >= (three - one - 2) / 1_000);
  const half = await run('--replay-speed', '0.5');
  assert.ok((half['seconds'] as number) >= (2 * (three - one) - 2) / 1_000);
  assert.equal(sent.length, 3);
});

test('requests are due at their recorded times, whatever the server does', async () => {
  const gaps = fc.array(fc.integer({ min: 0, max: 50 }), { minLength: 1, maxLength: 30 });
  const steps = fc.record({ gaps, servedMs: fc.integer({ min: 0, max: 40 }) });
  await fc.assert(
    fc.asyncProperty(steps, async ({ gaps: between, servedMs }) => {
      let nowMs = 500;
      const clock: Clock = {
        nowMs: () => nowMs,
        isoTime: () => '',
        sleep: async (ms) => {
          nowMs += ms;
        },
      };
      let atMs = 0;
      const dueMs = between.map((gap) => {
        atMs += gap;
        return atMs;
      });
      const latencies: number[] = [];
      const send = async (_: number, due: number): Promise<boolean> => {
        nowMs += servedMs;
        latencies.push(nowMs - due);
        return true;
      };
      const { signal } = new AbortController();
      const schedule = { concurrency: 1, dueMs };
      const load = await new LoadGenerator(schedule, dueMs.length, send, signal, clock).run();
      // One after another: each begins when it is due and the one before it has ended.
      let freeMs = 0;
      let lagMaxMs = 0;
      const expected = dueMs.map((due) => {
        lagMaxMs = Math.max(lagMaxMs, freeMs - due);
        freeMs = Math.max(freeMs, due) + servedMs;
        return freeMs - due;
      });
      assert.deepEqual(latencies, expected);
      assert.equal(load.lagMaxMs, lagMaxMs);
    }),
  );
});

async function severalThreads(_t: TestContext, service: Service): Promise<void> {
  const { path, rows } = writeRecording(service);
  const output = join(service.folder, 'scores.tsv');
  const common = ['--replay', path, '--endpoint', service.serving.url, '--output', output];
  const { exit, stdout, stderr } = await ctrClient(...common, '--workers', '3', '--json');
  assert.equal(exit, 0, stderr);
  assert.deepEqual([JSON.parse(stdout).requests, JSON.parse(stdout).concurrency], [16, 256]);
  assertScores(output, toy, rows);
}

async function unsortedAndUnfinished(_t: TestContext, service: Service): Promise<void> {
  const rows = toyRows(4);
  const path = join(service.folder, 'unsorted.jsonl');
  // Answered in another order than they came; the writer was killed in the last line.
  const times = [30, 30, 10, 20];
  writeFileSync(path, `${rows.map((row, i) => line(times[i], row)).join('')}{"at":40,"dense":[1`);
  const { requests } = await readRecording(path, 100);
  assert.deepEqual(requests, [
    { start: 2, end: 3, atMs: 0 },
    { start: 3, end: 4, atMs: 10 },
    { start: 0, end: 2, atMs: 20 },
  ]);
  const output = join(service.folder, 'unsorted.tsv');
  const common = ['--replay', path, '--endpoint', service.serving.url];
  const { exit, stdout } = await ctrClient(...common, '--output', output, '--warm-up', '0.05');
  assert.equal(exit, 0);
  assert.match(stdout, /recorded requests at 1 × their speed \(open loop\), at most 256 in flight/);
  assertScores(output, toy, rows);
}

async function stalled(t: TestContext, service: Service): Promise<void> {
  const { path } = writeRecording(service);
  const run = async (...more: string[]): Promise<string> => {
    const proxy = await startProxy(t, service.serving.url, (i) => sleep(i === 0 ? 400 : 0));
    const flags = ['--replay', path, '--endpoint', proxy, '--concurrency', '1'];
    return (await ctrClient(...flags, ...more)).stdout;
  };
  const stdout = await run('--json');
  const { requests, latencyMs, generator } = JSON.parse(stdout);
  // All 16 are due within 109 ms: the others are due while the first one is answered.
  assert.equal(generator.waited, 15, stdout);
  // Latencies count from when requests were due, so each of them has its wait, not only the first.
  assert.ok(latencyMs.avg * requests > 2 * generator.lagMaxMs, stdout);
  assert.match(await run(), /note +15 of 16 requests were due .* busy, sent up to \d+ ms late/);
}

async function interrupted(t: TestContext, service: Service): Promise<void> {
  const [one, two, ...rest] = toyRows(4) as [ToyRow, ToyRow, ...ToyRow[]];
  const path = join(service.folder, 'long.jsonl');
  const later = rest.map((row, i) => line(9e9 + i, row)).join('');
  writeFileSync(path, line(0, one) + line(5, two) + later);
  for (const workers of ['1', '2']) {
    let seen = 0;
    let arrived = (): void => undefined;
    const both = new Promise<void>((resolve) => {
      arrived = resolve;
    });
    const proxy = await startProxy(t, service.serving.url, async () => {
      if (++seen === 2) arrived();
    });
    const output = join(service.folder, 'never.tsv');
    const flags = ['--replay', path, '--endpoint', proxy, '--output', output];
    const { child, done } = startClient([...flags, '--workers', workers]);
    await both;
    child.kill('SIGINT');
    const { exit, stdout, stderr } = await done;
    assert.equal(exit, 130, stderr);
    assert.match(stdout, /rows +[12] of 4 predicted/);
    assert.match(stdout, /interrupted: figures up to then/);
    assert.ok(!existsSync(output));
  }
}

async function refusals(_t: TestContext, { serving, folder }: Service): Promise<void> {
  const rows = toyRows(3);
  const [one, two, three] = rows as [ToyRow, ToyRow, ToyRow];
  const path = join(folder, 'refused.jsonl');
  const needed = 'record them with serving --record, or send the rows at a fixed rate: --rows ';
  const cases: [string, RegExp][] = [
    ['', /the file is empty/],
    [line(undefined, one), /needs the times of requests, but .*: row 1 has no time "at"/],
    [line(1, one) + line(undefined, two) + line(3, three), /row 2 has no time "at"/],
    [line(undefined, one), new RegExp(needed)],
    [toTsv(rows), /row 1 is not JSON; record them with/],
    ['{"I1":1,"C1":"a","at":3}\n', /row 1 is a row by name/],
    [`${line(1, one)}{"I1":1}\n`, /row 2 is given by names, but the first row by positions/],
    [line(1, one).replace('1', '"noon"'), /row 1: at: expected a finite number, got "noon"/],
    [`${line(1, one)}{"at":2,"den\n${line(3, three)}`, /row 2: not JSON/],
    ['{"at":1,"inputs":[]}\n', /refused\.jsonl has requests of a plain model/],
    ['{"at":1,', /row 1: not JSON/],
  ];
  for (const [text, message] of cases) {
    writeFileSync(path, text);
    const { exit, stderr } = await ctrClient('--replay', path, '--endpoint', serving.url);
    assert.match(stderr, message);
    assert.equal(exit, 1, stderr);
  }
  const mixed = `${line(1, one)}{"at":2,"scaled":[0,0],"keys":["1","2","3"]}\n`;
  writeFileSync(path, mixed);
  const grpc = ['--replay', path, '--endpoint', serving.url, '--protocol', 'ctr-grpc'];
  assert.equal((await ctrClient(...grpc)).exit, 0);
  const tensors = await ctrClient(...grpc.with(-1, 'kserve'));
  assert.match(tensors.stderr, /rows by position and rows of keys; use --protocol ctr, or split/);
}

test('replays recordings', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const service = { serving, folder: temporaryFolder(t) };
  const all: [string, (t: TestContext, service: Service) => Promise<void>][] = [
    ['from several threads', severalThreads],
    ['sorts requests by time, and leaves an unfinished line out', unsortedAndUnfinished],
    ['counts latency from the planned time, and reports the lag', stalled],
    ['prints the figures so far when interrupted between requests', interrupted],
    ['refuses files without times, damaged lines and other rows', refusals],
  ];
  for (const [name, run] of all) await t.test(name, (inner) => run(inner, service));
});

test('redacted recordings are replayed', async (t) => {
  const recording = join(temporaryFolder(t), 'recorded.jsonl');
  const redacted = ['--record-redact', 'C2,I1', '--record-share', '1'];
  const { serving } = await startLocal(t, [toy], ['--record', recording, ...redacted]);
  const rows = toyRows(5).map((row) => JSON.parse(line(undefined, row)));
  await serving.post('/v1/ctr:predict', JSON.stringify({ rows }));
  await serving.postTsv(toTsv(toyRows(5)));
  const lines = (): number => readFileSync(recording, 'utf8').split('\n').length - 1;
  while (!existsSync(recording) || lines() < 10) await sleep(10);
  const flags = ['--replay', recording, '--limit', '10', '--endpoint', serving.url, '--json'];
  const { exit, stdout, stderr } = await ctrClient(...flags);
  assert.equal(exit, 0, stderr);
  assert.deepEqual([JSON.parse(stdout).requests, JSON.parse(stdout).failed], [2, 0]);
});

test('options that contradict --replay are wrong usage', async () => {
  const cases: [string[], RegExp][] = [
    [[], /pass --rows with a file of rows, or --replay with a recording/],
    [['--rows', 'a', '--replay-speed', '2'], /--replay-speed needs --replay/],
    [['--replay', 'a', '--replay-speed', '0'], /Expected times the recorded speed: a number above/],
    [['--replay', 'a', '--rps', '3'], /--replay <file>' cannot be used with option '--rps/],
    [['--replay', 'a', '--rows', 'b'], /cannot be used with option '--rows/],
    [['--replay', 'a', '--batch', '1'], /cannot be used with option '--batch/],
    [['--replay', 'a', '--duration', '1'], /cannot be used with option '--duration/],
  ];
  for (const [flags, message] of cases) {
    const { exit, stderr } = await ctrClient('--endpoint', '127.0.0.1:1', ...flags);
    assert.match(stderr, message);
    assert.equal(exit, 2, flags.join(' '));
  }
});
