/** A builder that is killed after each of its steps, one after another: each goes on where the one before ended. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { openRepository } from '../../../lib/repository/repository.ts';
import { runCommandWithFault } from '../../cube-agent/processes.ts';
import { atEnd, temporaryFolder } from '../../repository/fixtures.ts';
import { builder, filesOf, spread, writeTable } from './tables.ts';

const MAIN = 'tools/cube-builder/main.js';
/** In the order in which one build comes by. */
const FAULTS = [
  ...[
    'build.partitioned:kill',
    'build.shard:kill:2',
    'publish.files:kill',
    'publish.manifest:kill',
  ],
  'build.published:kill',
];

test('killed at every step in turn, the next run completes it, and nothing else is left', async (t) => {
  const folder = temporaryFolder(t);
  const input = writeTable(join(folder, 'in'), 't', spread(2000));
  const argsFor = (repository: string): string[] => [
    ...['--input', input, '--shard-num', '3', '--cur-version', '1', '--bundle', 'b'],
    ...['--threads', '1', '--output-path', repository],
  ];
  const [killed, whole] = [join(folder, 'killed'), join(folder, 'whole')];
  for (const fault of FAULTS) {
    const { code, stderr } = await runCommandWithFault(fault, MAIN, ...argsFor(killed));
    assert.equal(code, null, `${fault}: ${stderr}`);
    const isPublished = FAULTS.indexOf(fault) >= FAULTS.indexOf('publish.manifest:kill');
    assert.deepEqual(await openRepository(killed).versions('b'), isPublished ? ['1'] : []);
    assert.ok(existsSync(join(killed, 'b/.work/1')));
  }
  for (const repository of [killed, whole]) {
    const { code, stderr } = await builder(...argsFor(repository));
    assert.equal(code, 0, stderr);
  }
  assert.deepEqual(filesOf(killed), filesOf(whole));
});

test('a builder ends with the process that started it', async (t) => {
  const folder = temporaryFolder(t);
  const flags = ['--input', '-', '--format', 'csv', '--key-column', 'key', '--table', 't'];
  const target = ['--shard-num', '1', '--cur-version', '1', '--output-path', join(folder, 'r')];
  const main = join(import.meta.dirname, '..', '..', '..', MAIN);
  // It would wait for its input for ever.
  const child = spawn(process.execPath, [main, ...flags, ...target, '--bundle', 'b'], {
    stdio: ['pipe', 'ignore', 'inherit', 'ipc'],
  });
  atEnd(t, () => child.kill('SIGKILL'));
  child.disconnect();
  assert.deepEqual(await once(child, 'exit'), [3, null]);
});
