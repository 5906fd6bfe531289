/**
 * A client of Cube's own `seek`, for servers that support nothing else: the original C++
 * cube-server, or ours. Unlike in Cube's client, a key of a shard that did not answer is
 * *unavailable*, never an empty value, and responses of several versions are reported instead of
 * taken for the newest.
 *
 * A seek cannot be pinned to a version: each server answers from the version it has active.
 */
import { DictResponse } from '../../proto/dict-seek.ts';
import { CubeError } from '../core/errors.ts';
import { requireArrayLength, type Values } from '../core/lookup-group.ts';
import { systemClock, type TimerClock } from '../platform/clock.ts';
import { type ClientStats, createCounters } from './client-stats.ts';
import { FleetRoutes, type RouteOptions } from './fleet-routes.ts';
import type { CallContext } from './replica-probe.ts';
import { ShardedKeys } from './scatter-gather.ts';
import { SeekCall, type SeekOutput, type SeekSummary } from './seek-call.ts';
import { ValueOutput } from './value-output.ts';

export interface CubeDictClientOptions extends RouteOptions {
  readonly clock?: TimerClock;
  /**
   * Maximum keys per request; more keys of one shard are sent as several requests. Default 16,384.
   */
  readonly keysPerRequestMax?: number;
}

export interface SeekOptions {
  /**
   * For the whole call; the remaining time travels with every request. Default: the policy's, else
   * 1000.
   */
  readonly timeoutMs?: number;
  /** Required only where the fleet has the dict at several shard counts. */
  readonly shardNum?: number;
  /**
   * u32. With `c_murmurhash`, requests with equal hashes go to one replica. Default: the hash of
   * each request's first key.
   */
  readonly requestHash?: number;
}

/** A value for each key: that of key i is values[ends[i − 1] … ends[i]), from 0 for the first. */
export interface SeekResult extends SeekSummary, Values {
  /** One OUTCOME_ byte per key. */
  readonly outcomes: Uint8Array;
}

/** Keys in, rows of f32 out. */
export interface SeekRows {
  /** 2·count words (low, high). */
  readonly keys: Uint32Array;
  readonly count: number;
  readonly dim: number;
  /** Out: count·dim values; zeros for a key that is not a hit. */
  readonly rows: Float32Array;
  /** Out: one OUTCOME_ byte per key. */
  readonly outcomes: Uint8Array;
}

/**
 * A value has up to 1 KiB in Cube: 16 MiB per response, far below the 64 MiB that its frames allow.
 */
const KEYS_PER_REQUEST_MAX = 16_384;
const TIMEOUT_MS = 1_000;

export class CubeDictClient {
  readonly #routes: FleetRoutes;
  readonly #context: CallContext;
  readonly #keysPerRequestMax: number;
  /** Scratch; responses are read synchronously, one at a time. */
  readonly #response = new DictResponse();
  #isClosed = false;

  /** @throws CubeError INVALID_ARGUMENT for an invalid policy or connection type */
  constructor(options: CubeDictClientOptions) {
    const { clock = systemClock } = options;
    const isChecksumOptional = options.checksum !== true;
    this.#routes = new FleetRoutes(options, { checksum: 'crc32c', isChecksumOptional }, clock);
    this.#context = { clock, counters: createCounters() };
    this.#keysPerRequestMax = options.keysPerRequestMax ?? KEYS_PER_REQUEST_MAX;
  }

  /**
   * Looks up the values of keys in a dict.
   * @param keys two words each (`packKeys` makes them)
   * @throws CubeError NOT_FOUND for an unknown dict, or an error that every replica reports alike
   *   (WRONG_SHARD, …)
   */
  async seek(dict: string, keys: Uint32Array, options: SeekOptions = {}): Promise<SeekResult> {
    const count = keys.length >>> 1;
    const outcomes = new Uint8Array(count);
    const values = new ValueOutput(count, outcomes);
    const scratch = new ShardedKeys();
    const summary = await this.#seek(
      dict,
      { keys, count, output: { kind: 'values', values } },
      scratch,
      options,
    );
    return { outcomes, ...values.assemble(scratch.order), ...summary };
  }

  /**
   * Looks up the values as rows of `dim` f32 each.
   * @throws CubeError as `seek`, and INVALID_ARGUMENT when a value has another length
   */
  async seekRows(dict: string, rows: SeekRows, options: SeekOptions = {}): Promise<SeekSummary> {
    const { keys, count, dim, outcomes } = rows;
    requireArrayLength(dict, 'keys', keys.length, 2 * count);
    requireArrayLength(dict, 'rows', rows.rows.length, dim * count);
    requireArrayLength(dict, 'outcomes', outcomes.length, count);
    const output = { kind: 'rows', dim, rows: rows.rows, outcomes } as const;
    return this.#seek(dict, { keys, count, output }, new ShardedKeys(), options);
  }

  /** Returns a copy of the counters, and the state of every replica. */
  stats(): ClientStats {
    return { ...this.#context.counters, replicas: this.#routes.stats() };
  }

  /** Closes all connections. Calls in flight end with their keys unavailable. */
  close(): void {
    this.#isClosed = true;
    this.#routes.close();
  }

  async #seek(
    dict: string,
    columns: { keys: Uint32Array; count: number; output: SeekOutput },
    scratch: ShardedKeys,
    options: SeekOptions,
  ): Promise<SeekSummary> {
    if (this.#isClosed) throw new CubeError('STOPPING', 'this CubeDictClient is closed');
    const context = this.#context;
    const { clock, counters } = context;
    const shardNum = options.shardNum ?? this.#routes.getShardNum(dict);
    const replicaSets = this.#routes.getReplicaSets(dict, shardNum);
    const timeoutMs = options.timeoutMs ?? this.#routes.getPolicy(dict).timeoutMs ?? TIMEOUT_MS;
    counters.calls++;
    counters.keys += columns.count;
    const task = {
      dict,
      shardNum,
      deadlineMs: clock.nowMs() + timeoutMs,
      requestHash: options.requestHash,
      keysPerRequestMax: this.#keysPerRequestMax,
      ...columns,
    };
    return new SeekCall(task, this.#response, { context, replicaSets, scratch }).run();
  }
}
