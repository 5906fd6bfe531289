/** What happens to a fleet from outside: new versions, people, faults. A list that a seed draws; leaving entries out changes no other. */

import { RolloutDriver } from '../../cube-agent/rollout/rollout-driver.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { isUnderWay, ROLLOUT_STATES } from '../../lib/core/rollout.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { ChannelLog } from '../../lib/repository/channel-log.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { FleetRun } from './fleet-run.ts';
import { BUNDLE } from './host-disk.ts';
import type { Flavor } from './publisher.ts';
import { Random } from './random.ts';
import { type Health, SimFleet } from './sim-controller.ts';
import type { HostTroubles } from './sim-host.ts';
import type { SimProcess } from './world.ts';

const PUBLISH_EVERY_MS = 6_000;
const FAULTS_PER_MINUTE = 14;
const CALLS_BEFORE_KILL = 200;
const TROUBLE_MS = 6_000;
const CLOCK_STEP_MS = 26 * 3_600_000;
const STATE_LOOK_MS = 20;
const STATE_LOOKS = 500;

export interface ScenarioEvent {
  readonly index: number;
  readonly atMs: number;
  readonly kind: string;
}

type Apply = (run: FleetRun, random: Random, name: string) => void;

const KINDS: Readonly<Record<string, Apply>> = {
  publish,
  'kill agent': (run, random) => arm(random.pick(run.hosts).agent, random),
  'kill controller': (run, random) => arm(mortal(run, random, 'controller'), random),
  'kill serving': (run, random) => mortal(run, random, 'serving').kill(),
  'process stands still': (run, random) => {
    const still = random.chance(0.5) ? [someProcess(run, random)] : controllersOf(run);
    for (const process of still) {
      process.slowMs = run.world.nowMs + random.integer(1, TROUBLE_MS);
    }
  },
  'answers lost': (run, random) => {
    someProcess(run, random).lossyMs = run.world.nowMs + random.integer(1, TROUBLE_MS);
  },
  'restart server': (run, random) => random.pick(random.pick(run.hosts).servers).restart(),
  'server down': (run, random) => {
    const server = random.pick(random.pick(run.hosts).servers);
    server.isUp = false;
    run.world.at(run.world.nowMs + random.integer(1, TROUBLE_MS), () => {
      server.restart();
      server.isUp = true;
    });
  },
  'disk lost': (run, random) => {
    const host = random.pick(run.hosts);
    host.agent.kill();
    host.restart();
    host.files.clear();
  },
  'manifest lost on a host': (run, random) => {
    const host = random.pick(run.hosts);
    host.files.manifests.delete(random.pick([...host.files.manifests.keys(), '']));
    host.restart();
  },
  'notes lost on a host': (run, random) => {
    const { agent, files } = random.pick(run.hosts);
    agent.kill();
    files.notes.clear();
  },
  'layer damaged on a host': (run, random) => {
    const host = random.pick(run.hosts);
    const { files } = host;
    const [name, bytes] = random.pick([...files.layers, ['', new Uint8Array()] as const]);
    if (name !== '')
      files.layers.set(
        name,
        bytes.map((byte) => byte ^ 1),
      );
    host.restart();
  },
  'host cut off': (run, random) => trouble(run, random, 'cutOffMs'),
  'repository away from a host': (run, random) => trouble(run, random, 'repositoryAwayMs'),
  'slow fetches': (run, random) => trouble(run, random, 'slowMs'),
  'failing fetches': (run, random) => trouble(run, random, 'fetchFailsMs'),
  'fetches damaged on the way': (run, random) => trouble(run, random, 'fetchCorruptsMs'),
  'disk full': (run, random) => trouble(run, random, 'diskFullMs'),
  'repository away': (run, random) => {
    run.repositoryAwayMs = run.world.nowMs + random.integer(1, TROUBLE_MS / 3);
  },
  'gate broken': (run, random) => {
    run.gateBrokenMs = run.world.nowMs + random.integer(1, 3 * TROUBLE_MS);
  },
  'clock stepped': (run, random) => {
    const stepMs = random.integer(-CLOCK_STEP_MS, CLOCK_STEP_MS);
    const host = random.pick(run.hosts);
    host.clockStepMs = stepMs;
    for (const process of [host.agent, mortal(run, random, '')]) process.clockStepMs = stepMs;
  },
  'somebody activates': (run, random, name) =>
    operate(run, name, async (repository, by) => {
      const version = random.pick([...run.publisher.versions.keys(), '0']);
      const target = channel(random);
      const wish = { version, by, reason: 'by hand' };
      // What somebody saw may be older than what is there by now.
      const seen = run.rules.pointers.get(target)?.seq ?? 0;
      const expected = random.pick([undefined, seen, Math.max(0, seen - 1)]);
      return repository.activate(
        BUNDLE,
        target,
        expected === undefined ? wish : { ...wish, expected },
      );
    }),
  'somebody rolls back': rollBack,
  'somebody pins': (run, random, name) => {
    const pinned = channel(random);
    operate(run, name, async (repository, by) => {
      await repository.pin(BUNDLE, pinned, { by, reason: 'holiday' });
    });
    run.world.at(run.world.nowMs + random.integer(1, TROUBLE_MS), () =>
      operate(run, `${name}-un`, (repository, by) =>
        repository.unpin(BUNDLE, pinned, { by, reason: 'back' }),
      ),
    );
  },
  'somebody quarantines': (run, random, name) =>
    operate(run, name, (repository, by) => {
      const versions = [...run.publisher.versions.keys(), '0'];
      const version = random.pick(random.chance(0.5) ? versions : versions.slice(-3));
      return repository.quarantine(BUNDLE, version, { by, reason: 'looks odd' });
    }),
  'somebody aborts': abort,
  'somebody resumes': resume,
  'garbage collected': (run, _random, name) =>
    operate(run, name, (repository, by) =>
      repository.collectGarbage(BUNDLE, { keepVersions: 2, keepMs: 20_000 }, { by, dryRun: false }),
    ),
};

