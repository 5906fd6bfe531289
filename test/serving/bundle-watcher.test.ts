/** What serving keeps loaded while the channel moves, vanishes and points to what cannot be served. Time is made here. */
import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { it, type TestContext } from 'node:test';
import type { Clock } from '../../lib/platform/clock.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { LoadedBundle } from '../../serving/models/bundle.ts';
import { BundleWatcher } from '../../serving/models/bundle-watcher.ts';
import { ChannelSource } from '../../serving/models/channel-source.ts';
import type { WatcherStatus } from '../../serving/models/watcher-status.ts';
import { MemoryStore } from './memory-store.ts';
import { BUNDLE, ToyBundle } from './toy-bundle.ts';
import { ToyRepository } from './toy-service.ts';

const POLL_MS = 1_000;
const VERSIONS = ['1', '2', '3'].map((version, i) => new ToyBundle({ version, seed: 50 + i }));

/** A watcher that polls when it is told to. */
class Follower {
  readonly toys: ToyRepository;
  readonly store = new MemoryStore(VERSIONS);
  readonly watcher: BundleWatcher;
  #nowMs = 0;
  #slept: () => void = () => undefined;
  #asleep: () => void = () => undefined;

  constructor(t: TestContext, channels: readonly [string, ...string[]] = ['stable']) {
    this.toys = new ToyRepository(t);
    const { store, toys } = this;
    const logger = createLogger('test', 'silent');
    const source = { repository: toys.repository, bundle: BUNDLE, store, instances: 1, logger };
    const clock: Clock = {
      nowMs: () => this.#nowMs,
      isoTime: () => '',
      sleep: (ms, signal) =>
        new Promise((resolve) => {
          this.#slept = () => {
            this.#nowMs += ms;
            resolve();
          };
          signal?.addEventListener('abort', () => resolve());
          this.#asleep();
        }),
    };
    this.watcher = new BundleWatcher({
      ...{ model: BUNDLE, source: new ChannelSource(toys.repository, BUNDLE, channels) },
      pollMs: POLL_MS,
      ...{ logger, clock, load: (version) => LoadedBundle.load(source, version) },
    });
    t.after(() => this.watcher.stop());
  }

  get status(): WatcherStatus {
    return this.watcher.status;
  }

  /** The first poll, to its end. */
  async begin(...versions: readonly string[]): Promise<void> {
    for (const toy of VERSIONS) await this.toys.publish(toy);
    for (const version of versions) await this.toys.activate(version);
    const asleep = this.#sleeping();
    this.watcher.start();
    await asleep;
  }

  async poll(times = 1): Promise<void> {
    for (let i = 0; i < times; i++) {
      const asleep = this.#sleeping();
      this.#slept();
      await asleep;
    }
  }

  #sleeping(): Promise<void> {
    return new Promise((resolve) => {
      this.#asleep = resolve;
    });
  }
}

it('holds the active and the previous version, and a channel that is gone changes nothing', async (t) => {
  const follower = new Follower(t);
  await follower.begin('1', '2');
  assert.deepEqual([follower.status.active, follower.status.held], ['2', ['2', '1']]);
  rmSync(join(follower.toys.location, BUNDLE, 'channels'), { recursive: true });
  await follower.poll();
  assert.deepEqual([follower.status.active, follower.status.held], ['2', ['2', '1']]);
  assert.match(follower.status.problem ?? '', /has no channel stable/);
  assert.deepEqual(follower.store.retired, []);
});

it('keeps in use what it answers from when the channel wants two others that it cannot serve', async (t) => {
  const follower = new Follower(t);
  const { store, toys } = follower;
  await follower.begin('1');
  for (const version of ['2', '3']) {
    store.absent.add(version);
    await toys.activate(version);
    await follower.poll();
  }
  store.prepared.length = 0;
  await follower.poll(10);
  assert.equal(follower.status.active, '1');
  assert.equal(store.prepared.filter((version) => version === '1').length, 10);
});

