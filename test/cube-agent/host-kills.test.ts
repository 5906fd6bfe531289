/** Agents and real servers that are killed in the steps of a switch; every agent's step with every server's: test/soak/kills.soak.ts. */
import { test } from 'node:test';
import { KilledHosts } from './killed-hosts.ts';

test('killed in a switch, a host comes to the version by itself, and no lookup fails meanwhile', async (t) => {
  const hosts = await KilledHosts.start(t, 1);
  await hosts.kill({ agent: 'agent.fetched:kill', server: 'server.layer:kill:3' });
  await hosts.kill({ agent: 'agent.activated:kill:2', server: 'server.activated:kill:2' });
  await hosts.end();
});
