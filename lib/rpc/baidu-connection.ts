/**
 * The server's side of one baidu_std connection: bytes → frames → handlers → one write per read. Nothing more is
 * read while the peer leaves its answers unread, so a slow reader costs a bounded amount of memory.
 */
import type { Socket } from 'node:net';
import {
  copyReplyTo,
  type Frame,
  FrameDecoder,
  type ReplyTo,
  writeErrorResponse,
} from '../../proto/baidu-std.ts';
import type { OutputBuffer } from '../../proto/output-buffer.ts';
import { CubeError } from '../core/errors.ts';
import { ERROR_TEXT_CHARS_MAX, type ServerLimits } from '../core/limits.ts';
import { systemClock } from '../platform/clock.ts';
import type { Logger } from '../platform/logs.ts';
import { BufferPool } from './buffer-pool.ts';
import { DeferredResponse } from './deferred-response.ts';
import { formatEndpoint } from './endpoint.ts';
import { type DeferringCaller, RpcResponse, type RpcRoute, RpcRoutes } from './rpc-routes.ts';

/** Written out before a burst has ended, so that one burst cannot fill the memory. */
const FLUSH_BYTES = 256 << 10;
/** All connections together keep this much for the next split frames; beyond it they give their buffers back. */
const KEPT_TOTAL_BYTES = 64 << 20;
/** After a fatal error the peer may still be sending: its bytes are thrown away so that it can read the error. */
const LINGER_MS = 1000;

/** What all baidu_std connections of a server share. */
export class BaiduHost {
  readonly routes: RpcRoutes;
  readonly limits: ServerLimits;
  readonly logger: Logger;
  readonly pool: BufferPool = new BufferPool();
  readonly response: RpcResponse = new RpcResponse();
  /** Bytes given to sockets and not yet taken by the kernel. */
  unsentBytes = 0;
  /** Bytes of unfinished frames. */
  gatheredBytes = 0;
  /** Memory that connections hold for unfinished frames, and keep for the next. */
  heldBytes = 0;
  /** New calls are refused: the process is about to end. */
  stopping = false;
  /** Calls to methods that nobody serves. */
  unknownCalls = 0;
  /** Connections ended because their bytes were no baidu_std or over a limit. */
  brokenConnections = 0;
  slowReaders = 0;
  untilSample: number = RpcRoutes.sampleEvery;
  #callsInFlight = 0;
  #onIdle: (() => void) | undefined;

  constructor(routes: RpcRoutes, limits: ServerLimits, logger: Logger) {
    this.routes = routes;
    this.limits = limits;
    this.logger = logger;
  }

  /** Calls whose answers are deferred. */
  get callsInFlight(): number {
    return this.#callsInFlight;
  }

  /** @throws CubeError OVERLOADED */
  beginDeferred(): void {
    const { callsInFlight } = this.limits;
    if (this.#callsInFlight >= callsInFlight) {
      throw new CubeError(
        'OVERLOADED',
        `${this.#callsInFlight} calls are being answered already; try again later or another replica`,
      );
    }
    this.#callsInFlight++;
  }

