/**
 * Robust reads from remote stores: detection of stalled requests, and ranges resumed after a cut.
 */
import { CubeError } from '../core/errors.ts';

/** A slower request counts as stalled. */
const BYTES_PER_SECOND_MIN = 1024;
/** A range is requested again this many times in a row without progress. */
const STALLED_RETRIES_MAX = 5;
/** Fewer bytes than this are no progress. */
const PROGRESS_BYTES = 16 << 10;

/**
 * Aborts a request when next to nothing has arrived for `idleMs`, however large the response is.
 */
export class StallDetector {
  readonly #controller = new AbortController();
  readonly #timer: NodeJS.Timeout;
  readonly #idleMs: number;
  /** Bytes since the last check. */
  #bytes = 0;

  constructor(idleMs: number) {
    this.#idleMs = idleMs;
    this.#timer = setInterval(() => this.#check(), idleMs);
  }

  /** Aborted with an error that says how little arrived. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  count(bytes: number): void {
    this.#bytes += bytes;
  }

  stop(): void {
    clearInterval(this.#timer);
  }

  #check(): void {
    const bytes = this.#bytes;
    this.#bytes = 0;
    if (bytes >= (BYTES_PER_SECOND_MIN * this.#idleMs) / 1000) return;
    this.stop();
    const message = `only ${bytes} bytes arrived in ${this.#idleMs} ms`;
    this.#controller.abort(new Error(message));
  }
}

/**
 * Reads a range of a remote object, and continues after the last byte when the connection is cut.
 * @param name of the object, for errors
 * @param open streams `bytes` bytes from offset `done` of the range
 * @throws CubeError CORRUPT if more bytes arrive than requested; the errors of `open`, of which
 *   UNAVAILABLE is retried
 */
export async function readResumableRange(
  name: string,
  bytes: number,
  open: (done: number, bytes: number) => AsyncIterable<Uint8Array>,
): Promise<Uint8Array> {
  const target = new Uint8Array(bytes);
  let done = 0;
  for (let stalledRetries = 0; done < bytes; ) {
    const doneBefore = done;
    try {
      for await (const chunk of open(done, bytes - done)) {
        if (chunk.length > bytes - done) {
          throw new CubeError('CORRUPT', `${name}: the server sent more bytes than requested`);
        }
        target.set(chunk, done);
        done += chunk.length;
      }
      if (done < bytes) {
        throw new CubeError('UNAVAILABLE', `${name}: the connection was closed early`);
      }
    } catch (error) {
      const isCut = error instanceof CubeError && error.code === 'UNAVAILABLE';
      stalledRetries = done - doneBefore < PROGRESS_BYTES ? stalledRetries + 1 : 0;
      if (!isCut || stalledRetries > STALLED_RETRIES_MAX) throw error;
    }
  }
  return target;
}
