/**
 * Sends golden rows to one or two serving processes. Every request is sent at its scheduled time,
 * whether or not earlier ones were answered (open loop). Candidate and baseline take turns, so that
 * both see the same machine load. The first round sends every row once and keeps the scores; then
 * requests are repeated until there are enough for latency percentiles.
 */
import { setMaxListeners } from 'node:events';
import type { CtrClient } from '../../lib/client/ctr-client.ts';
import type { CtrPrediction, CtrRow } from '../../lib/client/ctr-rows.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { GoldenRow } from './golden-rows.ts';
import { ReplayRecord } from './replay-record.ts';

/** Limit of requests in flight, so that a process that hangs does not fill the gate's memory. */
const IN_FLIGHT_MAX = 512;
/** First requests to each version, whose latency is not counted because caches are cold. */
const COLD_REQUESTS = 20;
/** The wait before a request that was refused for overload is sent again. */
const OVERLOADED_PAUSE_MS = 50;

export interface ReplayTarget {
  /** "candidate" or "baseline". */
  readonly role: string;
  readonly version: string;
  readonly client: CtrClient;
  /**
   * @throws CubeError when the process has ended: its failures are no evidence against the version
   */
  requireAlive(): Promise<void>;
}

export interface ReplayOptions {
  readonly bundle: string;
  readonly rows: readonly GoldenRow[];
  readonly rowsPerRequest: number;
  /** For each version. */
  readonly requestsPerSecond: number;
  /** Minimum number of requests to each version. */
  readonly requestsMin: number;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  readonly onRequest: (done: number, total: number) => void;
}

interface Batch {
  /** Index of its first row. */
  readonly start: number;
  readonly rows: readonly GoldenRow[];
}

/**
 * @returns the results of each target, in their order
 * @throws CubeError when a target does not answer, or answers with another version
 */
export async function replay(
  targets: readonly ReplayTarget[],
  options: ReplayOptions,
): Promise<readonly ReplayRecord[]> {
  const participants = targets.map((target) => {
    return { target, record: new ReplayRecord(options.rows.length) };
  });
  // Node warns of more than ten, and every request that is sent again waits with this signal.
  setMaxListeners(IN_FLIGHT_MAX, options.signal);
  const run = new Replay(participants, options);
  await run.send(createBatches(options.rows, options.rowsPerRequest));
  return participants.map(({ record }) => record);
}

/** One version in the replay, and its results. */
interface Participant {
  readonly target: ReplayTarget;
  readonly record: ReplayRecord;
}

interface ReplayRequest {
  readonly request: number;
  readonly dueMs: number;
  /** Scores are kept from the first round only. */
  readonly isFirst: boolean;
}

class Replay {
  readonly #participants: readonly Participant[];
  readonly #options: ReplayOptions;
  readonly #inFlight = new Set<Promise<void>>();
  /** Starts of batches in which a version has refused a row. */
  readonly #refused = new Set<number>();
  #failure: CubeError | undefined;

  constructor(participants: readonly Participant[], options: ReplayOptions) {
    this.#participants = participants;
    this.#options = options;
  }

