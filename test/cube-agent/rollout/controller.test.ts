/** The loop over bundles, on real repositories with a fleet that answers when a test says so. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { BundleController } from '../../../cube-agent/rollout/bundle-controller.ts';
import { Controller } from '../../../cube-agent/rollout/controller.ts';
import { POLICY_DEFAULTS } from '../../../cube-agent/rollout/rollout-config.ts';
import type { RolloutFleet } from '../../../cube-agent/rollout/rollout-driver.ts';
import type { GateOutcome, ReplicaView } from '../../../cube-agent/rollout/rollout-view.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../../lib/platform/clock.ts';
import { createForwardingLogger, createLogger, type Logger } from '../../../lib/platform/logs.ts';
import { FolderBackend } from '../../../lib/repository/folder-backend.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { waitFor } from '../../support/processes.ts';

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;

/** Time passes when a test says so; a pause between inspections ends when it is aborted. */
class PausedClock implements Clock {
  timeMs = 0;
  readonly pauses: string[] = [];

  nowMs(): number {
    return this.timeMs;
  }

  isoTime(): string {
    return systemClock.isoTime();
  }

  sleep(_ms: number, signal?: AbortSignal): Promise<void> {
    this.pauses.push(signal?.aborted === true ? 'ended before it began' : 'began');
    return systemClock.sleep(HOUR_MS, signal);
  }
}

/** One replica. Its answers and the gate's wait for `hold`. */
class Fleet implements RolloutFleet {
  isLoaded = true;
  hold: Promise<unknown> | undefined;
  gateHold: Promise<unknown> | undefined;
  asked = 0;
  gates = 0;

  async replicas(): Promise<ReplicaView[][]> {
    this.asked++;
    await this.hold;
    const has = { holds: this.isLoaded, isActive: this.isLoaded, damaged: [] };
    return [[{ address: 'a', ...has, problems: [], trouble: '' }]];
  }

  async gate(): Promise<GateOutcome> {
    this.gates++;
    await this.gateHold;
    return { verdict: 'pass', summary: 'fine' };
  }

  async checkHealth(): Promise<undefined> {
    // Too few predictions are known.
  }

  async notifyChannelMoved(): Promise<void> {
    // No subscribers.
  }
}

function makeHold(): { readonly ended: Promise<void>; end(): void } {
  let end = (): void => undefined;
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  return { ended, end: () => end() };
}

const POLICY = {
  ...POLICY_DEFAULTS,
  channels: [{ channel: 'stable', holdMs: 0 }],
  watchMs: 0,
};

/** A bundle with one published version, whose rollout starts with the first inspection. */
async function makeBundle(
  t: TestContext,
  fleet: Fleet,
  clock: Clock,
  logger: Logger = createLogger('test', { level: 'silent' }),
): Promise<BundleController> {
  const folder = temporaryFolder(t);
  const repository = openRepository(join(folder, 'repository'), { create: true });
  await repository.publish(makeVersion(join(folder, 'built'), { version: '1', table: 'a' }));
  return new BundleController({
    bundle: 'ctr',
    repository,
    policy: POLICY,
    fleet,
    holder: 'me',
    automatic: true,
    clock,
    logger,
  });
}

test('a controller is healthy during a long gate', async (t) => {
  const clock = new PausedClock();
  const fleet = new Fleet();
  const gate = makeHold();
  fleet.gateHold = gate.ended;
  const bundle = await makeBundle(t, fleet, clock);
  const stopping = new AbortController();
  const controller = new Controller([bundle], { clock, pollMs: 1, stopping });
  controller.start();
  await waitFor('the gate runs', () => fleet.gates === 1);
  clock.timeMs += HOUR_MS;
  assert.ok(controller.isHealthy);
  gate.end();
  await waitFor('the version is active', () => bundle.progress.get('1')?.state === 'active');
  assert.ok(controller.isHealthy);
  await controller.stop();
});

