/**
 * Rollouts and rollbacks under load, one after another: 4 shards with a replica on each of two
 * hosts, one agent per host that runs its servers, and one serving process. First at full speed:
 * how many requests fail, and how many answers mix versions. Then open loops at a quarter of full
 * speed: how much rollouts raise the 99th percentile. A round takes turns of quiet seconds and of
 * rollouts, because the machine may change within one round. The last rounds are the same with all
 * threads of the agents in idle time and callers of low priority.
 *
 * npm run bench -- rollouts --rollouts 50 --rounds 5
 *
 * Exits with 1 when a request failed, an answer was mixed, or a version that is mixed on purpose
 * was not detected. During the open loops the commands run in idle time only, because in a fleet
 * they are on another machine. So does this process, which tells the callers which version to
 * request: if the callers asked the servers themselves, this would delay the calls that they
 * measure.
 */

import { loadavg } from 'node:os';
import { parseArgs } from 'node:util';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { runWhenIdle } from '../lib/platform/machine.ts';
import { ChannelWatch } from './support/channel-watch.ts';
import { BUNDLE } from './support/demo-model.ts';
import { readStolenMs } from './support/full-cores.ts';
import {
  CALLER_NAMES,
  type CallerCounts,
  type CallerName,
  LoadProcess,
  type MeasuredCalls,
  type Measurement,
  type Rates,
  summarize,
} from './support/load-process.ts';
import { OperatorProcess } from './support/operator-process.ts';
import type { AnswerCounts } from './support/rollout-callers.ts';
import { RolloutFleet } from './support/rollout-fleet.ts';
import { VersionPublisher } from './support/rollout-versions.ts';

const SHAPE = { hosts: 2, shardNum: 4 } as const;
const BLOCK = 10;
const QUIET_MS = 6_000;
/** Quiet periods in a round of open loops, each followed by rollouts. */
const TURNS = 3;
const OPEN_QUIET_MS = 5_000;
/** The first rollout of a turn is also rolled back. */
const ROLLOUTS_A_TURN = 2;
/** The least time from the start of a rollout or rollback to that of the next. */
const SWITCH_MS = 2_500;
/** Until the agents have unloaded old versions, and nothing is left to do. */
const SETTLE_MS = 3_000;
/** The share of full speed, for both callers together. */
const OPEN_SHARE = 0.25;
/** A round that loses more CPU time to other virtual machines is not counted. */
const STOLEN_MS_MAX = 100;
/** Rounds that are not counted, of each kind of open loops. */
const REPEATS_MAX = 5;
const DETECTION_S_MAX = 60;
const audit = { by: 'bench', reason: 'bench' };

const wait = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** What was called in quiet periods, and in those with rollouts. */
interface MeasuredRound {
  readonly quiet: readonly MeasuredCalls[];
  readonly busy: readonly MeasuredCalls[];
}

class RolloutBenchmark {
  readonly #publisher: VersionPublisher;
  readonly #fleet: RolloutFleet;
  readonly #traffic: LoadProcess;
  /** The last published version. */
  #published = 1;
  #rolledOut = 1;
  readonly done = { rollouts: 0, rollbacks: 0 };

  constructor(publisher: VersionPublisher, fleet: RolloutFleet, traffic: LoadProcess) {
    this.#publisher = publisher;
    this.#fleet = fleet;
    this.#traffic = traffic;
  }

  /**
   * Rolls out a version with rows of another one on a shard. @returns whether both callers detected
   * it
   */
  async detectMixedVersion(): Promise<boolean> {
    const version = ++this.#published;
    await this.#publisher.publish(version, { shard: SHAPE.shardNum - 1, from: 1 });
    await this.#traffic.prepare([1, version]);
    await this.#fleet.rollOut(version);
    this.#rolledOut = version;
    const isDetected = await this.#callUntil((counts) => counts.mixed > 0);
    await this.#fleet.rollBack();
    const isBack = ({ versions }: AnswerCounts): boolean => versions.join() === '1';
    return isDetected && (await this.#callUntil(isBack));
  }

  /**
   * Calls second by second until the counts of both callers meet the condition. @returns false
   * after a minute
   */
  async #callUntil(meets: (counts: AnswerCounts) => boolean): Promise<boolean> {
    for (let second = 0; second < DETECTION_S_MAX; second++) {
      await this.#traffic.runDuring(() => wait(1_000), CALLER_NAMES);
      const counts = await this.#traffic.takeCounts();
      if (CALLER_NAMES.every((name) => meets(counts[name]))) return true;
    }
    return false;
  }

