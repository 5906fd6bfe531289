/** What a rollout sees of servers: who holds a version, by its content and not by its name alone. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readFleet } from '../../../cube-agent/commands/options.ts';
import { LiveFleet } from '../../../cube-agent/rollout/live-fleet.ts';
import { HEALTH_DEFAULTS } from '../../../cube-agent/rollout/rollout-config.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { NO_CREDENTIALS } from '../../../lib/rpc/credentials.ts';
import { allAt, by, publish } from '../host.ts';
import { agent, until } from '../processes.ts';
import { makeFleet } from './fleet.ts';

test('a server that holds other rows under the name of a version does not hold the version', async (t) => {
  const fleet = await makeFleet(t);
  const { repository, fleetFile, location, servers } = fleet;
  await publish(fleet, { version: '1' });
  await repository.activate('ctr', 'stable', { version: '1', ...by });
  await until('all at 1', allAt('1', servers));
  const live = new LiveFleet({
    ...{ repository, bundle: 'ctr', fleet: () => readFleet(fleetFile), health: HEALTH_DEFAULTS },
    ...{ serving: [], toServers: NO_CREDENTIALS, toAgents: NO_CREDENTIALS },
    gate: () => assert.fail('nothing is gated'),
    logger: createLogger('test', 'silent'),
  });
  const seen = async (): Promise<string[]> =>
    (await live.replicas('1')).flat().map(({ holds, isActive }) => `${holds} ${isActive}`);
  assert.deepEqual(await seen(), Array(4).fill('true true'));

  // Shard 1's second replica.
  const other = servers[3]!;
  other.mistake('1');
  assert.deepEqual(await seen(), [...Array(3).fill('true true'), 'false false']);
  const { trouble } = (await live.replicas('1'))[1]![1]!;
  assert.match(trouble, /holds other rows under the name 1 \(0123456789abcdef, published are /);
  const target = ['--repository', location, '--bundle', 'ctr', '--version', '1'];
  const waiting = ['--reason', 'test', '--fleet', fleetFile, '--wait', '--timeout-ms', '1'];
  const { code, stderr } = await agent('activate', ...target, ...waiting);
  assert.equal(code, 1);
  assert.match(stderr, /1 of 4 servers are not at version 1.*\n.*holds other rows under the name/);
});
