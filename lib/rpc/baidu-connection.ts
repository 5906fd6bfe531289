/**
 * The server side of one baidu_std connection: bytes → frames → handlers → one write per read.
 * Reading pauses while the peer does not read its responses, so that a slow reader costs a bounded
 * amount of memory.
 */
import type { Socket } from 'node:net';
import {
  CONTENT_NAMES,
  copyResponseContext,
  type Frame,
  FrameDecoder,
  type ResponseContext,
  readAuthentication,
  readLogId,
  writeErrorResponse,
} from '../../proto/baidu-std.ts';
import type { OutputBuffer } from '../../proto/output-buffer.ts';
import type { CallGrant } from '../access/access-gate.ts';
import type { CallerHead } from '../access/caller.ts';
import { encodeErrorDetails } from '../core/error-details.ts';
import { CubeError, getWireErrorName } from '../core/errors.ts';
import { ERROR_TEXT_CHARS_MAX } from '../core/limits.ts';
import { shortenInput } from '../core/shown-input.ts';
import { systemClock } from '../platform/clock.ts';
import type { BaiduServerState } from './baidu-server-state.ts';
import { type ClientCertificate, getPeerCertificate } from './control-caller.ts';
import { DeferredResponse } from './deferred-response.ts';
import { formatEndpoint } from './endpoint.ts';
import { decodePayload, isEncoded } from './payload-encoding.ts';
import { type RpcCaller, type RpcResponse, type RpcRoute, RpcRoutes } from './rpc-routes.ts';

/**
 * Responses are flushed at this size even within a burst, so that one burst cannot fill the memory.
 */
const FLUSH_BYTES = 256 << 10;
/**
 * Input buffers that all connections together may keep; beyond it each connection releases its
 * buffer after use.
 */
const INPUT_BUFFERS_TOTAL_BYTES = 64 << 20;
/**
 * How long the peer's bytes are discarded after a protocol error, so that it can read the error.
 */
const LINGER_MS = 1000;
const AUTHENTICATION_BYTES_MAX = 4096;
const CONTENT_JSON = 1;
const textEncoder = new TextEncoder();

export class BaiduConnection implements RpcCaller, CallerHead {
  readonly socket: Socket;
  readonly #server: BaiduServerState;
  readonly #decoder: FrameDecoder;
  #output: OutputBuffer | undefined;
  #unfinishedFrameBytes = 0;
  #inputBufferBytes = 0;
  #isBlocked = false;
  #isEnded = false;
  #wasActive = true;
  #lastActiveMs = 0;
  #callsInFlight = 0;
  #isCorked = false;
  authentication = '';
  grant: CallGrant | undefined;
  /** A call was refused with STOPPING. */
  hasRefusedStopping = false;

  constructor(socket: Socket, server: BaiduServerState) {
    this.socket = socket;
    this.#server = server;
    this.#decoder = new FrameDecoder(server.limits.frameBytes);
    socket.setNoDelay(true);
    socket.on('close', () => {
      this.#updateInputBufferBytes(0);
      this.#updateUnfinishedFrameBytes(0);
    });
  }

