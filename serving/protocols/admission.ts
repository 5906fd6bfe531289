/**
 * Decides which predictions are admitted. A request is refused, before its body is parsed, when the
 * process is stopping, when too many requests are in flight, or when it would wait for more than
 * half of its timeout: the engine answers the requests that it admits in time, and does no work for
 * the others. While more is offered than the engine can do, fewer wait.
 */
import { FairShare } from '../../lib/access/fair-share.ts';
import type { Principal } from '../../lib/access/principal.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';

/**
 * The part of a request's timeout that it may wait for a batch. The rest is for its lookup, its
 * runs of the graph, and errors of the estimate.
 */
const WAIT_SHARE_MAX = 0.5;

/**
 * The expected wait above which callers that used more than their share are refused. Below it, a
 * few batches wait in a process that is merely busy.
 */
const FAIR_WAIT_MS = 20;
/** The engine's rate is an estimate: only a load well above 1 is too much. */
const OVERLOAD = 1.2;
/**
 * The rows that may wait while more is offered than the engine can do: enough for it to stay busy.
 * More would only wait longer, and waiting rows cost time of the garbage collector.
 */
const OVERLOADED_ROWS = 4_096;

const SHARE_EXCEEDED =
  'requests wait, and this caller used more than its share of the capacity; try again later or ' +
  'call another server';

/** The part of a loaded version that admission needs. */
export type WaitEstimator = Pick<
  LoadedBundle['batcher'],
  'estimateWaitMs' | 'estimateRowsMs' | 'recordOffer'
>;

/** How long a caller still waits for its answer, and its priority in the queue. */
export interface RequestUrgency {
  readonly remainingMs: number;
  /** 0 is the highest; undefined is the default. */
  readonly priority?: number | undefined;
  /** Who calls; absent: the process has no access control, and all callers count as one. */
  readonly principal?: Principal | undefined;
  /** Its body has not arrived. */
  readonly isHead?: boolean;
}

export class Admission {
  readonly #shares = new FairShare();
  readonly #inFlightMax: number;
  #inFlight = 0;
  #closed = false;
  #onEmpty: (() => void) | undefined;

  constructor(inFlightMax: number) {
    this.#inFlightMax = inFlightMax;
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** @throws CubeError STOPPING; OVERLOADED with too many requests in flight */
  checkOpen(): void {
    if (this.#closed)
      throw new CubeError(
        'STOPPING',
        'this server is stopping; send the request to another server',
      );
    if (this.#inFlight >= this.#inFlightMax) {
      throw refuse(
        `${this.#inFlight} requests are in flight, the limit is ${this.#inFlightMax}; try ` +
          'again later',
      );
    }
  }

  /** Checks the expected wait, as `findRefusal` does. @throws CubeError OVERLOADED */
  checkWait(engines: readonly WaitEstimator[], urgency: RequestUrgency): void {
    const refusal = this.findRefusal(engines, urgency);
    if (refusal !== undefined) throw refusal;
  }

  /**
   * Checks the expected wait of a request. Never refuses while the engine is idle. Returns the
   * error, because throwing it takes longer than the rest of a refusal.
   * @param engines of the models that the request may be for
   * @returns OVERLOADED when it is too long in all of them
   */
  findRefusal(
    engines: readonly WaitEstimator[],
    { remainingMs, priority, principal, isHead }: RequestUrgency,
  ): CubeError | undefined {
    let waitMs = Number.POSITIVE_INFINITY;
    for (const engine of engines) {
      waitMs = Math.min(waitMs, engine.estimateWaitMs(priority, isHead));
    }
    if (engines.length === 0) return undefined;
    // Only the body names the model of a request for one of several.
    const [engine] = engines.length === 1 ? engines : [];
    const isOverloaded = isHead === true && engine !== undefined && engine.recordOffer() > OVERLOAD;
    if (principal !== undefined && waitMs > (isOverloaded ? 0 : FAIR_WAIT_MS)) {
      const exceeds = this.#shares.exceeds(principal.id, systemClock.nowMs());
      if (exceeds) return refuse(SHARE_EXCEEDED);
    }
    const deadlineLimitMs = remainingMs * WAIT_SHARE_MAX;
    const overloadLimitMs = isOverloaded
      ? engine.estimateRowsMs(OVERLOADED_ROWS)
      : Number.POSITIVE_INFINITY;
    const limitMs = Math.min(deadlineLimitMs, overloadLimitMs);
    if (waitMs <= limitMs) return undefined;
    const why =
      limitMs === deadlineLimitMs
        ? 'half of the time until its deadline'
        : 'while more is offered than the model can do';
    return refuse(
      `the expected wait is ${Math.round(waitMs)} ms, the limit for this request is ` +
        `${Math.round(limitMs)} ms (${why}); try again later or call another server`,
    );
  }

  /** Counts the rows of an admitted request for the shares of callers. */
  recordRows({ id, weight }: Principal, rowCount: number): void {
    this.#shares.record(id, weight, rowCount, systemClock.nowMs());
  }

  /**
   * Admits a request; call `leave` exactly once afterwards. @throws CubeError STOPPING, OVERLOADED
   */
  enter(): void {
    this.checkOpen();
    this.#inFlight++;
  }

  leave(): void {
    this.#inFlight--;
    if (this.#inFlight === 0) this.#onEmpty?.();
  }

  /** Rejects new requests and waits until the admitted ones have finished. */
  async close(): Promise<void> {
    this.#closed = true;
    if (this.#inFlight === 0) return;
    await new Promise<void>((resolve) => {
      this.#onEmpty = resolve;
    });
  }
}

/** Without a stack, which costs more than the rest of a refusal. */
function refuse(message: string): CubeError {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  try {
    return new CubeError('OVERLOADED', message);
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}
