/** One run from its seed: so many minutes of versions, people and faults; then all faults stop, and all must come right. */
import type { Repository } from '../../lib/repository/repository.ts';
import { type Broken, FleetRun } from './fleet-run.ts';
import { BUNDLE } from './host-disk.ts';
import { Random } from './random.ts';
import { operate, publishNow, type ScenarioEvent, scenarioOf, schedule } from './scenario.ts';
import type { SimProcess, Violation } from './world.ts';

const LENGTH_MS = 240_000;
/** What was begun ends. */
const SETTLE_MS = 30_000;
/** Longer than every deadline of a rollout together, and than the longest pause after failures. */
const CONVERGE_MS = 200_000;
const NINE_DAYS_MS = 9 * 86_400_000;

export interface EpisodeOptions {
  readonly seed: number;
  readonly hosts: number;
  /** Indices of the events that happen; absent: all. */
  readonly only?: ReadonlySet<number> | undefined;
  readonly broken?: Broken | undefined;
}

export interface Episode {
  readonly violation: Violation | undefined;
  readonly events: readonly ScenarioEvent[];
  readonly log: readonly string[];
  readonly transitions: ReadonlyMap<string, number>;
  readonly rollouts: number;
  readonly answers: number;
  readonly failures: number;
  /** Virtual time from the end of the faults until all was right. */
  readonly convergedMs: number;
}

export async function playEpisode({ seed, hosts, only, broken }: EpisodeOptions): Promise<Episode> {
  const events = scenarioOf(seed, LENGTH_MS).filter(({ index }) => only?.has(index) ?? true);
  const run = new FleetRun(seed, hosts, broken);
  for (const event of events) schedule(run, event);
  await run.world.run(LENGTH_MS);
  if (run.broken === 'agents never come back') for (const { agent } of run.hosts) agent.kill();
  run.heal();
  await run.world.run(LENGTH_MS + SETTLE_MS);
  const startMs = run.world.nowMs;
  if (run.world.violation === undefined) await converge(run);
  const convergedMs = run.world.nowMs - startMs;
  if (run.world.violation === undefined) await collect(run);
  const { world, rules, servings } = run;
  const sum = (numbers: number[]): number => numbers.reduce((a, b) => a + b, 0);
  return {
    violation: world.violation,
    events,
    log: world.log,
    transitions: rules.transitions,
    rollouts: rules.rollouts.size,
    answers: sum(servings.map(({ answers }) => answers)),
    failures: sum(servings.map(({ failures }) => failures)),
    convergedMs,
  };
}

/** People let go of the channels and a good version is published: it reaches everybody. */
async function converge(run: FleetRun): Promise<void> {
  const { world } = run;
  // A collection that was killed holds publishers up until somebody removes its file.
  run.store.objects.delete(`${BUNDLE}/gc/collecting.json`);
  for (const channel of ['stable', 'canary']) {
    operate(run, `unpin-${channel}`, (repository, by) =>
      repository.unpin(BUNDLE, channel, { by, reason: 'the end' }),
    );
  }
  const version = publishNow(run, 'last', 'whole', 'good', new Random(world.seed, 'last'));
  await world.run(world.nowMs + CONVERGE_MS, () => run.hasConverged(version));
  world.require(run.hasConverged(version), 'after the faults all is right', () => {
    return `not after ${CONVERGE_MS} ms: ${run.whereabouts()}`;
  });
  const failures = run.servings.map((serving) => serving.failures);
  await world.run(world.nowMs + 10_000);
  for (const [i, serving] of run.servings.entries()) {
    world.require(serving.failures === failures[i], 'after the faults all is right', () => {
      return `serving-${i} cannot answer with ${serving.version}: ${run.whereabouts()}`;
    });
  }
}

/** Days later somebody collects garbage. */
async function collect(run: FleetRun): Promise<void> {
  const { world } = run;
  run.close();
  await world.run(world.nowMs + 10_000);
  world.nowMs += NINE_DAYS_MS;
  const policy = { keepVersions: 1, keepMs: 0 };
  let isDone = false;
  run.once('collector', async (process: SimProcess, repository: Repository) => {
    if (run.broken === 'collector dies') process.kill();
    await repository.collectGarbage(BUNDLE, policy, { by: process.name, dryRun: false });
    isDone = true;
  });
  await world.run(world.nowMs + 600_000, () => isDone);
  world.require(isDone, 'garbage is collected', () => 'not within ten minutes');
  run.rules.requireNoOrphans();
}

/**
 * Fewer events that break the same rule: halves, quarters, … of them are left out as long as it is still broken.
 * @param triesMax runs at most
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
      const episode = await playEpisode({ ...options, only });
      if (episode.violation?.rule === failed.violation?.rule) best = episode;
      else at += size;
    }
  }
  return best;
}
