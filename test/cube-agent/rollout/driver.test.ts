/** The driver on a real repository, with a fleet that says what a test wants it to. */
import assert from 'node:assert/strict';
import { readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { POLICY_DEFAULTS } from '../../../cube-agent/rollout/rollout-config.ts';
import {
  type Progress,
  RolloutDriver,
  type RolloutFleet,
} from '../../../cube-agent/rollout/rollout-driver.ts';
import { whyOf } from '../../../cube-agent/rollout/rollout-status.ts';
import type {
  GateOutcome,
  ReplicaView,
  Sickness,
} from '../../../cube-agent/rollout/rollout-view.ts';
import { manifestFault } from '../../../cube-agent/rollout/source-check.ts';
import { systemClock } from '../../../lib/platform/clock.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { FolderBackend } from '../../../lib/repository/folder-backend.ts';
import { layerPath, manifestPath } from '../../../lib/repository/layout.ts';
import { openRepository, Repository } from '../../../lib/repository/repository.ts';
import { makeKeyPair, TrustedKeys } from '../../../lib/repository/signatures.ts';
import { layerOf, makeVersion, temporaryFolder } from '../../repository/fixtures.ts';
import { by } from '../host.ts';

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
  /** What live traffic was compared with. */
  readonly compared: Set<string> = new Set();

  async replicas(): Promise<ReplicaView[][]> {
    const { damaged } = this;
    const isWhole = damaged.length === 0;
    const has = { holds: isWhole, isActive: isWhole, damaged };
    const replica = (name: string) => ({ address: name, ...has, trouble: '' });
    return [
      [replica('a'), replica('b')],
      [replica('c'), replica('d')],
    ];
  }

  async gate(version: string, active: string | undefined): Promise<GateOutcome> {
    this.gates.push(`${version} against ${active}`);
    return this.verdicts.shift() ?? { verdict: 'pass', summary: 'fine' };
  }

  async sickness(version: string, before: string | undefined): Promise<Sickness | undefined> {
    this.compared.add(`${version} with ${before}`);
    if (version === this.sick) return { fault: 'version', why: '40 % of the requests fail' };
    return version === this.unlucky ? { fault: 'fleet', why: 'a shard is away' } : undefined;
  }

  async moved(): Promise<void> {
    // Nobody to tell.
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
  const logger = createLogger('test', 'silent');
  return {
    repository,
    fleet,
    driver: (version, more = {}, holder = 'me') =>
      new RolloutDriver({
        ...{ repository, bundle: 'ctr', version, fleet, holder, clock, logger },
        policy: { ...policy, ...more },
      }),
    states: async (version) =>
      (await repository.rollout('ctr', version).history()).map(({ state }) => state).join(' '),
    pointers: async () => {
      const pointers = await Promise.all(
        ['candidate', 'canary', 'stable'].map(
          async (channel) => (await repository.channel('ctr', channel)).pointer?.version ?? '-',
        ),
      );
      return pointers.join(' ');
    },
  };
}

async function toEnd(driver: RolloutDriver): Promise<Progress> {
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
  assert.ok((await repository.quarantined('ctr')).has('2'));
  await assert.rejects(driver('2').restart(), /quarantined; publish a new one/);
});

test('a canary that does badly goes back, and stable never moved', async (t) => {
  const { repository, fleet, driver, states, pointers } = await makeWorld(t, '1', '2');
  await toEnd(driver('1'));
  fleet.sick = '2';
  const progress = await toEnd(driver('2'));
  assert.equal(progress.state, 'quarantined');
  const way = 'seen staging staged gating activating failed rolled-back quarantined';
  assert.equal(await states('2'), way);
  assert.equal(await pointers(), '1 1 1');
  assert.equal((await repository.channel('ctr', 'stable')).history.length, 1);
  const failed = (await repository.rollout('ctr', '2').history())[5];
  assert.match(failed?.reason ?? '', /40 % of the requests fail/);
});

test('a version under which servers go away goes back, and stays in good standing', async (t) => {
  const { repository, fleet, driver, states, pointers } = await makeWorld(t, '1', '2');
  await toEnd(driver('1'));
  fleet.unlucky = '2';
  assert.equal((await toEnd(driver('2'))).state, 'rolled-back');
  assert.equal(await pointers(), '1 1 1');
  assert.equal((await repository.quarantined('ctr')).size, 0);
  fleet.unlucky = undefined;
  await driver('2').restart();
  await toEnd(driver('2'));
  assert.equal(await pointers(), '2 2 2');
  assert.match(await states('2'), / rolled-back seen .* active$/);
});