  endDeferred(): void {
    this.#callsInFlight--;
    if (this.#callsInFlight === 0) this.#onIdle?.();
  }

  /** Resolves when no call is in flight, or after `waitMs`. */
  async drain(waitMs: number): Promise<void> {
    if (this.#callsInFlight === 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      this.#onIdle = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

export class BaiduConnection implements DeferringCaller {
  readonly socket: Socket;
  readonly #host: BaiduHost;
  readonly #decoder: FrameDecoder;
  #output: OutputBuffer | undefined;
  #gatheredBytes = 0;
  #heldBytes = 0;
  #blocked = false;
  #ended = false;
  #active = true;
  #lastActiveMs = 0;
  #callsInFlight = 0;
  #corked = false;

  constructor(socket: Socket, host: BaiduHost) {
    this.socket = socket;
    this.#host = host;
    this.#decoder = new FrameDecoder(host.limits.frameBytes);
    socket.setNoDelay(true);
    socket.on('timeout', () => {
      if (!this.#blocked) return;
      host.slowReaders++;
      socket.destroy();
    });
    socket.on('close', () => {
      this.#accountHeld(0);
      this.#accountInput(0);
    });
  }

  /** @param first what was read while finding out the protocol */
  start(first: Uint8Array): void {
    this.socket.on('data', this.#onData);
    this.#onData(first);
  }

  /** Called now and then: closes a connection that has been silent for too long. */
  sweep(nowMs: number): void {
    if (this.#active || this.#callsInFlight > 0) {
      this.#active = false;
      this.#lastActiveMs = nowMs;
    } else if (nowMs - this.#lastActiveMs > this.#host.limits.idleMs) this.socket.destroy();
  }

  /** Sends what is written and closes. */
  end(): void {
    this.#ended = true;
    this.#flush();
    this.socket.destroySoon();
  }

  readonly #onData = (chunk: Uint8Array): void => {
    if (this.#ended) return;
    this.#active = true;
    this.#decoder.push(chunk);
    this.#process();
  };

  #process(): void {
    const decoder = this.#decoder;
    try {
      while (!this.#blocked && decoder.next()) {
        const output = this.#answer(decoder.frame);
        if (output.length >= FLUSH_BYTES) this.#flush();
      }
      this.#accountHeld(decoder.heldBytes);
      if (this.#host.heldBytes > KEPT_TOTAL_BYTES) {
        decoder.release();
        this.#accountHeld(decoder.heldBytes);
      }
      this.#accountInput(decoder.bufferedBytes);
    } catch (error) {
      this.#breakOff(CubeError.from(error));
      return;
    }
    this.#flush();
  }

  #answer(frame: Frame): OutputBuffer {
    const host = this.#host;
    this.#output ??= host.pool.take();
    const output = this.#output;
    const route = host.routes.find(frame.service, frame.method);
    if (route === undefined) {
      host.unknownCalls++;
      const text = `Fail to find method=${frame.service}/${frame.method}`;
      this.#refuse(output, frame, new CubeError('UNSUPPORTED', text));
      return output;
    }
    route.requests++;
    const timed = --host.untilSample === 0;
    const startMs = timed ? systemClock.nowMs() : 0;
    this.#run(route, frame, output);
    if (timed) {
      host.untilSample = RpcRoutes.sampleEvery;
      // A deferred call is timed when it ends.
      if (host.response.deferred === undefined) {
        route.onSample((systemClock.nowMs() - startMs) / 1000);
      }
    }
    return output;
  }

  defer(route: RpcRoute, request: Frame): DeferredResponse {
    const host = this.#host;
    host.beginDeferred();
    this.#callsInFlight++;
    const startMs = systemClock.nowMs();
    const timed = host.untilSample === 0;
    const replyTo = copyReplyTo(request);
    let reservedBytes = 0;
    return new DeferredResponse(host.pool.take(), {
      replyTo,
      timeoutMs: request.timeoutMs,
      reachable: () => !this.#ended && this.socket.writable,
      reserve: (byteCount) => {
        reservedBytes += byteCount;
        host.unsentBytes += byteCount;
      },
      settle: (output, failure) => {
        host.unsentBytes -= reservedBytes;
        if (failure !== undefined) {
          this.#countFailure(route, failure);
          this.#refuse(output, replyTo, failure);
        }
        if (timed) route.onSample((systemClock.nowMs() - startMs) / 1000);
        this.#callsInFlight--;
        this.#active = true;
        this.#writeWithOthers(output);
        host.endDeferred();
      },
    });
  }

  /** The deferred answers of one tick leave in one write. */
  #writeWithOthers(output: OutputBuffer): void {
    if (!this.#corked && this.socket.writable) {
      this.#corked = true;
      this.socket.cork();
      process.nextTick(() => {
        this.#corked = false;
        this.socket.uncork();
      });
    }
    this.#write(output);
  }

  #run(route: RpcRoute, frame: Frame, output: OutputBuffer): void {
    const { response, unsentBytes, limits, stopping } = this.#host;
    response.open(output, frame, route, this);
    try {
      if (frame.defect !== undefined) throw frame.defect;
      if (stopping) throw new CubeError('STOPPING', 'the server is stopping; call another replica');
      if (unsentBytes > limits.outputTotalBytes) {
        throw new CubeError('OVERLOADED', 'too many answers wait to be read by their callers');
      }
      route.handler(frame, response);
      if (response.deferred === undefined) response.finish();
    } catch (error) {
      response.discard();
      if (response.deferred !== undefined) {
        response.deferred.fail(error);
        return;
      }
      const failure = CubeError.from(error);
      this.#countFailure(route, failure);
      this.#refuse(output, frame, failure);
    }
  }

  #countFailure(route: RpcRoute, failure: CubeError): void {
    route.countError(failure.code);
    if (failure.code !== 'INTERNAL') return;
    const { service, method } = route;
    this.#host.logger.error({ err: failure.cause ?? failure, service, method }, 'call failed');
  }

  /** An error response with the prefix that brpc puts before its texts. */
  #refuse(output: OutputBuffer, request: ReplyTo | undefined, error: CubeError): void {
    const { localAddress = '', localPort = 0 } = this.socket;
    const { brpc } = error.status;
    const message = error.message.slice(0, ERROR_TEXT_CHARS_MAX);
    const text = `[${formatEndpoint(localAddress, localPort)}][E${brpc}]${message}`;
    writeErrorResponse(output, request, brpc, text);
  }

  #flush(): void {
    const output = this.#output;
    if (output === undefined) return;
    this.#output = undefined;
    this.#write(output);
  }