  async send(batches: readonly Batch[]): Promise<void> {
    const { requestsMin } = this.#options;
    const total = Math.max(batches.length, requestsMin + COLD_REQUESTS);
    await this.#round(batches, 0, batches.length, total);
    // A refused batch is not sent again: it would be refused again.
    const taken = batches.filter(({ start }) => !this.#refused.has(start));
    if (taken.length > 0) await this.#round(taken, batches.length, total, total);
  }

  /** Sends requests `from` to `to` (exclusive) to each target. */
  async #round(batches: readonly Batch[], from: number, to: number, total: number): Promise<void> {
    const { requestsPerSecond, onRequest } = this.#options;
    const spacingMs = 1_000 / requestsPerSecond / this.#participants.length;
    let dueMs = systemClock.nowMs();
    for (let request = from; request < to; request++) {
      const batch = batches[request % batches.length]!;
      // Targets alternate, so that neither always finds warm caches.
      const isReversed = request % this.#participants.length === 1;
      const ordered = isReversed ? [...this.#participants].reverse() : this.#participants;
      for (const participant of ordered) {
        await this.#waitUntil(dueMs);
        this.#start(this.#ask(participant, batch, { request, dueMs, isFirst: from === 0 }));
        dueMs += spacingMs;
      }
      onRequest(request + 1, total);
    }
    await Promise.all(this.#inFlight);
    this.#check();
  }

  async #waitUntil(dueMs: number): Promise<void> {
    while (this.#inFlight.size >= IN_FLIGHT_MAX) await Promise.race(this.#inFlight);
    const waitMs = dueMs - systemClock.nowMs();
    if (waitMs > 0) await systemClock.sleep(waitMs, this.#options.signal);
    this.#check();
  }

  #check(): void {
    if (this.#failure !== undefined) throw this.#failure;
    if (this.#options.signal.aborted) throw new CubeError('STOPPING', 'the gate was stopped');
  }

  #start(work: Promise<void>): void {
    const sent = work
      .catch((error: unknown) => {
        this.#failure ??= CubeError.from(error);
      })
      .finally(() => this.#inFlight.delete(sent));
    this.#inFlight.add(sent);
  }

  /** @throws CubeError only for errors that end the whole replay */
  async #ask(
    participant: Participant,
    batch: Batch,
    { request, dueMs, isFirst }: ReplayRequest,
  ): Promise<void> {
    const { target, record } = participant;
    record.addSent(batch.rows.length);
    try {
      const answer = await this.#predict(target, batch.rows);
      if (request >= COLD_REQUESTS) record.addLatency(systemClock.nowMs() - dueMs);
      if (isFirst) record.addPrediction(batch.start, answer);
    } catch (error) {
      const failure = await this.#toVersionFailure(target, error);
      if (isFirst && canBeOneRow(failure)) await this.#askOneByOne(participant, batch);
      else record.addFailure(batch.rows, failure);
    }
  }

  /** Sends the rows of a refused request one by one: only the invalid row fails, with its line. */
  async #askOneByOne({ target, record }: Participant, { start, rows }: Batch): Promise<void> {
    this.#refused.add(start);
    for (const [i, row] of rows.entries()) {
      try {
        record.addPrediction(start + i, await this.#predict(target, [row]));
      } catch (error) {
        record.addFailure([row], await this.#toVersionFailure(target, error));
      }
    }
  }

  async #predict(target: ReplayTarget, rows: readonly GoldenRow[]): Promise<CtrPrediction> {
    const { bundle } = this.#options;
    const values = rows.map(({ value }) => value as CtrRow);
    const answer = await this.#sendUntilAdmitted((timeoutMs) => {
      const call = { model: bundle, version: target.version, detail: true, timeoutMs };
      return target.client.predict(values, call);
    });
    if (answer.version === target.version && answer.probabilities.length === rows.length) {
      return answer;
    }
    throw new WrongPredictionError(target, answer, rows.length);
  }

  /**
   * Sends a request again while the process refuses it for overload: a busy machine is no evidence
   * against a version. The wait counts in the request's latency and in its timeout.
   */
  async #sendUntilAdmitted<T>(send: (timeoutMs: number) => Promise<T>): Promise<T> {
    const { timeoutMs, signal } = this.#options;
    const deadlineMs = systemClock.nowMs() + timeoutMs;
    for (;;) {
      try {
        return await send(Math.max(1, Math.ceil(deadlineMs - systemClock.nowMs())));
      } catch (error) {
        const isOverloaded = CubeError.from(error).code === 'OVERLOADED';
        const canWait = systemClock.nowMs() + OVERLOADED_PAUSE_MS < deadlineMs;
        if (!isOverloaded || !canWait || signal.aborted) throw error;
        await systemClock.sleep(OVERLOADED_PAUSE_MS, signal);
      }
    }
  }

  /** @throws CubeError when the failure is not caused by the version */
  async #toVersionFailure(target: ReplayTarget, error: unknown): Promise<CubeError> {
    if (error instanceof WrongPredictionError) throw error;
    const failure = CubeError.from(error);
    if (failure.code === 'NOT_FOUND' || failure.code === 'NOT_READY') {
      throw new CubeError(failure.code, `the ${target.role} does not answer: ${failure.message}`);
    }
    await target.requireAlive();
    return failure;
  }
}

class WrongPredictionError extends CubeError {
  constructor({ role, version }: ReplayTarget, answer: CtrPrediction, rows: number) {
    super(
      'INTERNAL',
      `the ${role} was asked for ${rows} scores of version ${version} and returned ` +
        `${answer.probabilities.length} scores of version ${answer.version}`,
    );
  }
}

function canBeOneRow({ code }: CubeError): boolean {
  return code === 'INVALID_ARGUMENT' || code === 'TOO_LARGE' || code === 'INTERNAL';
}

/** Rows with features and rows with keys cannot be mixed in one request. */
function createBatches(rows: readonly GoldenRow[], rowsPerRequest: number): Batch[] {
  const batches: Batch[] = [];
  for (let start = 0; start < rows.length; ) {
    let end = start + 1;
    const { isKeyed } = rows[start]!;
    while (end < rows.length && end - start < rowsPerRequest && rows[end]!.isKeyed === isKeyed) {
      end += 1;
    }
    batches.push({ start, rows: rows.slice(start, end) });
    start = end;
  }
  return batches;
}