  /** @param first the bytes read while detecting the protocol */
  start(first: Uint8Array): void {
    this.socket.on('data', this.#onData);
    this.#onData(first);
  }

  get peerAddress(): string | undefined {
    return this.socket.remoteAddress;
  }

  /** As the gate of access control names it. */
  get authorization(): string {
    return this.authentication;
  }

  get certificate(): ClientCertificate | undefined {
    return getPeerCertificate(this.socket);
  }

  /** A call is in flight. */
  get isBusy(): boolean {
    return this.#callsInFlight > 0;
  }

  /** Closes a connection that has been idle for too long. Call it periodically. */
  sweep(nowMs: number): void {
    const { idleMs } = this.#server.limits;
    if (this.#wasActive || this.isBusy) {
      this.#wasActive = false;
      this.#lastActiveMs = nowMs;
    } else if (idleMs > 0 && nowMs - this.#lastActiveMs > idleMs) this.socket.destroy();
  }

  /** Flushes the output and closes the connection. */
  end(): void {
    this.#isEnded = true;
    this.#flush();
    this.socket.destroySoon();
  }

  readonly #onData = (chunk: Uint8Array): void => {
    if (this.#isEnded) return;
    this.#wasActive = true;
    this.#decoder.push(chunk);
    this.#process();
  };

  #process(): void {
    const decoder = this.#decoder;
    try {
      while (!this.#isBlocked && decoder.next()) {
        const output = this.#handle(decoder.frame);
        if (output.length >= FLUSH_BYTES) this.#flush();
      }
      this.#updateInputBufferBytes(decoder.capacityBytes);
      if (this.#server.inputBufferBytes > INPUT_BUFFERS_TOTAL_BYTES) {
        decoder.releaseBuffers();
        this.#updateInputBufferBytes(decoder.capacityBytes);
      }
      this.#updateUnfinishedFrameBytes(decoder.bufferedBytes);
    } catch (error) {
      this.#closeWithError(CubeError.from(error));
      return;
    }
    this.#flush();
  }

  #handle(frame: Frame): OutputBuffer {
    const server = this.#server;
    this.#output ??= server.bufferPool.acquire();
    const output = this.#output;
    const route = server.routes.findRoute(frame.service, frame.method);
    if (route === undefined) {
      server.unknownMethodCalls++;
      this.#writeError(
        output,
        frame,
        createUnknownMethodError(frame, server.routes.hasService(frame.service)),
      );
      return output;
    }
    route.requests++;
    if (frame.authenticationEnd > frame.authenticationStart) this.#storeAuthentication(frame);
    const isTimed = --server.callsUntilSample === 0;
    const startMs = isTimed ? systemClock.nowMs() : 0;
    this.#run(route, frame, output);
    if (isTimed) {
      server.callsUntilSample = RpcRoutes.sampleInterval;
      // A deferred call is isTimed when it settles.
      if (server.response.deferred === undefined) {
        route.onSample((systemClock.nowMs() - startMs) / 1000);
      }
    }
    return output;
  }

  /** An oversized credential is dropped; no valid one is that long. */
  #storeAuthentication(frame: Frame): void {
    const byteCount = frame.authenticationEnd - frame.authenticationStart;
    this.authentication = byteCount > AUTHENTICATION_BYTES_MAX ? '' : readAuthentication(frame);
  }

  defer(route: RpcRoute, request: Frame): DeferredResponse {
    const server = this.#server;
    server.beginDeferredCall();
    this.#callsInFlight++;
    const startMs = systemClock.nowMs();
    const isTimed = server.callsUntilSample === 0;
    const responseContext = copyResponseContext(request);
    const { grant } = this;
    this.grant = undefined;
    const logId = readLogId(request);
    let reservedBytes = 0;
    return new DeferredResponse(server.bufferPool.acquire(), {
      responseContext,
      timeoutMs: request.timeoutMs,
      isConnected: () => !this.#isEnded && this.socket.writable,
      reserveBytes: (byteCount) => {
        reservedBytes += byteCount;
        server.unsentBytes += byteCount;
      },
      settle: (output, failure) => {
        grant?.end();
        server.unsentBytes -= reservedBytes;
        if (failure !== undefined) {
          this.#countFailure(route, failure, logId);
          this.#writeError(output, responseContext, failure);
        }
        if (isTimed) route.onSample((systemClock.nowMs() - startMs) / 1000);
        this.#callsInFlight--;
        this.#wasActive = true;
        this.#writeCorked(output);
        server.endDeferredCall();
      },
    });
  }

  /** Sends the deferred responses of one tick in one write. */
  #writeCorked(output: OutputBuffer): void {
    if (!this.#isCorked && this.socket.writable) {
      this.#isCorked = true;
      this.socket.cork();
      process.nextTick(() => {
        this.#isCorked = false;
        this.socket.uncork();
      });
    }
    this.#write(output);
  }

  #run(route: RpcRoute, frame: Frame, output: OutputBuffer): void {
    const { response, unsentBytes, limits, isStopping } = this.#server;
    response.start(output, frame, route, this);
    try {
      if (frame.error !== undefined) throw frame.error;
      if (isStopping)
        throw new CubeError('STOPPING', 'the server is stopping; call another replica');
      if (unsentBytes > limits.outputTotalBytes) {
        throw new CubeError(
          'OVERLOADED',
          'too many responses wait to be read by their callers; try again later',
        );
      }
      this.grant = this.#admit(route);
      const request = isEncoded(frame) ? decodePayload(frame, limits.inflatedBytes) : frame;
      if (frame.contentType === 0) route.handler(request, response);
      else handleJsonCall(route, request, response);
      if (response.deferred === undefined) response.finish();
    } catch (error) {
      response.discard();
      if (response.deferred !== undefined) {
        response.deferred.fail(error);
        return;
      }
      const failure = CubeError.from(error);
      this.#countFailure(route, failure, readLogId(frame));
      this.#writeError(output, frame, failure);
    } finally {
      // A deferred call has taken it.
      this.grant?.end();
      this.grant = undefined;
    }
  }

  /** @throws CubeError UNAUTHENTICATED, DENIED, RATE_LIMITED */
  #admit({ service, method }: RpcRoute): CallGrant | undefined {
    const { gate } = this.#server;
    if (gate === undefined) return undefined;
    return gate.admit(this, { protocol: 'baidu_std', verb: '', path: `/${service}/${method}` });
  }

  #countFailure(route: RpcRoute, failure: CubeError, logId: bigint): void {
    route.countError(failure.code);
    if (failure.code !== 'INTERNAL') return;
    const { service, method } = route;
    const fields = { err: failure.cause ?? failure, service, method, logId: String(logId) };
    this.#server.logger.error(fields, 'call failed');
  }

  /** Writes an error response, with the prefix that brpc puts before its texts. */
  #writeError(output: OutputBuffer, request: ResponseContext | undefined, error: CubeError): void {
    if (error.code === 'STOPPING') this.hasRefusedStopping = true;
    const { localAddress = '', localPort = 0 } = this.socket;
    const { brpc } = error.status;
    const message = error.message.slice(0, ERROR_TEXT_CHARS_MAX);
    const text = `[${formatEndpoint(localAddress, localPort)}][E${brpc}]${message}`;
    const details = encodeErrorDetails(error.details);
    writeErrorResponse(output, request, brpc, text, getWireErrorName(error.code), details);
  }

  #flush(): void {
    const output = this.#output;
    if (output === undefined) return;
    this.#output = undefined;
    this.#write(output);
  }

  #write(output: OutputBuffer): void {
    const server = this.#server;
    const byteCount = output.length;
    if (byteCount === 0 || !this.socket.writable) {
      server.bufferPool.release(output);
      return;
    }
    server.unsentBytes += byteCount;
    const taken = this.socket.write(output.writtenBytes(), () => {
      server.unsentBytes -= byteCount;
      server.bufferPool.release(output);
    });
    if (!taken && this.socket.writableLength > server.limits.outputHighWaterBytes) this.#block();
  }

  #block(): void {
    if (this.#isBlocked || this.#isEnded) return;
    this.#isBlocked = true;
    this.socket.pause();
    this.socket.once('drain', () => {
      this.#isBlocked = false;
      this.#wasActive = true;
      if (this.#isEnded) return;
      this.#process();
      if (!this.#isBlocked) this.socket.resume();
    });
  }

  #updateInputBufferBytes(heldBytes: number): void {
    this.#server.inputBufferBytes += heldBytes - this.#inputBufferBytes;
    this.#inputBufferBytes = heldBytes;
  }

  #updateUnfinishedFrameBytes(unfinishedBytes: number): void {
    const server = this.#server;
    server.unfinishedFrameBytes += unfinishedBytes - this.#unfinishedFrameBytes;
    this.#unfinishedFrameBytes = unfinishedBytes;
    if (unfinishedBytes > 0 && server.unfinishedFrameBytes > server.limits.inputTotalBytes) {
      throw new CubeError(
        'OVERLOADED',
        `${server.unfinishedFrameBytes} bytes of unfinished requests are buffered already; ` +
          'send smaller batches',
      );
    }
  }

  /** Reports a protocol error, after which no frame can be found, and closes the connection. */
  #closeWithError(error: CubeError): void {
    this.#server.brokenConnections++;
    this.#output ??= this.#server.bufferPool.acquire();
    this.#writeError(this.#output, undefined, error);
    this.#isEnded = true;
    this.#flush();
    this.#updateUnfinishedFrameBytes(0);
    this.socket.end();
    this.socket.resume();
    const timer = setTimeout(() => this.socket.destroy(), LINGER_MS);
    this.socket.once('close', () => clearTimeout(timer));
  }
}