  #write(output: OutputBuffer): void {
    const host = this.#host;
    const byteCount = output.length;
    if (byteCount === 0 || !this.socket.writable) {
      host.pool.give(output);
      return;
    }
    host.unsentBytes += byteCount;
    const taken = this.socket.write(output.written(), () => {
      host.unsentBytes -= byteCount;
      host.pool.give(output);
    });
    if (!taken && this.socket.writableLength > host.limits.outputHighWaterBytes) this.#block();
  }

  #block(): void {
    if (this.#blocked || this.#ended) return;
    this.#blocked = true;
    this.socket.pause();
    this.socket.setTimeout(this.#host.limits.slowReaderMs);
    this.socket.once('drain', () => {
      this.#blocked = false;
      this.socket.setTimeout(0);
      this.#active = true;
      if (this.#ended) return;
      this.#process();
      if (!this.#blocked) this.socket.resume();
    });
  }

  #accountHeld(heldBytes: number): void {
    this.#host.heldBytes += heldBytes - this.#heldBytes;
    this.#heldBytes = heldBytes;
  }

  #accountInput(gatheredBytes: number): void {
    const host = this.#host;
    host.gatheredBytes += gatheredBytes - this.#gatheredBytes;
    this.#gatheredBytes = gatheredBytes;
    if (gatheredBytes > 0 && host.gatheredBytes > host.limits.inputTotalBytes) {
      throw new CubeError(
        'OVERLOADED',
        `${host.gatheredBytes} bytes of unfinished requests are held already; send smaller batches`,
      );
    }
  }

  /** The bytes that follow cannot be understood: says so and closes. */
  #breakOff(error: CubeError): void {
    this.#host.brokenConnections++;
    this.#output ??= this.#host.pool.take();
    this.#refuse(this.#output, undefined, error);
    this.#ended = true;
    this.#flush();
    this.#accountInput(0);
    this.socket.end();
    this.socket.resume();
    const timer = setTimeout(() => this.socket.destroy(), LINGER_MS);
    this.socket.once('close', () => clearTimeout(timer));
  }
}
