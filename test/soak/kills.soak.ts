/** Each step of an agent with each step of a server, on hosts of two shards. Run by `npm run soak`. */
import { test } from 'node:test';
import { KilledHosts } from '../cube-agent/killed-hosts.ts';

/** A new agent's servers load two versions and activate one: what comes after belongs to a switch. */
const AGENT_FAULTS = [
  ...['agent.fetched:kill', 'agent.staged:kill', 'agent.loaded:kill:5', 'agent.activated:kill:3'],
  ...['agent.unloaded:kill', 'agent.removed:kill'],
];
/** Of one of the two servers: the first that comes by so often. */
const SERVER_FAULTS = [
  ...['server.layer:kill:3', 'server.loaded:kill:3', 'server.activated:kill:2'],
  'server.unloaded:kill',
];

for (const agent of AGENT_FAULTS) {
  test(`${agent}, then a server`, async (t) => {
    const hosts = await KilledHosts.start(t, 2);
    for (const server of SERVER_FAULTS) await hosts.kill({ agent, server });
    await hosts.end();
  });
}
