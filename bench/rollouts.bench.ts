/**
 * Rollouts and rollbacks one after another under callers: 4 shards with a replica on each of two hosts, an agent a host that
 * runs its servers, one serving process. First at full speed: how many requests fail, how many answers mix versions. Then open
 * loops at a quarter of full speed, in rounds of quiet and of rollouts: what these do to the 99th percentile.
 *
 *   npm run bench -- rollouts --rollouts 50 --rounds 5
 *
 * Ends with 1 when a request failed, an answer was mixed, or a version that is mixed on purpose went unnoticed. Beside the
 * open loops the commands run at the lowest priority: in a fleet they are on another machine.
 */
import { constants, loadavg, setPriority } from 'node:os';
import { parseArgs } from 'node:util';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { RolloutFleet } from './rollout-fleet.ts';
import {
  type AllCounts,
  CALLERS,
  type CallerName,
  type Rates,
  type Readings,
  TrafficProcess,
} from './rollout-readings.ts';
import type { Counts } from './rollout-traffic.ts';
import { VersionSource } from './rollout-versions.ts';
import { BUNDLE } from './serving-model.ts';

const SHAPE = { hosts: 2, shardNum: 4 } as const;
const BLOCK = 10;
const QUIET_MS = 6_000;
const OPEN_MS = 10_000;
/** Of full speed, both callers together. */
const OPEN_SHARE = 0.25;
/** More than a round can use. */
const ROLLOUTS_A_ROUND = 12;
const CANARY_S_MAX = 60;
const by = { by: 'bench', reason: 'bench' };

const wait = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

class Scenario {
  readonly #source: VersionSource;
  readonly #fleet: RolloutFleet;
  readonly #traffic: TrafficProcess;
  /** Published up to here. */
  #published = 1;
  #rolledOut = 1;
  readonly done = { rollouts: 0, rollbacks: 0 };

  constructor(source: VersionSource, fleet: RolloutFleet, traffic: TrafficProcess) {
    this.#source = source;
    this.#fleet = fleet;
    this.#traffic = traffic;
  }

  /** A version with rows of another one on a shard: both callers must say so. */
  async canary(): Promise<boolean> {
    const version = ++this.#published;
    await this.#source.publish(version, { shard: SHAPE.shardNum - 1, from: 1 });
    await this.#traffic.prepare([1, version]);
    await this.#fleet.rollOut(version);
    this.#rolledOut = version;
    const noticed = await this.#callUntil((counts) => counts.mixed > 0);
    await this.#fleet.rollBack();
    const isOver = ({ versions }: Counts): boolean => versions.join() === '1';
    return noticed && (await this.#callUntil(isOver));
  }

  /** Second by second, until one in which the counts of both callers are so; false when none came. */
  async #callUntil(isSo: (counts: Counts) => boolean): Promise<boolean> {
    for (let second = 0; second < CANARY_S_MAX; second++) {
      await this.#traffic.during(() => wait(1_000), CALLERS);
      const counts = await this.#traffic.counts();
      if (CALLERS.every((name) => isSo(counts[name]))) return true;
    }
    return false;
  }

  /** Callers of one kind alone, then reads how fast they are. */
  async capacity(): Promise<Rates> {
    const rates = { lookups: 0, predictions: 0 };
    for (const name of CALLERS) {
      await this.#traffic.during(() => wait(QUIET_MS / 2), [name]);
      const readings = await this.#traffic.during(() => wait(QUIET_MS / 2), [name]);
      rates[name] = readings[name]!.perSecond;
    }
    return rates;
  }

  /** So many at full speed, quiet before each block of them. */
  async fullSpeed(rollouts: number): Promise<Readings[][]> {
    const rounds: Readings[][] = [];
    for (let left = rollouts; left > 0; left -= BLOCK) {
      await this.#publish(Math.min(BLOCK, left));
      const quiet = await this.#traffic.during(() => wait(QUIET_MS), CALLERS);
      const busy = await this.#traffic.during(() => this.#rollOutPublished(), CALLERS);
      rounds.push([quiet, busy]);
      printRound(rounds.length, quiet, busy);
    }
    return rounds;
  }

  /** Open loops: quiet, then for as long with rollouts all the time. */
  async openLoops(rates: Rates, count: number): Promise<Readings[][]> {
    const rounds: Readings[][] = [];
    while (rounds.length < count) {
      await this.#publish(ROLLOUTS_A_ROUND);
      const quiet = await this.#traffic.openLoops(rates, OPEN_MS);
      const until = { done: false };
      const rolling = this.#rollOutPublished(until);
      // Its failure is thrown below: unhandled it would end this process and leave the fleet running.
      rolling.catch(() => undefined);
      const busy = await this.#traffic.openLoops(rates, OPEN_MS);
      until.done = true;
      await rolling;
      rounds.push([quiet, busy]);
      printRound(rounds.length, quiet, busy);
    }
    return rounds;
  }

