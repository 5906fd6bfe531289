/** Which versions stay loaded while channels move, vanish and fail. Uses a virtual clock. */
import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { LoadedBundle } from '../../serving/engine/loaded-bundle.ts';
import { type ModelStatus, VersionManager } from '../../serving/models/version-manager.ts';
import { ChannelSource } from '../../serving/models/version-source.ts';
import { FakeStore } from './support/fake-store.ts';
import { BUNDLE, ToyBundle } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const POLL_MS = 1_000;
const VERSIONS = ['1', '2', '3', '4'].map((version, i) => new ToyBundle({ version, seed: 50 + i }));

/** A version manager that polls on demand. */
class ManualClockManager {
  readonly toys: ToyRepository;
  readonly store = new FakeStore(VERSIONS);
  readonly watcher: VersionManager;
  #nowMs = 0;
  #slept: () => void = () => undefined;
  #asleep: () => void = () => undefined;
  /** Ends the pause between two polls during a load. */
  #pollInLoad: () => void = () => undefined;

  /** @param toys the repository of another process to follow */
  constructor(
    t: TestContext,
    channels: readonly [string, ...string[]] = ['stable'],
    toys: ToyRepository = new ToyRepository(t),
  ) {
    this.toys = toys;
    const { store } = this;
    const logger = createLogger('test', { level: 'silent' });
    const source = { repository: toys.repository, bundle: BUNDLE, store, instances: 1, logger };
    const clock: Clock = {
      nowMs: () => this.#nowMs,
      isoTime: () => '',
      sleep: (ms, signal) =>
        new Promise((resolve) => {
          const isInLoad = this.watcher.status.loading !== undefined;
          const end = (): void => {
            this.#nowMs += ms;
            resolve();
          };
          signal?.addEventListener('abort', () => resolve(), { once: true });
          if (isInLoad) this.#pollInLoad = end;
          else {
            this.#slept = end;
            this.#asleep();
          }
        }),
    };
    this.watcher = new VersionManager({
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
      clock,
      load: (version, _onStep, signal) => LoadedBundle.load({ ...source, signal }, version),
    });
    t.after(() => this.watcher.stop());
  }

  get status(): ModelStatus {
    return this.watcher.status;
  }

  /** Runs the first poll to its end. */
  async begin(...versions: readonly string[]): Promise<void> {
    for (const toy of VERSIONS) await this.toys.publish(toy);
    for (const version of versions) await this.toys.activate(version);
    const asleep = this.#sleeping();
    this.watcher.start();
    await asleep;
  }

  /** Publishes nothing: another process has. */
  async beginLater(): Promise<void> {
    const asleep = this.#sleeping();
    this.watcher.start();
    await asleep;
  }

