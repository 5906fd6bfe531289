/**
 * Whether a peer takes what waits for it. A timeout without any progress is not enough: one byte now and then would hold
 * an answer for ever. So a peer must take a least amount in each window of time in which something always waits.
 */
import type { Socket } from 'node:net';
import type { ServerLimits } from '../core/limits.ts';

/** Of Node's handle of a connection; Node's own socket timeouts look at the same. */
interface Handle {
  /** Given to it since the beginning. */
  readonly bytesWritten: number;
  /** Of these, not taken by the kernel yet. */
  readonly writeQueueSize: number;
}

export class DrainWatch {
  readonly #socket: Socket & { readonly _handle?: Handle | null };
  #startMs = 0;
  #takenBefore = 0;
  #waitingBefore = 0;

  constructor(socket: Socket) {
    this.#socket = socket;
  }

  /**
   * Ask a few times per `slowReaderMs`.
   * @param crowded so much waits on all connections that a quarter of what waits here must leave
   */
  isSlow(nowMs: number, limits: ServerLimits, crowded: boolean): boolean {
    const handle = this.#socket._handle;
    const waiting = handle?.writeQueueSize ?? 0;
    if (handle == null || waiting === 0) {
      this.#startMs = 0;
      return false;
    }
    const taken = handle.bytesWritten - waiting;
    if (this.#startMs > 0) {
      if (nowMs - this.#startMs < limits.slowReaderMs) return false;
      const least = Math.max(limits.slowReaderBytes, crowded ? this.#waitingBefore / 4 : 0);
      if (taken - this.#takenBefore < Math.min(this.#waitingBefore, least)) return true;
    }
    this.#startMs = nowMs;
    this.#takenBefore = taken;
    this.#waitingBefore = waiting;
    return false;
  }
}
