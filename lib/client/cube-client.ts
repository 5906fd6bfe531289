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
import { encodeLookupRequest, LOOKUP_METHOD, LOOKUP_SERVICE } from '../../proto/lookup.ts';
import { CubeError, type ErrorCode } from '../core/errors.ts';
import type { Fleet } from '../core/fleet.ts';
import { type Manifest, shardNumOf, type TableRef } from '../core/manifest.ts';
import { tablesDigest } from '../core/tables-digest.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import type { Logger } from '../platform/logs.ts';
import { FleetRoutes } from './fleet-routes.ts';
import {
  defaultRowOf,
  type LookupGroup,
  type LookupSummary,
  OUTCOME_UNAVAILABLE,
  tablesOf,
} from './lookup-group.ts';
import type { Replica } from './replica.ts';
import type { ReplicaSet } from './replica-set.ts';
import { fillPart, Scatter, type ShardRequest } from './scatter.ts';
import { type Asked, checkAnswer, gatherAnswer } from './shard-answer.ts';

export interface CubeClientOptions {
  /** The fleet of now; a new object is taken over at the next call (`FleetFile` rereads fleet.json). */
  readonly fleet: () => Fleet;
  /** Told when a replica fails and when it is back; never a line a request. */
  readonly logger?: Logger;
  readonly clock?: Clock;
  /** Larger batches are split, so that no request nears the servers' limits. */
  readonly keysPerRequestMax?: number;
}

/** 128 KiB of keys: more at once gains nothing, and would keep a server from others for a millisecond. */
const KEYS_PER_REQUEST_MAX = 16_384;
/** Of rows that one answer may carry: far below the 64 MiB that servers allow. */
const ANSWER_BYTES_MAX = 8 << 20;
const PROBE_TIMEOUT_MS = 1_000;
/** Scratch kept for reuse; a burst of more calls in flight than this gives its surplus to the collector. */
const SCRATCH_KEPT_MAX = 64;
const NO_BYTES = new Uint8Array(0);

/** The caller, the fleet file or the server's build is wrong: every replica would say the same. */
const FATAL: ReadonlySet<ErrorCode> = new Set([
  'INVALID_ARGUMENT',
  'NOT_FOUND',
  'TOO_LARGE',
  'UNSUPPORTED',
  'WRONG_SHARD',
]);

/** One lookup in flight. */
interface Call extends Omit<Asked, 'parts'> {
  readonly manifest: Manifest;
  readonly versionKey: string;
  readonly shardNum: number;
  readonly deadlineMs: number;
  unseen: number;
  unavailable: number;
  reason: string;
  fatal: CubeError | undefined;
}

export class CubeClient {
  readonly #routes: FleetRoutes;
  readonly #clock: Clock;
  readonly #keysPerRequestMax: number;
  readonly #scratch: Scatter[] = [];
  #closed = false;

  constructor(options: CubeClientOptions) {
    this.#routes = new FleetRoutes(options.fleet, options.logger);
    this.#clock = options.clock ?? systemClock;
    this.#keysPerRequestMax = options.keysPerRequestMax ?? KEYS_PER_REQUEST_MAX;
  }