  /** Calls per second at full speed of each kind of caller alone. */
  async measureCapacity(): Promise<Rates> {
    const rates = { lookups: 0, predictions: 0 };
    for (const name of CALLER_NAMES) {
      await this.#traffic.runDuring(() => wait(QUIET_MS / 2), [name]);
      const calls = await this.#traffic.runDuring(() => wait(QUIET_MS / 2), [name]);
      rates[name] = summarize([calls], name).perSecond;
    }
    return rates;
  }

  /**
   * Rolls out versions at full speed, with a quiet period before each block of rollouts, after one
   * that only warms up.
   */
  async runFullSpeed(rollouts: number): Promise<MeasuredRound[]> {
    const rounds: MeasuredRound[] = [];
    await this.#traffic.runDuring(() => wait(QUIET_MS), CALLER_NAMES);
    for (let remaining = rollouts; remaining > 0; remaining -= BLOCK) {
      const count = Math.min(BLOCK, remaining);
      await this.#publish(count);
      const quiet = await this.#traffic.runDuring(() => wait(QUIET_MS), CALLER_NAMES);
      const busy = await this.#traffic.runDuring(() => this.#rollOut(count), CALLER_NAMES);
      const round = { quiet: [quiet], busy: [busy] };
      rounds.push(round);
      printRound(rounds.length, round);
    }
    return rounds;
  }

  /**
   * Open loops. A round in which other virtual machines took CPU time from this one is shown and
   * made again.
   */
  async runOpenLoops(rates: Rates, count: number): Promise<MeasuredRound[]> {
    const rounds: MeasuredRound[] = [];
    for (let repeats = 0; rounds.length < count; ) {
      await this.#publish(TURNS * ROLLOUTS_A_TURN);
      const beforeMs = readStolenMs();
      const round = await this.#runTurns(rates);
      const stolenMs = readStolenMs() - beforeMs;
      printRound(rounds.length + 1, round);
      if (stolenMs > STOLEN_MS_MAX && repeats < REPEATS_MAX) {
        repeats++;
        process.stdout.write(`not counted, other machines took ${stolenMs} ms\n`);
        continue;
      }
      rounds.push(round);
    }
    return rounds;
  }

