/** The candidate channel: an agent loads its version and never activates it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CANDIDATE_CHANNEL } from '../../../lib/core/rollout.ts';
import { waitFor } from '../../support/processes.ts';
import {
  AUDIT,
  areAllActive,
  createHost,
  listVersions,
  publish,
  startAgent,
} from '../support/host.ts';

test('a candidate stays loaded beside the active version until it is replaced', async (t) => {
  const host = await createHost(t, 2);
  for (const version of ['1', '2', '3']) await publish(host, { version, table: version });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('all at 1', areAllActive('1', host.servers));

  const holding = (text: string) => () =>
    host.servers.every(({ loaded }) => loaded.join() === text) ||
    host.servers.map(({ loaded }) => loaded);
  await host.repository.activate('ctr', CANDIDATE_CHANNEL, { version: '2', ...AUDIT });
  await waitFor('2 is held', holding('1,2'));
  assert.ok(areAllActive('1', host.servers)());

  await host.repository.activate('ctr', CANDIDATE_CHANNEL, { version: '3', ...AUDIT });
  await waitFor('3 is held, and 2 no more', holding('1,3'));
  await waitFor('2 is gone from the disk', () => listVersions(host).join() === '1,3');
  assert.ok(areAllActive('1', host.servers)());

  // After a restart the staged version is still desired.
  await running.kill();
  startAgent(t, host);
  await host.repository.activate('ctr', 'stable', { version: '3', ...AUDIT });
  await waitFor('all at 3', areAllActive('3', host.servers));
  const calls = host.servers.flatMap((server) => server.calls);
  assert.ok(!calls.includes('activate 2'));
  assert.equal(calls.filter((call) => call === 'load 3').length, 2);
});

test('a candidate is staged on a fleet without an active version', async (t) => {
  const host = await createHost(t, 2);
  await publish(host, { version: '1' });
  await host.repository.activate('ctr', CANDIDATE_CHANNEL, { version: '1', ...AUDIT });
  startAgent(t, host);
  await waitFor('1 is held', () => host.servers.every(({ loaded }) => loaded.join() === '1'));
  assert.ok(host.servers.every(({ active }) => active === undefined || active === ''));
});
