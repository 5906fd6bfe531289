/** `npm run simulate`: runs seed after seed, says what was seen, and of a broken rule how it came to be and how to see it again. */
import { Command } from 'commander';
import { ROLLOUT_STATES, statesAfter } from '../../lib/core/rollout.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { type Episode, type EpisodeOptions, playEpisode, shrink } from './episode.ts';

const SHRINK_TRIES = 60;
const LOG_LINES = 80;

const whole = (text: string): number => {
  const value = Number(text);
  if (Number.isInteger(value) && value >= 0) return value;
  throw new Error(`expected an integer, got ${text}`);
};
const command = new Command('simulate')
  .option('--seed <n>', 'the first; those after it follow', whole, 1)
  .option('--hosts <n>', 'each with an agent and a server, two replicas of a shard', whole, 8)
  .option('--minutes <n>', 'of real time', Number, 1)
  .option('--events <list>', 'play this seed only, with these events only: 3,17,20 (none: "none")')
  .option('--log', 'print what happened')
  .parse();
const wish = command.opts<{
  seed: number;
  hosts: number;
  minutes: number;
  events?: string;
  log?: true;
}>();

/** All that the table of states allows. */
const TRANSITIONS = [undefined, ...ROLLOUT_STATES].flatMap((from) => {
  const next = from === undefined ? ['seen'] : statesAfter(from);
  return next.map((to) => `${from ?? ''}>${to}`);
});

function say(text: string): void {
  process.stdout.write(`${text}\n`);
}

async function tell(options: EpisodeOptions, failed: Episode): Promise<void> {
  const { seed, hosts } = options;
  say(`seed ${seed}: ${failed.violation?.message}\nshrinking ${failed.events.length} events …`);
  const { events, log, violation } = await shrink(options, failed, SHRINK_TRIES);
  for (const line of log.slice(-LOG_LINES)) say(line);
  const list = events.map(({ index }) => index).join(',') || 'none';
  say(`${violation?.message}\n${events.length} events are enough. Again:`);
  say(`npm run simulate -- --seed ${seed} --hosts ${hosts} --log --events ${list}`);
}

function eventsOf(text: string): Set<number> {
  return new Set(text === 'none' ? [] : text.split(',').map(Number));
}

async function main(): Promise<void> {
  const { seed: first, hosts, minutes, events, log } = wish;
  const only = events === undefined ? undefined : eventsOf(events);
  const startMs = systemClock.nowMs();
  const kinds = new Map<string, number>();
  const transitions = new Map<string, number>();
  const count = (map: Map<string, number>, key: string, by = 1): unknown =>
    map.set(key, (map.get(key) ?? 0) + by);
  let [rollouts, answers, failures, slowestMs, seed] = [0, 0, 0, 0, first];
  do {
    const episode = await playEpisode({ seed, hosts, only });
    if (log) for (const line of episode.log) say(line);
    if (episode.violation !== undefined) {
      await tell({ seed, hosts, only }, episode);
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
  say(`seeds ${first}..${seed - 1}, ${hosts} hosts: no rule broken`);
  say(`${rollouts} rollouts, ${Math.round(rollouts / spent)} a minute`);
  say(`${answers} predictions answered by one version each, ${failures} not answered under faults`);
  say(`all right again at most ${Math.round(slowestMs / 1000)} s (virtual) after the last fault`);
  for (const [kind, times] of [...kinds].sort()) say(`  ${String(times).padStart(6)} ${kind}`);
  const missed = TRANSITIONS.filter((transition) => !transitions.has(transition));
  say(`transitions taken: ${TRANSITIONS.length - missed.length} of ${TRANSITIONS.length}`);
  for (const transition of TRANSITIONS) {
    say(`  ${String(transitions.get(transition) ?? 0).padStart(6)} ${transition}`);
  }
}

await main();
