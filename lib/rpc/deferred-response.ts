/**
 * A response that is written later than its handler returns: from disk, from another thread, or in
 * slices. It has its own output buffer, so responses of one connection may overtake each other; a
 * frame is always sent whole.
 */
import { beginResponse, finishFrame, type ResponseContext } from '../../proto/baidu-std.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import { CubeError } from '../core/errors.ts';
import { systemClock } from '../platform/clock.ts';
import { encodeResponsePayload, isEncoded } from './payload-encoding.ts';

/** A call that its connection keeps until the response is complete. */
export interface DeferredCall {
  /** A copy: the request's bytes are invalid by the time of the response. */
  readonly responseContext: ResponseContext;
  /** 0: the caller sent no timeout. */
  readonly timeoutMs: number;
  /** Returns false once the connection has ended. */
  isConnected(): boolean;
  /** Counts bytes of the coming response as unsent from now on. */
  reserveBytes(byteCount: number): void;
  /**
   * Returns the output to the connection: with a complete response or, when the call failed, empty.
   * Call once.
   */
  settle(output: OutputBuffer, failure: CubeError | undefined): void;
}

export class DeferredResponse {
  /** Append payload and attachment here, after `begin` and before `finish`. */
  output: OutputBuffer;
  readonly #call: DeferredCall;
  readonly #deadlineMs: number;
  #metaEnd = -1;
  #attachmentBytes = 0;
  #isSettled = false;

  constructor(output: OutputBuffer, call: DeferredCall) {
    this.output = output;
    this.#call = call;
    this.#deadlineMs =
      call.timeoutMs > 0 ? systemClock.nowMs() + call.timeoutMs : Number.POSITIVE_INFINITY;
  }

  /**
   * The response is no longer needed: the connection has ended, or the caller's deadline has
   * passed. Check it before each piece of work, and call `finish` or `fail` all the same.
   */
  get isAbandoned(): boolean {
    return this.#isSettled || !this.#call.isConnected() || systemClock.nowMs() > this.#deadlineMs;
  }

  /** The same as a signal that is polled. */
  get aborted(): boolean {
    return this.isAbandoned;
  }

  /**
   * Writes header and meta; the payload and `attachmentBytes` of attachment must follow. Once per
   * call.
   */
  begin(attachmentBytes: number): void {
    this.#call.reserveBytes(attachmentBytes);
    this.#attachmentBytes = attachmentBytes;
    this.#metaEnd = beginResponse(this.output, this.#call.responseContext, attachmentBytes);
  }

  /** Sends the response. Only the first call of `finish` or `fail` has an effect. */
  finish(): void {
    if (this.#isSettled) return;
    if (this.#metaEnd < 0) this.begin(0);
    const { responseContext } = this.#call;
    if (isEncoded(responseContext)) {
      const at = {
        frameStart: 0,
        metaEnd: this.#metaEnd,
        attachmentBytes: this.#attachmentBytes,
      };
      encodeResponsePayload(this.output, at, responseContext);
    }
    finishFrame(this.output, 0, this.#metaEnd);
    this.#settle(undefined);
  }

  /** Sends an error response instead of the output written so far. */
  fail(error: unknown): void {
    if (!this.#isSettled) this.#settle(CubeError.from(error));
  }

  #settle(failure: CubeError | undefined): void {
    this.#isSettled = true;
    const output = this.output;
    // The buffer is reused for other calls; a handler that still writes gets an empty one.
    this.output = new OutputBuffer(0);
    if (failure !== undefined) output.truncate(0);
    this.#call.settle(output, failure);
  }
}
