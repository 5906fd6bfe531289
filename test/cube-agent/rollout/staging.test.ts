/** What the candidate channel makes of an agent: it holds the version, and activates nothing for it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CANDIDATE_CHANNEL } from '../../../lib/core/rollout.ts';
import { allAt, by, makeHost, publish, start, versionsOnDisk } from '../host.ts';
import { until } from '../processes.ts';

test('a candidate is held beside what is active, until another takes its place', async (t) => {
  const host = await makeHost(t, 2);
  for (const version of ['1', '2', '3']) await publish(host, { version, table: version });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host);
  await until('all at 1', allAt('1', host.servers));

  const holding = (text: string) => () =>
    host.servers.every(({ held }) => held.join() === text) || host.servers.map(({ held }) => held);
  await host.repository.activate('ctr', CANDIDATE_CHANNEL, { version: '2', ...by });
  await until('2 is held', holding('1,2'));
  assert.ok(allAt('1', host.servers)());

  await host.repository.activate('ctr', CANDIDATE_CHANNEL, { version: '3', ...by });
  await until('3 is held, and 2 no more', holding('1,3'));
  await until('2 is gone from the disk', () => versionsOnDisk(host).join() === '1,3');
  assert.ok(allAt('1', host.servers)());

  // Restarted while the repository is as it was: what was staged is still wanted.
  await running.kill();
  start(t, host);
  await host.repository.activate('ctr', 'stable', { version: '3', ...by });
  await until('all at 3', allAt('3', host.servers));
  const calls = host.servers.flatMap((server) => server.calls);
  assert.ok(!calls.includes('activate 2'));
  assert.equal(calls.filter((call) => call === 'load 3').length, 2);
});

test('a candidate is staged on a fleet whose channel points nowhere yet', async (t) => {
  const host = await makeHost(t, 2);
  await publish(host, { version: '1' });
  await host.repository.activate('ctr', CANDIDATE_CHANNEL, { version: '1', ...by });
  start(t, host);
  await until('1 is held', () => host.servers.every(({ held }) => held.join() === '1'));
  assert.ok(host.servers.every(({ active }) => active === undefined || active === ''));
});