  /** Starts a poll whose load waits for `store.prepareGate`; polls again until `isSeen`. */
  async pollDuringLoad(isSeen: () => boolean): Promise<void> {
    while (!isSeen()) {
      this.#pollInLoad();
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  startPoll(): Promise<void> {
    const asleep = this.#sleeping();
    this.#slept();
    return asleep;
  }

  async poll(times = 1): Promise<void> {
    for (let i = 0; i < times; i++) await this.startPoll();
  }

  #sleeping(): Promise<void> {
    return new Promise((resolve) => {
      this.#asleep = resolve;
    });
  }
}

test('the active and the previous version stay loaded without their channel', async (t) => {
  const manager = new ManualClockManager(t);
  await manager.begin('1', '2');
  assert.deepEqual([manager.status.active, manager.status.held], ['2', ['2', '1']]);
  rmSync(join(manager.toys.location, BUNDLE, 'channels'), { recursive: true });
  await manager.poll();
  assert.deepEqual([manager.status.active, manager.status.held], ['2', ['2', '1']]);
  assert.match(manager.status.problem ?? '', /has no channel stable/);
  assert.deepEqual(manager.store.retired, []);
});

test('the active version serves while the desired versions cannot load', async (t) => {
  const manager = new ManualClockManager(t);
  const { store, toys } = manager;
  await manager.begin('1');
  for (const version of ['2', '3']) {
    store.missingVersions.add(version);
    await toys.activate(version);
    await manager.poll();
  }
  store.prepared.length = 0;
  await manager.poll(10);
  assert.equal(manager.status.active, '1');
  assert.equal(store.prepared.filter((version) => version === '1').length, 10);
});

test('a missing previous version is retried less often than a target', async (t) => {
  const manager = new ManualClockManager(t);
  const { store, toys } = manager;
  store.missingVersions.add('1');
  await manager.begin('1', '2');
  await manager.poll(200);
  const tries = store.prepared.filter((version) => version === '1').length;
  assert.ok(tries >= 3 && tries <= 12, `${tries} tries`);
  assert.deepEqual(
    manager.status.failed.map(({ version }) => version),
    ['1'],
  );
  store.missingVersions.add('3');
  await toys.activate('3');
  await manager.poll(20);
  assert.equal(store.prepared.filter((version) => version === '3').length, 20);
});

test('a rollback to a version that its shards lost reports it until it is back', async (t) => {
  const manager = new ManualClockManager(t);
  const { store, toys } = manager;
  await manager.begin('1', '2');
  store.missingVersions.add('1');
  await toys.rollback();
  await manager.poll(3);
  // Version 2 is quarantined, so it does not serve any more, whatever happened to version 1.
  assert.deepEqual([manager.status.active, manager.status.target], ['1', '1']);
  assert.deepEqual(
    manager.status.failed.map(({ version, code }) => [version, code]),
    [['1', 'NOT_READY']],
  );
  store.missingVersions.delete('1');
  await manager.poll();
  assert.deepEqual([manager.status.active, manager.status.failed], ['1', []]);
  assert.deepEqual(manager.status.held, ['1']);
  await manager.watcher.stop();
  assert.deepEqual(store.retired, ['2']);
});

test('repeated switches between versions are complete and lose nothing', async (t) => {
  const manager = new ManualClockManager(t);
  await manager.begin('1');
  for (let i = 0; i < 10; i++) {
    const version = i % 2 === 0 ? '2' : '1';
    await manager.toys.activate(version);
    if (i % 3 !== 2) await manager.poll();
  }
  await manager.poll(2);
  assert.deepEqual([manager.status.active, [...manager.status.held].sort()], ['1', ['1', '2']]);
  assert.deepEqual(manager.store.retired, []);
});

test('an unloaded model stays unloaded until it is loaded', async (t) => {
  const manager = new ManualClockManager(t);
  const { store, toys, watcher } = manager;
  await manager.begin('1');
  await watcher.unload();
  assert.deepEqual([manager.status.unloaded, manager.status.held], [true, []]);
  assert.throws(() => watcher.current, /it was unloaded; load it again/);
  await toys.activate('2');
  await manager.poll(3);
  assert.deepEqual([manager.status.active, store.retired], [undefined, ['1']]);
  await watcher.load();
  assert.deepEqual([manager.status.active, manager.status.unloaded], ['2', false]);
  store.missingVersions.add('3');
  await toys.activate('3');
  await assert.rejects(watcher.load(), /toy was not loaded: .*3/);
  assert.equal(watcher.current.version, '2');
});

test('channels with the same version share it, and each serves under its name', async (t) => {
  const manager = new ManualClockManager(t, ['stable', 'canary']);
  const { store, toys, watcher } = manager;
  await manager.begin('1', '2');
  const label = (name: string): string => watcher.findByChannel(name).version;
  assert.throws(() => label('canary'), /no version of toy \(channel canary\) is served/);
  await toys.activate('2', 'canary');
  await manager.poll();
  assert.equal(watcher.findByChannel('canary'), watcher.current);
  await toys.activate('3', 'canary');
  await manager.poll();
  assert.deepEqual([label('stable'), label('canary')], ['2', '3']);
  assert.deepEqual(manager.status.held, ['2', '1', '3']);
  assert.equal(watcher.findByVersion('1').version, '1');
  await toys.activate('3');
  await manager.poll();
  assert.equal(watcher.current, watcher.findByChannel('canary'));
  while (store.retired.length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
  assert.deepEqual(store.retired, ['1']);
  assert.throws(
    () => watcher.findByVersion('1'),
    /version "1" of toy is not served here \(served: 2, 3\)/,
  );
  assert.throws(() => label('blue'), /label "blue" of toy: no such channel here/);
});

test('a rollback goes to the version that served, in processes of any age', async (t) => {
  const old = new ManualClockManager(t);
  const { toys, store } = old;
  store.brokenVersions.add('4');
  await old.begin('1');
  for (const version of ['4', '2']) {
    await toys.activate(version);
    await old.poll();
  }
  assert.equal(old.status.active, '2');
  await toys.rollback();
  await old.poll();
  const { pointer } = await toys.repository.readChannel(BUNDLE, 'stable');
  assert.equal(pointer?.version, '1', 'not 4, which failed to load');
  const young = new ManualClockManager(t, ['stable'], toys);
  young.store.brokenVersions.add('4');
  await young.beginLater();
  assert.deepEqual([old.status.active, young.status.active], ['1', '1']);
  assert.ok(!old.status.held.includes('2'), 'a quarantined version is not kept');
});

test('without records processes of any age serve the newest version that loads', async (t) => {
  const old = new ManualClockManager(t);
  const { toys, store } = old;
  // As in a repository that is read-only for these processes.
  t.mock.method(toys.repository, 'recordOutcome', () =>
    Promise.reject(new CubeError('UNSUPPORTED', 'read-only')),
  );
  store.brokenVersions.add('3').add('4');
  await old.begin('1', '3', '4');
  const young = new ManualClockManager(t, ['stable'], toys);
  young.store.brokenVersions.add('3').add('4');
  await young.beginLater();
  assert.deepEqual([old.status.active, young.status.active], ['1', '1']);
});

test('a quarantined version stops serving even if no other one is loaded', async (t) => {
  const manager = new ManualClockManager(t);
  const { toys, store } = manager;
  store.missingVersions.add('1');
  await manager.begin('1', '2');
  await toys.rollback();
  await manager.poll();
  assert.deepEqual([manager.status.active, manager.status.held], [undefined, []]);
  assert.throws(() => manager.watcher.current, /version 1: 1 is absent/);
  store.missingVersions.delete('1');
  await manager.poll();
  assert.equal(manager.status.active, '1');
});

test('after a quarantine, a version that the shards have lost does not serve', async (t) => {
  const manager = new ManualClockManager(t, ['stable', 'old']);
  const { toys, store } = manager;
  await toys.publish(VERSIONS[0]!);
  await toys.activate('1', 'old');
  await manager.begin('1');
  for (const version of ['2', '3']) {
    await toys.activate(version);
    await manager.poll();
  }
  assert.deepEqual([...manager.status.held].sort(), ['1', '2', '3']);
  store.missingVersions.add('2').add('3');
  await toys.rollback();
  await manager.poll();
  assert.equal(manager.status.active, '1');
  store.missingVersions.clear();
  await manager.poll();
  assert.equal(manager.status.active, '2');
});

test('a version that is rolled back during its load never serves', async (t) => {
  const manager = new ManualClockManager(t);
  const { toys, store, watcher } = manager;
  await manager.begin('1');
  let open = (): void => undefined;
  store.prepareGate = new Promise((resolve) => {
    open = resolve;
  });
  await toys.activate('2');
  const polled = manager.startPoll();
  await manager.pollDuringLoad(() => manager.status.loading === '2');
  await toys.rollback();
  // During the load the channel is read, and the load is not wanted any more.
  await manager.pollDuringLoad(() => manager.status.target === '1');
  open();
  await polled;
  assert.deepEqual([watcher.current.version, manager.status.held], ['1', ['1']]);
  assert.deepEqual(manager.status.failed, []);
});

test('a rollback after the last poll of a load is seen before the version serves', async (t) => {
  const manager = new ManualClockManager(t);
  const { toys, store } = manager;
  await manager.begin('1');
  let open = (): void => undefined;
  store.prepareGate = new Promise((resolve) => {
    open = resolve;
  });
  const served: string[] = [];
  t.mock.method(toys.repository, 'recordOutcome', async (_bundle: string, version: string) => {
    served.push(version);
    return true;
  });
  await toys.activate('2');
  const polled = manager.startPoll();
  await manager.pollDuringLoad(() => manager.status.loading === '2');
  await toys.rollback();
  open();
  await polled;
  assert.deepEqual([manager.status.active, served.includes('2')], ['1', false]);
});
