/**
 * Cube's own `seek` as a client, for servers that know nothing else: the original C++ cube-server, or ours. What Cube's client got
 * wrong is put right: a key of a shard that nobody answered for is *unavailable*, never an empty value, and answers of several
 * versions are reported, never taken for the newest.
 *
 * A seek cannot be pinned to a version: each server answers from the one it has active.
 */
import { DictAnswer } from '../../proto/dict-seek.ts';
import { CubeError } from '../core/errors.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import { type ClientStats, newCounters } from './client-stats.ts';
import { FleetRoutes, type RouteOptions } from './fleet-routes.ts';
import { requireLength, type Values } from './lookup-group.ts';
import type { CallContext } from './replica-probe.ts';
import { Scatter } from './scatter.ts';
import { SeekCall, type SeekSummary, type SeekTarget } from './seek-call.ts';
import { ValueTarget } from './value-target.ts';

export interface CubeDictClientOptions extends RouteOptions {
  readonly clock?: Clock;
  /** More keys of one shard are asked for in several requests. */
  readonly keysPerRequestMax?: number;
}

export interface SeekOptions {
  /** For the whole call; travels with every request. Default: the policy's, else a second. */
  readonly timeoutMs?: number;
  /** Needed only where the fleet has the dict at several shard counts. */
  readonly shardNum?: number;
  /** u32: requests with equal hashes go to one replica with `c_murmurhash`. Default: of the request's first key. */
  readonly requestHash?: number;
}

/** A value for each key: that of key i is values[ends[i − 1] … ends[i]), from 0 for the first. */
export interface SeekAnswer extends SeekSummary, Values {
  /** One OUTCOME_ byte a key. */
  readonly outcomes: Uint8Array;
}

/** Keys in, rows of f32 out. */
export interface SeekRows {
  /** 2·count words (low, high). */
  readonly keys: Uint32Array;
  readonly count: number;
  readonly dim: number;
  /** Out: count·dim values; zeros for a key that is no hit. */
  readonly rows: Float32Array;
  /** Out: one OUTCOME_ byte a key. */
  readonly outcomes: Uint8Array;
}

/** A value has up to a KiB in Cube: 16 MiB an answer, far below the 64 MiB that its frames allow. */
const KEYS_PER_REQUEST_MAX = 16_384;
const TIMEOUT_MS = 1_000;

export class CubeDictClient {
  readonly #routes: FleetRoutes;
  readonly #context: CallContext;
  readonly #keysPerRequestMax: number;
  /** Answers are read one at a time. */
  readonly #answer = new DictAnswer();
  #closed = false;

  /** @throws CubeError INVALID_ARGUMENT for a policy or connection type that is none */
  constructor(options: CubeDictClientOptions) {
    this.#routes = new FleetRoutes(options);
    this.#context = { clock: options.clock ?? systemClock, counters: newCounters() };
    this.#keysPerRequestMax = options.keysPerRequestMax ?? KEYS_PER_REQUEST_MAX;
  }

  /**
   * The values of all keys of a dict.
   * @param keys two words each (`keyWords` makes them)
   * @throws CubeError NOT_FOUND for an unknown dict, and mistakes that every replica would report (WRONG_SHARD, …)
   */
  async seek(dict: string, keys: Uint32Array, options: SeekOptions = {}): Promise<SeekAnswer> {
    const count = keys.length >>> 1;
    const outcomes = new Uint8Array(count);
    const target = new ValueTarget(count, outcomes);
    const scratch = new Scatter();
    const task = { keys, count, target: { kind: 'values', values: target } as const };
    const summary = await this.#seek(dict, task, scratch, options);
    return { ...summary, ...target.assemble(scratch.order), outcomes };
  }

  /**
   * The values as rows of `dim` f32 each.
   * @throws CubeError as `seek`, and INVALID_ARGUMENT when a value has another length
   */
  async seekRows(dict: string, rows: SeekRows, options: SeekOptions = {}): Promise<SeekSummary> {
    const { keys, count, dim, outcomes } = rows;
    requireLength(dict, 'keys', keys.length, 2 * count);
    requireLength(dict, 'rows', rows.rows.length, dim * count);
    requireLength(dict, 'outcomes', outcomes.length, count);
    const target = { kind: 'rows', dim, rows: rows.rows, outcomes } as const;
    return this.#seek(dict, { keys, count, target }, new Scatter(), options);
  }

  /** What this client did so far, and the state of every replica: a copy. */
  stats(): ClientStats {
    return { ...this.#context.counters, replicas: this.#routes.stats() };
  }

  /** Closes all connections; calls in flight end with their keys unavailable. */
  close(): void {
    this.#closed = true;
    this.#routes.close();
  }

  async #seek(
    dict: string,
    task: { keys: Uint32Array; count: number; target: SeekTarget },
    scratch: Scatter,
    options: SeekOptions,
  ): Promise<SeekSummary> {
    if (this.#closed) throw new CubeError('STOPPING', 'this CubeDictClient is closed');
    const { clock, counters } = this.#context;
    const shardNum = options.shardNum ?? this.#routes.shardNumOf(dict);
    const sets = this.#routes.route(dict, shardNum);
    const timeoutMs = options.timeoutMs ?? this.#routes.policyOf(dict).timeoutMs ?? TIMEOUT_MS;
    counters.calls++;
    counters.keys += task.count;
    const call = new SeekCall(
      {
        ...task,
        dict,
        shardNum,
        deadlineMs: clock.nowMs() + timeoutMs,
        requestHash: options.requestHash,
        keysPerRequestMax: this.#keysPerRequestMax,
      },
      sets,
      scratch,
      this.#answer,
      this.#context,
    );
    return call.run();
  }
}
