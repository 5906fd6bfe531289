/**
 * One pipelined baidu_std connection to one endpoint. Calls share the connection, are written once
 * per tick and matched by correlation id, so responses may arrive in any order. A lost connection
 * fails every pending call with UNAVAILABLE; the next call reconnects, at most once per backoff
 * period. One timer serves all deadlines.
 */
import { connect, type NetConnectOpts, type Socket } from 'node:net';
import { type ConnectionOptions, connect as connectTls } from 'node:tls';
import {
  type Frame,
  FrameDecoder,
  hasIntactError,
  readCorrelationId,
} from '../../proto/baidu-std.ts';
import { CHECKSUM_CRC32C, CHECKSUM_XXH64, getChecksumBytes } from '../../proto/frame-fields.ts';
import type { OutputBuffer } from '../../proto/output-buffer.ts';
import { type RequestCall, RequestEncoder } from '../../proto/request-encoder.ts';
import { encodeTraceFields } from '../../proto/trace-fields.ts';
import { decodeErrorDetails } from '../core/error-details.ts';
import { CubeError } from '../core/errors.ts';
import { type ChannelLimits, DEFAULT_CHANNEL_LIMITS } from '../core/limits.ts';
import { systemClock, TIMER_MS_MAX } from '../platform/clock.ts';
import { BufferPool } from './buffer-pool.ts';
import { writeChecksum } from './checksums.ts';
import { type Credentials, NO_CREDENTIALS } from './credentials.ts';
import { type Endpoint, parseEndpoint } from './endpoint.ts';
import { compressRequestPayload, decodePayload, isEncoded } from './payload-encoding.ts';

/** Upper bound of an encoded request meta. */
const META_BYTES_MAX = 640;
const ENCODERS_MAX = 64;
/**
 * A correlation id is a sequence number times this plus the slot of its call, so no lookup table is
 * needed.
 */
const SLOTS_MAX = 65_536;

const NO_OPTIONS: CallOptions = {};
/** Shared by all channels: otherwise a thousand connections would keep a thousand buffers. */
const pool = new BufferPool();

export interface CallResult {
  readonly payload: Uint8Array;
  readonly attachment: Uint8Array;
}

export interface CallOptions {
  /**
   * Compression of the payloads of request and response: 1 snappy, 2 gzip, 3 zlib, 4 LZ4. Default:
   * none.
   */
  readonly compressType?: 1 | 2 | 3 | 4;
  /**
   * Send payload and attachment with this checksum, which the server verifies, and require a valid
   * one on the response. Only our servers know xxh64, which costs less. Default: none.
   */
  readonly checksum?: 'xxh64' | 'crc32c';
  /**
   * With `checksum`: accept responses without one, which brpc's servers send. Default false.
   */
  readonly isChecksumOptional?: boolean;
  /** W3C `traceparent` of the span that makes the call. Default: none. */
  readonly traceparent?: string;
}

const CHECKSUM_TYPES = { xxh64: CHECKSUM_XXH64, crc32c: CHECKSUM_CRC32C } as const;

interface PendingCall {
  readonly correlation: number;
  readonly deadlineMs: number;
  readonly timeoutMs: number;
  readonly needsChecksum: boolean;
  resolve(result: CallResult): void;
  reject(error: CubeError): void;
}

export class Channel {
  readonly endpoint: string;
  readonly #address: Endpoint;
  readonly #limits: ChannelLimits;
  readonly #credentials: Credentials;
  /** The token that #encoders write. */
  #token: string | undefined;
  readonly #encoders = new Map<string, RequestEncoder>();
  /**
   * The calls in flight, each in its slot. (A Map with this many insertions and deletions keeps
   * dead calls alive for long.)
   */
  readonly #slots: (PendingCall | undefined)[] = [];
  readonly #freeSlots: number[] = [];
  #callsInFlight = 0;
  /** Receives every read; results are views of it. */
  readonly #readBuffer: Buffer;
  #socket: Socket | undefined;
  #isConnected = false;
  #isClosed = false;
  #decoder: FrameDecoder;
  #output: OutputBuffer | undefined;
  #isFlushScheduled = false;
  #sequence = 0;
  #timer: NodeJS.Timeout | undefined;
  #timerAtMs = Number.POSITIVE_INFINITY;
  /** Start of the oldest call since the peer last sent any bytes; 0: none. */
  #silentSinceMs = 0;
  #backoffMs = 0;
  #retryAtMs = 0;
  #lastFailure = '';

