/**
 * One pipelined baidu_std connection to one endpoint. Calls share the connection, are written once per tick and
 * matched by correlation id, so answers may come in any order. A lost connection fails every pending call with
 * UNAVAILABLE; the next call connects again, at most once per backoff time. One timer serves all deadlines.
 */
import { connect, type Socket } from 'node:net';
import { correlationOf, type Frame, FrameDecoder } from '../../proto/baidu-std.ts';
import type { OutputBuffer } from '../../proto/output-buffer.ts';
import { RequestTarget } from '../../proto/request-target.ts';
import { CubeError } from '../core/errors.ts';
import { type ChannelLimits, DEFAULT_CHANNEL_LIMITS } from '../core/limits.ts';
import { systemClock } from '../platform/clock.ts';
import { BufferPool } from './buffer-pool.ts';
import { type Endpoint, parseEndpoint } from './endpoint.ts';
import { isCoded, openPayload, sealRequest } from './payload-coding.ts';

/** More than any meta of ours. */
const META_BYTES_MAX = 512;
const TARGETS_MAX = 64;
/** A correlation id is a sequence number times this plus the place of its call: found without a table. */
const PLACES_MAX = 65_536;
/** A longer timer would fire at once, and again and again. */
const TIMER_MS_MAX = 0x7fff_ffff;

const PLAIN: CallOptions = {};
/** Of all channels: with one each, a thousand connections would keep a thousand buffers. */
const pool = new BufferPool();

export interface CallResult {
  readonly payload: Uint8Array;
  readonly attachment: Uint8Array;
}

export interface CallOptions {
  /** The payload travels compressed, and the answer's comes back so: 1 snappy, 2 gzip, 3 zlib, 4 LZ4. */
  readonly compressType?: 1 | 2 | 3 | 4;
  /**
   * Payload and attachment travel with a crc32c, which the server verifies, and the answer must come back with one that is right.
   * A server that knows no checksums fails every such call.
   */
  readonly checksum?: boolean;
}

interface PendingCall {
  readonly correlation: number;
  readonly deadlineMs: number;
  readonly timeoutMs: number;
  readonly checksum: boolean;
  resolve(result: CallResult): void;
  reject(error: CubeError): void;
}

export class Channel {
  readonly endpoint: string;
  readonly #address: Endpoint;
  readonly #limits: ChannelLimits;
  readonly #targets = new Map<string, RequestTarget>();
  /** The calls in flight, each at its place. (A Map with this much coming and going keeps dead calls alive for long.) */
  readonly #places: (PendingCall | undefined)[] = [];
  readonly #freePlaces: number[] = [];
  #inFlight = 0;
  /** Every read goes into it: what a call resolves with are views of it. */
  readonly #readBuffer: Buffer;
  #socket: Socket | undefined;
  #connected = false;
  #closed = false;
  #decoder: FrameDecoder;
  #output: OutputBuffer | undefined;
  #flushing = false;
  #sequence = 0;
  #timer: NodeJS.Timeout | undefined;
  #timerAtMs = Number.POSITIVE_INFINITY;
  /** When the oldest call was made since the peer last said anything; 0: none. */
  #waitingSinceMs = 0;
  #backoffMs = 0;
  #retryAtMs = 0;
  #lastFailure = '';

  /** Connects at the first call. @param endpoint host:port */
  constructor(endpoint: string, limits: Partial<ChannelLimits> = {}) {
    this.endpoint = endpoint;
    this.#address = parseEndpoint(endpoint);
    this.#limits = { ...DEFAULT_CHANNEL_LIMITS, ...limits };
    if (this.#limits.maxInFlight > PLACES_MAX) {
      throw new CubeError('INVALID_ARGUMENT', `maxInFlight: at most ${PLACES_MAX}`);
    }
    this.#readBuffer = Buffer.allocUnsafeSlow(this.#limits.readBufferBytes);
    this.#decoder = new FrameDecoder(this.#limits.maxFrameBytes);
  }

