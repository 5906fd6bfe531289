/** Actions on the disk of a host that cannot be written. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { BundleReconciler } from '../../../cube-agent/host/bundle-reconciler.ts';
import { HostData } from '../../../cube-agent/host/host-data.ts';
import { LayerFetcher } from '../../../cube-agent/host/layer-fetcher.ts';
import { ProblemTracker } from '../../../cube-agent/host/problem-tracker.ts';
import { ServerMonitor } from '../../../cube-agent/host/server-monitor.ts';
import { TaskQueue } from '../../../cube-agent/host/task-queue.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../../lib/platform/clock.ts';
import { createForwardingLogger } from '../../../lib/platform/logs.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { AUDIT } from '../support/host.ts';

const BACKOFF_MS = 1000;

test('a file that cannot be removed is tried again after a pause that grows', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(join(folder, 'repository'), { create: true });
  await repository.publish(makeVersion(join(folder, 'built'), { version: '1', shardNum: 1 }));
  await repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const data = new HostData(join(folder, 'data'), 'ctr');
  const unneeded = data.layerPath('t', 'a'.repeat(32));
  mkdirSync(dirname(unneeded), { recursive: true });
  writeFileSync(unneeded, '');
  let nowMs = 0;
  const clock: Clock = { ...systemClock, nowMs: () => nowMs };
  const lines: string[] = [];
  const logger = createForwardingLogger('warn', (line) => lines.push(line));
  const problems = new ProblemTracker(clock, BACKOFF_MS);
  const servers = { servers: [], problems, clock, logger, onReturn: () => undefined };
  const fetching = { parallel: 1, bytesPerSecond: undefined, keepFreeBytes: 0, clock };
  const tasks = new TaskQueue(clock, logger, () => undefined);
  const keeper = new BundleReconciler({
    bundle: 'ctr',
    channels: ['stable'],
    repository: () => repository,
    copyLayer: async () => undefined,
    data,
    clients: new Map(),
    servers: new ServerMonitor(servers),
    tasks,
    fetcher: new LayerFetcher({ dataFolder: folder, ...fetching }),
    retention: { maxVersions: 0, maxBytes: 0 },
    retireGraceMs: 0,
    firstBackoffMs: BACKOFF_MS,
    hostProblems: problems,
    pollIn: () => undefined,
    otherBundles: () => [],
    clock,
    logger,
    stopping: new AbortController().signal,
  });
  await keeper.observer.refresh();
  const removal = t.mock.method(data, 'removeLayer', () => {
    throw new CubeError('IO', 'the file system is read-only');
  });
  const countAfter = async (ms: number): Promise<number> => {
    nowMs += ms;
    for (let i = 0; i < 5; i++) {
      keeper.reconcile();
      await tasks.waitUntilIdle();
    }
    assert.equal(lines.length, removal.mock.callCount());
    return removal.mock.callCount();
  };
  assert.equal(await countAfter(0), 1);
  assert.equal(await countAfter(2 * BACKOFF_MS - 1), 1);
  assert.equal(await countAfter(1), 2);
  assert.equal(await countAfter(4 * BACKOFF_MS - 1), 2);
  assert.equal(await countAfter(1), 3);
  assert.match(lines.join('\n'), /cannot remove layer t\/a+/);
  assert.equal(keeper.problems.list().length, 1);
  removal.mock.restore();
  nowMs += 8 * BACKOFF_MS;
  keeper.reconcile();
  assert.equal(existsSync(unneeded), false);
  assert.deepEqual(keeper.problems.list(), []);
});