test('live traffic is compared with what most users have, on the canary as afterwards', async (t) => {
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

test('two versions in a row that do badly while they are watched lead back to the last good one', async (t) => {
  const { repository, fleet, driver, states, pointers } = await makeWorld(t, '1', '2', '3');
  await toEnd(driver('1'));
  const watched = { watchMs: 60_000 };
  assert.equal((await toEnd(driver('2'))).state, 'active');
  const second = driver('2', watched);
  assert.equal(await pointers(), '2 2 2');
  // The third begins when nobody watches the second any more.
  assert.match((await driver('3', watched).look()).step.kind, /wait/);
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
  assert.deepEqual([...(await repository.quarantined('ctr'))].sort(), ['2', '3']);
});

test('two controllers at once take every step once', async (t) => {
  const { repository, fleet, driver, states } = await makeWorld(t, '1', '2');
  await toEnd(driver('1'));
  const pair = [driver('2', {}, 'me'), driver('2', { gatingMs: 0 }, 'you')];
  for (let i = 0; i < STEPS_MAX; i++) {
    const steps = await Promise.all(pair.map(async (one) => (await one.advance()).step.kind));
    if (steps.every((kind) => kind === 'done')) break;
  }
  assert.equal(await states('2'), 'seen staging staged gating activating active');
  for (const channel of ['candidate', 'canary', 'stable']) {
    assert.equal((await repository.channel('ctr', channel)).history.length, 2, channel);
  }
  assert.ok(fleet.gates.length <= 3);
});

test('of two versions that begin at once one is staged, the other waits', async (t) => {
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

test('a version damaged at its source is quarantined at once; one that is whole there stays in good standing', async (t) => {
  const { repository, fleet, driver, states, pointers } = await makeWorld(t, '1', '2', '3');
  await toEnd(driver('1'));
  for (const version of ['2', '3']) {
    const { contentId } = layerOf(await repository.manifest('ctr', version), 1);
    fleet.damaged = [`t/${contentId}`];
    const isBad = version === '2';
    if (isBad) truncateSync(join(repository.location, layerPath('ctr', 't', contentId)), 10);
    const progress = await toEnd(driver(version, isBad ? { stagingMs: 3_600_000 } : {}));
    const end = isBad ? 'quarantined' : '';
    assert.equal(await states(version), `seen staging failed ${end}`.trim(), progress.state);
    assert.equal(await pointers(), '1 1 1');
  }
  assert.deepEqual([...(await repository.quarantined('ctr'))], ['2']);
  const [, , failed] = await repository.rollout('ctr', '2').history();
  assert.match(failed?.reason ?? '', /its source is damaged: .*: 10 bytes, the manifest says 1000/);
});

test('a version whose manifest cannot be read is condemned, and waits while it may yet be signed', async (t) => {
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
  assert.deepEqual([...(await repository.quarantined('ctr'))], ['2', '3']);
  const trusted = new TrustedKeys([makeKeyPair().publicPem], 'key');
  const strict = new Repository(new FolderBackend(repository.location), systemClock, { trusted });
  const fault = await manifestFault(strict, 'ctr', '4');
  assert.equal(fault?.fault, 'fleet');
  assert.match(fault?.why ?? '', /is not signed/);
  await toEnd(driver('4'));
  assert.equal(await pointers(), '4 4 4');
});

test('a clock that jumps neither holds up the next rollout nor cuts a watch short', async (t) => {
  const { repository, fleet } = await makeWorld(t, '1', '2');
  const time = { nowMs: 0, wallMs: Date.parse('2026-03-01T12:00:00Z') };
  const clock = {
    nowMs: () => time.nowMs,
    isoTime: () => new Date(time.wallMs).toISOString(),
    sleep: async () => undefined,
  };
  const logger = createLogger('test', 'silent');
  const driver = (version: string): RolloutDriver => {
    const watched = { ...policy, watchMs: 1000 };
    const parts = { repository, bundle: 'ctr', version, policy: watched, fleet, holder: 'me' };
    return new RolloutDriver({ ...parts, clock, logger });
  };
  const first = driver('1');
  assert.match(whyOf((await toEnd(first)).step), /watched for 1000 ms/);
  time.wallMs += DAY_MS;
  assert.match(whyOf((await toEnd(first)).step), /watched for 1000 ms/);
  time.wallMs -= 2 * DAY_MS;
  const second = driver('2');
  assert.match(whyOf((await toEnd(second)).step), /the rollout of 1 is active/);
  time.nowMs += 1001;
  assert.equal((await toEnd(first)).step.kind, 'done');
  await toEnd(second);
  assert.equal((await repository.channel('ctr', 'stable')).pointer?.version, '2');
});

test('a channel that somebody moved or pinned meanwhile is left alone, and the canary goes back', async (t) => {
  for (const meddle of ['activate', 'pin'] as const) {
    const { repository, driver, states, pointers } = await makeWorld(t, '1', '2', '3');
    await toEnd(driver('1'));
    const held = { channels: [{ channel: 'canary', holdMs: 60_000 }, policy.channels[1]!] };
    await toEnd(driver('2', held));
    assert.equal(await pointers(), '2 2 1');
    if (meddle === 'pin') await repository.pin('ctr', 'stable', by);
    else await repository.activate('ctr', 'stable', { version: '3', ...by });
    const progress = await toEnd(driver('2'));
    assert.equal(progress.state, 'rolled-back');
    const now = meddle === 'pin' ? '1' : '3';
    assert.equal(await pointers(), `${now} 1 ${now}`);
    assert.equal((await repository.quarantined('ctr')).size, 0);
    assert.equal(await states('2'), 'seen staging staged gating activating failed rolled-back');
  }
});
