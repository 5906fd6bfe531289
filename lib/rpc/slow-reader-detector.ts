/**
 * Detects peers that read their responses too slowly. A timeout without progress is not enough: a
 * peer that reads a byte now and then would hold a response forever. A peer must therefore read a
 * minimum amount in each window of time in which output always waits.
 */
import type { Socket } from 'node:net';
import type { ServerLimits } from '../core/limits.ts';

/**
 * The fields used of Node's internal handle of a connection; Node's socket timeouts use the same
 * ones.
 */
interface SocketHandle {
  /** Bytes written since the connection began. */
  readonly bytesWritten: number;
  /** Bytes not yet accepted by the kernel. */
  readonly writeQueueSize: number;
}

export class SlowReaderDetector {
  readonly #socket: Socket & { readonly _handle?: SocketHandle | null };
  #windowStartMs = 0;
  #sentAtStart = 0;
  #queuedAtStart = 0;

  constructor(socket: Socket) {
    this.#socket = socket;
  }

  /**
   * Call a few times per `slowReaderMs`.
   * @param crowded much output waits on all connections, so at minimum a quarter of this one's must
   *   be read per window
   */
  isSlow(nowMs: number, limits: ServerLimits, crowded: boolean): boolean {
    const handle = this.#socket._handle;
    const queued = handle?.writeQueueSize ?? 0;
    if (handle == null || queued === 0) {
      this.#windowStartMs = 0;
      return false;
    }
    const sent = handle.bytesWritten - queued;
    if (this.#windowStartMs > 0) {
      if (nowMs - this.#windowStartMs < limits.slowReaderMs) return false;
      const minimum = Math.max(limits.slowReaderBytes, crowded ? this.#queuedAtStart / 4 : 0);
      if (sent - this.#sentAtStart < Math.min(this.#queuedAtStart, minimum)) return true;
    }
    this.#windowStartMs = nowMs;
    this.#sentAtStart = sent;
    this.#queuedAtStart = queued;
    return false;
  }
}
