/**
 * The server's side of one baidu_std connection: bytes → frames → handlers → one write per read. Nothing more is
 * read while the peer leaves its answers unread, so a slow reader costs a bounded amount of memory.
 */
import type { Socket } from 'node:net';
import {
  authenticationOf,
  CONTENT_NAMES,
  copyReplyTo,
  type Frame,
  FrameDecoder,
  logIdOf,
  type ReplyTo,
  writeErrorResponse,
} from '../../proto/baidu-std.ts';
import type { OutputBuffer } from '../../proto/output-buffer.ts';
import { CubeError, codeNameOf } from '../core/errors.ts';
import { ERROR_TEXT_CHARS_MAX } from '../core/limits.ts';
import { systemClock } from '../platform/clock.ts';
import type { BaiduHost } from './baidu-host.ts';
import { type ClientCertificate, certificateOf } from './control-caller.ts';
import { DeferredResponse } from './deferred-response.ts';
import { formatEndpoint } from './endpoint.ts';
import { isCoded, openPayload } from './payload-coding.ts';
import { type Caller, type RpcResponse, type RpcRoute, RpcRoutes } from './rpc-routes.ts';

/** Written out before a burst has ended, so that one burst cannot fill the memory. */
const FLUSH_BYTES = 256 << 10;
/** All connections together keep this much for the next split frames; beyond it they give their buffers back. */
const KEPT_TOTAL_BYTES = 64 << 20;
/** After a fatal error the peer may still be sending: its bytes are thrown away so that it can read the error. */
const LINGER_MS = 1000;
const AUTHENTICATION_BYTES_MAX = 4096;
const CONTENT_JSON = 1;
const textDecoder = new TextDecoder('utf-8');
const textEncoder = new TextEncoder();

export class BaiduConnection implements Caller {
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
  authentication = '';

  constructor(socket: Socket, host: BaiduHost) {
    this.socket = socket;
    this.#host = host;
    this.#decoder = new FrameDecoder(host.limits.frameBytes);
    socket.setNoDelay(true);
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

  get peerAddress(): string | undefined {
    return this.socket.remoteAddress;
  }

  get certificate(): ClientCertificate | undefined {
    return certificateOf(this.socket);
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
      this.#refuse(output, frame, unknown(frame, host.routes.hasService(frame.service)));
      return output;
    }
    route.requests++;
    if (frame.authenticationEnd > frame.authenticationStart) this.#noteAuthentication(frame);
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

  /** More than anyone needs is not kept, and is not what anyone checks for. */
  #noteAuthentication(frame: Frame): void {
    const byteCount = frame.authenticationEnd - frame.authenticationStart;
    this.authentication = byteCount > AUTHENTICATION_BYTES_MAX ? '' : authenticationOf(frame);
  }

  defer(route: RpcRoute, request: Frame): DeferredResponse {
    const host = this.#host;
    host.beginDeferred();
    this.#callsInFlight++;
    const startMs = systemClock.nowMs();
    const timed = host.untilSample === 0;
    const replyTo = copyReplyTo(request);
    const logId = logIdOf(request);
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
          this.#countFailure(route, failure, logId);
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
      const request = isCoded(frame) ? openPayload(frame, limits.inflatedBytes) : frame;
      if (frame.contentType === 0) route.handler(request, response);
      else answerJson(route, request, response);
      if (response.deferred === undefined) response.finish();
    } catch (error) {
      response.discard();
      if (response.deferred !== undefined) {
        response.deferred.fail(error);
        return;
      }
      const failure = CubeError.from(error);
      this.#countFailure(route, failure, logIdOf(frame));
      this.#refuse(output, frame, failure);
    }
  }

  #countFailure(route: RpcRoute, failure: CubeError, logId: bigint): void {
    route.countError(failure.code);
    if (failure.code !== 'INTERNAL') return;
    const { service, method } = route;
    const what = { err: failure.cause ?? failure, service, method, logId: String(logId) };
    this.#host.logger.error(what, 'call failed');
  }

  /** An error response with the prefix that brpc puts before its texts. */
  #refuse(output: OutputBuffer, request: ReplyTo | undefined, error: CubeError): void {
    const { localAddress = '', localPort = 0 } = this.socket;
    const { brpc } = error.status;
    const message = error.message.slice(0, ERROR_TEXT_CHARS_MAX);
    const text = `[${formatEndpoint(localAddress, localPort)}][E${brpc}]${message}`;
    writeErrorResponse(output, request, brpc, text, codeNameOf(error.code));
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
    this.socket.once('drain', () => {
      this.#blocked = false;
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

/** As brpc: a name without package is looked for among the services, any other is a method that is not there. */
function unknown({ service, method }: Frame, hasService: boolean): CubeError {
  if (hasService || service.includes('.')) {
    return new CubeError('UNSUPPORTED', `Fail to find method=${service}/${method}`);
  }
  return new CubeError('NOT_FOUND', `Fail to find service=${service}`);
}

function answerJson(route: RpcRoute, request: Frame, response: RpcResponse): void {
  const { bytes, payloadStart, payloadEnd, contentType } = request;
  if (route.jsonHandler === undefined || contentType !== CONTENT_JSON) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `content_type ${contentType} (${CONTENT_NAMES[contentType]}) is not supported by ${route.service}/${route.method}; send protobuf (0)`,
    );
  }
  const answer = route.jsonHandler(textDecoder.decode(bytes.subarray(payloadStart, payloadEnd)));
  response.begin(0);
  response.output.append(textEncoder.encode(answer));
}
