/**
 * Sharded, version-pinned batch lookup as a library. One call: scatter the keys of all tables by shard, one
 * packed request to one replica of each shard that has keys, gather the answers into the caller's arrays.
 *
 * Invariants
 * - Every request names bundle, version, shard and shardNum. An answer of another version is the failure of that
 *   replica: a batch is answered by one version on all shards, or its keys are unavailable.
 * - A shard that nobody answers for within the deadline gives OUTCOME_UNAVAILABLE and its keys the default row, so that
 *   the buffers are defined. It is never reported as missing keys.
 * - Another replica is tried while there is time, each at most once a request, within the shard's retry budget. What
 *   another replica would answer alike (WRONG_SHARD, INVALID_ARGUMENT, …) is the caller's or the fleet file's
 *   mistake and rejects the call.
 * - The caller's arrays are written before the call settles, never after.
 */
import { ROWS_F32, ROWS_STORED } from '../../proto/lookup.ts';
import { CubeError } from '../core/errors.ts';
import { type Manifest, shardNumOf } from '../core/manifest.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import { type ClientStats, newCounters } from './client-stats.ts';
import { DistinctKeys } from './distinct-keys.ts';
import { FleetRoutes, type RouteOptions } from './fleet-routes.ts';
import { LookupCall, type Targets } from './lookup-call.ts';
import {
  checkColumn,
  type LookupGroup,
  type LookupSummary,
  requireLength,
  type StoredGroup,
  type StoredSummary,
  type ValueGroup,
  type ValuesSummary,
} from './lookup-group.ts';
import { type LookupPlan, planOf } from './lookup-plan.ts';
import type { PlannedTable } from './planned-table.ts';
import { type CallContext, probeReplica } from './replica-probe.ts';
import type { ReplicaSet } from './replica-set.ts';
import { type KeyGroup, type RowTarget, Scatter } from './scatter.ts';
import { ValueTarget } from './value-target.ts';

export interface CubeClientOptions extends RouteOptions {
  readonly clock?: Clock;
  /** Larger batches are split, so that no request nears the servers' limits. */
  readonly keysPerRequestMax?: number;
}

export interface LookupOptions {
  /** Keys that a group names several times are looked up once. Default false. Values of any length are never deduplicated. */
  readonly dedupe?: boolean;
  /** u32: requests with equal hashes go to one replica with `c_murmurhash`. Default: of the request's first key. */
  readonly requestHash?: number;
}

/** 128 KiB of keys: more at once gains nothing, and would keep a server from others for a millisecond. */
const KEYS_PER_REQUEST_MAX = 16_384;
/** Scratch kept for reuse; a burst of more calls in flight than this gives its surplus to the collector. */
const SCRATCH_KEPT_MAX = 64;
const NO_OPTIONS: LookupOptions = {};

export class CubeClient {
  readonly #routes: FleetRoutes;
  readonly #context: CallContext;
  readonly #keysPerRequestMax: number;
  readonly #scratch: Scatter[] = [];
  #closed = false;

  /** @throws CubeError INVALID_ARGUMENT for a policy or connection type that is none */
  constructor(options: CubeClientOptions) {
    this.#routes = new FleetRoutes(options);
    this.#context = { clock: options.clock ?? systemClock, counters: newCounters() };
    this.#keysPerRequestMax = options.keysPerRequestMax ?? KEYS_PER_REQUEST_MAX;
  }