  get connected(): boolean {
    return this.#connected;
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  /**
   * Resolves with views that are valid until the continuation of this promise ends: copy what outlives it.
   * Rejects with a CubeError: UNAVAILABLE when the connection is refused or lost, DEADLINE_EXCEEDED, OVERLOADED
   * over maxInFlight, else the server's own code.
   * @param timeoutMs > 0; it also travels in the request
   */
  call(
    service: string,
    method: string,
    payload: Uint8Array,
    attachment: Uint8Array,
    timeoutMs: number,
    options: CallOptions = PLAIN,
  ): Promise<CallResult> {
    const refusal = this.#refusal(payload.length + attachment.length);
    if (refusal !== undefined) return Promise.reject(refusal);
    const nowMs = systemClock.nowMs();
    if (this.#socket === undefined) {
      if (nowMs < this.#retryAtMs) return Promise.reject(this.#unavailable(this.#lastFailure));
      this.#connect();
    }
    this.#sequence = this.#sequence === 0x7fff_ffff ? 1 : this.#sequence + 1;
    const place = this.#freePlaces.pop() ?? this.#places.length;
    const correlation = this.#sequence * PLACES_MAX + place;
    this.#inFlight++;
    this.#output ??= pool.take();
    const target = this.#target(service, method);
    if (options === PLAIN) {
      target.write(this.#output, { correlation, timeoutMs, payload, attachment });
    } else {
      const sealed = sealRequest(payload, attachment, options);
      target.write(this.#output, { correlation, timeoutMs, attachment, ...sealed });
    }
    this.#scheduleFlush();
    if (this.#waitingSinceMs === 0) this.#waitingSinceMs = nowMs;
    const deadlineMs = nowMs + timeoutMs;
    this.#armTimer(deadlineMs, nowMs);
    const { checksum = false } = options;
    return new Promise((resolve, reject) => {
      this.#places[place] = { correlation, deadlineMs, timeoutMs, checksum, resolve, reject };
    });
  }

  /** Fails what is pending and lets the connection go; later calls are refused. */
  close(): void {
    this.#closed = true;
    this.#disconnect('the channel was closed');
  }

  #refusal(bodyBytes: number): CubeError | undefined {
    if (this.#closed) return this.#unavailable('the channel was closed');
    const { maxFrameBytes, maxInFlight } = this.#limits;
    if (bodyBytes + META_BYTES_MAX > maxFrameBytes) {
      return new CubeError(
        'TOO_LARGE',
        `a request of ${bodyBytes} bytes to ${this.endpoint} is over the limit of ${maxFrameBytes}; split it`,
      );
    }
    const unsentBytes = (this.#socket?.writableLength ?? 0) + (this.#output?.length ?? 0);
    if (this.#inFlight >= maxInFlight || unsentBytes > maxFrameBytes) {
      return new CubeError(
        'OVERLOADED',
        `${this.endpoint}: ${this.#inFlight} calls and ${unsentBytes} unsent bytes are in flight already; send fewer at once`,
      );
    }
    return undefined;
  }

  #target(service: string, method: string): RequestTarget {
    const name = `${service}/${method}`;
    let target = this.#targets.get(name);
    if (target === undefined) {
      target = new RequestTarget(service, method);
      if (this.#targets.size >= TARGETS_MAX) this.#targets.clear();
      this.#targets.set(name, target);
    }
    return target;
  }

  #connect(): void {
    const { host, port } = this.#address;
    const socket = connect({
      host,
      port,
      noDelay: true,
      keepAlive: true,
      onread: {
        buffer: this.#readBuffer,
        callback: (byteCount) => {
          if (this.#socket === socket) this.#read(byteCount);
          return true;
        },
      },
    });
    const timer = setTimeout(afterReading, this.#limits.connectTimeoutMs, () => {
      if (!socket.connecting) return;
      socket.destroy(new Error(`no connection within ${this.#limits.connectTimeoutMs} ms`));
    });
    this.#socket = socket;
    this.#decoder = new FrameDecoder(this.#limits.maxFrameBytes);
    let reason = 'the server closed the connection';
    socket.on('connect', () => {
      clearTimeout(timer);
      this.#connected = true;
      this.#backoffMs = 0;
      this.#scheduleFlush();
    });
    socket.on('error', (error) => {
      reason = error.message;
    });
    socket.on('end', () => socket.destroy());
    socket.on('close', () => {
      clearTimeout(timer);
      if (this.#socket === socket) this.#disconnect(reason);
    });
  }

  #scheduleFlush(): void {
    if (this.#flushing || !this.#connected) return;
    this.#flushing = true;
    process.nextTick(this.#flush);
  }

  readonly #flush = (): void => {
    this.#flushing = false;
    const output = this.#output;
    if (output === undefined || !this.#connected) return;
    this.#output = undefined;
    this.#socket?.write(output.written(), () => pool.give(output));
  };

  #read(byteCount: number): void {
    const decoder = this.#decoder;
    this.#waitingSinceMs = 0;
    try {
      decoder.push(this.#readBuffer.subarray(0, byteCount));
      while (decoder.next()) {
        if (!this.#receive(decoder.frame)) return;
      }
    } catch (error) {
      this.#disconnect(CubeError.from(error).message);
    }
  }

  /** @returns false when the frame ended the connection */
  #receive(frame: Frame): boolean {
    if (frame.correlationStart === frame.correlationEnd) {
      this.#disconnect(frame.errorText === '' ? 'a response without call' : frame.errorText);
      return false;
    }
    const correlation = correlationOf(frame);
    const place = correlation % PLACES_MAX;
    const pending = this.#places[place];
    if (pending?.correlation !== correlation) return true; // its deadline passed before
    this.#free(place);
    if (frame.errorCode !== 0) {
      pending.reject(CubeError.fromBrpc(frame.errorCode, frame.errorText, frame.errorName));
    } else if (frame.defect !== undefined) {
      pending.reject(frame.defect);
    } else if (pending.checksum && !(frame.checksumType !== 0 && frame.checksumWithAttachment)) {
      const text =
        'its answer has no checksum: it was damaged on the way, or that server knows none';
      pending.reject(this.#unavailable(text));
    } else this.#resolve(pending, frame);
    return true;
  }

  #resolve(pending: PendingCall, frame: Frame): void {
    try {
      const { bytes, payloadStart, payloadEnd, attachmentStart, attachmentEnd } = isCoded(frame)
        ? openPayload(frame, this.#limits.maxFrameBytes)
        : frame;
      pending.resolve({
        payload: bytes.subarray(payloadStart, payloadEnd),
        attachment: bytes.subarray(attachmentStart, attachmentEnd),
      });
    } catch (error) {
      pending.reject(
        this.#unavailable(`its answer cannot be read: ${CubeError.from(error).message}`),
      );
    }
  }

  #free(place: number): void {
    this.#places[place] = undefined;
    this.#freePlaces.push(place);
    this.#inFlight--;
  }

  #unavailable(reason: string): CubeError {
    return new CubeError('UNAVAILABLE', `${this.endpoint}: ${reason}`);
  }

  #disconnect(reason: string): void {
    const { backoffMinMs, backoffMaxMs } = this.#limits;
    this.#backoffMs = Math.min(backoffMaxMs, Math.max(backoffMinMs, this.#backoffMs * 2));
    this.#retryAtMs = systemClock.nowMs() + this.#backoffMs;
    this.#lastFailure = reason;
    const socket = this.#socket;
    this.#socket = undefined;
    this.#connected = false;
    this.#waitingSinceMs = 0;
    this.#output = undefined;
    socket?.destroy();
    clearTimeout(this.#timer);
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    this.#places.forEach((call, place) => {
      if (call === undefined) return;
      this.#free(place);
      call.reject(this.#unavailable(reason));
    });
  }

  /** The timer fires at the earliest deadline known; answered calls leave it standing, which costs one look. */
  #armTimer(deadlineMs: number, nowMs: number): void {
    if (deadlineMs >= this.#timerAtMs) return;
    clearTimeout(this.#timer);
    this.#timerAtMs = deadlineMs;
    const waitMs = Math.min(Math.max(1, Math.ceil(deadlineMs - nowMs)), TIMER_MS_MAX);
    this.#timer = setTimeout(afterReading, waitMs, this.#expire);
  }

  readonly #expire = (): void => {
    const nowMs = systemClock.nowMs();
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    let earliestMs = Number.POSITIVE_INFINITY;
    this.#places.forEach((call, place) => {
      if (call === undefined) return;
      if (call.deadlineMs > nowMs) {
        earliestMs = Math.min(earliestMs, call.deadlineMs);
        return;
      }
      this.#free(place);
      const text = `${this.endpoint}: no answer within ${Math.ceil(call.timeoutMs)} ms`;
      call.reject(new CubeError('DEADLINE_EXCEEDED', text));
    });
    if (earliestMs < Number.POSITIVE_INFINITY) this.#armTimer(earliestMs, nowMs);
    const { silenceMs } = this.#limits;
    if (this.#waitingSinceMs > 0 && nowMs - this.#waitingSinceMs > silenceMs) {
      this.#disconnect(`calls were sent and nothing came back for ${silenceMs} ms`);
    }
  };
}

/**
 * Runs what a timer was set for once the sockets have been read: after this process itself stood still, its timers come first, and
 * would give up calls and connections whose answers are there.
 */
function afterReading(action: () => void): void {
  setImmediate(action);
}