export function scenarioOf(seed: number, lengthMs: number): ScenarioEvent[] {
  const random = new Random(seed, 'scenario');
  const faults = Object.keys(KINDS).filter((kind) => kind !== 'publish');
  const events: Omit<ScenarioEvent, 'index'>[] = [];
  for (let atMs = 0; atMs < lengthMs; atMs += random.integer(1, 2 * PUBLISH_EVERY_MS)) {
    events.push({ atMs, kind: 'publish' });
  }
  const count = Math.round((FAULTS_PER_MINUTE * lengthMs) / 60_000);
  for (let i = 0; i < count; i++) {
    events.push({ atMs: random.integer(0, lengthMs), kind: random.pick(faults) });
  }
  return events.sort((a, b) => a.atMs - b.atMs).map((event, index) => ({ ...event, index }));
}

export function schedule(run: FleetRun, { index, atMs, kind }: ScenarioEvent): void {
  run.world.at(atMs, () => {
    run.world.note('', `event ${index}: ${kind}`);
    KINDS[kind]?.(run, new Random(run.world.seed, `event/${index}`), `${kind}-${index}`);
  });
}

function publish(run: FleetRun, random: Random, name: string): void {
  const flavors: Flavor[] = ['whole', 'whole', 'delta', 'delta', 'graph'];
  const healths: Health[] = ['good', 'good', 'good', 'good', 'fails the gate', 'sick', 'damaged'];
  const isLost = random.chance(0.05);
  const flavor = isLost ? 'delta without its parent' : random.pick(flavors);
  publishNow(run, name, flavor, random.pick(healths), random, random.chance(0.1));
}

/** @returns the version */
export function publishNow(
  run: FleetRun,
  name: string,
  flavor: Flavor,
  health: Health,
  random: Random,
  isKilled = false,
): string {
  const made = run.publisher.make(flavor, health, random);
  run.world.note(name, `makes ${made.version}: ${flavor}, ${health}`);
  const publisher = run.once(name, async (process, repository) => {
    await run.publisher.publish(made, process, run.storeOf(process), repository);
    if (health === 'damaged') run.publisher.damage(made.version, run.store);
  });
  if (isKilled) arm(publisher, random);
  return made.version;
}

