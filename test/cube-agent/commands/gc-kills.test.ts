/**
 * A garbage collection that is killed after any of its steps: what versions need is there, and the
 * next one, at once, leaves no rest.
 */
import assert from 'node:assert/strict';
import { readdirSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { openRepository } from '../../../lib/repository/repository.ts';
import {
  makeVersion,
  requireCompleteVersions,
  temporaryFolder,
} from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { runAgentCommandWithFault } from '../../support/processes.ts';
import { AUDIT } from '../support/host.ts';

const OLD = new Date('2020-01-01T00:00:00Z');

/** As if all of it had been written long ago: a collection leaves alone what is young. */
function makeOld(folder: string): void {
  for (const path of readdirSync(folder, { recursive: true })) {
    utimesSync(join(folder, String(path)), OLD, OLD);
  }
}

const filesIn = (folder: string): string[] =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ name }) => name);

/**
 * Three old versions that nobody needs, two that the channel does; the older of those shares its
 * table with one that goes.
 */
async function fill(location: string, built: string, from: number): Promise<void> {
  const repository = openRepository(location, { create: true });
  for (let i = 0; i < 5; i++) {
    const version = String(from + i);
    if (i === 4) makeOld(location);
    await repository.publish(makeVersion(built, { version, table: i === 3 ? `${from}` : version }));
    if (i >= 3) await repository.activate('ctr', 'stable', { version, ...AUDIT });
  }
}

test('a killed collection is finished by the next, and versions stay complete', async (t) => {
  const folder = temporaryFolder(t);
  const location = join(folder, 'repository');
  const gc = ['gc', '--repository', location, '--bundle', 'ctr', '--keep-versions', '1'];
  gc.push('--keep-days', '1');
  const faults = ['gc.begun:kill', 'gc.manifest:kill', 'gc.object:kill:2'];
  for (const [round, fault] of faults.entries()) {
    const from = 10 * (round + 1);
    await fill(location, join(folder, 'built'), from);
    const repository = openRepository(location);
    const killed = await runAgentCommandWithFault(fault, ...gc);
    assert.equal(killed.code, null, killed.stderr);
    const wanted = [String(from + 3), String(from + 4)];
    const left = await requireCompleteVersions(t, repository);
    assert.ok(wanted.every((version) => left.includes(version)));
    const next = await runAgentCommand(...gc);
    assert.equal(next.code, 0, next.stderr);
    assert.deepEqual(await requireCompleteVersions(t, repository), wanted);
    const files = filesIn(location);
    assert.equal(files.filter((name) => name.endsWith('.cube')).length, 4);
    assert.deepEqual(
      files.filter((name) => name.endsWith('.tmp') || name === 'collecting.json'),
      [],
    );
    assert.equal(files.filter((name) => name === 'model.onnx').length, 2);
  }
});
