/**
 * An HTTP/1.1 connection that is read without node:http, whose objects and streams cost more than a
 * refusal. It serves one request at a time, of the direct routes only. At the first request of
 * another kind it ends its work, and node:http takes the connection over for good.
 */
import type { Socket } from 'node:net';
import { systemClock } from '../platform/clock.ts';
import { type BodyPool, POOLED_BODY_BYTES } from './body-pool.ts';
import { DirectExchange, type DirectExchangeOptions } from './direct-exchange.ts';
import type { ExpiryQueue } from './expiry-queue.ts';
import { REQUEST_TIMEOUT_RESPONSE } from './http-admission.ts';
import { parseRequestHead } from './request-head.ts';
import { readIntoSharedBuffer } from './shared-read-buffer.ts';
import type { TurnBudget } from './turn-budget.ts';
import type { TurnQueue } from './turn-queue.ts';

/** Parsing a longer body waits for the heads of other requests that have arrived already. */
const LARGE_BODY_BYTES = 16 << 10;
/** A read of more bytes is not kept for a later turn. */
const DEFERRED_BYTES_MAX = 4 << 10;
/** A body of more bytes gets its memory while it arrives. */
const BODY_BYTES_AT_ONCE = 1 << 20;

/** What node:http's parser says of a request that ends too early. */
const TRUNCATED = Object.assign(new Error('Parse Error'), {
  code: 'HPE_INVALID_EOF_STATE',
  reason: 'Invalid EOF state',
});

export interface DirectConnectionOptions extends DirectExchangeOptions {
  readonly bodyBytesMax: number;
  /** Connections whose request bodies are arriving. */
  readonly bodies: ExpiryQueue<DirectConnection>;
  /** Connections with a part of a head. */
  readonly heads: ExpiryQueue<DirectConnection>;
  readonly largeBodies: TurnQueue;
  readonly bodyPool: BodyPool;
  readonly turns: TurnBudget;
  /** Answers a broken request and closes the connection. */
  onBroken(error: Error, socket: Socket): void;
  /** Serves the connection with node:http from now on. @param bytes read and not handled */
  handOver(connection: DirectConnection, bytes: Buffer): void;
}

export class DirectConnection {
  readonly socket: Socket;
  readonly #options: DirectConnectionOptions;
  /** The request that is read or answered. */
  #exchange: DirectExchange | undefined;
  /** Bytes of the current body that have not arrived. */
  #missing = 0;
  /** The current body if it is needed; its first bytes have arrived. */
  #body: Buffer | undefined;
  /** Its memory belongs to the pool. */
  #isBodyPooled = false;
  #received = 0;
  /**
   * Bytes that wait: a part of a head, a request for a later turn, or what follows a request that
   * is not answered yet.
   */
  #kept: Buffer | undefined;
  /** When the kept request, which waits for a later turn, arrived; undefined: none does. */
  #deferredMs: number | undefined;
  /** The peer sends nothing more. */
  #hasEnded = false;
  /** Nothing more is read here: the connection is closing or was handed over. */
  #isFinished = false;
  #isHandedOver = false;
  #isPaused = false;