  /**
   * Connects at the first call. @param endpoint host:port
   * @param credentials token that every request carries, and whether connections use TLS
   */
  constructor(
    endpoint: string,
    limits: Partial<ChannelLimits> = {},
    credentials: Credentials = NO_CREDENTIALS,
  ) {
    this.#credentials = credentials;
    this.endpoint = endpoint;
    this.#address = parseEndpoint(endpoint);
    this.#limits = { ...DEFAULT_CHANNEL_LIMITS, ...limits };
    if (this.#limits.maxInFlight > SLOTS_MAX) {
      throw new CubeError('INVALID_ARGUMENT', `maxInFlight: at most ${SLOTS_MAX}`);
    }
    this.#readBuffer = Buffer.allocUnsafeSlow(this.#limits.readBufferBytes);
    this.#decoder = new FrameDecoder(this.#limits.maxFrameBytes);
  }

  get isConnected(): boolean {
    return this.#isConnected;
  }

  get callsInFlight(): number {
    return this.#callsInFlight;
  }

  /**
   * Resolves with views that are valid until the continuation of this promise ends: copy bytes that
   * must live longer. Rejects with a CubeError: UNAVAILABLE when the connection is refused or lost,
   * DEADLINE_EXCEEDED, OVERLOADED above maxInFlight, else the server's own code.
   * @param timeoutMs > 0; it also travels in the request
   */
  call(
    service: string,
    method: string,
    payload: Uint8Array,
    attachment: Uint8Array,
    timeoutMs: number,
    options: CallOptions = NO_OPTIONS,
  ): Promise<CallResult> {
    const refusal = this.#findRefusal(payload.length + attachment.length);
    if (refusal !== undefined) return Promise.reject(refusal);
    const nowMs = systemClock.nowMs();
    if (this.#socket === undefined) {
      if (nowMs < this.#retryAtMs)
        return Promise.reject(this.#createUnavailableError(this.#lastFailure));
      this.#connect();
    }
    this.#sequence = this.#sequence === 0x7fff_ffff ? 1 : this.#sequence + 1;
    const slot = this.#freeSlots.pop() ?? this.#slots.length;
    const correlation = this.#sequence * SLOTS_MAX + slot;
    this.#callsInFlight++;
    this.#output ??= pool.acquire();
    const target = this.#getEncoder(service, method);
    if (options === NO_OPTIONS) {
      target.write(this.#output, { correlation, timeoutMs, payload, attachment });
    } else {
      this.#writeEncoded(
        this.#output,
        target,
        { correlation, timeoutMs, payload, attachment },
        options,
      );
    }
    this.#scheduleFlush();
    if (this.#silentSinceMs === 0) this.#silentSinceMs = nowMs;
    const deadlineMs = nowMs + timeoutMs;
    this.#armTimer(deadlineMs, nowMs);
    const needsChecksum = options.checksum !== undefined && options.isChecksumOptional !== true;
    return new Promise((resolve, reject) => {
      this.#slots[slot] = { correlation, deadlineMs, timeoutMs, needsChecksum, resolve, reject };
    });
  }

  /** Fails pending calls and closes the connection; later calls are rejected. */
  close(): void {
    this.#isClosed = true;
    this.#disconnect('the channel was closed');
  }

  #findRefusal(bodyBytes: number): CubeError | undefined {
    if (this.#isClosed) return this.#createUnavailableError('the channel was closed');
    const { maxFrameBytes, maxInFlight } = this.#limits;
    if (bodyBytes + META_BYTES_MAX > maxFrameBytes) {
      return new CubeError(
        'TOO_LARGE',
        `a request of ${bodyBytes} bytes to ${this.endpoint} ` +
          `exceeds the limit of ${maxFrameBytes}; split it`,
      );
    }
    const unsentBytes = (this.#socket?.writableLength ?? 0) + (this.#output?.length ?? 0);
    if (this.#callsInFlight >= maxInFlight || unsentBytes > maxFrameBytes) {
      return new CubeError(
        'OVERLOADED',
        `${this.endpoint}: ${this.#callsInFlight} calls and ${unsentBytes} unsent bytes ` +
          'are in flight already; send fewer calls at once',
      );
    }
    return undefined;
  }

  #writeEncoded(
    output: OutputBuffer,
    encoder: RequestEncoder,
    { correlation, timeoutMs, payload, attachment }: RequestCall,
    { compressType, checksum, traceparent }: CallOptions,
  ): void {
    const checksumType = checksum === undefined ? 0 : CHECKSUM_TYPES[checksum];
    const packed = compressRequestPayload(payload, compressType ?? 0);
    const start = encoder.write(output, {
      correlation,
      timeoutMs,
      payload: packed.payload,
      attachment,
      compressType: packed.compressType,
      checksumType,
      ...(traceparent !== undefined && { traceFields: encodeTraceFields(traceparent) }),
    });
    if (checksumType === 0) return;
    const at = start - getChecksumBytes(checksumType);
    writeChecksum(output.bytes, checksumType, { at, start, end: output.length });
  }

  #getEncoder(service: string, method: string): RequestEncoder {
    if (this.#credentials !== NO_CREDENTIALS) this.#updateToken();
    const name = `${service}/${method}`;
    let target = this.#encoders.get(name);
    if (target === undefined) {
      target = new RequestEncoder(service, method);
      if (this.#token !== undefined) target.authentication = `Bearer ${this.#token}`;
      if (this.#encoders.size >= ENCODERS_MAX) this.#encoders.clear();
      this.#encoders.set(name, target);
    }
    return target;
  }

  /** A token in a file may change at any time. */
  #updateToken(): void {
    const { token } = this.#credentials;
    if (token === this.#token) return;
    this.#token = token;
    this.#encoders.clear();
  }

  #connect(): void {
    const { host, port } = this.#address;
    const { tlsOptions } = this.#credentials;
    const options: NetConnectOpts & ConnectionOptions = {
      ...tlsOptions,
      host,
      port,
      noDelay: true,
      keepAlive: true,
      onread: {
        buffer: this.#readBuffer,
        callback: (byteCount: number) => {
          if (this.#socket === socket) this.#read(byteCount);
          return true;
        },
      },
    };
    const socket: Socket = tlsOptions === undefined ? connect(options) : connectTls(options);
    const timer = setTimeout(runAfterSocketReads, this.#limits.connectTimeoutMs, () => {
      if (this.#isConnected || this.#socket !== socket) return;
      socket.destroy(new Error(`no connection within ${this.#limits.connectTimeoutMs} ms`));
    });
    this.#socket = socket;
    this.#decoder = new FrameDecoder(this.#limits.maxFrameBytes);
    let reason = 'the server closed the connection';
    socket.on(tlsOptions === undefined ? 'connect' : 'secureConnect', () => {
      clearTimeout(timer);
      this.#isConnected = true;
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
    if (this.#isFlushScheduled || !this.#isConnected) return;
    this.#isFlushScheduled = true;
    process.nextTick(this.#flush);
  }

  readonly #flush = (): void => {
    this.#isFlushScheduled = false;
    const output = this.#output;
    if (output === undefined || !this.#isConnected) return;
    this.#output = undefined;
    this.#socket?.write(output.writtenBytes(), () => pool.release(output));
  };

  #read(byteCount: number): void {
    const decoder = this.#decoder;
    this.#silentSinceMs = 0;
    try {
      decoder.push(this.#readBuffer.subarray(0, byteCount));
      while (decoder.next()) {
        if (!this.#receive(decoder.frame)) return;
      }
    } catch (error) {
      this.#disconnect(CubeError.from(error).message);
    }
  }

  /** Returns false when the frame ended the connection. */
  #receive(frame: Frame): boolean {
    if (frame.correlationStart === frame.correlationEnd) {
      this.#disconnect(
        frame.errorText === '' ? 'a response without a correlation id' : frame.errorText,
      );
      return false;
    }
    const correlation = readCorrelationId(frame);
    const slot = correlation % SLOTS_MAX;
    const pending = this.#slots[slot];
    if (pending?.correlation !== correlation) return true; // Its deadline has passed.
    this.#free(slot);
    if (!hasIntactError(frame)) {
      pending.reject(this.#createUnavailableError('the error response was corrupted in transit'));
    } else if (frame.errorCode !== 0) {
      const { errorCode, errorText, errorName, errorDetails } = frame;
      const details = decodeErrorDetails(errorDetails);
      pending.reject(CubeError.fromBrpc(errorCode, errorText, errorName, details));
    } else if (frame.error !== undefined) {
      pending.reject(this.#createDecodingError(frame.error));
    } else if (
      pending.needsChecksum &&
      !(frame.checksumType !== 0 && frame.checksumWithAttachment)
    ) {
      const text =
        'the response has no checksum: it was corrupted in transit, or the server supports none';
      pending.reject(this.#createUnavailableError(text));
    } else this.#resolve(pending, frame);
    return true;
  }

  #resolve(pending: PendingCall, frame: Frame): void {
    try {
      const { bytes, payloadStart, payloadEnd, attachmentStart, attachmentEnd } = isEncoded(frame)
        ? decodePayload(frame, this.#limits.maxFrameBytes)
        : frame;
      pending.resolve({
        payload: bytes.subarray(payloadStart, payloadEnd),
        attachment: bytes.subarray(attachmentStart, attachmentEnd),
      });
    } catch (error) {
      pending.reject(this.#createDecodingError(error));
    }
  }

  /** Another replica, or the same one later, may give a valid response. */
  #createDecodingError(error: unknown): CubeError {
    const { message } = CubeError.from(error);
    return this.#createUnavailableError(`the response cannot be decoded: ${message}`);
  }

  #free(slot: number): void {
    this.#slots[slot] = undefined;
    this.#freeSlots.push(slot);
    this.#callsInFlight--;
  }

  #createUnavailableError(reason: string): CubeError {
    const details = { server: this.endpoint };
    return new CubeError('UNAVAILABLE', `${this.endpoint}: ${reason}`, { details });
  }

  #disconnect(reason: string): void {
    const { backoffMinMs, backoffMaxMs } = this.#limits;
    this.#backoffMs = Math.min(backoffMaxMs, Math.max(backoffMinMs, this.#backoffMs * 2));
    this.#retryAtMs = systemClock.nowMs() + this.#backoffMs;
    this.#lastFailure = reason;
    const socket = this.#socket;
    this.#socket = undefined;
    this.#isConnected = false;
    this.#silentSinceMs = 0;
    this.#output = undefined;
    socket?.destroy();
    clearTimeout(this.#timer);
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    this.#slots.forEach((call, slot) => {
      if (call === undefined) return;
      this.#free(slot);
      call.reject(this.#createUnavailableError(reason));
    });
  }

  /**
   * The timer fires at the earliest known deadline. Answered calls do not reset it, which costs one
   * needless scan.
   */
  #armTimer(deadlineMs: number, nowMs: number): void {
    if (deadlineMs >= this.#timerAtMs) return;
    clearTimeout(this.#timer);
    this.#timerAtMs = deadlineMs;
    const waitMs = Math.min(Math.max(1, Math.ceil(deadlineMs - nowMs)), TIMER_MS_MAX);
    this.#timer = setTimeout(runAfterSocketReads, waitMs, this.#expire);
  }

  readonly #expire = (): void => {
    const nowMs = systemClock.nowMs();
    this.#timerAtMs = Number.POSITIVE_INFINITY;
    let earliestMs = Number.POSITIVE_INFINITY;
    this.#slots.forEach((call, slot) => {
      if (call === undefined) return;
      if (call.deadlineMs > nowMs) {
        earliestMs = Math.min(earliestMs, call.deadlineMs);
        return;
      }
      this.#free(slot);
      const text = `${this.endpoint}: no response within ${Math.ceil(call.timeoutMs)} ms`;
      const details = { server: this.endpoint };
      call.reject(new CubeError('DEADLINE_EXCEEDED', text, { details }));
    });
    if (earliestMs < Number.POSITIVE_INFINITY) this.#armTimer(earliestMs, nowMs);
    const { silenceMs } = this.#limits;
    if (this.#silentSinceMs > 0 && nowMs - this.#silentSinceMs > silenceMs) {
      this.#disconnect(`the server sent nothing for ${silenceMs} ms while calls were pending`);
    }
  };
}

/**
 * Runs a timer's action after the sockets have been read. After this process itself was suspended,
 * its timers run first, and would otherwise fail calls whose responses have already arrived.
 */
function runAfterSocketReads(action: () => void): void {
  setImmediate(action);
}
