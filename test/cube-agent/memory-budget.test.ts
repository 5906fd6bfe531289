/** A server whose memory does not hold all that is wanted: the most wanted stays, and status says what has no room. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { ControlClient } from '../../cube-agent/fleet/control-client.ts';
import { HostData } from '../../cube-agent/host/host-data.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import { freePort } from '../platform/free-port.ts';
import { DeltaSource } from './deltas.ts';
import { by } from './host.ts';
import { makePlace } from './place.ts';
import { agent, Running, runAgent, until } from './processes.ts';

/** A version of the source takes 128 KiB. */
const ROOM_FOR_ONE = '200KiB';
const ROOM_FOR_TWO = '300KiB';

async function startServer(
  t: TestContext,
  dataDir: string,
  port: number,
  memory: string,
): Promise<Running> {
  const server = new Running(t, 'cube-server/main.js', [
    ...['--shard', '0', '--shard-num', '1', '--data-dir', dataDir, '--port', String(port)],
    ...['--memory', memory, '--retire-grace-ms', '0'],
  ]);
  await until('listening', () => server.messages().includes('listening') || server.lines);
  return server;
}

test('what has no room is told, pushes out nothing that is needed more, and comes when there is room', async (t) => {
  const place = makePlace(t);
  const source = new DeltaSource(place.folder, 1);
  for (const version of [1, 2, 3]) await source.publish(version, 1);
  const { repository } = source;
  await repository.activate('ctr', 'stable', { version: '1', ...by });
  const port = await freePort();
  const address = `127.0.0.1:${port}`;
  const small = await startServer(t, place.dataDir, port, ROOM_FOR_ONE);
  const running = runAgent(t, { ...place, servers: [address] });
  const holds = (text: string) => async () => {
    const { bundles } = await new ControlClient(address).status();
    const { active = '', versions = [] } = bundles[0] ?? {};
    const held = versions.map(({ version }) => version).sort();
    return `${active}: ${held}` === text || `${active}: ${held}`;
  };
  const problems = async (...more: string[]): Promise<string> => {
    const where = ['--repository', place.repository, '--data-dir', place.dataDir];
    return (await agent('status', '--bundle', 'ctr', ...where, ...more)).stdout;
  };
  await until('1 is active', holds('1: 1'));

  await repository.activate('ctr', 'stable', { version: '2', ...by });
  const refused = `cannot load 2 on ${address}`;
  await until('refused', () => running.messages().filter((m) => m === refused).length >= 2);
  assert.equal(await holds('1: 1')(), true);
  assert.match(await problems(), /load 2 on .*OVERLOADED .*raise the memory budget/);

  await small.kill();
  await startServer(t, place.dataDir, port, ROOM_FOR_TWO);
  await until('2 is active, and 1 is there to go back to', holds('2: 1,2'));

  await repository.activate('ctr', CANDIDATE_CHANNEL, { version: '3', ...by });
  await until('3 has taken the place of 1', holds('2: 2,3'));
  const told = `cannot load 1 on ${address}`;
  await until('1 has no room', () => running.messages().filter((m) => m === told).length >= 3);
  assert.equal(await holds('2: 2,3')(), true);
  const loads = running.messages().filter((message) => message === `load 3 on ${address}`);
  assert.equal(loads.length, 1, '3 was never pushed out');
  assert.match(await problems('--json'), /"what":"load 1 on [^}]*"code":"OVERLOADED"/);

  await repository.activate('ctr', CANDIDATE_CHANNEL, { version: '2', ...by });
  await until('1 is back', holds('2: 1,2'));
  const notes = new HostData(place.dataDir, 'ctr');
  await until('nothing to tell', () => notes.recall('stable')?.problems.length === 0);
});
