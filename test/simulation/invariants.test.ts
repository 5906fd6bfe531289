/** Every invariant of the simulation detects a writer that violates it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Backend } from '../../lib/repository/backend.ts';
import {
  channelEntryPath,
  layerPath,
  manifestPath,
  rolloutEntryPath,
} from '../../lib/repository/layout.ts';
import { runEpisode } from './episode.ts';
import { BUNDLE } from './host-disk.ts';
import { Random } from './random.ts';
import { startPublisher } from './scenario.ts';
import { type InjectedBug, SimulationRun } from './simulation-run.ts';

const HOSTS = 2;
const WAIT_MS = 2_000;

type FaultyWriter = (store: Backend, run: SimulationRun) => Promise<unknown>;

function put(store: Backend, path: string, entry: object): Promise<boolean> {
  return store.putIfAbsent(path, new TextEncoder().encode(JSON.stringify(entry)));
}

function point(store: Backend, seq: number, entry: object): Promise<boolean> {
  return put(store, channelEntryPath(BUNDLE, 'stable', seq), { reason: 'rogue', ...entry });
}

function enter(store: Backend, seq: number, state: string): Promise<boolean> {
  return put(store, rolloutEntryPath(BUNDLE, '7', seq), { state });
}

/**
 * Name of the writer, the invariant it violates, and its action. Version 1 is published and has no
 * rollout yet.
 */
const FAULTY_WRITERS: readonly [string, string, FaultyWriter][] = [
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
      assert.ok(table);
      const { contentId } = table.shards[0]![0]!;
      return store.deleter!.remove(layerPath(BUNDLE, table.name, contentId));
    },
  ],
  [
    'rogue',
    'no wanted version is removed',
    async (store, run) => {
      await point(store, 1, { version: '1' });
      // A process that starts at the very call of the entry has not seen it.
      await store.size('');
      run.runOnce('later', (process) =>
        run.openStore(process).deleter.remove(manifestPath(BUNDLE, '1')),
      );
    },
  ],
  [
    'rogue',
    'nothing is left over',
    async (store, { invariants }) => {
      await put(store, layerPath(BUNDLE, 'rows', '0'.repeat(32)), {});
      invariants.requireNoOrphans();
    },
  ],
  ['rogue', 'no process ends by itself', () => Promise.reject(new Error('a bug'))],
];

for (const [name, rule, act] of FAULTY_WRITERS) {
  test(`detected: ${rule}`, async () => {
    const run = new SimulationRun(1, HOSTS);
    const published = (): boolean => run.store.objects.has(manifestPath(BUNDLE, '1'));
    run.close();
    startPublisher(run, 'publisher', 'whole', 'good', new Random(1, 'publisher'));
    await run.world.run(WAIT_MS, published);
    assert.ok(published());
    run.runOnce(name, async (process) => void (await act(run.openStore(process), run)));
    await run.world.run(2 * WAIT_MS);
    assert.equal(run.world.violation?.rule, rule);
  });
}

const FINAL_CHECKS: readonly [InjectedBug, string][] = [
  ['agents never come back', 'after the faults all is right'],
  ['collector dies', 'garbage is collected'],
];

for (const [broken, rule] of FINAL_CHECKS) {
  test(`detected: ${broken}`, async () => {
    const { violation } = await runEpisode({ seed: 1, hosts: HOSTS, bug: broken, only: new Set() });
    assert.equal(violation?.rule, rule);
  });
}
