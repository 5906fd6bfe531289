/**
 * A publisher that is killed or fails after any of its steps: nothing half-published, and running
 * it again completes it.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { openRepository } from '../../../lib/repository/repository.ts';
import { makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { runAgentCommandWithFault } from '../../support/processes.ts';

const FAULTS = [
  'publish.layers:kill',
  'publish.files:kill',
  'publish.manifest:kill',
  'publish.layers:error',
  'publish.files:error',
  'publish.manifest:error',
];

for (const fault of FAULTS) {
  const [point, effect] = fault.split(':');
  test(`${effect} at ${point}`, async (t) => {
    const folder = temporaryFolder(t);
    const from = join(folder, 'from');
    const source = openRepository(from, { create: true });
    await source.publish(makeVersion(join(folder, 'built'), { version: '1' }));
    const to = join(folder, 'to');
    const args = ['publish', '--from', from, '--repository', to, '--bundle', 'ctr'];
    const first = await runAgentCommandWithFault(fault, ...args, '--version', '1');
    assert.equal(first.code, effect === 'kill' ? null : 1);
    const versions = await openRepository(to).listVersions('ctr');
    assert.deepEqual(versions, point === 'publish.manifest' ? ['1'] : []);
    const second = await runAgentCommand(...args, '--version', '1');
    assert.equal(second.code, 0, second.stderr);
    assert.deepEqual(
      await openRepository(to).readManifest('ctr', '1'),
      await source.readManifest('ctr', '1'),
    );
  });
}

test('a fault that nobody can mean is refused', async () => {
  for (const fault of ['agent.staged', 'agent.stagged:kill', 'agent.staged:die']) {
    const { code, stderr } = await runAgentCommandWithFault(fault, '--help');
    assert.notEqual(code, 0);
    assert.match(stderr, /HYPERCUBE_FAULT: expected <point>:<kill\|error>.*agent\.staged, /);
  }
});