  /**
   * Fills rows and outcomes of all groups from the manifest's version.
   * @param timeoutMs for the whole call; travels with every request
   * @throws CubeError of a mistake in the groups, or in the fleet file (WRONG_SHARD, NOT_FOUND)
   */
  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    this.#requireOpen();
    const tables = tablesOf(manifest, groups);
    const { bundle, version } = manifest;
    if (groups.every((group) => group.count === 0)) return { version, unseen: 0, unavailable: 0 };
    const shardNum = shardNumOf(manifest);
    const sets = this.#routes.route(bundle, shardNum);
    const scatter = this.#scratch.pop() ?? new Scatter();
    const call: Call = {
      manifest,
      version,
      versionKey: `${bundle}/${version}`,
      shardNum,
      tables,
      groups,
      scatter,
      deadlineMs: this.#clock.nowMs() + timeoutMs,
      unseen: 0,
      unavailable: 0,
      reason: '',
      fatal: undefined,
    };
    scatter.scatter(groups, shardNum);
    const requests = scatter.requests(this.#keysMax(tables));
    await Promise.all(requests.map((request) => this.#ask(call, request, sets[request.shard]!)));
    if (this.#scratch.length < SCRATCH_KEPT_MAX) this.#scratch.push(scatter);
    if (call.fatal !== undefined) throw call.fatal;
    const { unseen, unavailable, reason } = call;
    return { version, unseen, unavailable, ...(reason === '' ? {} : { reason }) };
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
    const answers = await Promise.all(
      sets.map((set) =>
        Promise.all(set.replicas.map((replica) => this.#probe(manifest, set, replica, timeoutMs))),
      ),
    );
    const missing: string[] = [];
    answers.forEach((reasons, shard) => {
      if (reasons.includes('')) return;
      missing.push(`shard ${shard} of ${sets.length}: ${reasons.join('; ')}`);
    });
    return { held: missing.length === 0, missing: missing.join(' | ') };
  }

  /** Closes all connections; calls in flight end with their keys unavailable. */
  close(): void {
    this.#closed = true;
    this.#routes.close();
  }

  #keysMax(tables: readonly TableRef[]): number {
    let rowBytes = 4;
    for (const table of tables) rowBytes = Math.max(rowBytes, 4 * table.dim);
    return Math.min(this.#keysPerRequestMax, Math.ceil(ANSWER_BYTES_MAX / rowBytes));
  }

  #requireOpen(): void {
    if (this.#closed) throw new CubeError('STOPPING', 'this CubeClient is closed');
  }

  /** Settles one request: rows gathered, or its keys marked unavailable, or the call marked fatal. Never rejects. */
  async #ask(call: Call, request: ShardRequest, set: ReplicaSet): Promise<void> {
    const { scatter, tables, groups, version, versionKey, deadlineMs } = call;
    const parts = scatter.parts(request);
    const asked: Asked = { version, parts, tables, groups, scatter };
    const payload = this.#head(call.manifest, set.shard, asked);
    const keys = scatter.keyBytes(request);
    const tried = new Set<Replica>();
    let reason = 'no time was left to ask';
    set.countRequest();
    for (;;) {
      const nowMs = this.#clock.nowMs();
      const leftMs = deadlineMs - nowMs;
      if (leftMs <= 0) break;
      const replica = set.pick(versionKey, tried, nowMs);
      if (replica === undefined) break;
      if (tried.size > 0 && !set.takeRetry()) {
        reason = `${reason}; the retry budget is spent`;
        break;
      }
      tried.add(replica);
      this.#probeAnother(call.manifest, set, replica, nowMs);
      replica.enter();
      try {
        const answer = await replica.channel.call(
          LOOKUP_SERVICE,
          LOOKUP_METHOD,
          payload,
          keys,
          leftMs,
        );
        // No await between here and the end of the gathering: the answer is a view of the receive buffer.
        checkAnswer(asked, answer.payload, answer.attachment);
        call.unseen += gatherAnswer(asked, answer.attachment);
        replica.answered(versionKey);
        return;
      } catch (thrown) {
        const error = this.#noteFailure(replica, versionKey, thrown);
        if (FATAL.has(error.code)) call.fatal ??= located(error, call.manifest, set, replica);
        reason = `${replica.endpoint}: ${error.code} ${error.message}`;
        if (call.fatal !== undefined) return;
      } finally {
        replica.exit();
      }
    }
    call.unavailable += request.end - request.start;
    if (call.reason === '') call.reason = `shard ${set.shard} of ${call.shardNum}: ${reason}`;
    for (const part of parts) {
      const row = defaultRowOf(tables[part.group]!);
      fillPart(part, scatter.order, row, OUTCOME_UNAVAILABLE, groups[part.group]!);
    }
  }

  #head(manifest: Manifest, shard: number, asked: Pick<Asked, 'parts' | 'tables'>): Uint8Array {
    return encodeLookupRequest({
      bundle: manifest.bundle,
      version: manifest.version,
      shardIndex: shard,
      shardNum: shardNumOf(manifest),
      tablesDigest: tablesDigest(manifest),
      groups: asked.parts.map(({ group, count }) => ({ table: asked.tables[group]!.name, count })),
    });
  }

  /** Lets a replica that failed, or is new, prove itself on an empty lookup instead of on a user's. */
  #probeAnother(manifest: Manifest, set: ReplicaSet, chosen: Replica, nowMs: number): void {
    if (set.replicas.length === 1) return;
    const replica = set.pickProbe(`${manifest.bundle}/${manifest.version}`, chosen, nowMs);
    if (replica !== undefined) void this.#probe(manifest, set, replica, PROBE_TIMEOUT_MS);
  }

  /** An empty pinned lookup. @returns '' when the replica holds the version, else the reason. Never rejects. */
  async #probe(
    manifest: Manifest,
    set: ReplicaSet,
    replica: Replica,
    timeoutMs: number,
  ): Promise<string> {
    const { bundle, version } = manifest;
    const asked = { version, parts: [], tables: [] };
    const payload = this.#head(manifest, set.shard, asked);
    replica.enter();
    try {
      const answer = await replica.channel.call(
        LOOKUP_SERVICE,
        LOOKUP_METHOD,
        payload,
        NO_BYTES,
        timeoutMs,
      );
      checkAnswer(asked, answer.payload, answer.attachment);
      replica.answered(`${bundle}/${version}`);
      return '';
    } catch (thrown) {
      const error = this.#noteFailure(replica, `${bundle}/${version}`, thrown);
      return `${replica.endpoint} ${error.code} (${error.message})`;
    } finally {
      replica.exit();
    }
  }

  #noteFailure(replica: Replica, versionKey: string, thrown: unknown): CubeError {
    const error = CubeError.from(thrown);
    if (error.code === 'VERSION_ABSENT') replica.lacks(versionKey, this.#clock.nowMs());
    else if (!FATAL.has(error.code)) replica.failed(error, this.#clock.nowMs());
    return error;
  }
}

/** A mistake's message with the place: which replica of which shard said so. */
function located(
  error: CubeError,
  manifest: Manifest,
  set: ReplicaSet,
  replica: Replica,
): CubeError {
  const where = `${manifest.bundle} ${manifest.version}, shard ${set.shard} at ${replica.endpoint}`;
  return new CubeError(error.code, `${where}: ${error.message}`, { cause: error });
}
