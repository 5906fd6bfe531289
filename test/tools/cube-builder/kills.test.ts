/** Kills the builder after each of its steps; each run continues where the previous one ended. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { onTestEnd, temporaryFolder } from '../../repository/support/fixtures.ts';
import { runCommandWithFault } from '../../support/processes.ts';
import { createRows, hashFiles, runBuilder, writeTable } from './support/tables.ts';

const MAIN = 'tools/cube-builder/main.js';
const DIM = 64;

interface KilledBuild {
  readonly name: string;
  readonly rows: number;
  /** In the order in which a build reaches them. */
  readonly faults: readonly string[];
  readonly more: readonly string[];
}

const BUILDS: readonly KilledBuild[] = [
  {
    name: 'in memory',
    rows: 2000,
    faults: [
      'build.partitioned:kill',
      'build.shard:kill:2',
      'publish.files:kill',
      'publish.manifest:kill',
      'build.published:kill',
    ],
    more: [],
  },
  {
    // Records of 268 bytes exceed half of the memory, and those of a shard its share.
    name: 'through files',
    rows: 40_000,
    faults: [
      'build.spilled:kill:5',
      'build.partitioned:kill',
      'build.sorted:kill:3',
      'build.shard:kill',
    ],
    more: ['--memory', '16MiB'],
  },
];

for (const { name, rows, faults, more } of BUILDS) {
  test(`a build ${name} that is killed at every step completes with the same files`, async (t) => {
    const folder = temporaryFolder(t);
    const input = writeTable(join(folder, 'in'), 't', createRows(rows), DIM);
    const build = toArguments({ input, shardNum: 3, curVersion: 1, bundle: 'b', threads: 1 });
    const [killed, whole] = [join(folder, 'killed'), join(folder, 'whole')];
    for (const fault of faults) {
      const target = ['--output-path', killed, ...more];
      const { code, stderr } = await runCommandWithFault(fault, MAIN, ...build, ...target);
      assert.equal(code, null, `${fault}: ${stderr}`);
      const isPublished = /^(publish\.manifest|build\.published):/.test(fault);
      assert.deepEqual(await openRepository(killed).listVersions('b'), isPublished ? ['1'] : []);
      assert.ok(existsSync(join(killed, 'b/.work/1')));
    }
    // The build that is not killed has all memory: the same bytes.
    for (const target of [
      ['--output-path', killed, ...more],
      ['--output-path', whole],
    ]) {
      const { code, stderr } = await runBuilder(...build, ...target);
      assert.equal(code, 0, stderr);
    }
    assert.deepEqual(hashFiles(killed), hashFiles(whole));
  });
}

test('a builder ends when the process that started it ends', async (t) => {
  const folder = temporaryFolder(t);
  const flags = ['--input', '-', '--format', 'csv', '--key-column', 'key', '--table', 't'];
  const target = ['--shard-num', '1', '--cur-version', '1', '--output-path', join(folder, 'r')];
  const main = join(import.meta.dirname, '..', '..', '..', MAIN);
  // Otherwise it would wait for its input forever.
  const child = spawn(process.execPath, [main, ...flags, ...target, '--bundle', 'b'], {
    stdio: ['pipe', 'ignore', 'inherit', 'ipc'],
  });
  onTestEnd(t, () => child.kill('SIGKILL'));
  child.disconnect();
  assert.deepEqual(await once(child, 'exit'), [3, null]);
});
