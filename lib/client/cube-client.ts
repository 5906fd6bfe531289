/**
 * Sharded batch lookup, pinned to one version. A call sorts the keys of all tables by shard, sends
 * one packed request to a replica of each shard that has keys, and writes the responses into the
 * caller's arrays.
 *
 * Invariants
 * - Every request names bundle, version, shard and shardNum. A response from another version is a
 *   failure of that replica: one version answers a batch on all shards, or its keys are
 *   unavailable.
 * - When no replica of a shard answers before the deadline, its keys get OUTCOME_UNAVAILABLE and
 *   the default row, so that the buffers are defined. Such keys are never reported as missing.
 * - Other replicas are tried while time and the shard's retry budget last, each at most once per
 *   request. An error that every replica would return alike (WRONG_SHARD, INVALID_ARGUMENT, …) is a
 *   mistake of the caller or the fleet file and rejects the call.
 * - The caller's arrays are written before the call settles, never after.
 */
import { ROWS_F32, ROWS_STORED } from '../../proto/lookup.ts';
import { CubeError } from '../core/errors.ts';
import {
  checkKeyColumn,
  type LookupGroup,
  type LookupSummary,
  requireArrayLength,
  type StoredGroup,
  type StoredSummary,
  type ValueGroup,
  type ValuesSummary,
} from '../core/lookup-group.ts';
import { getShardNum, type Manifest } from '../core/manifest.ts';
import type { TraceSpan } from '../core/trace-span.ts';
import { systemClock, type TimerClock } from '../platform/clock.ts';
import { type ClientStats, createCounters } from './client-stats.ts';
import { DistinctKeys } from './distinct-keys.ts';
import { FleetRoutes, type RouteOptions } from './fleet-routes.ts';
import { LookupCall, type LookupOutputs } from './lookup-call.ts';
import { getLookupPlan, type LookupPlan } from './lookup-plan.ts';
import { type CallContext, probeReplica } from './replica-probe.ts';
import type { ReplicaSet } from './replica-set.ts';
import { type KeyGroup, type RowOutput, ShardedKeys } from './scatter-gather.ts';
import type { PlannedTable } from './shard-response.ts';
import { ValueOutput } from './value-output.ts';

export interface CubeClientOptions extends RouteOptions {
  readonly clock?: TimerClock;
  /**
   * Maximum keys per request; a larger batch for one shard is sent as several requests. Default
   * 16,384.
   */
  readonly keysPerRequestMax?: number;
}

export interface LookupOptions {
  /**
   * Look up a key once however often a group names it. Default false. Values of any length are
   * never deduplicated.
   */
  readonly dedupe?: boolean;
  /**
   * u32. With `c_murmurhash`, requests with equal hashes go to one replica. Default: the hash of
   * each request's first key.
   */
  readonly requestHash?: number;
  /** The parent of the spans of the calls to shards. Default: they are not traced. */
  readonly span?: TraceSpan | undefined;
}

/** Whether a fleet has loaded a version. */
export interface LoadedCheck {
  /** Each shard has at least one replica that has loaded the version. */
  readonly loaded: boolean;
  /** The shards without such a replica, and why; empty when `loaded`. */
  readonly missing: string;
}

/**
 * 128 KiB of keys: larger requests are no faster, and would occupy a server for more than a
 * millisecond.
 */
const KEYS_PER_REQUEST_MAX = 16_384;
/** Scratch buffers kept for reuse. */
const SCRATCH_KEPT_MAX = 64;
const NO_OPTIONS: LookupOptions = {};

export class CubeClient {
  readonly #routes: FleetRoutes;
  readonly #context: CallContext;
  readonly #keysPerRequestMax: number;
  readonly #scratch: ShardedKeys[] = [];
  #isClosed = false;