function rollBack(run: FleetRun, random: Random, name: string): void {
  if (run.broken !== 'goes back to what is quarantined') {
    const from = channel(random);
    operate(run, name, (repository, by) => repository.rollback(BUNDLE, from, by, 'looks bad'));
    return;
  }
  run.once(name, async (process) => {
    const log = new ChannelLog(run.storeOf(process), {}, BUNDLE, 'stable');
    const [version] = run.rules.quarantined.keys();
    const seq = (await log.history()).length + 1;
    const deed = { at: process.clock.isoTime(), by: name, reason: 'careless' };
    const isPinned = run.rules.pointers.get('stable')?.pinned ?? false;
    if (version !== undefined && !isPinned)
      await log.append({ seq, version, ...deed }).catch(() => undefined);
  });
}

function channel(random: Random): string {
  return random.pick(['stable', 'stable', 'canary']);
}

function arm(process: SimProcess, random: Random): void {
  process.killIn = { calls: random.integer(0, CALLS_BEFORE_KILL), isAfter: random.chance(0.5) };
}

function controllersOf(run: FleetRun): SimProcess[] {
  const names = [...run.mortals.keys()].filter((name) => name.startsWith('controller'));
  return names.map((name) => run.mortals.get(name)!);
}

function someProcess(run: FleetRun, random: Random): SimProcess {
  return random.chance(0.5) ? random.pick(run.hosts).agent : mortal(run, random, '');
}

function mortal(run: FleetRun, random: Random, prefix: string): SimProcess {
  const names = [...run.mortals.keys()].filter((name) => name.startsWith(prefix));
  return run.mortals.get(random.pick(names))!;
}

function trouble(run: FleetRun, random: Random, kind: keyof HostTroubles): void {
  random.pick(run.hosts).troubles[kind] = run.world.nowMs + random.integer(1, TROUBLE_MS);
}

/** A person: may be killed in the middle, and is told no. */
export function operate(
  run: FleetRun,
  name: string,
  act: (repository: Repository, by: string, process: SimProcess) => Promise<unknown>,
): void {
  const person = run.once(name, async (process, repository) => {
    try {
      await act(repository, name, process);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      if (code === 'INTERNAL') throw error;
      process.world.note(name, `${code}: ${message}`);
    }
  });
  if (person.random.chance(0.1)) arm(person, person.random);
}

/** In a state that somebody waits for: some are over in no time. */
function abort(run: FleetRun, random: Random, name: string): void {
  const wanted = random.pick(ROLLOUT_STATES.filter(isUnderWay));
  operate(run, name, async (repository, holder, process) => {
    const isIt = (): boolean => [...run.rules.rollouts.values()].at(-1)?.state === wanted;
    for (let i = 0; i < STATE_LOOKS && !isIt(); i++) await process.clock.sleep(STATE_LOOK_MS);
    const [version = '0'] = [...run.rules.rollouts.keys()].slice(-1);
    await driverOf(run, process, { repository, holder, version }).abort('no');
  });
}

/** Mostly what was begun last: people look at what is going on. */
function resume(run: FleetRun, random: Random, name: string): void {
  const version = random.pick([...[...run.rules.rollouts.keys()].slice(-3), '0']);
  operate(run, name, (repository, holder, process) =>
    driverOf(run, process, { repository, holder, version }).restart(),
  );
}

function driverOf(
  run: FleetRun,
  process: SimProcess,
  of: { repository: Repository; holder: string; version: string },
): RolloutDriver {
  const logger = createLogger('simulation', 'silent');
  const fleet = new SimFleet(process, run);
  const { policy } = run;
  return new RolloutDriver({ ...of, bundle: BUNDLE, policy, fleet, clock: process.clock, logger });
}
