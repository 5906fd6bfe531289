/** Builds that are killed, or run out of memory or disk space. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { closeSync, existsSync, openSync, readFileSync, utimesSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { encodeNpyHeader } from '../../../lib/core/npy.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { onTestEnd, temporaryFolder } from '../../repository/support/fixtures.ts';
import { startProcess } from '../../support/processes.ts';
import { createRows, hashFiles, runBuilder, writeTable } from './support/tables.ts';

const MAIN = 'tools/cube-builder/main.js';
const DIST_MAIN = join(import.meta.dirname, '..', '..', '..', MAIN);

/** Starts the command repeatedly and kills it a little later each time. @returns the kills */
async function killRepeatedly(
  args: readonly string[],
  stepMs: number,
  rounds: number,
): Promise<number> {
  let killed = 0;
  for (let round = 0; round < rounds; round++) {
    const child = startProcess(MAIN, args);
    const exit = new Promise<number | null>((resolve) => child.once('exit', resolve));
    const timer = setTimeout(() => child.kill('SIGKILL'), 120 + round * stepMs);
    const code = await exit;
    clearTimeout(timer);
    if (code === null) killed += 1;
    else assert.equal(code, 0);
  }
  return killed;
}

async function runToEnd(args: readonly string[]): Promise<void> {
  const { code, stderr } = await runBuilder(...args);
  assert.equal(code, 0, stderr);
}

test('a build that is killed in any phase completes with the same bytes', async (t) => {
  const folder = temporaryFolder(t);
  const rows = createRows(20_000);
  const input = writeTable(join(folder, 'in'), 't', rows, 200);
  const changed = writeTable(join(folder, 'd'), 't', new Map([...rows].slice(5000, 9000)), 200);
  const [killed, whole] = [join(folder, 'killed'), join(folder, 'whole')];
  const steps = (repository: string): string[][] => {
    const target = ['--output-path', repository, '--bundle', 'b', '--memory', '16MiB'];
    const base = ['--input', input, '--shard-num', '5', '--cur-version', '1', ...target];
    return [
      [...base, '--only-build'],
      ['seal', '--version', '1', ...target.slice(0, 4)],
      [
        ...toArguments({ jobMode: 'delta', dependVersion: 1, curVersion: 2, input: changed }),
        ...target,
      ],
      ['compact', '--version', '2', '--cur-version', '3', ...target],
    ];
  };
  let kills = 0;
  for (const [i, args] of steps(killed).entries()) {
    // A seal ends before it could be killed so late; it has its own test.
    if (i !== 1) kills += await killRepeatedly(args, 150, 3);
    await runToEnd(args);
  }
  assert.ok(kills >= 3, `killed ${kills} times`);
  for (const args of steps(whole)) await runToEnd(args);
  const clean = (files: Record<string, string>): Record<string, string> =>
    Object.fromEntries(Object.entries(files).filter(([name]) => !/\/\.[^/]*\.tmp$/.test(name)));
  assert.deepEqual(clean(hashFiles(killed)), clean(hashFiles(whole)));
});

test('a second seal completes a killed one', async (t) => {
  const folder = temporaryFolder(t);
  const input = writeTable(join(folder, 'in'), 't', createRows(2000));
  const target = ['--output-path', join(folder, 'r'), '--bundle', 'b'];
  await runToEnd([
    ...toArguments({ input, shardNum: 3, curVersion: 1, onlyBuild: true }),
    ...target,
  ]);
  const child = startProcess(MAIN, ['seal', '--version', '1', ...target]);
  const exit = new Promise<number | null>((resolve) => child.once('exit', resolve));
  setTimeout(() => child.kill('SIGKILL'), 140);
  await exit;
  // It was killed before publishing, while removing the parts, or not at all.
  await runToEnd(['seal', '--version', '1', ...target]);
  await runToEnd(['seal', '--version', '1', ...target]);
  assert.deepEqual(await openRepository(join(folder, 'r')).listVersions('b'), ['1']);
});

