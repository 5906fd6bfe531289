/**
 * The events of a run: new versions, operators and faults, drawn from a seed. Leaving out an event
 * changes no other.
 */

import { RolloutDriver } from '../../cube-agent/rollout/rollout-driver.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { isInProgress, ROLLOUT_STATES } from '../../lib/core/rollout.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { ChannelLog } from '../../lib/repository/channel-log.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { BUNDLE } from './host-disk.ts';
import type { VersionKind } from './publisher.ts';
import { Random } from './random.ts';
import { type Health, SimFleet } from './sim-controller.ts';
import type { HostFaults } from './sim-host.ts';
import type { SimulationRun } from './simulation-run.ts';
import type { SimProcess } from './world.ts';

const PUBLISH_EVERY_MS = 6_000;
const FAULTS_PER_MINUTE = 14;
const CALLS_BEFORE_KILL = 200;
const FAULT_MAX_MS = 6_000;
const CLOCK_STEP_MS = 26 * 3_600_000;
const STATE_POLL_MS = 20;
const STATE_POLLS_MAX = 500;

export interface ScenarioEvent {
  readonly index: number;
  readonly atMs: number;
  readonly kind: string;
}

type ApplyEvent = (run: SimulationRun, random: Random, name: string) => void;

const EVENT_KINDS: Readonly<Record<string, ApplyEvent>> = {
  publish,
  'kill agent': (run, random) => scheduleKill(random.pick(run.hosts).agent, random),
  'kill controller': (run, random) =>
    scheduleKill(pickRestartingProcess(run, random, 'controller'), random),
  'kill serving': (run, random) => pickRestartingProcess(run, random, 'serving').kill(),
  'process stands still': (run, random) => {
    const still = random.chance(0.5) ? [pickProcess(run, random)] : listControllers(run);
    for (const process of still) {
      process.slowUntilMs = run.world.nowMs + random.integer(1, FAULT_MAX_MS);
    }
  },
  'answers lost': (run, random) => {
    pickProcess(run, random).lossyUntilMs = run.world.nowMs + random.integer(1, FAULT_MAX_MS);
  },
  'restart server': (run, random) => random.pick(random.pick(run.hosts).servers).restart(),
  'server down': (run, random) => {
    const server = random.pick(random.pick(run.hosts).servers);
    server.isUp = false;
    run.world.schedule(run.world.nowMs + random.integer(1, FAULT_MAX_MS), () => {
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
    files.savedStates.clear();
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
  'host cut off': (run, random) => injectHostFault(run, random, 'cutOffUntilMs'),
  'repository away from a host': (run, random) =>
    injectHostFault(run, random, 'repositoryAwayUntilMs'),
  'slow fetches': (run, random) => injectHostFault(run, random, 'slowUntilMs'),
  'failing fetches': (run, random) => injectHostFault(run, random, 'fetchFailsUntilMs'),
  'fetches damaged on the way': (run, random) =>
    injectHostFault(run, random, 'fetchCorruptsUntilMs'),
  'disk full': (run, random) => injectHostFault(run, random, 'diskFullUntilMs'),
  'repository away': (run, random) => {
    run.repositoryAwayUntilMs = run.world.nowMs + random.integer(1, FAULT_MAX_MS / 3);
  },
  'gate broken': (run, random) => {
    run.gateBrokenUntilMs = run.world.nowMs + random.integer(1, 3 * FAULT_MAX_MS);
  },
  'clock stepped': (run, random) => {
    const stepMs = random.integer(-CLOCK_STEP_MS, CLOCK_STEP_MS);
    const host = random.pick(run.hosts);
    host.clockOffsetMs = stepMs;
    for (const process of [host.agent, pickRestartingProcess(run, random, '')])
      process.clockOffsetMs = stepMs;
  },
  'somebody activates': (run, random, name) =>
    runOperator(run, name, async (repository, by) => {
      const version = random.pick([...run.publisher.versions.keys(), '0']);
      const target = pickChannel(random);
      const request = { version, by, reason: 'by hand' };
      // The operator may have seen an older entry than the newest.
      const seen = run.invariants.pointers.get(target)?.seq ?? 0;
      const expected = random.pick([undefined, seen, Math.max(0, seen - 1)]);
      return repository.activate(
        BUNDLE,
        target,
        expected === undefined ? request : { ...request, expected },
      );
    }),
  'somebody rolls back': rollBack,
  'somebody pins': (run, random, name) => {
    const pinned = pickChannel(random);
    runOperator(run, name, async (repository, by) => {
      await repository.pin(BUNDLE, pinned, { by, reason: 'holiday' });
    });
    run.world.schedule(run.world.nowMs + random.integer(1, FAULT_MAX_MS), () =>
      runOperator(run, `${name}-un`, (repository, by) =>
        repository.unpin(BUNDLE, pinned, { by, reason: 'back' }),
      ),
    );
  },
  'somebody quarantines': (run, random, name) =>
    runOperator(run, name, (repository, by) => {
      const versions = [...run.publisher.versions.keys(), '0'];
      const version = random.pick(random.chance(0.5) ? versions : versions.slice(-3));
      return repository.quarantine(BUNDLE, version, { by, reason: 'looks odd' });
    }),
  'somebody aborts': abort,
  'somebody resumes': resume,
  'garbage collected': (run, _random, name) =>
    runOperator(run, name, (repository, by) =>
      repository.collectGarbage(BUNDLE, { keepVersions: 2, keepMs: 20_000 }, { by, dryRun: false }),
    ),
};

export function createScenario(seed: number, lengthMs: number): ScenarioEvent[] {
  const random = new Random(seed, 'scenario');
  const faults = Object.keys(EVENT_KINDS).filter((kind) => kind !== 'publish');
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

export function schedule(run: SimulationRun, { index, atMs, kind }: ScenarioEvent): void {
  run.world.schedule(atMs, () => {
    run.world.record('', `event ${index}: ${kind}`);
    EVENT_KINDS[kind]?.(run, new Random(run.world.seed, `event/${index}`), `${kind}-${index}`);
  });
}

function publish(run: SimulationRun, random: Random, name: string): void {
  const flavors: VersionKind[] = ['whole', 'whole', 'delta', 'delta', 'graph'];
  const healths: Health[] = [
    'good',
    'good',
    'good',
    'good',
    'fails the gate',
    'fails its warm-up',
    'unhealthy',
    'damaged',
  ];
  const isLost = random.chance(0.05);
  const flavor = isLost ? 'delta without its parent' : random.pick(flavors);
  startPublisher(run, name, flavor, random.pick(healths), random, random.chance(0.1));
}

/** @returns the version */
export function startPublisher(
  run: SimulationRun,
  name: string,
  flavor: VersionKind,
  health: Health,
  random: Random,
  isKilled = false,
): string {
  const made = run.publisher.make(flavor, health, random);
  run.world.record(name, `makes ${made.version}: ${flavor}, ${health}`);
  const publisher = run.runOnce(name, async (process, repository) => {
    await run.publisher.publish(made, process, run.openStore(process), repository);
    if (health === 'damaged') run.publisher.damage(made.version, run.store);
  });
  if (isKilled) scheduleKill(publisher, random);
  return made.version;
}

function rollBack(run: SimulationRun, random: Random, name: string): void {
  if (run.bug === 'goes back to what never served') {
    run.runOnce(name, async (process) => {
      const log = new ChannelLog(run.openStore(process), {}, BUNDLE, 'stable');
      const history = await log.readHistory();
      const pointer = history.at(-1);
      const never = history.find((entry) => !run.everServed.has(entry.version));
      if (pointer === undefined || never === undefined || pointer.pinned) return;
      const { version } = never;
      const audit = { at: process.clock.isoTime(), by: name, reason: 'careless' };
      const entry = { seq: pointer.seq + 1, version, quarantines: pointer.version, ...audit };
      await log.append(entry).catch(() => undefined);
    });
    return;
  }
  if (run.bug !== 'goes back to what is quarantined') {
    const from = pickChannel(random);
    runOperator(run, name, (repository, by) => repository.rollback(BUNDLE, from, by, 'looks bad'));
    return;
  }
  run.runOnce(name, async (process) => {
    const log = new ChannelLog(run.openStore(process), {}, BUNDLE, 'stable');
    const [version] = run.invariants.quarantined.keys();
    const seq = (await log.readHistory()).length + 1;
    const audit = { at: process.clock.isoTime(), by: name, reason: 'careless' };
    const isPinned = run.invariants.pointers.get('stable')?.pinned ?? false;
    if (version !== undefined && !isPinned)
      await log.append({ seq, version, ...audit }).catch(() => undefined);
  });
}

function pickChannel(random: Random): string {
  return random.pick(['stable', 'stable', 'canary']);
}

function scheduleKill(process: SimProcess, random: Random): void {
  process.killIn = { calls: random.integer(0, CALLS_BEFORE_KILL), isAfter: random.chance(0.5) };
}

function listControllers(run: SimulationRun): SimProcess[] {
  const names = [...run.restartingProcesses.keys()].filter((name) => name.startsWith('controller'));
  return names.map((name) => run.restartingProcesses.get(name)!);
}

function pickProcess(run: SimulationRun, random: Random): SimProcess {
  return random.chance(0.5) ? random.pick(run.hosts).agent : pickRestartingProcess(run, random, '');
}

function pickRestartingProcess(run: SimulationRun, random: Random, prefix: string): SimProcess {
  const names = [...run.restartingProcesses.keys()].filter((name) => name.startsWith(prefix));
  return run.restartingProcesses.get(random.pick(names))!;
}

function injectHostFault(run: SimulationRun, random: Random, kind: keyof HostFaults): void {
  random.pick(run.hosts).faults[kind] = run.world.nowMs + random.integer(1, FAULT_MAX_MS);
}

/** Runs an action of an operator, which may be killed or refused. */
export function runOperator(
  run: SimulationRun,
  name: string,
  act: (repository: Repository, by: string, process: SimProcess) => Promise<unknown>,
): void {
  const person = run.runOnce(name, async (process, repository) => {
    try {
      await act(repository, name, process);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      if (code === 'INTERNAL') throw error;
      process.world.record(name, `${code}: ${message}`);
    }
  });
  if (person.random.chance(0.1)) scheduleKill(person, person.random);
}

/** Aborts a rollout in a chosen state, since some states are very short. */
function abort(run: SimulationRun, random: Random, name: string): void {
  const wanted = random.pick(ROLLOUT_STATES.filter(isInProgress));
  runOperator(run, name, async (repository, holder, process) => {
    const isIt = (): boolean => [...run.invariants.rollouts.values()].at(-1)?.state === wanted;
    for (let i = 0; i < STATE_POLLS_MAX && !isIt(); i++) await process.clock.sleep(STATE_POLL_MS);
    const [version = '0'] = [...run.invariants.rollouts.keys()].slice(-1);
    await createDriver(run, process, { repository, holder, version }).abort('no');
  });
}

/** Restarts a rollout, usually one of the newest. */
function resume(run: SimulationRun, random: Random, name: string): void {
  const version = random.pick([...[...run.invariants.rollouts.keys()].slice(-3), '0']);
  runOperator(run, name, (repository, holder, process) =>
    createDriver(run, process, { repository, holder, version }).restart(),
  );
}

function createDriver(
  run: SimulationRun,
  process: SimProcess,
  of: { repository: Repository; holder: string; version: string },
): RolloutDriver {
  const logger = createLogger('simulation', { level: 'silent' });
  const fleet = new SimFleet(process, run);
  const { policy } = run;
  return new RolloutDriver({ ...of, bundle: BUNDLE, policy, fleet, clock: process.clock, logger });
}
