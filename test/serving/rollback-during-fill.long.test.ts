/**
 * A rollback at every step of the LOCAL store's slow fill: the quarantined version never serves,
 * not even until the next poll.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { createLogger } from '../../lib/platform/logs.ts';
import { LoadedBundle } from '../../serving/engine/loaded-bundle.ts';
import { Predictor } from '../../serving/engine/predictor.ts';
import { VersionManager } from '../../serving/models/version-manager.ts';
import { ChannelSource } from '../../serving/models/version-source.ts';
import { warmUp } from '../../serving/models/warm-up.ts';
import { LocalStore } from '../../serving/stores/local-store.ts';
import { BUNDLE, ToyBundle } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const POLL_MS = 5;
/** Polls that pass at the step: the manager may see the rollback there, or not yet. */
const PAUSES_MS = [0, 4 * POLL_MS];

const logger = createLogger('test', { level: 'silent' });
const one = new ToyBundle({ version: '1', seed: 11 });
const four = new ToyBundle({ version: '4', seed: 44 });

/** @returns the number of steps of the load, and the versions that served after the rollback */
async function rollBackAtStep(
  t: TestContext,
  rollbackStep: number,
  pauseMs: number,
): Promise<{ steps: number; served: string[]; active: string | undefined }> {
  const toys = new ToyRepository(t);
  for (const toy of [one, four]) await toys.publish(toy);
  await toys.activate('1');
  let steps = 0;
  let isFilling = false;
  let isRolledBack = false;
  const served: string[] = [];
  const atStep = async (): Promise<void> => {
    if (!isFilling || steps++ !== rollbackStep) return;
    await toys.rollback();
    isRolledBack = true;
    await new Promise((resolve) => setTimeout(resolve, pauseMs));
  };
  const slow = new Proxy(toys.repository, {
    get(target, member: keyof typeof toys.repository) {
      const value = target[member];
      if (typeof value !== 'function') return value;
      const method = value.bind(target) as (...args: unknown[]) => unknown;
      if (!['fetchLayer', 'readManifest', 'readManifestFile'].includes(member)) return method;
      return async (...args: unknown[]) => {
        await atStep();
        const result = await method(...args);
        await atStep();
        return result;
      };
    },
  });
  const store = await LocalStore.open({ repository: slow, folder: join(toys.folder, 'local') });
  const predictor = new Predictor();
  const channels = ['stable'] as const;
  const manager = new VersionManager({
    model: BUNDLE,
    source: new ChannelSource({
      repository: toys.repository,
      bundle: BUNDLE,
      channels,
      author: 'test',
      logger,
    }),
    pollMs: POLL_MS,
    logger,
    load: async (version, onStep, signal) => {
      isFilling = version === '4';
      const source = { repository: slow, bundle: BUNDLE, store, instances: 1, logger, signal };
      const loaded = await LoadedBundle.load({ ...source, onStep }, version);
      await warmUp(loaded, predictor, { kind: 'golden', timeoutMs: 60_000, signal });
      await atStep();
      isFilling = false;
      return loaded;
    },
    events: {
      onSwitch: (_from, to) => served.push(`${to}${isRolledBack ? ' after the rollback' : ''}`),
      onLoadFailed: () => undefined,
    },
  });
  t.after(async () => {
    await manager.stop();
    await store.close();
  });
  await manager.load();
  await toys.activate('4');
  await manager.load().catch(() => undefined);
  await manager.load();
  return { steps, served, active: manager.status.active };
}

for (const pauseMs of PAUSES_MS) {
  test(`rolled back at every step of a fill, ${pauseMs} ms before it goes on`, async (t) => {
    const { steps, active } = await rollBackAtStep(t, Number.NaN, 0);
    assert.deepEqual([active, steps > 8], ['4', true], 'without a rollback');
    for (let step = 0; step < steps; step++) {
      const result = await rollBackAtStep(t, step, pauseMs);
      assert.deepEqual([result.active, result.served], ['1', ['1']], `step ${step}`);
    }
  });
}
