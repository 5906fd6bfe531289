/**
 * Agents and real servers that are killed during a switch. test/soak/kills.soak.ts combines all
 * steps of both.
 */
import { test } from 'node:test';
import { KilledHosts } from '../support/killed-hosts.ts';

test('a host that is killed during a switch recovers, and no lookup fails', async (t) => {
  const hosts = await KilledHosts.start(t, 1);
  await hosts.kill({ agent: 'agent.fetched:kill', server: 'server.layer:kill:3' });
  await hosts.kill({ agent: 'agent.activated:kill:2', server: 'server.activated:kill:2' });
  await hosts.finish();
});