test('a controller is not healthy when one of its bundles hangs', async (t) => {
  const clock = new PausedClock();
  const fleet = new Fleet();
  const hang = makeHold();
  fleet.hold = hang.ended;
  const hung = await makeBundle(t, fleet, clock);
  const live = await makeBundle(t, new Fleet(), clock);
  const stopping = new AbortController();
  const controller = new Controller([hung, live], { clock, pollMs: 1, stopping });
  controller.start();
  await waitFor('an inspection hangs', () => fleet.asked === 1);
  await waitFor('the other is active', () => live.progress.get('1')?.state === 'active');
  assert.ok(controller.isHealthy);
  clock.timeMs += 3 * MINUTE_MS;
  const before = live.progress.get('1');
  controller.poke();
  await waitFor('the other is inspected', () => live.progress.get('1') !== before);
  assert.ok(!controller.isHealthy);
  hang.end();
  await controller.stop();
});

test('a controller that is poked during an inspection inspects again, or stops', async (t) => {
  const clock = new PausedClock();
  const fleet = new Fleet();
  fleet.isLoaded = false;
  const first = makeHold();
  fleet.hold = first.ended;
  const bundle = await makeBundle(t, fleet, clock);
  const stopping = new AbortController();
  const controller = new Controller([bundle], { clock, pollMs: 1, stopping });
  t.after(() => controller.stop());
  controller.start();
  await waitFor('the first inspection', () => fleet.asked === 1);
  const second = makeHold();
  fleet.hold = second.ended;
  controller.poke();
  first.end();
  await waitFor('the first pause', () => clock.pauses.length === 1);
  assert.deepEqual(clock.pauses, ['ended before it began']);
  await waitFor('the second inspection', () => fleet.asked === 2);
  const stopped = controller.stop();
  second.end();
  await waitFor('the second pause', () => clock.pauses.length === 2);
  assert.deepEqual(clock.pauses, ['ended before it began', 'ended before it began']);
  await stopped;
});

test('a rollout that cannot start is logged once and tried again', async (t) => {
  const lines: string[] = [];
  const logger = createForwardingLogger('warn', (line) => lines.push(line));
  const bundle = await makeBundle(t, new Fleet(), new PausedClock(), logger);
  const put = t.mock.method(FolderBackend.prototype, 'putIfAbsent', async () => {
    throw new CubeError('IO', 'the file system is read-only');
  });
  for (let i = 1; i <= 5; i++) {
    await bundle.advance();
    assert.equal(put.mock.callCount(), i);
  }
  assert.equal(lines.length, 1, lines.join('\n'));
  const problem = { version: '1', code: 'IO', message: 'the file system is read-only' };
  assert.deepEqual(bundle.problems, [problem]);
  put.mock.restore();
  await bundle.advance();
  assert.deepEqual(bundle.problems, []);
  for (let i = 0; i < 20 && bundle.progress.get('1')?.state !== 'active'; i++) {
    await bundle.advance();
  }
  assert.equal(bundle.progress.get('1')?.state, 'active');
});

test('a version that cannot start is forgotten when a newer one takes its place', async (t) => {
  const lines: string[] = [];
  const logger = createForwardingLogger('warn', (line) => lines.push(line));
  const bundle = await makeBundle(t, new Fleet(), new PausedClock(), logger);
  const { repository } = bundle.options;
  const { putIfAbsent } = FolderBackend.prototype;
  t.mock.method(
    FolderBackend.prototype,
    'putIfAbsent',
    function put(this: FolderBackend, path: string, bytes: Uint8Array): Promise<boolean> {
      if (!path.startsWith('ctr/rollouts/')) return putIfAbsent.call(this, path, bytes);
      throw new CubeError('IO', 'the file system is read-only');
    },
  );
  await bundle.advance();
  await repository.publish(makeVersion(temporaryFolder(t), { version: '2', table: 'a' }));
  await bundle.advance();
  await bundle.advance();
  assert.deepEqual(
    bundle.problems.map(({ version }) => version),
    ['2'],
  );
  assert.equal(lines.length, 2, lines.join('\n'));
});

test('versions that cannot be listed are logged once', async (t) => {
  const lines: string[] = [];
  const logger = createForwardingLogger('warn', (line) => lines.push(line));
  const bundle = await makeBundle(t, new Fleet(), new PausedClock(), logger);
  const list = t.mock.method(bundle.options.repository, 'listVersions', async () => {
    throw new CubeError('IO', 'permission denied');
  });
  for (let i = 0; i < 3; i++) await bundle.advance();
  assert.equal(list.mock.callCount(), 3);
  assert.equal(lines.length, 1, lines.join('\n'));
  list.mock.restore();
  await bundle.advance();
  assert.deepEqual(bundle.problems, []);
});
