/**
 * Golden rows sent to one or two serving processes: each request at its time whether or not earlier ones were answered (open loop),
 * the two in turn, so that both see the same machine. First every row once, whose scores are kept; then the same requests again
 * until there are enough for a percentile of latency.
 */
import type { CtrClient } from '../../lib/client/ctr-client.ts';
import type { CtrPrediction, CtrRow } from '../../lib/client/ctr-rows.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { GoldenRow } from './golden-rows.ts';
import { SideRecord } from './side-record.ts';

/** Beyond that many unanswered requests the loop waits: a process that hangs must not fill our memory. */
const IN_FLIGHT_MAX = 512;
/** First requests of each side, answered by cold caches: their latency is not counted. */
const COLD_REQUESTS = 20;

export interface Side {
  /** "candidate" or "baseline". */
  readonly role: string;
  readonly version: string;
  readonly client: CtrClient;
  /** @throws CubeError when the process behind it is gone: nothing it failed to answer says anything of the version */
  requireAlive(): Promise<void>;
}

export interface ReplayOptions {
  readonly bundle: string;
  readonly rows: readonly GoldenRow[];
  readonly rowsPerRequest: number;
  /** Of each side. */
  readonly requestsPerSecond: number;
  /** At least so many of each side. */
  readonly requestsMin: number;
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
  readonly onRequest: (done: number, total: number) => void;
}

interface Batch {
  /** Where its first row stands among all. */
  readonly start: number;
  readonly rows: readonly GoldenRow[];
}

/** @returns what each side did, in their order. @throws CubeError when a side is gone, or answers from another version */
export async function replay(
  sides: readonly Side[],
  options: ReplayOptions,
): Promise<readonly SideRecord[]> {
  const records = sides.map(() => new SideRecord(options.rows.length));
  const run = new Replay(sides, records, options);
  await run.send(batchesOf(options.rows, options.rowsPerRequest));
  return records;
}

interface Sending {
  readonly request: number;
  readonly dueMs: number;
  /** The scores of the first time are those that are kept. */
  readonly isFirst: boolean;
}

class Replay {
  readonly #sides: readonly Side[];
  readonly #records: readonly SideRecord[];
  readonly #options: ReplayOptions;
  readonly #inFlight = new Set<Promise<void>>();
  /** Where batches begin of which a side has refused a row. */
  readonly #refused = new Set<number>();
  #failure: CubeError | undefined;

  constructor(sides: readonly Side[], records: readonly SideRecord[], options: ReplayOptions) {
    this.#sides = sides;
    this.#records = records;
    this.#options = options;
  }

  async send(batches: readonly Batch[]): Promise<void> {
    const { requestsMin } = this.#options;
    const total = Math.max(batches.length, requestsMin + COLD_REQUESTS);
    await this.#round(batches, 0, batches.length, total);
    // What was refused once says nothing new when it is refused again.
    const taken = batches.filter(({ start }) => !this.#refused.has(start));
    if (taken.length > 0) await this.#round(taken, batches.length, total, total);
  }

  /** Requests `from` until before `to` of each side. */
  async #round(batches: readonly Batch[], from: number, to: number, total: number): Promise<void> {
    const { requestsPerSecond, onRequest } = this.#options;
    const spacingMs = 1_000 / requestsPerSecond / this.#sides.length;
    let dueMs = systemClock.nowMs();
    for (let request = from; request < to; request++) {
      const batch = batches[request % batches.length]!;
      for (let turn = 0; turn < this.#sides.length; turn++) {
        await this.#waitUntil(dueMs);
        // Whoever is second in one round is first in the next: neither always finds the caches warm.
        const at = (request + turn) % this.#sides.length;
        this.#start(this.#ask(at, batch, { request, dueMs, isFirst: from === 0 }));
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
    if (this.#options.signal.aborted) throw new CubeError('STOPPING', 'the gate was told to stop');
  }

  #start(work: Promise<void>): void {
    const sent = work
      .catch((error: unknown) => {
        this.#failure ??= CubeError.from(error);
      })
      .finally(() => this.#inFlight.delete(sent));
    this.#inFlight.add(sent);
  }

  /** @throws CubeError only for what ends the whole replay */
  async #ask(at: number, batch: Batch, { request, dueMs, isFirst }: Sending): Promise<void> {
    const side = this.#sides[at]!;
    const record = this.#records[at]!;
    record.noteSent(batch.rows.length);
    try {
      const answer = await this.#predict(side, batch.rows);
      if (request >= COLD_REQUESTS) record.noteLatency(systemClock.nowMs() - dueMs);
      if (isFirst) record.noteAnswer(batch.start, answer);
    } catch (error) {
      const failure = await this.#realFailure(side, error);
      if (isFirst && mayBeOneRow(failure)) await this.#askOneByOne(at, batch);
      else record.noteFailure(batch.rows, failure);
    }
  }

  /** A request that was refused because of a row: the others have their scores, and the report names the line. */
  async #askOneByOne(at: number, { start, rows }: Batch): Promise<void> {
    const side = this.#sides[at]!;
    const record = this.#records[at]!;
    this.#refused.add(start);
    for (const [i, row] of rows.entries()) {
      try {
        record.noteAnswer(start + i, await this.#predict(side, [row]));
      } catch (error) {
        record.noteFailure([row], await this.#realFailure(side, error));
      }
    }
  }

  async #predict(side: Side, rows: readonly GoldenRow[]): Promise<CtrPrediction> {
    const { bundle, timeoutMs } = this.#options;
    const values = rows.map(({ value }) => value as CtrRow);
    const call = { model: bundle, version: side.version, detail: true, timeoutMs };
    const answer = await side.client.predict(values, call);
    if (answer.version === side.version && answer.probabilities.length === rows.length) {
      return answer;
    }
    throw new WrongAnswer(side, answer, rows.length);
  }

  /** @throws CubeError when it is none of the version's */
  async #realFailure(side: Side, error: unknown): Promise<CubeError> {
    if (error instanceof WrongAnswer) throw error;
    const failure = CubeError.from(error);
    if (failure.code === 'NOT_FOUND' || failure.code === 'NOT_READY') {
      throw new CubeError(failure.code, `the ${side.role} does not answer: ${failure.message}`);
    }
    await side.requireAlive();
    return failure;
  }
}

class WrongAnswer extends CubeError {
  constructor({ role, version }: Side, answer: CtrPrediction, rows: number) {
    super(
      'INTERNAL',
      `the ${role} was asked for ${rows} scores of version ${version} and gave ` +
        `${answer.probabilities.length} of version ${answer.version}`,
    );
  }
}

function mayBeOneRow({ code }: CubeError): boolean {
  return code === 'INVALID_ARGUMENT' || code === 'TOO_LARGE' || code === 'INTERNAL';
}

/** Rows of features and rows of keys do not go together in one request. */
function batchesOf(rows: readonly GoldenRow[], rowsPerRequest: number): Batch[] {
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
