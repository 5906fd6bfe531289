/** Each rule of the simulation notices who breaks it: a writer that does what no part of ours does. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Backend } from '../../lib/repository/backend.ts';
import {
  channelEntryPath,
  layerPath,
  manifestPath,
  rolloutEntryPath,
} from '../../lib/repository/layout.ts';
import { playEpisode } from './episode.ts';
import { type Broken, FleetRun } from './fleet-run.ts';
import { BUNDLE } from './host-disk.ts';
import { Random } from './random.ts';
import { publishNow } from './scenario.ts';

const HOSTS = 2;
const SOON_MS = 2_000;

type Rogue = (store: Backend, run: FleetRun) => Promise<unknown>;

function put(store: Backend, path: string, entry: object): Promise<boolean> {
  return store.putIfAbsent(path, new TextEncoder().encode(JSON.stringify(entry)));
}

function point(store: Backend, seq: number, entry: object): Promise<boolean> {
  return put(store, channelEntryPath(BUNDLE, 'stable', seq), { reason: 'rogue', ...entry });
}

function enter(store: Backend, seq: number, state: string): Promise<boolean> {
  return put(store, rolloutEntryPath(BUNDLE, '7', seq), { state });
}

/** By name of who does it and rule that is broken. A version 1 is published, and nobody has begun with it. */
const ROGUES: readonly [string, string, Rogue][] = [
  ['rogue', 'a pointer log has no gaps', (store) => point(store, 2, { version: '1' })],
  [
    'rogue',
    'nobody moves a pinned channel',
    async (store) => {
      await point(store, 1, { version: '1', pinned: true });
      await point(store, 2, { version: '2' });
    },
  ],
  [
    'controller-x',
    'a rollout points to what is staged',
    (store) => point(store, 1, { version: '1', reason: 'rollout of 1' }),
  ],
  ['rogue', 'a rollout log has no gaps', (store) => enter(store, 2, 'seen')],
  ['rogue', 'states follow each other', (store) => enter(store, 1, 'active')],
  [
    'rogue',
    'no published layer is removed',
    (store, { publisher }) => {
      const [table] = publisher.versions.get('1')!.manifest.tables;
      const { contentId } = table!.shards[0]![0]!;
      return store.eraser!.remove(layerPath(BUNDLE, table!.name, contentId));
    },
  ],
  [
    'rogue',
    'no wanted version is removed',
    async (store, run) => {
      await point(store, 1, { version: '1' });
      // Whoever begins at the very call of the entry has not seen it.
      await store.size('');
      run.once('later', (process) => run.storeOf(process).eraser.remove(manifestPath(BUNDLE, '1')));
    },
  ],
  [
    'rogue',
    'nothing is left over',
    async (store, { rules }) => {
      await put(store, layerPath(BUNDLE, 'rows', '0'.repeat(32)), {});
      rules.requireNoOrphans();
    },
  ],
  ['rogue', 'no process ends by itself', () => Promise.reject(new Error('a bug'))],
];

for (const [name, rule, act] of ROGUES) {
  test(`noticed: ${rule}`, async () => {
    const run = new FleetRun(1, HOSTS);
    const published = (): boolean => run.store.objects.has(manifestPath(BUNDLE, '1'));
    run.close();
    publishNow(run, 'publisher', 'whole', 'good', new Random(1, 'publisher'));
    await run.world.run(SOON_MS, published);
    assert.ok(published());
    run.once(name, async (process) => void (await act(run.storeOf(process), run)));
    await run.world.run(2 * SOON_MS);
    assert.equal(run.world.violation?.rule, rule);
  });
}

const ENDINGS: readonly [Broken, string][] = [
  ['agents never come back', 'after the faults all is right'],
  ['collector dies', 'garbage is collected'],
];

for (const [broken, rule] of ENDINGS) {
  test(`noticed: ${broken}`, async () => {
    const { violation } = await playEpisode({ seed: 1, hosts: HOSTS, broken, only: new Set() });
    assert.equal(violation?.rule, rule);
  });
}