  /**
   * Fills rows, as f32 whatever the tables' dtypes, and outcomes of all groups from the manifest's version.
   * @param timeoutMs for the whole call; travels with every request
   * @throws CubeError of a mistake in the groups, or in the fleet file (WRONG_SHARD, NOT_FOUND)
   */
  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
    options: LookupOptions = NO_OPTIONS,
  ): Promise<LookupSummary> {
    const plan = planOf(manifest, ROWS_F32);
    const tables = groups.map((group) => {
      const table = rowTable(plan, group.table);
      checkColumn(group);
      requireLength(table.name, 'rows', group.rows.length, table.dim * group.count);
      return table;
    });
    return this.#lookUpRows(plan, tables, groups, groups, timeoutMs, options);
  }

  /** The same with rows as the tables store them. */
  async lookupStored(
    manifest: Manifest,
    groups: readonly StoredGroup[],
    timeoutMs: number,
    options: LookupOptions = NO_OPTIONS,
  ): Promise<StoredSummary> {
    const plan = planOf(manifest, ROWS_STORED);
    const tables = groups.map((group) => {
      const table = rowTable(plan, group.table);
      checkColumn(group);
      requireLength(table.name, 'rows', group.rows.length, table.rowBytes * group.count);
      if (group.rows.byteOffset % 4 === 0) return table;
      const text = `table ${table.name}: rows must begin at a multiple of 4 bytes of their buffer`;
      throw new CubeError('INVALID_ARGUMENT', text);
    });
    const targets = groups.map(({ rows, outcomes }) => {
      return { rows: new Uint32Array(rows.buffer, rows.byteOffset, rows.length >> 2), outcomes };
    });
    const summary = await this.#lookUpRows(plan, tables, groups, targets, timeoutMs, options);
    return { ...summary, groups: tables.map(({ dtype, rowBytes }) => ({ dtype, rowBytes })) };
  }

  /** The values of tables of dtype bytes. */
  async lookupValues(
    manifest: Manifest,
    groups: readonly ValueGroup[],
    timeoutMs: number,
    options: LookupOptions = NO_OPTIONS,
  ): Promise<ValuesSummary> {
    const plan = planOf(manifest, ROWS_STORED);
    const tables = groups.map((group) => {
      const table = plan.table(group.table);
      checkColumn(group);
      if (table.dtype === 'bytes') return table;
      const text = `table ${table.name} has rows of ${table.dtype}, not values of any length: use lookup or lookupStored`;
      throw new CubeError('UNSUPPORTED', text);
    });
    const targets = groups.map(({ count, outcomes }) => new ValueTarget(count, outcomes));
    const all: Targets = { kind: 'values', groups: targets };
    return this.#lookUp(plan, tables, groups, all, timeoutMs, options, (summary, { order }) => {
      return { ...summary, values: targets.map((target) => target.assemble(order)) };
    });
  }

  /**
   * Asks every replica of every shard whether it holds the version, with an empty pinned lookup.
   * @returns held when each shard has at least one that does; else `missing` says which do not, and why
   */
  async holds(manifest: Manifest, timeoutMs: number): Promise<{ held: boolean; missing: string }> {
    this.#requireOpen();
    if (manifest.tables.length === 0) return { held: true, missing: '' };
    let sets: readonly ReplicaSet[];
    try {
      sets = this.#routes.route(manifest.bundle, shardNumOf(manifest));
    } catch (error) {
      return { held: false, missing: CubeError.from(error).message };
    }
    const plan = planOf(manifest, ROWS_F32);
    const answers = await Promise.all(
      sets.map((set) =>
        Promise.all(
          set.replicas.map((replica) =>
            probeReplica(this.#context, set.shard, replica, plan, timeoutMs),
          ),
        ),
      ),
    );
    const missing: string[] = [];
    answers.forEach((reasons, shard) => {
      if (reasons.includes('')) return;
      missing.push(`shard ${shard} of ${sets.length}: ${reasons.join('; ')}`);
    });
    return { held: missing.length === 0, missing: missing.join(' | ') };
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

  #requireOpen(): void {
    if (this.#closed) throw new CubeError('STOPPING', 'this CubeClient is closed');
  }

  async #lookUpRows(
    plan: LookupPlan,
    tables: readonly PlannedTable[],
    groups: readonly KeyGroup[],
    targets: readonly RowTarget[],
    timeoutMs: number,
    options: LookupOptions,
  ): Promise<LookupSummary> {
    if (options.dedupe !== true) {
      const all: Targets = { kind: 'rows', groups: targets };
      return this.#lookUp(plan, tables, groups, all, timeoutMs, options, asItIs);
    }
    const elements = tables.map(({ rowBytes }) => rowBytes / 4);
    const distinct = groups.map((group, g) => new DistinctKeys(group, targets[g]!, elements[g]!));
    const all: Targets = { kind: 'rows', groups: distinct };
    const summary = await this.#lookUp(plan, tables, distinct, all, timeoutMs, options, asItIs);
    let [unseen, unavailable] = [0, 0];
    distinct.forEach((keys, g) => {
      const places = keys.expand(targets[g]!, elements[g]!);
      unseen += places.unseen;
      unavailable += places.unavailable;
    });
    return { ...summary, unseen, unavailable };
  }

  /** @param finish runs while the scratch of the call is still its own */
  async #lookUp<Summary>(
    plan: LookupPlan,
    tables: readonly PlannedTable[],
    groups: readonly KeyGroup[],
    targets: Targets,
    timeoutMs: number,
    { requestHash }: LookupOptions,
    finish: (summary: LookupSummary, scratch: Scatter) => Summary,
  ): Promise<Summary> {
    this.#requireOpen();
    const { clock, counters } = this.#context;
    const deadlineMs = clock.nowMs() + timeoutMs;
    const keysPerRequestMax = this.#keysPerRequestMax;
    const scratch = this.#scratch.pop() ?? new Scatter();
    let keyCount = 0;
    for (const { count } of groups) keyCount += count;
    counters.calls++;
    counters.keys += keyCount;
    const { version, bundle } = plan.manifest;
    if (keyCount === 0) return finish({ version, unseen: 0, unavailable: 0 }, scratch);
    const sets = this.#routes.route(bundle, plan.shardNum);
    const task = { plan, tables, groups, targets, deadlineMs, keysPerRequestMax, requestHash };
    const call = new LookupCall(task, sets, scratch, this.#context);
    const summary = finish(await call.run(), scratch);
    if (this.#scratch.length < SCRATCH_KEPT_MAX) this.#scratch.push(scratch);
    return summary;
  }
}

/** @throws CubeError NOT_FOUND, or UNSUPPORTED for values of any length */
function rowTable(plan: LookupPlan, name: string): PlannedTable {
  const table = plan.table(name);
  if (table.dtype !== 'bytes') return table;
  const { bundle, version } = plan.manifest;
  throw new CubeError(
    'UNSUPPORTED',
    `${bundle} ${version}: table ${name} has values of any length (dtype bytes): use lookupValues`,
  );
}

function asItIs(summary: LookupSummary): LookupSummary {
  return summary;
}
