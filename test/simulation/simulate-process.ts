/**
 * `npm run simulate`: runs seed after seed. A violation is printed with its events and the command
 * that reproduces it.
 */
import { createNpmRunCli } from '../../bench/support/long-programs.ts';
import { nextStates, ROLLOUT_STATES } from '../../lib/core/rollout.ts';
import { InvalidArgumentError, parseIntegerBetween, runCli } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { type Episode, type EpisodeOptions, runEpisode, shrink } from './episode.ts';

const SHRINK_TRIES = 60;
const LOG_LINES = 80;

const SEED_MAX = 2 ** 31 - 1;
const HOSTS_MAX = 1_000;
const MINUTES_MAX = 10_000;

interface SimulationOptions {
  readonly seed: number;
  readonly hosts: number;
  readonly minutes: number;
  readonly events?: ReadonlySet<number>;
  readonly log?: true;
}

function parseMinutes(text: string): number {
  const minutes = Number(text);
  if (text !== '' && minutes > 0 && minutes <= MINUTES_MAX) return minutes;
  throw new InvalidArgumentError(`Expected minutes above 0, at most ${MINUTES_MAX}.`);
}

function parseEvents(text: string): ReadonlySet<number> {
  if (text === 'none') return new Set();
  if (/^\d+(,\d+)*$/.test(text)) return new Set(text.split(',').map(Number));
  throw new InvalidArgumentError('Expected numbers of events such as 3,17,20, or none.');
}

/** All transitions that the state table allows. */
const TRANSITIONS = [undefined, ...ROLLOUT_STATES].flatMap((from) => {
  const next = from === undefined ? ['seen'] : nextStates(from);
  return next.map((to) => `${from ?? ''}>${to}`);
});

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

async function reportViolation(options: EpisodeOptions, failed: Episode): Promise<void> {
  const { seed, hosts } = options;
  print(`seed ${seed}: ${failed.violation?.message}\nshrinking ${failed.events.length} events …`);
  const { events, log, violation } = await shrink(options, failed, SHRINK_TRIES);
  for (const line of log.slice(-LOG_LINES)) print(line);
  const list = events.map(({ index }) => index).join(',') || 'none';
  print(`${violation?.message}\n${events.length} events are enough. Again:`);
  print(`npm run simulate -- --seed ${seed} --hosts ${hosts} --log --events ${list}`);
}

async function simulate(options: SimulationOptions): Promise<void> {
  const { seed: first, hosts, minutes, events: only, log } = options;
  const startMs = systemClock.nowMs();
  const kinds = new Map<string, number>();
  const transitions = new Map<string, number>();
  const count = (map: Map<string, number>, key: string, by = 1): unknown =>
    map.set(key, (map.get(key) ?? 0) + by);
  let [rollouts, answers, failures, slowestMs, seed] = [0, 0, 0, 0, first];
  do {
    const episode = await runEpisode({ seed, hosts, only });
    if (log) for (const line of episode.log) print(line);
    if (episode.violation !== undefined) {
      await reportViolation({ seed, hosts, only }, episode);
      process.exitCode = 1;
      return;
    }
    for (const { kind } of episode.events) count(kinds, kind);
    for (const [transition, times] of episode.transitions) count(transitions, transition, times);
    rollouts += episode.rollouts;
    answers += episode.answers;
    failures += episode.failures;
    slowestMs = Math.max(slowestMs, episode.convergedMs);
    seed += 1;
  } while (only === undefined && systemClock.nowMs() - startMs < minutes * 60_000);
  const spent = (systemClock.nowMs() - startMs) / 60_000;
  print(`seeds ${first}..${seed - 1}, ${hosts} hosts: no rule broken`);
  print(`${rollouts} rollouts, ${Math.round(rollouts / spent)} a minute`);
  print(
    `${answers} predictions answered by one version each, ${failures} not answered under faults`,
  );
  print(`all right again at most ${Math.round(slowestMs / 1000)} s (virtual) after the last fault`);
  for (const [kind, times] of [...kinds].sort()) print(`  ${String(times).padStart(6)} ${kind}`);
  const missed = TRANSITIONS.filter((transition) => !transitions.has(transition));
  print(`transitions taken: ${TRANSITIONS.length - missed.length} of ${TRANSITIONS.length}`);
  for (const transition of TRANSITIONS) {
    print(`  ${String(transitions.get(transition) ?? 0).padStart(6)} ${transition}`);
  }
}

// After `| head`, nobody reads the result.
process.stdout.on('error', () => process.exit(1));
const command = createNpmRunCli(
  'simulate',
  'Simulates fleets under faults in virtual time, seed after seed. Writes no files.',
)
  .usage('-- [options]')
  .option(
    '--seed <n>',
    'First seed; the following ones are counted up from it',
    parseIntegerBetween(0, SEED_MAX),
    1,
  )
  .option(
    '--hosts <n>',
    'Number of hosts, each with an agent and a server; two replicas per shard',
    parseIntegerBetween(1, HOSTS_MAX),
    8,
  )
  .option('--minutes <n>', 'Duration in minutes of real time', parseMinutes, 1)
  .option(
    '--events <list>',
    'Run this seed with these events only: 3,17,20 or "none" (default: all events, many seeds)',
    parseEvents,
  )
  .option('--log', 'Print the log of every run')
  .action(simulate);
process.exitCode = await runCli(command);
