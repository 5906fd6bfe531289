/**
 * A prediction, from top to bottom: rows → keys → batches → distinct keys → one pinned lookup → graph → scores.
 *
 * Invariants
 * - One request is answered by one version: graph and rows. An answer of another version fails the request.
 * - A score is never invented: keys whose shard is down fail the request, or (when the policy allows it) the answer says
 *   `degraded` and how many. A graph that gives no number fails the request.
 * - Work whose deadline has passed is not started.
 */

import {
  type LookupGroup,
  type LookupSummary,
  OUTCOME_UNAVAILABLE,
} from '../lib/client/lookup-group.ts';
import { CubeError } from '../lib/core/errors.ts';
import type { RowColumns } from '../lib/core/features.ts';
import { keyToBigint } from '../lib/core/keys.ts';
import { type Clock, systemClock } from '../lib/platform/clock.ts';
import type { BatchBuffers, OutcomeCounts } from './batch-buffers.ts';
import type { LoadedBundle } from './bundle.ts';
import type { KeyedRows } from './computed-keys.ts';
import { BATCH_ROWS_MAX } from './graph-plan.ts';
import type { EmbeddingStore } from './stores/embedding-store.ts';

/** What to do when no replica answers for a key. */
export interface DegradationPolicy {
  /** `fail`: refuse the request; `default`: answer with the tables' default rows, marked degraded. */
  readonly onUnavailable: 'fail' | 'default';
  /** With `fail`: the share of a request's lookups that may be unavailable and still be answered, degraded. */
  readonly maxUnavailableShare: number;
}

/** The rows of a request, to be hashed here. */
export type FeatureRows = Pick<RowColumns, 'rowCount' | 'dense' | 'features'>;

export interface Prediction {
  readonly rowCount: number;
  /** The graph's click output: rowCount × outputNum. */
  readonly output: Float32Array;
  readonly outputNum: number;
  /** The version of graph and tables. */
  readonly version: string;
  readonly unseen: number;
  readonly unavailable: number;
  readonly degraded: boolean;
}

/** Told of each batch; never a call a row. */
export interface PredictorEvents {
  onBatch(rowCount: number): void;
}

export interface PredictorOptions {
  readonly store: EmbeddingStore;
  readonly policy: DegradationPolicy;
  readonly events?: PredictorEvents;
  readonly clock?: Clock;
}

/** Batches of one request in flight at once: enough to keep lookups and instances busy, bounded in memory. */
const BATCHES_IN_FLIGHT_MAX = 8;

/** One request on its way. */
interface Run {
  readonly bundle: LoadedBundle;
  readonly rows: KeyedRows;
  readonly deadlineMs: number;
  readonly output: Float32Array;
  readonly counts: OutcomeCounts;
  nextRow: number;
  failed: boolean;
}

export class Predictor {
  readonly #store: EmbeddingStore;
  readonly #policy: DegradationPolicy;
  readonly #events: PredictorEvents | undefined;
  readonly #clock: Clock;

  constructor(options: PredictorOptions) {
    this.#store = options.store;
    this.#policy = options.policy;
    this.#events = options.events;
    this.#clock = options.clock ?? systemClock;
  }

  /**
   * Predicts the rows of one request. The bundle is held until the last batch is done.
   * @param request rows of features, or of keys that the caller has hashed
   * @param deadlineMs on the clock's `nowMs` scale
   */
  async predict(
    bundle: LoadedBundle,
    request: FeatureRows | KeyedRows,
    deadlineMs: number,
  ): Promise<Prediction> {
    const own = 'keys' in request ? request : hashRows(bundle, request);
    const rows = bundle.keys.extend(own);
    const outputNum = bundle.pool.outputNum;
    const output = new Float32Array(rows.rowCount * outputNum);
    const counts = { unseen: 0, unavailable: 0 };
    const run = { bundle, rows, deadlineMs, output, counts, nextRow: 0, failed: false };
    bundle.enter();
    const batchCount = Math.ceil(rows.rowCount / BATCH_ROWS_MAX);
    const lanes = Array.from({ length: Math.min(batchCount, BATCHES_IN_FLIGHT_MAX) }, () =>
      this.#runLane(run),
    );
    const settled = Promise.allSettled(lanes).then((outcomes) => {
      bundle.leave();
      const failure = outcomes.find((outcome) => outcome.status === 'rejected');
      if (failure !== undefined) throw CubeError.from(failure.reason);
    });
    await this.#within(settled, run);
    return {
      rowCount: rows.rowCount,
      output,
      outputNum,
      version: bundle.version,
      ...counts,
      degraded: counts.unavailable > 0,
    };
  }

