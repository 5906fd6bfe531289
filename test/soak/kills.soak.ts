/**
 * Every step of an agent combined with every step of a server, on hosts of two shards. Run by `npm
 * run soak`.
 */
import { test } from 'node:test';
import { KilledHosts } from '../cube-agent/support/killed-hosts.ts';

/**
 * The servers of a new agent first load two versions and activate one; later steps are the switch.
 */
const AGENT_FAULTS = [
  'agent.fetched:kill',
  'agent.staged:kill',
  'agent.loaded:kill:5',
  'agent.activated:kill:3',
  'agent.unloaded:kill',
  'agent.removed:kill',
];
/** Faults of either server: the first that reaches the count. */
const SERVER_FAULTS = [
  'server.layer:kill:3',
  'server.loaded:kill:3',
  'server.activated:kill:2',
  'server.unloaded:kill',
];

for (const agent of AGENT_FAULTS) {
  test(`hosts recover from ${agent} and from each kill of a server`, async (t) => {
    const hosts = await KilledHosts.start(t, 2);
    for (const server of SERVER_FAULTS) await hosts.kill({ agent, server });
    await hosts.finish();
  });
}
