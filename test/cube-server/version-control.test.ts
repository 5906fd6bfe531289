/** Removals that fail in a serving thread. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LoadedVersions } from '../../cube-server/loaded-versions.ts';
import { VersionControl } from '../../cube-server/version-control.ts';
import { systemClock as clock } from '../../lib/platform/clock.ts';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import { createManifest } from '../store/support/layers.ts';

const VERSION = { bundle: 'test', version: '1' };

test('after a removal that failed, the version can be loaded and removed again', async (t) => {
  const store = new ResidentStore({ budgetBytes: 1 << 20 });
  t.after(() => store.close());
  const control = new VersionControl({
    loaded: new LoadedVersions({ shardIndex: 0, shardNum: 1, clock }),
    store,
    dataFolder: 'unused',
    clock,
    retireGraceMs: 0,
    loadBytesPerSecond: Number.POSITIVE_INFINITY,
  });
  let failures = 1;
  control.threads = {
    addVersion: async () => undefined,
    activate: async () => undefined,
    removeVersion: async () => {
      failures--;
      if (failures >= 0) throw new Error('the thread has ended');
    },
    drain: async () => undefined,
    updateLastUsed: async () => undefined,
  };
  const load = () => control.loadFrom(VERSION, () => createManifest('1', []), 'unused');
  await load();
  const removal = control.unload(VERSION);
  // Removing the version has begun when it is not listed any more.
  while (control.loaded.find(VERSION) !== undefined) await Promise.resolve();
  const loadMeanwhile = load();
  await assert.rejects(removal, /the thread has ended/);
  await loadMeanwhile;
  assert.equal(await control.unload(VERSION), true);
  assert.equal(store.version('test', '1'), undefined);
  await load();
  assert.deepEqual(control.getFailedLoads(), []);
});