  constructor(socket: Socket, options: DirectConnectionOptions) {
    this.socket = socket;
    this.#options = options;
    socket.on('end', this.#onEnd);
    socket.once('close', this.#onClose);
  }

  /** A request has arrived and is not answered yet. */
  get isBusy(): boolean {
    return this.#exchange !== undefined && this.#missing === 0;
  }

  /** No part of a request has arrived. */
  get isIdle(): boolean {
    return this.#exchange === undefined && this.#missing === 0 && this.#kept === undefined;
  }

  /** @param first the bytes read so far, valid until it returns */
  start(first: Buffer): void {
    if (this.socket.destroyed) return;
    const isShared = readIntoSharedBuffer(this.socket, this.#onRead);
    if (!isShared) this.socket.on('data', this.#onData);
    this.#take(first, first.length);
    // A connection that is read into the shared buffer flows already.
    if (!isShared && !this.#isFinished && !this.#isPaused) this.socket.resume();
  }

  /** Answers that the body took too long, and closes the connection. */
  expireBody(): void {
    if (this.#exchange?.headersSent === false) this.socket.write(REQUEST_TIMEOUT_RESPONSE);
    this.#close();
  }

  /** Leaves a head that arrives slowly to node:http, which limits its time. */
  expireHead(): void {
    this.#handOver(this.#takeKept());
  }

  /** Reads into the shared buffer. */
  readonly #onRead = (count: number, buffer: Buffer): boolean => {
    // node:http has its own way to read; this is for what may follow it on the connection.
    if (this.#isHandedOver) return this.socket.push(Buffer.from(buffer.subarray(0, count)));
    this.#take(buffer, count);
    return true;
  };

  readonly #onData = (bytes: Buffer): void => this.#take(bytes, bytes.length);

  /** @param bytes valid until it returns */
  #take(bytes: Buffer, end: number): void {
    if (this.#kept === undefined) {
      this.#process(bytes, end, true);
      return;
    }
    const kept = Buffer.concat([this.#takeKept(), bytes.subarray(0, end)]);
    if (this.#deferredMs === undefined) this.#process(kept, kept.length, false);
    else this.#pauseWith(kept);
  }

  #takeKept(): Buffer {
    const kept = this.#kept ?? Buffer.alloc(0);
    this.#kept = undefined;
    this.#options.heads.remove(this);
    return kept;
  }

  /** @param mayWait whether an incomplete head may wait for its rest */
  #process(bytes: Buffer, end: number, mayWait: boolean): void {
    for (let at = 0; at < end && !this.#isFinished; ) {
      if (this.#missing > 0) {
        at = this.#takeBody(bytes, at, end);
        continue;
      }
      if (this.#exchange !== undefined) {
        // Without a pause the end of the stream could come before these bytes are handled.
        this.#pauseWith(Buffer.from(bytes.subarray(at, end)));
        return;
      }
      const { turns } = this.#options;
      if (!turns.take() && end - at <= DEFERRED_BYTES_MAX) {
        this.#kept = Buffer.from(bytes.subarray(at, end));
        this.#deferredMs ??= systemClock.nowMs();
        turns.defer(this.#resumeDeferred);
        return;
      }
      const arrivedMs = this.#deferredMs ?? systemClock.nowMs();
      this.#deferredMs = undefined;
      const head = parseRequestHead(bytes, at, end);
      if (head === 'incomplete' && this.#hasEnded) {
        this.#breakOff();
        return;
      }
      if (head === 'incomplete' && mayWait) {
        this.#kept = Buffer.from(bytes.subarray(at, end));
        this.#options.heads.add(this);
        return;
      }
      const isPlain = typeof head === 'object' && head.contentLength <= this.#options.bodyBytesMax;
      const { routes } = this.#options;
      const found = isPlain ? routes.find(head.path, head.headers['content-type']) : undefined;
      if (!isPlain || found === undefined) {
        this.#handOver(Buffer.from(bytes.subarray(at, end)));
        return;
      }
      at = head.bodyStart;
      const exchange = new DirectExchange(
        this.socket,
        { head, match: found, arrivedMs },
        this.#options,
      );
      this.#exchange = exchange;
      exchange.onSent = this.#onSent;
      this.#missing = head.contentLength;
      if (head.contentLength > end - at) this.#beginBody();
      if (exchange.admit()) this.#allocateBody(head.contentLength, found.route.readsBodyAtOnce);
    }
  }

  #pauseWith(kept: Buffer): void {
    this.#kept = kept;
    if (this.#isPaused) return;
    this.#isPaused = true;
    this.socket.pause();
  }

  /** Begins the request that has waited for this turn of the event loop. */
  readonly #resumeDeferred = (): void => {
    this.#resumeKept();
    this.#endIfIdle();
  };

  /** Processes the bytes that have waited. */
  #resumeKept(): void {
    if (this.#isFinished || this.#kept === undefined) return;
    const kept = this.#takeKept();
    const wasPaused = this.#isPaused;
    this.#isPaused = false;
    this.#process(kept, kept.length, true);
    if (wasPaused && !this.#isFinished && !this.#isPaused) this.socket.resume();
  }

  #beginBody(): void {
    const { bodies, admission } = this.#options;
    bodies.add(this);
    const close = (): void => this.expireBody();
    admission.beginBody(this.socket, { isStreamed: false, isRead: () => true, close });
  }

  #endBody(): void {
    const { bodies, admission } = this.#options;
    bodies.remove(this);
    admission.endBody(this.socket);
  }

  #allocateBody(byteCount: number, isReadAtOnce = false): void {
    const isLarge = byteCount >= LARGE_BODY_BYTES && byteCount <= POOLED_BODY_BYTES;
    this.#isBodyPooled = isReadAtOnce && isLarge;
    this.#body = this.#isBodyPooled
      ? this.#options.bodyPool.acquire(byteCount)
      : Buffer.allocUnsafe(Math.min(byteCount, BODY_BYTES_AT_ONCE));
    this.#received = 0;
  }

  /** Copies the bytes of an admitted request, and skips those of a refused one. */
  #takeBody(bytes: Buffer, start: number, end: number): number {
    const count = Math.min(this.#missing, end - start);
    this.#missing -= count;
    const body = this.#copyBody(bytes, start, start + count);
    if (this.#missing > 0) return start + count;
    this.#endBody();
    this.#body = undefined;
    const exchange = this.#exchange;
    if (body === undefined || exchange === undefined) return start + count;
    if (body.length < LARGE_BODY_BYTES) exchange.handle(body);
    else this.#handleLater(exchange, body, this.#isBodyPooled);
    return start + count;
  }

  #handleLater(exchange: DirectExchange, body: Buffer, isPooled: boolean): void {
    const { largeBodies, bodyPool } = this.#options;
    largeBodies.add(() => {
      exchange.handle(body);
      if (isPooled) bodyPool.release(body);
    });
  }

  /** @returns the memory of the body; undefined when the body is not needed */
  #copyBody(bytes: Buffer, start: number, end: number): Buffer | undefined {
    const body = this.#body;
    if (body === undefined) return undefined;
    const needed = this.#received + end - start;
    let target = body;
    if (needed > body.length) {
      const total = needed + this.#missing;
      target = Buffer.allocUnsafe(Math.min(total, Math.max(needed, 2 * body.length)));
      body.copy(target, 0, 0, this.#received);
      this.#body = target;
    }
    bytes.copy(target, this.#received, start, end);
    this.#received = needed;
    return target;
  }

  readonly #onSent = (exchange: DirectExchange): void => {
    this.#exchange = undefined;
    if (this.#isFinished) return;
    if (exchange.closes) {
      this.#isFinished = true;
      exchange.close();
      return;
    }
    this.#resumeKept();
    this.#endIfIdle();
  };

  #endIfIdle(): void {
    if (!this.#isFinished && this.#hasEnded && this.isIdle) this.#close();
  }

  readonly #onEnd = (): void => {
    this.#hasEnded = true;
    if (this.#isFinished || this.#deferredMs !== undefined) return;
    const isHeadTruncated = this.#exchange === undefined && this.#kept !== undefined;
    if (this.#missing > 0 || isHeadTruncated) this.#breakOff();
    else if (this.#exchange === undefined) this.socket.end();
  };

  /** Answers a request that ended too early. */
  #breakOff(): void {
    this.#isFinished = true;
    this.#options.onBroken(TRUNCATED, this.socket);
  }

  readonly #onClose = (): void => {
    this.#isFinished = true;
    this.#endBody();
    this.#options.heads.remove(this);
    this.#exchange?.abort();
    this.#exchange = undefined;
    this.#kept = undefined;
    this.#body = undefined;
  };

  #close(): void {
    this.#isFinished = true;
    this.socket.destroySoon();
  }

  #handOver(bytes: Buffer): void {
    const { socket } = this;
    this.#isFinished = true;
    this.#isHandedOver = true;
    this.#options.heads.remove(this);
    socket.off('data', this.#onData);
    socket.off('end', this.#onEnd);
    socket.off('close', this.#onClose);
    // The stream has no more events for bytes that are put back.
    if (this.#hasEnded) socket.destroySoon();
    else this.#options.handOver(this, bytes);
  }
}
