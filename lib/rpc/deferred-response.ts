/**
 * An answer that is given later than its request was read: from disk, from another thread, or in slices. It has an
 * output buffer of its own, so answers of one connection may overtake each other; a whole frame leaves at once.
 */
import { beginResponse, finishFrame, type ReplyTo } from '../../proto/baidu-std.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import { CubeError } from '../core/errors.ts';
import { systemClock } from '../platform/clock.ts';
import { isCoded, sealPayload } from './payload-coding.ts';

/** One call as its connection keeps it until the answer is there. */
export interface DeferredCall {
  /** A copy: the request's own bytes are gone by the time of the answer. */
  readonly replyTo: ReplyTo;
  /** 0: the caller did not say how long it waits. */
  readonly timeoutMs: number;
  /** False once nobody reads answers there any more. */
  reachable(): boolean;
  /** The answer will have at least so many bytes, which count from now on as not yet sent. */
  reserve(byteCount: number): void;
  /** Takes the output back: with a whole answer in it or, when the call failed, with nothing. Once. */
  settle(output: OutputBuffer, failure: CubeError | undefined): void;
}

export class DeferredResponse {
  /** Payload and attachment go here, after `begin` and before `finish`. */
  output: OutputBuffer;
  readonly #call: DeferredCall;
  readonly #deadlineMs: number;
  #metaEnd = -1;
  #attachmentBytes = 0;
  #settled = false;

  constructor(output: OutputBuffer, call: DeferredCall) {
    this.output = output;
    this.#call = call;
    this.#deadlineMs =
      call.timeoutMs > 0 ? systemClock.nowMs() + call.timeoutMs : Number.POSITIVE_INFINITY;
  }

  /**
   * Nobody waits for the answer: the connection has ended, or the caller's time is over. Ask before each piece of work,
   * and `finish` or `fail` all the same.
   */
  get abandoned(): boolean {
    return this.#settled || !this.#call.reachable() || systemClock.nowMs() > this.#deadlineMs;
  }

  /** Writes header and meta; the payload and `attachmentBytes` of attachment must follow. Once per call. */
  begin(attachmentBytes: number): void {
    this.#call.reserve(attachmentBytes);
    this.#attachmentBytes = attachmentBytes;
    this.#metaEnd = beginResponse(this.output, this.#call.replyTo, attachmentBytes);
  }

  /** Sends the answer. Of all calls of `finish` and `fail` the first counts, the others do nothing. */
  finish(): void {
    if (this.#settled) return;
    if (this.#metaEnd < 0) this.begin(0);
    const { replyTo } = this.#call;
    if (isCoded(replyTo)) {
      const at = {
        frameStart: 0,
        metaEnd: this.#metaEnd,
        attachmentBytes: this.#attachmentBytes,
      };
      sealPayload(this.output, at, replyTo);
    }
    finishFrame(this.output, 0, this.#metaEnd);
    this.#settle(undefined);
  }

  /** Answers with an error, whatever was written before. */
  fail(error: unknown): void {
    if (!this.#settled) this.#settle(CubeError.from(error));
  }

  #settle(failure: CubeError | undefined): void {
    this.#settled = true;
    const output = this.output;
    // The buffer will serve others: who writes on does so into nothing.
    this.output = new OutputBuffer(0);
    if (failure !== undefined) output.truncate(0);
    this.#call.settle(output, failure);
  }
}