/**
 * As in brpc: an unknown name without a package is an unknown service, any other name an unknown
 * method.
 */
function createUnknownMethodError({ service, method }: Frame, hasService: boolean): CubeError {
  const shown = shortenInput(service);
  if (hasService || service.includes('.')) {
    const text = `Fail to find method=${shown}/${shortenInput(method)}`;
    return new CubeError('UNSUPPORTED', text);
  }
  return new CubeError('NOT_FOUND', `Fail to find service=${shown}`);
}

function handleJsonCall(route: RpcRoute, request: Frame, response: RpcResponse): void {
  const { bytes, payloadStart, payloadEnd, contentType } = request;
  if (route.jsonHandler === undefined || contentType !== CONTENT_JSON) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `content_type ${contentType} (${CONTENT_NAMES[contentType]}) is not supported by ` +
        `${route.service}/${route.method}; send protobuf (0)`,
    );
  }
  const answer = route.jsonHandler(bytes.subarray(payloadStart, payloadEnd));
  if (typeof answer === 'string') {
    response.begin(0);
    response.output.append(textEncoder.encode(answer));
    return;
  }
  let deferred: DeferredResponse;
  try {
    deferred = response.defer();
  } catch (error) {
    answer.catch(() => undefined);
    throw error;
  }
  answer.then(
    (text) => {
      deferred.begin(0);
      deferred.output.append(textEncoder.encode(text));
      deferred.finish();
    },
    (error: unknown) => deferred.fail(error),
  );
}
