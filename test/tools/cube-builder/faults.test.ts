/** What happens to a build: killed anywhere, short of memory, short of disk. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { closeSync, existsSync, openSync, readFileSync, utimesSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { encodeNpyHeader } from '../../../lib/core/npy.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { startProcess } from '../../cube-agent/processes.ts';
import { atEnd, temporaryFolder } from '../../repository/fixtures.ts';
import { builder, filesOf, spread, writeTable } from './tables.ts';

const MAIN = 'tools/cube-builder/main.js';
const DIST_MAIN = join(import.meta.dirname, '..', '..', '..', MAIN);

/** Starts the command again and again, killed a little later each time. @returns how often it was killed */
async function killOften(args: readonly string[], stepMs: number, rounds: number): Promise<number> {
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

async function finish(args: readonly string[]): Promise<void> {
  const { code, stderr } = await builder(...args);
  assert.equal(code, 0, stderr);
}

test('killed while it partitions, builds, seals or merges, it completes with the same bytes', async (t) => {
  const folder = temporaryFolder(t);
  const rows = spread(20_000);
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
        '--job-mode',
        'delta',
        '--depend-version',
        '1',
        '--cur-version',
        '2',
        '--input',
        changed,
        ...target,
      ],
      ['compact', '--version', '2', '--cur-version', '3', ...target],
    ];
  };
  let kills = 0;
  for (const [i, args] of steps(killed).entries()) {
    // A seal is done before it could be killed so late: it has a test of its own.
    if (i !== 1) kills += await killOften(args, 150, 3);
    await finish(args);
  }
  assert.ok(kills >= 3, `killed ${kills} times`);
  for (const args of steps(whole)) await finish(args);
  const clean = (files: Record<string, string>): Record<string, string> =>
    Object.fromEntries(Object.entries(files).filter(([name]) => !/\/\.[^/]*\.tmp$/.test(name)));
  assert.deepEqual(clean(filesOf(killed)), clean(filesOf(whole)));
});

test('a killed seal is finished by another', async (t) => {
  const folder = temporaryFolder(t);
  const input = writeTable(join(folder, 'in'), 't', spread(2000));
  const target = ['--output-path', join(folder, 'r'), '--bundle', 'b'];
  await finish([
    '--input',
    input,
    '--shard-num',
    '3',
    '--cur-version',
    '1',
    '--only-build',
    ...target,
  ]);
  const child = startProcess(MAIN, ['seal', '--version', '1', ...target]);
  const exit = new Promise<number | null>((resolve) => child.once('exit', resolve));
  setTimeout(() => child.kill('SIGKILL'), 140);
  await exit;
  // Whether it was killed before it published, while it removed the parts, or not at all.
  await finish(['seal', '--version', '1', ...target]);
  await finish(['seal', '--version', '1', ...target]);
  assert.deepEqual(await openRepository(join(folder, 'r')).versions('b'), ['1']);
});

test('shards that are finished are not built again: the input is not even read', async (t) => {
  const folder = temporaryFolder(t);
  const input = writeTable(join(folder, 'in'), 't', spread(3000));
  const target = ['--output-path', join(folder, 'r'), '--bundle', 'b'];
  const args = ['--input', input, '--shard-num', '3', '--cur-version', '1', ...target];
  await finish([...args, '--only-build']);
  // The same size and time, other bytes: only somebody who reads it would see.
  const path = join(input, 't.npy');
  const stamp = new Date('2026-01-01T00:00:00Z');
  utimesSync(path, stamp, stamp);
  await finish([...args, '--only-build']);
  const before = filesOf(join(folder, 'r'));
  const file = openSync(path, 'r+');
  writeSync(file, new Uint8Array(4000).fill(1), 0, 4000, 200);
  closeSync(file);
  utimesSync(path, stamp, stamp);
  await finish([...args, '--only-build']);
  assert.deepEqual(filesOf(join(folder, 'r')), before);
});

/** Bytes that the runtime, its threads and the file reader take beside --memory. */
const RUNTIME_BYTES = 176 << 20;

test('--memory holds: the records are larger than the process ever is', async (t) => {
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
  assert.ok(rows * (12 + 4 * dim) > limit, 'the input is large enough to show it');
  assert.ok(peakKb > 0 && peakKb * 1024 < limit, `${peakKb} KiB`);
});

/** The command with files limited to so many bytes: a write beyond fails as on a full disk. */
function limited(
  t: TestContext,
  kib: number,
  args: readonly string[],
): Promise<[number | null, string]> {
  // The limit of `ulimit -f` is in blocks of 512 bytes (dash) or 1024 (bash in its own mode): sh is POSIX.
  const script = `ulimit -f ${2 * kib} && exec "$0" "$@"`;
  const child = spawn('sh', ['-c', script, process.execPath, DIST_MAIN, ...args]);
  atEnd(t, () => child.kill('SIGKILL'));
  let stderr = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  return new Promise((resolve) => child.once('close', (code) => resolve([code, stderr])));
}

test('no room: one clear error, nothing published, and the next run goes on', async (t) => {
  const folder = temporaryFolder(t);
  const input = writeTable(join(folder, 'in'), 't', spread(20_000), 200);
  const repository = join(folder, 'r');
  const target = ['--output-path', repository, '--bundle', 'b'];
  const args = ['--input', input, '--shard-num', '2', '--cur-version', '1', ...target];
  for (const memory of ['16MiB', '1GiB']) {
    for (const kib of [100, 4000]) {
      const [code, stderr] = await limited(t, kib, [...args, '--memory', memory]);
      assert.equal(code, 1);
      assert.match(
        stderr,
        /cannot write .*: larger than .*; nothing was published: run the same again/,
      );
      assert.equal(stderr.trimEnd().split('\n').length, 1);
      assert.deepEqual(await openRepository(repository).versions('b'), []);
    }
  }
  await finish(args);
  assert.deepEqual(await openRepository(repository).versions('b'), ['1']);
});
