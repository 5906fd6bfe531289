/** The rollout driver on a real repository with a simulated fleet. */
import assert from 'node:assert/strict';
import { readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { BundleController } from '../../../cube-agent/rollout/bundle-controller.ts';
import { POLICY_DEFAULTS } from '../../../cube-agent/rollout/rollout-config.ts';
import {
  RolloutDriver,
  type RolloutFleet,
  type RolloutProgress,
} from '../../../cube-agent/rollout/rollout-driver.ts';
import { describeStep } from '../../../cube-agent/rollout/rollout-status.ts';
import type {
  GateOutcome,
  HealthFailure,
  ReplicaView,
} from '../../../cube-agent/rollout/rollout-view.ts';
import { checkManifest } from '../../../cube-agent/rollout/source-check.ts';
import { systemClock } from '../../../lib/platform/clock.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { FolderBackend } from '../../../lib/repository/folder-backend.ts';
import { layerPath, manifestPath } from '../../../lib/repository/layout.ts';
import { openRepository, Repository } from '../../../lib/repository/repository.ts';
import { generateKeyPair, TrustedKeys } from '../../../lib/repository/signatures.ts';
import { getBaseLayer, makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { AUDIT } from '../support/host.ts';

const STEPS_MAX = 100;
const DAY_MS = 86_400_000;

/** Two shards of two replicas that have whatever they are to have, unless a test says otherwise. */
class Fleet implements RolloutFleet {
  verdicts: GateOutcome[] = [];
  sick: string | undefined;
  /** Active while servers are away. */
  unlucky: string | undefined;
  /** Layers that no host gets whole. */
  damaged: string[] = [];
  gates: string[] = [];
  /** What others do while replicas are asked, or while the gate runs. */
  during: { replicas?: () => Promise<void>; gate?: () => Promise<void> } = {};
  /** What live traffic was compared with. */
  readonly compared: Set<string> = new Set();

  async replicas(): Promise<ReplicaView[][]> {
    const { damaged } = this;
    await this.during.replicas?.();
    const isWhole = damaged.length === 0;
    const has = { holds: isWhole, isActive: isWhole, damaged };
    const replica = (name: string) => ({ address: name, ...has, problems: [], trouble: '' });
    return [
      [replica('a'), replica('b')],
      [replica('c'), replica('d')],
    ];
  }

  async gate(version: string, active: string | undefined): Promise<GateOutcome> {
    this.gates.push(`${version} against ${active}`);
    await this.during.gate?.();
    return this.verdicts.shift() ?? { verdict: 'pass', summary: 'fine' };
  }

  async checkHealth(
    version: string,
    before: string | undefined,
  ): Promise<HealthFailure | undefined> {
    this.compared.add(`${version} with ${before}`);
    if (version === this.sick) return { fault: 'version', reason: '40 % of the requests fail' };
    return version === this.unlucky ? { fault: 'fleet', reason: 'a shard is away' } : undefined;
  }

  async notifyChannelMoved(): Promise<void> {
    // No subscribers.
  }
}

const policy = {
  ...POLICY_DEFAULTS,
  channels: [
    { channel: 'canary', holdMs: 0 },
    { channel: 'stable', holdMs: 0 },
  ],
  watchMs: 0,
  stagingMs: 0,
};

interface World {
  readonly repository: Repository;
  readonly fleet: Fleet;
  driver(version: string, more?: Partial<typeof policy>, holder?: string): RolloutDriver;
  states(version: string): Promise<string>;
  pointers(): Promise<string>;
}

async function makeWorld(t: TestContext, ...versions: string[]): Promise<World> {
  const folder = temporaryFolder(t);
  const repository = openRepository(join(folder, 'repository'), { create: true });
  for (const version of versions) {
    await repository.publish(makeVersion(join(folder, 'built'), { version, table: version }));
  }
  const fleet = new Fleet();
  const clock = systemClock;
  const logger = createLogger('test', { level: 'silent' });
  return {
    repository,
    fleet,
    driver: (version, more = {}, holder = 'me') =>
      new RolloutDriver({
        repository,
        bundle: 'ctr',
        version,
        fleet,
        holder,
        clock,
        logger,
        policy: { ...policy, ...more },
      }),
    states: async (version) =>
      (await repository.rolloutLog('ctr', version).readHistory())
        .map(({ state }) => state)
        .join(' '),
    pointers: async () => {
      const pointers = await Promise.all(
        ['candidate', 'canary', 'stable'].map(
          async (channel) => (await repository.readChannel('ctr', channel)).pointer?.version ?? '-',
        ),
      );
      return pointers.join(' ');
    },
  };
}

async function toEnd(driver: RolloutDriver): Promise<RolloutProgress> {
  for (let i = 0; i < STEPS_MAX; i++) {
    const progress = await driver.advance();
    if (progress.step.kind === 'done' || progress.step.kind === 'wait') return progress;
  }
  throw new Error(`not at an end after ${STEPS_MAX} steps`);
}

test('a version that fails its gate is quarantined; no channel ever pointed to it', async (t) => {
  const { repository, fleet, driver, states, pointers } = await makeWorld(t, '1', '2');
  await toEnd(driver('1'));
  fleet.verdicts = [
    { verdict: 'error', summary: 'no port', isFinal: false },
    { verdict: 'fail', summary: 'AUC fell by 0.2' },
  ];
  await toEnd(driver('2'));
  assert.equal(await states('2'), 'seen staging staged gating failed quarantined');
  assert.deepEqual(fleet.gates, ['1 against undefined', '2 against 1', '2 against 1']);
  assert.equal(await pointers(), '1 1 1');
  assert.ok((await repository.listQuarantined('ctr')).has('2'));
  await assert.rejects(driver('2').restart(), /quarantined; publish a new one/);
});

test('an unhealthy canary is rolled back and stable never moves', async (t) => {
  const { repository, fleet, driver, states, pointers } = await makeWorld(t, '1', '2');
  await toEnd(driver('1'));
  fleet.sick = '2';
  const progress = await toEnd(driver('2'));
  assert.equal(progress.state, 'quarantined');
  const way = 'seen staging staged gating activating failed rolled-back quarantined';
  assert.equal(await states('2'), way);
  assert.equal(await pointers(), '1 1 1');
  assert.equal((await repository.readChannel('ctr', 'stable')).history.length, 1);
  const failed = (await repository.rolloutLog('ctr', '2').readHistory())[5];
  assert.match(failed?.reason ?? '', /40 % of the requests fail/);
});

test('a version is rolled back but not quarantined when servers are unavailable', async (t) => {
  const { repository, fleet, driver, states, pointers } = await makeWorld(t, '1', '2');
  await toEnd(driver('1'));
  fleet.unlucky = '2';
  assert.equal((await toEnd(driver('2'))).state, 'rolled-back');
  assert.equal(await pointers(), '1 1 1');
  assert.equal((await repository.listQuarantined('ctr')).size, 0);
  fleet.unlucky = undefined;
  assert.equal(await driver('2').restart('the shard is back'), true);
  assert.equal(await driver('2').restart(), false, 'it is in progress');
  const retried = (await repository.rolloutLog('ctr', '2').readHistory()).at(-1);
  assert.equal(retried?.reason, 'the shard is back');
  await toEnd(driver('2'));
  assert.equal(await pointers(), '2 2 2');
  assert.match(await states('2'), / rolled-back seen .* active$/);
});

test('a gate report begins no rollout', async (t) => {
  const { repository, fleet, states } = await makeWorld(t, '1');
  const report = { json: '{}', txt: '', html: '' };
  await repository.rolloutLog('ctr', '1').putGateReport(report);
  const controller = new BundleController({
    bundle: 'ctr',
    repository,
    policy,
    fleet,
    holder: 'me',
    automatic: false,
    clock: systemClock,
    logger: createLogger('test', { level: 'silent' }),
  });
  assert.equal(await controller.advance(), false);
  assert.equal(await states('1'), '');
  await repository.rolloutLog('ctr', '1').append(0, { state: 'seen', holder: 'me', reason: 'x' });
  assert.equal(await controller.advance(), true);
});

test('live traffic is compared with the version of most users', async (t) => {
  const { fleet, driver } = await makeWorld(t, '1', '2', '3');
  await toEnd(driver('1'));
  await toEnd(driver('2'));
  fleet.compared.clear();
  const held = { channels: [{ channel: 'canary', holdMs: 60_000 }, policy.channels[1]!] };
  assert.match((await toEnd(driver('3', held))).step.kind, /wait/);
  assert.deepEqual([...fleet.compared], ['3 with 2']);
  await toEnd(driver('3', { watchMs: 60_000 }));
  assert.deepEqual([...fleet.compared], ['3 with 2']);
});

test('two unhealthy versions in a row are rolled back to the last good one', async (t) => {
  const { repository, fleet, driver, states, pointers } = await makeWorld(t, '1', '2', '3');
  await toEnd(driver('1'));
  const watched = { watchMs: 60_000 };
  const second = driver('2', watched);
  assert.equal((await toEnd(second)).state, 'active');
  assert.equal(await pointers(), '2 2 2');
  // The third rollout starts when the watch of the second is over.
  assert.match((await driver('3', watched).inspect()).step.kind, /wait/);
  const third = driver('3');
  await toEnd(third);
  assert.equal(await pointers(), '3 3 3');
  await repository.rollback('ctr', 'stable', 'ann', 'bad', '3');
  await toEnd(third);
  assert.equal(
    await states('3').then((way) => way.split(' ').slice(-3).join(' ')),
    'failed rolled-back quarantined',
  );
  assert.equal(await pointers(), '2 2 2');
  fleet.sick = '2';
  await toEnd(second);
  assert.equal(await pointers(), '1 1 1');
  assert.deepEqual([...(await repository.listQuarantined('ctr'))].sort(), ['2', '3']);
});

test('two concurrent controllers take every step once', async (t) => {
  const { repository, fleet, driver, states } = await makeWorld(t, '1', '2');
  await toEnd(driver('1'));
  const pair = [driver('2', {}, 'me'), driver('2', { gatingMs: 0 }, 'you')];
  for (let i = 0; i < STEPS_MAX; i++) {
    const steps = await Promise.all(pair.map(async (one) => (await one.advance()).step.kind));
    if (steps.every((kind) => kind === 'done')) break;
  }
  assert.equal(await states('2'), 'seen staging staged gating activating active');
  for (const channel of ['candidate', 'canary', 'stable']) {
    assert.equal((await repository.readChannel('ctr', channel)).history.length, 2, channel);
  }
  assert.ok(fleet.gates.length <= 3);
});

test('two concurrent rollouts: one is staged, the other waits', async (t) => {
  const { driver, states, pointers } = await makeWorld(t, '1', '2');
  const pair = [driver('1', {}, 'me'), driver('2', {}, 'you')];
  for (let i = 0; i < 3; i++) await Promise.all(pair.map((one) => one.advance()));
  const begun = [await states('1'), await states('2')];
  assert.equal(begun.filter((way) => way.startsWith('seen staging')).length, 1, begun.join());
  for (const one of [...pair, ...pair]) await toEnd(one);
  assert.match(await pointers(), /^(1 1 1|2 2 2)$/);
  const ways = [await states('1'), await states('2')];
  assert.ok(ways.some((way) => way.endsWith('active')));
});

test('a version damaged in the repository is quarantined; an intact one is not', async (t) => {
  const { repository, fleet, driver, states, pointers } = await makeWorld(t, '1', '2', '3');
  await toEnd(driver('1'));
  for (const version of ['2', '3']) {
    const { contentId } = getBaseLayer(await repository.readManifest('ctr', version), 1);
    fleet.damaged = [`t/${contentId}`];
    const isBad = version === '2';
    if (isBad) truncateSync(join(repository.location, layerPath('ctr', 't', contentId)), 10);
    const progress = await toEnd(driver(version, isBad ? { stagingMs: 3_600_000 } : {}));
    const end = isBad ? 'quarantined' : '';
    assert.equal(await states(version), `seen staging failed ${end}`.trim(), progress.state);
    assert.equal(await pointers(), '1 1 1');
  }
  assert.deepEqual([...(await repository.listQuarantined('ctr'))], ['2']);
  const [, , failed] = await repository.rolloutLog('ctr', '2').readHistory();
  assert.match(
    failed?.reason ?? '',
    /its source is damaged: .* has 10 bytes, but the manifest says 1000/,
  );
});

test('a damaged manifest is quarantined; an unsigned one is waited for', async (t) => {
  const { repository, driver, states, pointers } = await makeWorld(t, '1', '2', '3', '4');
  await toEnd(driver('1'));
  const path = (version: string): string => join(repository.location, manifestPath('ctr', version));
  const [two, three] = ['2', '3'].map((version) => readFileSync(path(version), 'utf8'));
  const wrong = [two?.slice(0, 300), three?.replace('"ctr"', '"other"')];
  for (const [i, version] of ['2', '3'].entries()) {
    writeFileSync(path(version), wrong[i] ?? '');
    await toEnd(driver(version));
    assert.equal(await states(version), 'seen failed quarantined');
  }
  assert.deepEqual([...(await repository.listQuarantined('ctr'))], ['2', '3']);
  const trusted = new TrustedKeys([generateKeyPair().publicPem], 'key');
  const strict = new Repository(new FolderBackend(repository.location), systemClock, { trusted });
  const fault = await checkManifest(strict, 'ctr', '4');
  assert.equal(fault?.fault, 'fleet');
  assert.match(fault?.reason ?? '', /is not signed/);
  await toEnd(driver('4'));
  assert.equal(await pointers(), '4 4 4');
});

test('a clock jump neither blocks the next rollout nor shortens a watch', async (t) => {
  const { repository, fleet } = await makeWorld(t, '1', '2');
  const time = { nowMs: 0, wallMs: Date.parse('2026-03-01T12:00:00Z') };
  const clock = {
    nowMs: () => time.nowMs,
    isoTime: () => new Date(time.wallMs).toISOString(),
    sleep: async () => undefined,
  };
  const logger = createLogger('test', { level: 'silent' });
  const driver = (version: string): RolloutDriver => {
    const watched = { ...policy, watchMs: 1000 };
    const parts = { repository, bundle: 'ctr', version, policy: watched, fleet, holder: 'me' };
    return new RolloutDriver({ ...parts, clock, logger });
  };
  const first = driver('1');
  assert.match(describeStep((await toEnd(first)).step), /watched for 1000 ms/);
  time.wallMs += DAY_MS;
  assert.match(describeStep((await toEnd(first)).step), /watched for 1000 ms/);
  time.wallMs -= 2 * DAY_MS;
  const second = driver('2');
  assert.match(describeStep((await toEnd(second)).step), /the rollout of 1 is active/);
  time.nowMs += 1001;
  assert.equal((await toEnd(first)).step.kind, 'done');
  await toEnd(second);
  assert.equal((await repository.readChannel('ctr', 'stable')).pointer?.version, '2');
});

test('the next rollout waits until the one before was watched, and says until when', async (t) => {
  const { driver, pointers } = await makeWorld(t, '1', '2');
  const watched = { watchMs: DAY_MS };
  await toEnd(driver('1', watched));
  const blocked = await toEnd(driver('2', watched));
  const reason = /the rollout of 1 is active and watched until \d{4}-\d\d-\d\dT[^ ]+Z, by me/;
  assert.match(describeStep(blocked.step), reason);
  assert.equal(await pointers(), '1 1 1');
});

test('a rollout is not blocked by one that needed no watch', async (t) => {
  const { driver, pointers } = await makeWorld(t, '1', '2');
  await toEnd(driver('1', { watchMs: 0 }));
  await toEnd(driver('2', { watchMs: DAY_MS }));
  assert.equal(await pointers(), '2 2 2');
});

test('a channel moved or pinned by an operator stays; the canary is rolled back', async (t) => {
  for (const meddle of ['activate', 'pin'] as const) {
    const { repository, driver, states, pointers } = await makeWorld(t, '1', '2', '3');
    await toEnd(driver('1'));
    const held = { channels: [{ channel: 'canary', holdMs: 60_000 }, policy.channels[1]!] };
    await toEnd(driver('2', held));
    assert.equal(await pointers(), '2 2 1');
    if (meddle === 'pin') await repository.pin('ctr', 'stable', AUDIT);
    else await repository.activate('ctr', 'stable', { version: '3', ...AUDIT });
    const progress = await toEnd(driver('2'));
    assert.equal(progress.state, 'rolled-back');
    const now = meddle === 'pin' ? '1' : '3';
    assert.equal(await pointers(), `${now} 1 ${now}`);
    assert.equal((await repository.listQuarantined('ctr')).size, 0);
    assert.equal(await states('2'), 'seen staging staged gating activating failed rolled-back');
  }
});

test('an abort during an inspection: the channel is not moved after it', async (t) => {
  const { repository, fleet, driver, states, pointers } = await makeWorld(t, '1', '2');
  await toEnd(driver('1'));
  const held = { channels: [{ channel: 'canary', holdMs: 60_000 }, policy.channels[1]!] };
  await toEnd(driver('2', held));
  assert.equal(await pointers(), '2 2 1');
  fleet.during.replicas = async () => {
    fleet.during = {};
    const operator = driver('2', {}, 'operator');
    await operator.abort('stop it');
    await toEnd(operator);
  };
  await toEnd(driver('2'));
  assert.equal(await pointers(), '1 1 1');
  assert.match(await states('2'), /activating failed rolled-back$/);

  // A controller that was stopped in the midst of its move, and continues after the rollback.
  const late = { version: '2', by: 'me', reason: 'rollout of 2' };
  await repository.activate('ctr', 'stable', late);
  await toEnd(driver('2'));
  assert.equal(await pointers(), '1 1 1');
  await repository.activate('ctr', 'stable', { ...AUDIT, version: '2' });
  await toEnd(driver('2'));
  assert.equal(await pointers(), '1 1 2', 'what an operator activates stays');
});

test('a verdict counts only for the attempt that asked for it', async (t) => {
  const { fleet, driver, states } = await makeWorld(t, '1', '2');
  await toEnd(driver('1'));
  const operator = driver('2', {}, 'operator');
  fleet.during.gate = async () => {
    fleet.during = {};
    await operator.abort('the policy is wrong');
    await toEnd(operator);
    assert.ok(await operator.restart());
    while ((await operator.inspect()).state !== 'gating') await operator.advance();
  };
  const progress = await toEnd(driver('2'));
  assert.equal(progress.state, 'gating');
  assert.equal(describeStep(progress.step), 'operator runs the gate');
  assert.match(await states('2'), /gating failed seen staging staged gating$/);
  fleet.verdicts = [{ verdict: 'fail', summary: 'by the new policy' }];
  assert.equal((await toEnd(operator)).state, 'quarantined');
});

test('a channel that is moved while the gate runs keeps its version', async (t) => {
  const { repository, fleet, driver, pointers } = await makeWorld(t, '1', '2', '3');
  await toEnd(driver('1'));
  fleet.during.gate = async () => {
    fleet.during = {};
    await repository.activate('ctr', 'stable', { version: '3', ...AUDIT });
  };
  const { state } = await toEnd(driver('2'));
  assert.equal(state, 'failed');
  assert.deepEqual(fleet.gates, ['1 against undefined', '2 against 1']);
  assert.match(await pointers(), / 1 3$/);
  const [last] = (await repository.rolloutLog('ctr', '2').readHistory()).slice(-1);
  assert.match(last?.reason ?? '', /^channel stable was moved to 3 meanwhile by /);
});