test('finished shards are not rebuilt and their input is not read again', async (t) => {
  const folder = temporaryFolder(t);
  const input = writeTable(join(folder, 'in'), 't', createRows(3000));
  const target = ['--output-path', join(folder, 'r'), '--bundle', 'b'];
  const args = ['--input', input, '--shard-num', '3', '--cur-version', '1', ...target];
  await runToEnd([...args, '--only-build']);
  // Same size and time but different bytes: only reading the input would reveal the change.
  const path = join(input, 't.npy');
  const stamp = new Date('2026-01-01T00:00:00Z');
  utimesSync(path, stamp, stamp);
  await runToEnd([...args, '--only-build']);
  const before = hashFiles(join(folder, 'r'));
  const file = openSync(path, 'r+');
  writeSync(file, new Uint8Array(4000).fill(1), 0, 4000, 200);
  closeSync(file);
  utimesSync(path, stamp, stamp);
  await runToEnd([...args, '--only-build']);
  assert.deepEqual(hashFiles(join(folder, 'r')), before);
});

/** What docs/builder.md says a build takes in addition to --memory. */
const RUNTIME_BYTES = 180 << 20;

test('--memory bounds the process while it builds a larger table', async (t) => {
  const folder = temporaryFolder(t);
  const [rows, dim] = [1_000_000, 64];
  const path = join(folder, 't.npy');
  const file = openSync(path, 'w');
  writeSync(file, encodeNpyHeader('f4', [rows, dim]));
  const piece = new Float32Array(20_000 * dim).map((_, i) => i);
  for (let row = 0; row < rows; row += 20_000) writeSync(file, new Uint8Array(piece.buffer));
  closeSync(file);
  const target = ['--output-path', join(folder, 'r'), '--bundle', 'b', '--memory', '64MiB'];
  const args = ['--input', path, '--shard-num', '2', '--cur-version', '1', '--threads', '1'];
  const child = startProcess(MAIN, [...args, ...target]);
  let peakKb = 0;
  const timer = setInterval(() => {
    if (!existsSync(`/proc/${child.pid}/status`)) return;
    const [, kb] = /VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${child.pid}/status`, 'utf8')) ?? [];
    peakKb = Math.max(peakKb, Number(kb ?? 0));
  }, 20);
  const code = await new Promise((resolve) => child.once('exit', resolve));
  clearInterval(timer);
  assert.equal(code, 0);
  if (process.platform !== 'linux') return;
  const limit = (64 << 20) + RUNTIME_BYTES;
  assert.ok(rows * (12 + 4 * dim) > limit, 'the input is larger than the limit');
  assert.ok(peakKb > 0 && peakKb * 1024 < limit, `${peakKb} KiB`);
});

/** Runs the command with a limit on file size; larger writes fail like on a full disk. */
function runWithFileLimit(
  t: TestContext,
  kib: number,
  args: readonly string[],
): Promise<[number | null, string]> {
  // POSIX sh counts `ulimit -f` in blocks of 512 bytes.
  const script = `ulimit -f ${2 * kib} && exec "$0" "$@"`;
  const child = spawn('sh', ['-c', script, process.execPath, DIST_MAIN, ...args]);
  onTestEnd(t, () => child.kill('SIGKILL'));
  let stderr = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  return new Promise((resolve) => child.once('close', (code) => resolve([code, stderr])));
}

test('a full disk gives one error, publishes nothing, and the next run continues', async (t) => {
  const folder = temporaryFolder(t);
  const input = writeTable(join(folder, 'in'), 't', createRows(20_000), 200);
  const repository = join(folder, 'r');
  const target = ['--output-path', repository, '--bundle', 'b'];
  const args = ['--input', input, '--shard-num', '2', '--cur-version', '1', ...target];
  for (const memory of ['16MiB', '1GiB']) {
    for (const kib of [100, 4000]) {
      const [code, stderr] = await runWithFileLimit(t, kib, [...args, '--memory', memory]);
      assert.equal(code, 1);
      assert.match(
        stderr,
        /cannot write .*: larger than .*; nothing was published: run the same command again/,
      );
      assert.equal(stderr.trimEnd().split('\n').length, 1);
      assert.deepEqual(await openRepository(repository).listVersions('b'), []);
    }
  }
  await runToEnd(args);
  assert.deepEqual(await openRepository(repository).listVersions('b'), ['1']);
});
