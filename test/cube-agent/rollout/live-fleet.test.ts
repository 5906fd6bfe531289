/**
 * What a rollout reads from servers: a version is recognized by its tables, not only by its name.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readFleet } from '../../../cube-agent/commands/options.ts';
import { LiveFleet } from '../../../cube-agent/rollout/live-fleet.ts';
import { HEALTH_DEFAULTS } from '../../../cube-agent/rollout/rollout-config.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { NO_CREDENTIALS } from '../../../lib/rpc/credentials.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { waitFor } from '../../support/processes.ts';
import { AUDIT, areAllActive, publish } from '../support/host.ts';
import { createFleet } from '../support/rollout-fleet.ts';

test("a server with other tables under the version's name does not have the version", async (t) => {
  const fleet = await createFleet(t);
  const { repository, fleetFile, location, servers } = fleet;
  await publish(fleet, { version: '1' });
  await repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  await waitFor('all at 1', areAllActive('1', servers));
  const live = new LiveFleet({
    repository,
    bundle: 'ctr',
    fleet: () => readFleet(fleetFile),
    health: HEALTH_DEFAULTS,
    serving: [],
    serverCredentials: NO_CREDENTIALS,
    agentCredentials: NO_CREDENTIALS,
    gate: () => assert.fail('nothing is gated'),
    logger: createLogger('test', { level: 'silent' }),
  });
  const seen = async (): Promise<string[]> =>
    (await live.replicas('1')).flat().map(({ holds, isActive }) => `${holds} ${isActive}`);
  assert.deepEqual(await seen(), Array(4).fill('true true'));

  // The second replica of shard 1.
  const other = servers[3]!;
  other.loadOtherRows('1');
  assert.deepEqual(await seen(), [...Array(3).fill('true true'), 'false false']);
  const { trouble } = (await live.replicas('1'))[1]![1]!;
  assert.match(
    trouble,
    /has loaded other rows under the name 1 \(digest 0123456789abcdef, published /,
  );
  const target = ['--repository', location, '--bundle', 'ctr', '--version', '1'];
  const waiting = ['--reason', 'test', '--fleet', fleetFile, '--wait', '--timeout-ms', '1'];
  const { code, stderr } = await runAgentCommand('activate', ...target, ...waiting);
  assert.equal(code, 1);
  assert.match(
    stderr,
    /1 of 4 servers do not have version 1 .*\n.*has loaded other rows under the name/,
  );
});