  /** Every second version is rolled back. */
  async #rollOutPublished(until = { done: false }): Promise<void> {
    while (!until.done && this.#rolledOut < this.#published) {
      const version = ++this.#rolledOut;
      await this.#fleet.rollOut(version);
      this.done.rollouts++;
      if (version % 2 === 1) continue;
      await this.#fleet.rollBack();
      this.done.rollbacks++;
    }
  }

  /** What is left of earlier ones goes first: nothing is published or collected while latencies are read. */
  async #publish(count: number): Promise<void> {
    // Those that the last round had no time for come first in the next.
    const left = this.#published - this.#rolledOut;
    const policy = { keepVersions: left + 2, keepMs: 0 };
    await this.#source.repository.collectGarbage(BUNDLE, policy, { by: by.by, dryRun: false });
    const versions: number[] = [];
    while (this.#published < this.#rolledOut + count) {
      versions.push(++this.#published);
      await this.#source.publish(this.#published);
    }
    await this.#traffic.prepare(versions);
  }
}

function print(name: string, text: string): void {
  process.stdout.write(`${name.padEnd(46)}${text}\n`);
}

function figures(readings: Readings, name: CallerName, quiet?: Readings): string {
  const { latencies, perSecond } = readings[name]!;
  const shares = Object.entries(latencies).map(([share, ms]) => {
    const before = quiet?.[name]?.latencies[share as keyof typeof latencies];
    const ratio = before === undefined ? '' : ` (${(ms / before).toFixed(2)})`;
    return `${share} ${ms.toFixed(2)}${ratio}`;
  });
  return `${Math.round(perSecond).toLocaleString('en').padStart(7)}/s, ms: ${shares.join(', ')}`;
}

function printRound(round: number, quiet: Readings, busy: Readings): void {
  for (const name of CALLERS) {
    print(`round ${round}, ${name}, quiet`, figures(quiet, name));
    print(`round ${round}, ${name}, rollouts`, figures(busy, name, quiet));
  }
}

function printMedians(what: string, rounds: readonly Readings[][]): void {
  for (const name of CALLERS) {
    const ratios = rounds.map(([quiet, busy]) => {
      return busy![name]!.latencies.p99 / quiet![name]!.latencies.p99;
    });
    ratios.sort((a, b) => a - b);
    const median = ratios[ratios.length >> 1];
    if (median === undefined) continue;
    print(`p99 of ${name}, ${what}, median ratio`, `${median.toFixed(2)} (budget 1.2)`);
  }
}

/** @returns whether nothing failed and nothing was mixed */
function printCounts({ rollouts, rollbacks }: Scenario['done'], counts: AllCounts): boolean {
  print('switches', `${rollouts} rollouts, ${rollbacks} rollbacks`);
  for (const name of CALLERS) {
    const { requests, failed, mixed, first, versions } = counts[name];
    const why = first === undefined ? '' : `; first: ${first}`;
    const seen = `${requests.toLocaleString('en')} requests, ${versions.length} versions`;
    print(name, `${seen}: failed ${failed}, mixed ${mixed}${why}`);
  }
  return CALLERS.every((name) => counts[name].failed + counts[name].mixed === 0);
}

async function measure(scenario: Scenario, traffic: TrafficProcess): Promise<boolean> {
  const noticed = await scenario.canary();
  print('a version mixed on purpose', noticed ? 'noticed by both callers' : 'NOT noticed');
  print('machine', `load ${loadavg()[0]!.toFixed(1)} before it begins`);
  process.stdout.write('\nfull speed\n');
  const full = await scenario.fullSpeed(options.rollouts);
  const whole = printCounts(scenario.done, await traffic.counts());
  const capacity = await scenario.capacity();
  const rate = (name: CallerName): number => Math.floor((capacity[name] * OPEN_SHARE) / 2);
  process.stdout.write('\nopen loops\n');
  setPriority(constants.priority.PRIORITY_LOW);
  const open = await scenario.openLoops(
    { lookups: rate('lookups'), predictions: rate('predictions') },
    options.rounds,
  );
  const stillWhole = printCounts(scenario.done, await traffic.counts());
  process.stdout.write('\n');
  printMedians('full speed', full);
  printMedians('open loop', open);
  return noticed && whole && stillWhole;
}

async function run(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  const source = await VersionSource.create(folder, options.rows, SHAPE.shardNum);
  await source.publish(1);
  await source.repository.activate(BUNDLE, 'stable', { version: '1', ...by });
  const fleet = await RolloutFleet.start(folder, SHAPE);
  let traffic: TrafficProcess | undefined;
  try {
    await fleet.startServing();
    traffic = new TrafficProcess({ folder, url: fleet.url, tableRows: options.rows });
    if (!(await measure(new Scenario(source, fleet, traffic), traffic))) process.exitCode = 1;
  } finally {
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