  /** @throws CubeError INVALID_ARGUMENT for an invalid policy or connection type */
  constructor(options: CubeClientOptions) {
    const { clock = systemClock } = options;
    this.#routes = new FleetRoutes(options, { checksum: 'xxh64' }, clock);
    this.#context = { clock, counters: createCounters() };
    this.#keysPerRequestMax = options.keysPerRequestMax ?? KEYS_PER_REQUEST_MAX;
  }

  /**
   * Looks up all groups in the manifest's version, and fills their rows (as f32, whatever the
   * tables' dtypes) and outcomes.
   * @param timeoutMs for the whole call; the remaining time travels with every request
   * @throws CubeError for a mistake in the groups or in the fleet file (WRONG_SHARD, NOT_FOUND)
   */
  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
    options: LookupOptions = NO_OPTIONS,
  ): Promise<LookupSummary> {
    const plan = getLookupPlan(manifest, ROWS_F32);
    const tables = groups.map((group) => {
      const table = requireRowTable(plan, group.table);
      checkKeyColumn(group);
      requireArrayLength(table.name, 'rows', group.rows.length, table.dim * group.count);
      return table;
    });
    return this.#lookUpRows(plan, tables, groups, groups, timeoutMs, options);
  }

  /** As `lookup`, with rows as the tables store them. */
  async lookupStored(
    manifest: Manifest,
    groups: readonly StoredGroup[],
    timeoutMs: number,
    options: LookupOptions = NO_OPTIONS,
  ): Promise<StoredSummary> {
    const plan = getLookupPlan(manifest, ROWS_STORED);
    const tables = groups.map((group) => {
      const table = requireRowTable(plan, group.table);
      checkKeyColumn(group);
      requireArrayLength(table.name, 'rows', group.rows.length, table.rowBytes * group.count);
      if (group.rows.byteOffset % 4 === 0) return table;
      const text = `table ${table.name}: rows must begin at a multiple of 4 bytes of their buffer`;
      throw new CubeError('INVALID_ARGUMENT', text, { details: { table: table.name } });
    });
    const outputs = groups.map(({ rows, outcomes }) => {
      return { rows: new Uint32Array(rows.buffer, rows.byteOffset, rows.length >> 2), outcomes };
    });
    const summary = await this.#lookUpRows(plan, tables, groups, outputs, timeoutMs, options);
    return { groups: tables.map(({ dtype, rowBytes }) => ({ dtype, rowBytes })), ...summary };
  }

  /** Looks up the values of tables of dtype bytes. */
  async lookupValues(
    manifest: Manifest,
    groups: readonly ValueGroup[],
    timeoutMs: number,
    options: LookupOptions = NO_OPTIONS,
  ): Promise<ValuesSummary> {
    const plan = getLookupPlan(manifest, ROWS_STORED);
    const tables = groups.map((group) => {
      const table = plan.table(group.table);
      checkKeyColumn(group);
      if (table.dtype === 'bytes') return table;
      throw new CubeError(
        'UNSUPPORTED',
        `table ${table.name} has rows of ${table.dtype}, not values of any length: ` +
          'use lookup or lookupStored',
        { details: { table: table.name } },
      );
    });
    const values = groups.map(({ count, outcomes }) => new ValueOutput(count, outcomes));
    const outputs: LookupOutputs = { kind: 'values', groups: values };
    return this.#lookUp(plan, tables, groups, outputs, timeoutMs, options, (summary, { order }) => {
      return { values: values.map((value) => value.assemble(order)), ...summary };
    });
  }

  /**
   * Asks every replica of every shard, with a lookup without keys, whether it has loaded the
   * version.
   */
  async checkLoaded(manifest: Manifest, timeoutMs: number): Promise<LoadedCheck> {
    this.#requireOpen();
    if (manifest.tables.length === 0) return { loaded: true, missing: '' };
    let replicaSets: readonly ReplicaSet[];
    try {
      replicaSets = this.#routes.getReplicaSets(manifest.bundle, getShardNum(manifest));
    } catch (error) {
      return { loaded: false, missing: CubeError.from(error).message };
    }
    const plan = getLookupPlan(manifest, ROWS_F32);
    const reasonsByShard = await Promise.all(
      replicaSets.map(({ shard, replicas }) =>
        Promise.all(
          replicas.map((replica) => probeReplica(this.#context, shard, replica, plan, timeoutMs)),
        ),
      ),
    );
    const missing: string[] = [];
    reasonsByShard.forEach((reasons, shard) => {
      if (reasons.includes('')) return;
      missing.push(`shard ${shard} of ${replicaSets.length}: ${reasons.join('; ')}`);
    });
    return { loaded: missing.length === 0, missing: missing.join(' | ') };
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

  #requireOpen(): void {
    if (this.#isClosed) throw new CubeError('STOPPING', 'this CubeClient is closed');
  }

  async #lookUpRows(
    plan: LookupPlan,
    tables: readonly PlannedTable[],
    groups: readonly KeyGroup[],
    outputs: readonly RowOutput[],
    timeoutMs: number,
    options: LookupOptions,
  ): Promise<LookupSummary> {
    if (options.dedupe !== true) {
      const rows: LookupOutputs = { kind: 'rows', groups: outputs };
      return this.#lookUp(plan, tables, groups, rows, timeoutMs, options, identity);
    }
    const elements = tables.map(({ rowBytes }) => rowBytes / 4);
    const distinct = groups.map((group, g) => new DistinctKeys(group, outputs[g]!, elements[g]!));
    const rows: LookupOutputs = { kind: 'rows', groups: distinct };
    const summary = await this.#lookUp(plan, tables, distinct, rows, timeoutMs, options, identity);
    let unseen = 0;
    let unavailable = 0;
    distinct.forEach((keys, g) => {
      const counts = keys.expand(outputs[g]!, elements[g]!);
      unseen += counts.unseen;
      unavailable += counts.unavailable;
    });
    return { ...summary, unseen, unavailable };
  }

  /** @param finish runs before the scratch of the call is reused */
  async #lookUp<Summary>(
    plan: LookupPlan,
    tables: readonly PlannedTable[],
    groups: readonly KeyGroup[],
    outputs: LookupOutputs,
    timeoutMs: number,
    { requestHash, span }: LookupOptions,
    finish: (summary: LookupSummary, scratch: ShardedKeys) => Summary,
  ): Promise<Summary> {
    this.#requireOpen();
    const context = this.#context;
    const { clock, counters } = context;
    const deadlineMs = clock.nowMs() + timeoutMs;
    const keysPerRequestMax = this.#keysPerRequestMax;
    const scratch = this.#scratch.pop() ?? new ShardedKeys();
    let keyCount = 0;
    for (const { count } of groups) keyCount += count;
    counters.calls++;
    counters.keys += keyCount;
    const { version, bundle } = plan.manifest;
    if (keyCount === 0) return finish({ version, unseen: 0, unavailable: 0 }, scratch);
    const replicaSets = this.#routes.getReplicaSets(bundle, plan.shardNum);
    const limits = { deadlineMs, keysPerRequestMax, requestHash };
    const task = { plan, tables, groups, outputs, ...limits, span };
    const call = new LookupCall(task, { context, replicaSets, scratch });
    const summary = finish(await call.run(), scratch);
    if (this.#scratch.length < SCRATCH_KEPT_MAX) this.#scratch.push(scratch);
    return summary;
  }
}

/** @throws CubeError NOT_FOUND, or UNSUPPORTED for a table of values of any length */
function requireRowTable(plan: LookupPlan, name: string): PlannedTable {
  const table = plan.table(name);
  if (table.dtype !== 'bytes') return table;
  const { bundle, version } = plan.manifest;
  throw new CubeError(
    'UNSUPPORTED',
    `${bundle} ${version}: table ${name} has values of any length (dtype bytes): use lookupValues`,
    { details: { bundle, version, table: name } },
  );
}

function identity(summary: LookupSummary): LookupSummary {
  return summary;
}