  /** Takes the request's next batch until none is left, or one has failed. */
  async #runLane(run: Run): Promise<void> {
    while (run.nextRow < run.rows.rowCount && !run.failed) {
      const start = run.nextRow;
      const count = Math.min(run.rows.rowCount - start, BATCH_ROWS_MAX);
      run.nextRow += count;
      try {
        await this.#runBatch(run, start, count);
      } catch (error) {
        run.failed = true;
        throw error;
      }
    }
  }

  async #runBatch(run: Run, start: number, count: number): Promise<void> {
    const { bundle, rows, deadlineMs } = run;
    const leftMs = deadlineMs - this.#clock.nowMs();
    if (leftMs <= 0) throw expiredError();
    const buffers = bundle.buffers.take();
    const groups = buffers.fill(rows, start, count);
    const summary = await this.#store.lookup(bundle.manifest, groups, leftMs);
    checkVersion(summary, bundle);
    this.#count(run, { buffers, groups, summary, count });
    const slab = await bundle.pool.run(buffers.slab, count, deadlineMs);
    buffers.takeBack(slab);
    const output = buffers.output(count);
    checkNumbers(output, bundle, start);
    run.output.set(output, start * bundle.pool.outputNum);
    bundle.buffers.give(buffers);
    this.#events?.onBatch(count);
  }

  /** @throws CubeError UNAVAILABLE when more lookups had no answer than the policy bears */
  #count(
    run: Run,
    batch: {
      buffers: BatchBuffers;
      groups: readonly LookupGroup[];
      summary: LookupSummary;
      count: number;
    },
  ): void {
    const { summary, buffers, groups, count } = batch;
    if (summary.unseen + summary.unavailable === 0) return;
    buffers.countOutcomes(count, run.counts);
    const { unavailable } = run.counts;
    if (unavailable === 0 || this.#policy.onUnavailable === 'default') return;
    const lookups = run.bundle.plan.tables.reduce((sum, { columns }) => sum + columns.length, 0);
    const total = lookups * run.rows.rowCount;
    if (unavailable <= this.#policy.maxUnavailableShare * total) return;
    throw new CubeError(
      'UNAVAILABLE',
      `no answer for ${unavailable} of ${total} lookups (${firstUnavailable(groups)}` +
        `${summary.reason === undefined ? '' : `; ${summary.reason}`}); nothing was predicted, try again`,
    );
  }

  /** The request's answer, or DEADLINE_EXCEEDED as soon as it is due; the work then ends by itself. */
  async #within(work: Promise<void>, run: Run): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const expired = new Promise<never>((_, reject) => {
      const leftMs = Math.max(run.deadlineMs - this.#clock.nowMs(), 0);
      timer = setTimeout(() => {
        run.failed = true;
        reject(expiredError());
      }, leftMs);
    });
    try {
      await Promise.race([work, expired]);
    } finally {
      clearTimeout(timer);
    }
  }
}

function hashRows(bundle: LoadedBundle, { rowCount, features, dense }: FeatureRows): KeyedRows {
  const keys = new Uint32Array(2 * rowCount * bundle.plan.slotNum);
  bundle.hasher.hashRows(features, rowCount, keys);
  return { rowCount, keys, dense };
}

function expiredError(): CubeError {
  return new CubeError(
    'DEADLINE_EXCEEDED',
    'the deadline passed before the prediction was ready; send fewer rows, or a larger timeout-ms',
  );
}

function checkVersion(summary: LookupSummary, { version }: LoadedBundle): void {
  if (summary.version === version) return;
  throw new CubeError(
    'INTERNAL',
    `the store answered from version ${summary.version}, the graph is of version ${version}: refused`,
  );
}

function checkNumbers(output: Float32Array, bundle: LoadedBundle, start: number): void {
  for (let i = 0; i < output.length; i++) {
    if (Number.isFinite(output[i]!)) continue;
    const row = start + Math.floor(i / bundle.pool.outputNum) + 1;
    throw new CubeError(
      'INTERNAL',
      `the graph of version ${bundle.version} gave ${output[i]} for row ${row}: a table or the graph holds values that are no numbers`,
    );
  }
}

function firstUnavailable(groups: readonly LookupGroup[]): string {
  for (const { table, keys, count, outcomes } of groups) {
    for (let i = 0; i < count; i++) {
      if (outcomes[i] === OUTCOME_UNAVAILABLE) {
        return `first: key ${keyToBigint(keys, i)} of table ${table}`;
      }
    }
  }
  return 'none in this batch';
}