it('asks ever more rarely for a previous version that is nowhere, at every poll for a target', async (t) => {
  const follower = new Follower(t);
  const { store, toys } = follower;
  store.absent.add('1');
  await follower.begin('1', '2');
  await follower.poll(200);
  const tries = store.prepared.filter((version) => version === '1').length;
  assert.ok(tries >= 3 && tries <= 12, `${tries} tries`);
  assert.deepEqual(
    follower.status.failed.map(({ version }) => version),
    ['1'],
  );
  store.absent.add('3');
  await toys.activate('3');
  await follower.poll(20);
  assert.equal(store.prepared.filter((version) => version === '3').length, 20);
});

it('a held version that its shards lost is waited for; what failed is forgotten when it is served', async (t) => {
  const follower = new Follower(t);
  const { store, toys } = follower;
  await follower.begin('1', '2');
  store.absent.add('1');
  await toys.rollback();
  await follower.poll(3);
  assert.deepEqual([follower.status.active, follower.status.target], ['2', '1']);
  assert.equal(follower.status.failed[0]?.attempts, 3);
  store.absent.delete('1');
  await follower.poll();
  assert.deepEqual([follower.status.active, follower.status.failed], ['1', []]);
  assert.deepEqual(follower.status.held, ['1']);
  await follower.watcher.stop();
  assert.deepEqual(store.retired, ['2']);
});

it('there and back and there again: each switch is whole, nothing is lost', async (t) => {
  const follower = new Follower(t);
  await follower.begin('1');
  for (let i = 0; i < 10; i++) {
    const version = i % 2 === 0 ? '2' : '1';
    await follower.toys.activate(version);
    if (i % 3 !== 2) await follower.poll();
  }
  await follower.poll(2);
  assert.deepEqual([follower.status.active, [...follower.status.held].sort()], ['1', ['1', '2']]);
  assert.deepEqual(follower.store.retired, []);
});

it('unloaded by hand it stays so, whatever the channel says, until it is loaded', async (t) => {
  const follower = new Follower(t);
  const { store, toys, watcher } = follower;
  await follower.begin('1');
  await watcher.unload();
  assert.deepEqual([follower.status.unloaded, follower.status.held], [true, []]);
  assert.throws(() => watcher.current, /it was unloaded; load it again/);
  await toys.activate('2');
  await follower.poll(3);
  assert.deepEqual([follower.status.active, store.retired], [undefined, ['1']]);
  await watcher.load();
  assert.deepEqual([follower.status.active, follower.status.unloaded], ['2', false]);
  store.absent.add('3');
  await toys.activate('3');
  await assert.rejects(watcher.load(), /toy was not loaded: .*3/);
  assert.equal(watcher.current.version, '2');
});

it('channels that want one version share it, and each answers by its name', async (t) => {
  const follower = new Follower(t, ['stable', 'canary']);
  const { store, toys, watcher } = follower;
  await follower.begin('1', '2');
  const label = (name: string): string => watcher.labelled(name).version;
  assert.throws(() => label('canary'), /no version of toy \(channel canary\) is served/);
  await toys.activate('2', 'canary');
  await follower.poll();
  assert.equal(watcher.labelled('canary'), watcher.current);
  await toys.activate('3', 'canary');
  await follower.poll();
  assert.deepEqual([label('stable'), label('canary')], ['2', '3']);
  assert.deepEqual(follower.status.held, ['2', '1', '3']);
  assert.equal(watcher.versioned('1').version, '1');
  await toys.activate('3');
  await follower.poll();
  assert.equal(watcher.current, watcher.labelled('canary'));
  while (store.retired.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  assert.deepEqual(store.retired, ['1']);
  assert.throws(
    () => watcher.versioned('1'),
    /version "1" of toy is not served here \(served: 2, 3\)/,
  );
  assert.throws(() => label('blue'), /label "blue" of toy is not followed here/);
});
