/**
 * A server without memory for all desired versions: the most important ones stay, and status
 * reports the others.
 */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { ControlClient } from '../../../cube-agent/fleet/control-client.ts';
import { HostData } from '../../../cube-agent/host/host-data.ts';
import { CANDIDATE_CHANNEL } from '../../../lib/core/rollout.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { RunningProcess, startAgentProcess, waitFor } from '../../support/processes.ts';
import { DeltaSource } from '../support/delta-source.ts';
import { AUDIT } from '../support/host.ts';
import { createWorkspace } from '../support/workspace.ts';

/** A version of the source takes 128 KiB. */
const ROOM_FOR_ONE = '200KiB';
const ROOM_FOR_TWO = '300KiB';

async function startServer(
  t: TestContext,
  dataDir: string,
  port: number,
  memory: string,
): Promise<RunningProcess> {
  const server = new RunningProcess(
    t,
    'cube-server/main.js',
    toArguments({ shard: 0, shardNum: 1, dataDir, port, memory, retireGraceMs: 0 }),
  );
  await waitFor('listening', () => server.messages().includes('listening') || server.lines);
  return server;
}

test('a version without memory is reported, evicts nothing and is loaded later', async (t) => {
  const place = createWorkspace(t);
  const source = new DeltaSource(place.folder, 1);
  for (const version of [1, 2, 3]) await source.publish(version, 1);
  const { repository } = source;
  await repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const port = await freePort();
  const address = `127.0.0.1:${port}`;
  const small = await startServer(t, place.dataDir, port, ROOM_FOR_ONE);
  const running = startAgentProcess(t, { ...place, servers: [address] });
  const holds = (text: string) => async () => {
    const { bundles } = await new ControlClient(address).status();
    const { active = '', versions = [] } = bundles[0] ?? {};
    const held = versions.map(({ version }) => version).sort();
    return `${active}: ${held}` === text || `${active}: ${held}`;
  };
  const problems = async (...more: string[]): Promise<string> => {
    const where = ['--repository', place.repository, '--data-dir', place.dataDir];
    return (await runAgentCommand('status', '--bundle', 'ctr', ...where, ...more)).stdout;
  };
  await waitFor('1 is active', holds('1: 1'));

  await repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  const refused = `cannot load 2 on ${address}`;
  await waitFor('refused', () => running.messages().filter((m) => m === refused).length >= 2);
  assert.equal(await holds('1: 1')(), true);
  assert.match(await problems(), /load 2 on .*OVERLOADED .*raise the memory budget/);

  await small.kill();
  await startServer(t, place.dataDir, port, ROOM_FOR_TWO);
  await waitFor('2 is active, and 1 is there to go back to', holds('2: 1,2'));

  await repository.activate('ctr', CANDIDATE_CHANNEL, { version: '3', ...AUDIT });
  await waitFor('3 has taken the place of 1', holds('2: 2,3'));
  const told = `cannot load 1 on ${address}`;
  await waitFor('1 has no room', () => running.messages().filter((m) => m === told).length >= 3);
  assert.equal(await holds('2: 2,3')(), true);
  const loads = running.messages().filter((message) => message === `load 3 on ${address}`);
  assert.equal(loads.length, 1, '3 was never pushed out');
  assert.match(await problems('--json'), /"what":"load 1 on [^}]*"code":"OVERLOADED"/);

  await repository.activate('ctr', CANDIDATE_CHANNEL, { version: '2', ...AUDIT });
  await waitFor('1 is back', holds('2: 1,2'));
  const notes = new HostData(place.dataDir, 'ctr');
  await waitFor('nothing to tell', () => notes.readSavedState('stable')?.problems.length === 0);
});
