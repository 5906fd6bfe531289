/**
 * The circuit breaker of one server, a replica of a shard or a node of Redis: a server that answers
 * nothing is not waited for on every request.
 *
 * - Closed: calls are sent. The circuit opens when a call ends without an answer (its deadline
 *   passed, or the connection failed) and the server has answered nothing at all for
 *   SILENCE_MS_MIN. One slow call among answered ones never opens it, and neither does a caller
 *   with a deadline of a few milliseconds.
 * - Open: callers send nothing. Probes are sent until one is answered, at most PROBE_INTERVAL_MS
 *   apart, whether there are requests or not. Any answer closes the circuit, errors included.
 */
import { type Clock, systemClock } from '../platform/clock.ts';

/** Longer than pauses of a healthy server: garbage collection, or a busy machine. */
export const SILENCE_MS_MIN = 200;
/** Maximum pause between the end of one probe and the next: bounds the time to recover. */
export const PROBE_INTERVAL_MS = 1_000;
/** The first pause, doubled after each probe: a server that restarts is soon used again. */
const PROBE_PAUSE_MS_MIN = 50;
/** No call waits for an answer. */
const ANSWERED = -1;

/**
 * Sends one probe, and reports its result to the breaker as that of any call. Never rejects. Must
 * end after about a second.
 */
export type Probe = () => Promise<unknown>;

export class CircuitBreaker {
  readonly #clock: Clock;
  readonly #stopping = new AbortController();
  /** Start of the first call since the last answer, or ANSWERED. */
  #silentSinceMs = ANSWERED;
  #isOpen = false;

  constructor(clock: Clock = systemClock) {
    this.#clock = clock;
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Milliseconds since the first call that no answer has followed; 0 without such a call. */
  silentMs(nowMs: number): number {
    return this.#silentSinceMs === ANSWERED ? 0 : nowMs - this.#silentSinceMs;
  }

  recordCall(nowMs: number): void {
    if (this.#silentSinceMs === ANSWERED) this.#silentSinceMs = nowMs;
  }

  /** Records an answer to any call, late ones and errors included. */
  recordAnswer(): void {
    this.#silentSinceMs = ANSWERED;
    this.#isOpen = false;
  }

  /** Records a call that ended without an answer. @returns whether this opened the circuit */
  recordNoAnswer(nowMs: number, probe: Probe): boolean {
    if (this.#isOpen || this.silentMs(nowMs) < SILENCE_MS_MIN) return false;
    if (this.#stopping.signal.aborted) return false;
    this.#isOpen = true;
    void this.#probeUntilAnswered(probe);
    return true;
  }

  /** Ends the probes. */
  stop(): void {
    this.#stopping.abort();
  }

  async #probeUntilAnswered(probe: Probe): Promise<void> {
    const { signal } = this.#stopping;
    for (let pauseMs = PROBE_PAUSE_MS_MIN; this.#isOpen && !signal.aborted; pauseMs *= 2) {
      await probe();
      if (!this.#isOpen) return;
      await this.#clock.sleep(Math.min(pauseMs, PROBE_INTERVAL_MS), signal);
    }
  }
}
