/**
 * One simulated run from a seed: some minutes of versions, operators and faults; then all faults
 * stop and the fleet must converge.
 */
import type { Repository } from '../../lib/repository/repository.ts';
import { BUNDLE } from './host-disk.ts';
import { Random } from './random.ts';
import {
  createScenario,
  runOperator,
  type ScenarioEvent,
  schedule,
  startPublisher,
} from './scenario.ts';
import { type InjectedBug, SimulationRun } from './simulation-run.ts';
import type { SimProcess, Violation } from './world.ts';

const EPISODE_MS = 240_000;
/** Time for operations in progress to end. */
const SETTLE_MS = 30_000;
/** Longer than all time limits of a rollout together, and than the longest backoff. */
const CONVERGE_MS = 200_000;
/** After it killed processes are back. */
const RESTARTED_MS = 3_000;
/** How long processes must agree. */
const AGREEMENT_MS = 15_000;
const NINE_DAYS_MS = 9 * 86_400_000;

export interface EpisodeOptions {
  readonly seed: number;
  readonly hosts: number;
  /** Indices of the events to run; absent: all. */
  readonly only?: ReadonlySet<number> | undefined;
  readonly bug?: InjectedBug | undefined;
}

export interface Episode {
  readonly violation: Violation | undefined;
  readonly events: readonly ScenarioEvent[];
  readonly log: readonly string[];
  readonly transitions: ReadonlyMap<string, number>;
  readonly rollouts: number;
  readonly answers: number;
  readonly failures: number;
  /** Virtual time from the end of the faults to convergence. */
  readonly convergedMs: number;
}

export async function runEpisode({ seed, hosts, only, bug }: EpisodeOptions): Promise<Episode> {
  const events = createScenario(seed, EPISODE_MS).filter(({ index }) => only?.has(index) ?? true);
  const run = new SimulationRun(seed, hosts, bug);
  for (const event of events) schedule(run, event);
  await run.world.run(EPISODE_MS);
  if (run.bug === 'agents never come back') for (const { agent } of run.hosts) agent.kill();
  run.heal();
  await run.world.run(EPISODE_MS + SETTLE_MS);
  const startMs = run.world.nowMs;
  if (run.world.violation === undefined) await requireAgreement(run);
  if (run.world.violation === undefined) await converge(run);
  const convergedMs = run.world.nowMs - startMs;
  if (run.world.violation === undefined) await collectGarbage(run);
  const { world, invariants, servings } = run;
  const sum = (numbers: number[]): number => numbers.reduce((a, b) => a + b, 0);
  return {
    violation: world.violation,
    events,
    log: world.log,
    transitions: invariants.transitions,
    rollouts: invariants.rollouts.size,
    answers: sum(servings.map(({ answers }) => answers)),
    failures: sum(servings.map(({ failures }) => failures)),
    convergedMs,
  };
}

/** Some processes are restarted: they must come to serve what the others serve. */
async function requireAgreement(run: SimulationRun): Promise<void> {
  const { world } = run;
  for (const name of ['serving-0', 'serving-3']) run.restartingProcesses.get(name)?.kill();
  const endMs = world.nowMs + CONVERGE_MS;
  let sinceMs: number | undefined;
  const isAgreed = (): boolean => {
    sinceMs = run.servesSameVersions() ? (sinceMs ?? world.nowMs) : undefined;
    return sinceMs !== undefined && world.nowMs - sinceMs >= AGREEMENT_MS;
  };
  await world.run(world.nowMs + RESTARTED_MS);
  await world.run(endMs, isAgreed);
  world.require(isAgreed(), 'processes of any age serve the same version', () =>
    run.describeState(),
  );
}

/** Channels are unpinned and a good version is published: it must reach every process. */
async function converge(run: SimulationRun): Promise<void> {
  const { world } = run;
  // A killed garbage collection blocks publishers until an operator removes its file.
  run.store.objects.delete(`${BUNDLE}/gc/collecting.json`);
  for (const channel of ['stable', 'canary']) {
    runOperator(run, `unpin-${channel}`, (repository, by) =>
      repository.unpin(BUNDLE, channel, { by, reason: 'the end' }),
    );
  }
  const version = startPublisher(run, 'last', 'whole', 'good', new Random(world.seed, 'last'));
  await world.run(world.nowMs + CONVERGE_MS, () => run.hasConverged(version));
  world.require(run.hasConverged(version), 'after the faults all is right', () => {
    return `not after ${CONVERGE_MS} ms: ${run.describeState()}`;
  });
  const failures = run.servings.map((serving) => serving.failures);
  await world.run(world.nowMs + 10_000);
  for (const [i, serving] of run.servings.entries()) {
    world.require(serving.failures === failures[i], 'after the faults all is right', () => {
      return `serving-${i} cannot answer with ${serving.version}: ${run.describeState()}`;
    });
  }
}

/** Collects garbage some days later. */
async function collectGarbage(run: SimulationRun): Promise<void> {
  const { world } = run;
  run.close();
  await world.run(world.nowMs + 10_000);
  world.nowMs += NINE_DAYS_MS;
  const policy = { keepVersions: 1, keepMs: 0 };
  let isDone = false;
  run.runOnce('collector', async (process: SimProcess, repository: Repository) => {
    if (run.bug === 'collector dies') process.kill();
    await repository.collectGarbage(BUNDLE, policy, { by: process.name, dryRun: false });
    isDone = true;
  });
  await world.run(world.nowMs + 600_000, () => isDone);
  world.require(isDone, 'garbage is collected', () => 'not within ten minutes');
  run.invariants.requireNoOrphans();
}

/**
 * Finds fewer events with the same violation, by leaving out halves, quarters, … of them.
 * @param triesMax maximum number of runs
 */
export async function shrink(
  options: EpisodeOptions,
  failed: Episode,
  triesMax: number,
): Promise<Episode> {
  let best = failed;
  let tries = 0;
  for (
    let size = Math.ceil(best.events.length / 2);
    size >= 1;
    size = size === 1 ? 0 : Math.ceil(size / 2)
  ) {
    for (let at = 0; at < best.events.length && tries < triesMax; tries++) {
      const left = best.events.filter((_, i) => i < at || i >= at + size);
      const only = new Set(left.map(({ index }) => index));
      const episode = await runEpisode({ ...options, only });
      if (episode.violation?.rule === failed.violation?.rule) best = episode;
      else at += size;
    }
  }
  return best;
}
