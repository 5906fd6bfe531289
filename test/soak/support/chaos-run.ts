/**
 * A fleet of three shards with two replicas each, one serving process, callers that check every
 * answer, and two loops that disturb it: one kills or stops a replica and waits until the fleet is
 * whole, one publishes good and damaged versions and rolls back.
 */
import { closeSync, openSync, readSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { ChannelWatch } from '../../../bench/support/channel-watch.ts';
import { BUNDLE } from '../../../bench/support/demo-model.ts';
import {
  type Caller,
  LookupCaller,
  makeCounts,
  PredictionCaller,
} from '../../../bench/support/rollout-callers.ts';
import { RolloutFleet } from '../../../bench/support/rollout-fleet.ts';
import { TABLE, VersionPublisher } from '../../../bench/support/rollout-versions.ts';
import { ControlClient } from '../../../cube-agent/fleet/control-client.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import { parseFleet } from '../../../lib/core/fleet.ts';
import { readText } from '../../../lib/platform/files.ts';
import { layerPath } from '../../../lib/repository/layout.ts';
import type { Random } from '../../simulation/random.ts';

const SHAPE = { hosts: 2, shardNum: 3 };
const TABLE_ROWS = 120_000;
const IN_FLIGHT = 2;
/** Between two calls of one loop, so that the fleet is not starved on a small machine. */
const CALL_PAUSE_MS = 4;
const POLL_MS = 20;
/** A fleet that is not whole by then counts as broken. */
const WHOLE_WITHIN_MS = 120_000;
const STOPPED_MS_MAX = 3_000;
const QUIET_MS_MAX = 2_000;
/** How long a damaged version stays the pointer. */
const DAMAGED_MS = 2_000;
const CANARY_UNTIL = 10;
const FIRST_BYTE_OF_ROWS = 8_192;

export interface ChaosCounts {
  kills: number;
  stops: number;
  good: number;
  damaged: number;
  rollbacks: number;
  /** Milliseconds from a kill until every replica of every shard was ready again. */
  readonly wholeAfterMs: number[];
  readonly problems: string[];
}

interface Disturbance {
  readonly address: string;
  readonly pid: number;
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

export class ChaosRun {
  readonly counts: ChaosCounts = {
    kills: 0,
    stops: 0,
    good: 0,
    damaged: 0,
    rollbacks: 0,
    wholeAfterMs: [],
    problems: [],
  };
  readonly #folder: string;
  readonly #random: Random;
  readonly #publisher: VersionPublisher;
  readonly #fleet: RolloutFleet;
  readonly #watch: ChannelWatch;
  readonly #callers: readonly Caller[];
  readonly #controls: readonly ControlClient[];
  #published = 1;
  /** The newest good version that the channel points to. */
  #good = 1;
  #isOver = false;

  private constructor(
    folder: string,
    random: Random,
    parts: {
      publisher: VersionPublisher;
      fleet: RolloutFleet;
      watch: ChannelWatch;
      callers: readonly Caller[];
    },
  ) {
    this.#folder = folder;
    this.#random = random;
    this.#publisher = parts.publisher;
    this.#fleet = parts.fleet;
    this.#watch = parts.watch;
    this.#callers = parts.callers;
    const fleet = parseFleet(readText(parts.fleet.path), parts.fleet.path);
    const replicas = (fleet.bundles.get(BUNDLE) ?? []).flatMap(({ shards }) => shards.flat());
    this.#controls = replicas.map(({ control }) => new ControlClient(control));
  }

  static async start(folder: string, random: Random): Promise<ChaosRun> {
    const publisher = await VersionPublisher.create(folder, TABLE_ROWS, SHAPE.shardNum);
    await publisher.publish(1);
    const first = { version: '1', by: 'chaos', reason: 'first' };
    await publisher.repository.activate(BUNDLE, 'stable', first);
    const fleet = await RolloutFleet.start(folder, SHAPE);
    const watch = new ChannelWatch(folder);
    try {
      await fleet.startServing();
      const lookups = new LookupCaller(folder, TABLE_ROWS, () => watch.manifest);
      const callers = [lookups, await PredictionCaller.open(folder, fleet.url)];
      await watch.waitForVersion();
      return new ChaosRun(folder, random, { publisher, fleet, watch, callers });
    } catch (error) {
      watch.close();
      await fleet.stop();
      throw error;
    }
  }

  /** By name: requests, failed, wrong and mixed answers. */
  get answers(): Map<string, Caller['counts']> {
    const [lookups, predictions] = this.#callers;
    return new Map(
      [lookups, predictions].flatMap((caller, i) =>
        caller === undefined ? [] : [[i === 0 ? 'lookups' : 'predictions', caller.counts]],
      ),
    );
  }

  /**
   * Activates a version one of whose shards has the rows of another one.
   * @returns the callers that did not notice
   */
  async findMissedCanary(withinMs: number): Promise<string[]> {
    await this.#publisher.publish(++this.#published, { shard: 2, from: 1 });
    await this.#fleet.rollOut(this.#published);
    const endMs = performance.now() + withinMs;
    const isFound = (): boolean =>
      this.#callers.every(({ counts }) => counts.mixed + counts.wrong >= CANARY_UNTIL);
    await this.#callUntil(() => isFound() || performance.now() >= endMs);
    const missed = [...this.answers].filter(([, { mixed, wrong }]) => mixed + wrong < CANARY_UNTIL);
    await this.#publishGood();
    await this.#callUntil(() => this.#callers.every((caller) => this.#answersGood(caller)));
    for (const caller of this.#callers) Object.assign(caller.counts, makeCounts());
    return missed.map(([name]) => name);
  }

  /** Disturbs the fleet for that time, and then waits until it is whole. */
  async run(forMs: number): Promise<void> {
    const calling = this.#callUntil(() => this.#isOver);
    const endMs = performance.now() + forMs;
    const loop = async (step: () => Promise<void>): Promise<void> => {
      while (performance.now() < endMs) {
        await pause(this.#random.integer(0, QUIET_MS_MAX));
        await step().catch((error: unknown) => {
          this.counts.problems.push(CubeError.from(error).message);
        });
      }
    };
    await Promise.all([loop(() => this.#disturb()), loop(() => this.#changeVersion())]);
    await this.#waitUntilWhole();
    this.#isOver = true;
    await calling;
  }

  async stop(): Promise<void> {
    this.#isOver = true;
    this.#watch.close();
    for (const caller of this.#callers) caller.close();
    await this.#fleet.stop();
  }

  async #callUntil(until: () => boolean): Promise<void> {
    const call = async (caller: Caller): Promise<void> => {
      while (!until()) {
        await caller.call();
        await pause(CALL_PAUSE_MS);
      }
    };
    await Promise.all(
      this.#callers.flatMap((caller) => Array.from({ length: IN_FLIGHT }, () => call(caller))),
    );
  }

  #answersGood({ counts }: Caller): boolean {
    return counts.versions.includes(String(this.#good));
  }

  /** Kills or stops one replica. One at a time, so that every shard always has another. */
  async #disturb(): Promise<void> {
    const target = await this.#pickServer();
    if (this.#random.chance(0.5)) {
      process.kill(target.pid, 'SIGKILL');
      this.counts.kills++;
      const startMs = performance.now();
      await this.#waitUntilWhole(target);
      this.counts.wholeAfterMs.push(Math.round(performance.now() - startMs));
      return;
    }
    this.counts.stops++;
    process.kill(target.pid, 'SIGSTOP');
    try {
      await pause(this.#random.integer(1, STOPPED_MS_MAX));
    } finally {
      process.kill(target.pid, 'SIGCONT');
    }
    await this.#waitUntilWhole();
  }

  async #pickServer(): Promise<Disturbance> {
    const control = this.#random.pick(this.#controls);
    const { pid } = await control.status();
    return { address: control.address, pid };
  }

  /** @param killed must answer as another process */
  async #waitUntilWhole(killed?: Disturbance): Promise<void> {
    const endMs = performance.now() + WHOLE_WITHIN_MS;
    while (performance.now() < endMs) {
      const statuses = await Promise.all(
        this.#controls.map(async (control) => {
          const status = await control.status().catch(() => undefined);
          const isOld = control.address === killed?.address && status?.pid === killed.pid;
          return status?.ready === true && !isOld;
        }),
      );
      if (statuses.every(Boolean)) return;
      await pause(POLL_MS);
    }
    throw new CubeError('NOT_READY', `the fleet was not whole within ${WHOLE_WITHIN_MS} ms`);
  }

  async #changeVersion(): Promise<void> {
    const choice = this.#random.next();
    if (choice < 0.5) await this.#publishGood();
    else if (choice < 0.75) await this.#activateDamaged();
    else await this.#rollBack();
  }

  async #publishGood(): Promise<void> {
    await this.#publisher.publish(++this.#published);
    await this.#fleet.rollOut(this.#published);
    this.#good = this.#published;
    this.counts.good++;
  }

  /**
   * Points the channel to a version with a damaged layer, then to a good one. A rollback must pass
   * the damaged one over.
   */
  async #activateDamaged(): Promise<void> {
    const before = this.#good;
    await this.#publisher.publish(++this.#published);
    await this.#damage(String(this.#published));
    await this.#point(this.#published);
    this.counts.damaged++;
    await pause(DAMAGED_MS);
    await this.#publishGood();
    await this.#fleet.rollBack();
    this.counts.rollbacks++;
    this.#good = before;
    await this.#requirePointer(before);
  }

  async #rollBack(): Promise<void> {
    const before = this.#good;
    await this.#publishGood();
    await this.#fleet.rollBack();
    this.counts.rollbacks++;
    this.#good = before;
    await this.#requirePointer(before);
  }

  async #requirePointer(version: number): Promise<void> {
    const { pointer } = await this.#publisher.repository.readChannel(BUNDLE, 'stable');
    if (pointer?.version === String(version)) return;
    const problem = `a rollback went to version ${pointer?.version} instead of ${version}`;
    this.counts.problems.push(problem);
    this.#good = Number(pointer?.version);
  }

  async #point(version: number): Promise<void> {
    const request = { version: String(version), by: 'chaos', reason: 'damaged on purpose' };
    await this.#publisher.repository.activate(BUNDLE, 'stable', request);
  }

  /** Flips a bit among the rows of shard 0. */
  async #damage(version: string): Promise<void> {
    const { tables } = await this.#publisher.repository.readManifest(BUNDLE, version);
    const [layer] = tables[0]?.shards[0] ?? [];
    if (layer === undefined) throw new CubeError('INTERNAL', `version ${version} has no layer`);
    const path = join(this.#folder, 'repository', layerPath(BUNDLE, TABLE, layer.contentId));
    const file = openSync(path, 'r+');
    try {
      const at = FIRST_BYTE_OF_ROWS + this.#random.integer(0, layer.bytes - FIRST_BYTE_OF_ROWS);
      const byte = new Uint8Array(1);
      readSync(file, byte, 0, 1, at);
      byte[0]! ^= 1 << this.#random.integer(0, 8);
      writeSync(file, byte, 0, 1, at);
    } finally {
      closeSync(file);
    }
  }
}