  async #runTurns(rates: Rates): Promise<MeasuredRound> {
    const round = { quiet: [] as MeasuredCalls[], busy: [] as MeasuredCalls[] };
    for (let turn = 0; turn < TURNS; turn++) {
      await wait(SETTLE_MS);
      round.quiet.push(await this.#traffic.runOpenLoops(() => wait(OPEN_QUIET_MS), rates));
      const rollOut = (): Promise<void> => this.#rollOut(ROLLOUTS_A_TURN);
      round.busy.push(await this.#traffic.runOpenLoops(rollOut, rates));
    }
    return round;
  }

  /** Rolls out published versions, and rolls every second one back. */
  async #rollOut(count: number): Promise<void> {
    for (let i = 0; i < count; i++) {
      await Promise.all([this.#fleet.rollOut(++this.#rolledOut), wait(SWITCH_MS)]);
      this.done.rollouts++;
      if (i % 2 === 1) continue;
      await Promise.all([this.#fleet.rollBack(), wait(SWITCH_MS)]);
      this.done.rollbacks++;
    }
  }

  /** Removes old versions and publishes new ones: neither happens while latencies are measured. */
  async #publish(count: number): Promise<void> {
    const policy = { keepVersions: 2, keepMs: 0 };
    await this.#publisher.repository.collectGarbage(BUNDLE, policy, {
      by: audit.by,
      dryRun: false,
    });
    const versions: number[] = [];
    for (let i = 0; i < count; i++) {
      versions.push(++this.#published);
      await this.#publisher.publish(this.#published);
    }
    await this.#traffic.prepare(versions);
  }
}

function print(name: string, text: string): void {
  process.stdout.write(`${name.padEnd(46)} ${text}\n`);
}

function formatMeasurement({ latencies, perSecond }: Measurement, quiet?: Measurement): string {
  const shares = Object.entries(latencies).map(([share, ms]) => {
    const quietMs = quiet?.latencies[share as keyof typeof latencies];
    const ratio = quietMs === undefined ? '' : ` (${(ms / quietMs).toFixed(2)})`;
    return `${share} ${ms.toFixed(2)}${ratio}`;
  });
  return `${Math.round(perSecond).toLocaleString('en').padStart(7)}/s, ms: ${shares.join(', ')}`;
}

function printRound(number: number, round: MeasuredRound): void {
  for (const name of CALLER_NAMES) {
    const quiet = summarize(round.quiet, name);
    const busy = summarize(round.busy, name);
    print(`round ${number}, ${name}, quiet`, formatMeasurement(quiet));
    print(`round ${number}, ${name}, rollouts`, formatMeasurement(busy, quiet));
  }
}

function printMedians(what: string, rounds: readonly MeasuredRound[], goal: number): void {
  for (const name of CALLER_NAMES) {
    const ratios = rounds.map(({ quiet, busy }) => {
      return summarize(busy, name).latencies.p99 / summarize(quiet, name).latencies.p99;
    });
    ratios.sort((a, b) => a - b);
    const median = ratios[ratios.length >> 1];
    if (median === undefined) continue;
    const all = ratios.map((ratio) => ratio.toFixed(2)).join(', ');
    print(`p99 of ${name}, ${what}, median ratio`, `${median.toFixed(2)} (goal ${goal}; ${all})`);
  }
}

/** @returns whether nothing failed and nothing was mixed */
function printCounts(
  { rollouts, rollbacks }: RolloutBenchmark['done'],
  counts: CallerCounts,
): boolean {
  print('version switches', `${rollouts} rollouts, ${rollbacks} rollbacks`);
  for (const name of CALLER_NAMES) {
    const { requests, failed, wrong, mixed, firstProblem, versions } = counts[name];
    const why = firstProblem === undefined ? '' : `; first: ${firstProblem}`;
    const seen = `${requests.toLocaleString('en')} requests, ${versions.length} versions`;
    print(name, `${seen}: failed ${failed}, wrong ${wrong}, mixed ${mixed}${why}`);
  }
  return CALLER_NAMES.every((name) => {
    const { failed, wrong, mixed } = counts[name];
    return failed + wrong + mixed === 0;
  });
}

async function measure(
  fleet: RolloutFleet,
  traffic: LoadProcess,
  publisher: VersionPublisher,
): Promise<boolean> {
  const benchmark = new RolloutBenchmark(publisher, fleet, traffic);
  const isDetected = await benchmark.detectMixedVersion();
  print('a version mixed on purpose', isDetected ? 'detected by both callers' : 'NOT detected');
  print('machine load before the measurement', loadavg()[0]?.toFixed(1) ?? '');
  fleet.useOperator(new OperatorProcess());
  process.stdout.write('\nfull speed\n');
  const full = await benchmark.runFullSpeed(options.rollouts);
  const isConsistent = printCounts(benchmark.done, await traffic.takeCounts());
  const capacity = await benchmark.measureCapacity();
  const rate = (name: CallerName): number => Math.floor((capacity[name] * OPEN_SHARE) / 2);
  const rates = { lookups: rate('lookups'), predictions: rate('predictions') };
  process.stdout.write('\nopen loops\n');
  await runWhenIdle();
  fleet.useOperator(new OperatorProcess());
  const open = await benchmark.runOpenLoops(rates, options.rounds);
  process.stdout.write(
    '\nopen loops, all threads of agents in idle time, callers of low priority\n',
  );
  fleet.runAgentsWhenIdle();
  traffic.lowerPriority();
  const background = await benchmark.runOpenLoops(rates, options.rounds);
  const isStillConsistent = printCounts(benchmark.done, await traffic.takeCounts());
  process.stdout.write('\n');
  printMedians('full speed', full, 1.5);
  printMedians('open loop', open, 1.5);
  printMedians('open loop, agents in idle time', background, 1.2);
  return isDetected && isConsistent && isStillConsistent;
}

async function run(): Promise<void> {
  process.stdout.write(
    'Rollouts and rollbacks under load: failed and mixed answers, ' +
      'and latency against quiet periods.\n',
  );
  const folder = makeTemporaryFolder('hypercube-bench-');
  const publisher = await VersionPublisher.create(folder, options.rows, SHAPE.shardNum);
  await publisher.publish(1);
  await publisher.repository.activate(BUNDLE, 'stable', { version: '1', ...audit });
  const fleet = await RolloutFleet.start(folder, SHAPE);
  let traffic: LoadProcess | undefined;
  let watch: ChannelWatch | undefined;
  try {
    await fleet.startServing();
    const calls = new LoadProcess({ folder, url: fleet.url, tableRows: options.rows });
    traffic = calls;
    watch = new ChannelWatch(folder, ({ version }) => calls.use(version));
    await watch.waitForVersion();
    if (!(await measure(fleet, calls, publisher))) process.exitCode = 1;
  } finally {
    watch?.close();
    traffic?.stop();
    await fleet.stop();
    removePath(folder);
  }
}

function readOptions(): { rollouts: number; rounds: number; rows: number } {
  const { values } = parseArgs({
    options: {
      rollouts: { type: 'string', default: '50' },
      rounds: { type: 'string', default: '5' },
      rows: { type: 'string', default: '1000000' },
    },
  });
  const { rollouts, rounds, rows } = values;
  return { rollouts: Number(rollouts), rounds: Number(rounds), rows: Number(rows) };
}

const options = readOptions();
await run();
