/**
 * Calls of one server over HTTP/1.1, as the connections of a replica: binary protobuf in the body
 * of `POST /<service>/<method>`, on kept connections.
 */
import { type ClientRequest, Agent as HttpAgent, type IncomingMessage, request } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { CubeError } from '../core/errors.ts';
import { LiveEntry, LiveList } from '../core/live-list.ts';
import { startTimer } from '../platform/clock.ts';
import type { CallOptions, CallResult } from '../rpc/channel.ts';
import { COMPRESSION_GZIP, compress, decompress } from '../rpc/compression.ts';
import { type Credentials, NO_CREDENTIALS } from '../rpc/credentials.ts';
import {
  type ConnectionLimits,
  type Connections,
  type ConnectionType,
  IDLE_CONNECTIONS_MAX,
} from './connections.ts';
import { readHttpBody } from './http-body.ts';
import { createTimeoutError, toConnectionError, toStatusError } from './http-errors.ts';

const CONTENT_TYPE = 'application/proto';
const RESPONSE_BYTES_MAX = 256 << 20;
/** As the channels of the other protocols. */
const CALLS_IN_FLIGHT_MAX = 1024;
const CONNECT_TIMEOUT_MS = 1_000;
const NO_BYTES = new Uint8Array(0);

export class HttpConnections implements Connections {
  readonly #endpoint: string;
  readonly #isShort: boolean;
  readonly #limits: ConnectionLimits;
  readonly #credentials: Credentials;
  readonly #requests = new LiveList<LiveEntry<ClientRequest>>();
  /** The options of TLS that the agent uses. */
  #tlsOptions: object | undefined;
  #agent: HttpAgent | undefined;
  #isClosed = false;

  /**
   * @param endpoint host:port
   * @param type HTTP/1.1 has one call at a time on a connection: `single` is `pooled`
   */
  constructor(
    endpoint: string,
    type: ConnectionType,
    limits: ConnectionLimits,
    credentials: Credentials = NO_CREDENTIALS,
  ) {
    this.#endpoint = endpoint;
    this.#isShort = type === 'short';
    this.#limits = limits;
    this.#credentials = credentials;
  }

  async call(
    service: string,
    method: string,
    payload: Uint8Array,
    _attachment: Uint8Array,
    timeoutMs: number,
    options: CallOptions = {},
    signal?: AbortSignal,
  ): Promise<CallResult> {
    const host = this.#endpoint;
    if (this.#isClosed) throw new CubeError('UNAVAILABLE', `${host}: the connections were closed`);
    if (this.#requests.size >= CALLS_IN_FLIGHT_MAX) {
      const text = `${host}: ${CALLS_IN_FLIGHT_MAX} calls are in flight; send fewer at once`;
      throw new CubeError('OVERLOADED', text);
    }
    const isPacked = options.compressType === COMPRESSION_GZIP;
    const body = isPacked ? compress(COMPRESSION_GZIP, payload) : payload;
    const { token } = this.#credentials;
    const headers = {
      'content-type': CONTENT_TYPE,
      'content-length': body.length,
      'timeout-ms': Math.max(1, Math.floor(timeoutMs)),
      ...(isPacked && { 'content-encoding': 'gzip', 'accept-encoding': 'gzip' }),
      ...(options.traceparent !== undefined && { traceparent: options.traceparent }),
      ...(token !== undefined && { authorization: `Bearer ${token}` }),
    };
    const path = `/${service}/${method}`;
    const response = await this.#send(path, headers, body, timeoutMs, signal);
    return { payload: await this.#readPayload(response), attachment: NO_BYTES };
  }

  close(): void {
    this.#isClosed = true;
    this.#requests.forEach(({ value }) => {
      value.destroy(new CubeError('UNAVAILABLE', `${this.#endpoint}: the connections were closed`));
    });
    this.#agent?.destroy();
  }

  #send(
    path: string,
    headers: Readonly<Record<string, string | number>>,
    body: Uint8Array,
    timeoutMs: number,
    signal: AbortSignal | undefined,
  ): Promise<IncomingMessage> {
    const tlsOptions = this.#credentials.tlsOptions;
    const url = `${tlsOptions === undefined ? 'http' : 'https'}://${this.#endpoint}${path}`;
    const agent = this.#getAgent(tlsOptions);
    return new Promise((resolve, reject) => {
      const send = tlsOptions === undefined ? request : httpsRequest;
      const sent = send(url, { method: 'POST', agent, headers, ...(signal && { signal }) });
      const entry = new LiveEntry(sent);
      this.#requests.add(entry);
      const expire = (): void => {
        sent.destroy(createTimeoutError(this.#endpoint, timeoutMs));
      };
      const timer = startTimer(expire, timeoutMs);
      sent.once('response', resolve);
      sent.once('error', (error) => reject(toConnectionError(error, this.#endpoint)));
      sent.once('close', () => {
        clearTimeout(timer);
        this.#requests.delete(entry);
        reject(new CubeError('UNAVAILABLE', `${this.#endpoint}: the connection was closed`));
      });
      this.#limitConnecting(sent);
      sent.end(body);
    });
  }

  #limitConnecting(sent: ClientRequest): void {
    const { connectTimeoutMs = CONNECT_TIMEOUT_MS } = this.#limits;
    sent.once('socket', (socket) => {
      if (!socket.connecting) return;
      const expire = (): void => {
        const text = `${this.#endpoint}: no connection within ${connectTimeoutMs} ms`;
        sent.destroy(new CubeError('UNAVAILABLE', text));
      };
      const timer = startTimer(expire, connectTimeoutMs);
      const stop = (): void => clearTimeout(timer);
      socket.once('connect', stop);
      socket.once('close', stop);
    });
  }

  /** A failure with a message in protobuf is reported by the reader of the message. */
  async #readPayload(response: IncomingMessage): Promise<Uint8Array> {
    const host = this.#endpoint;
    const raw = await readHttpBody(response, host, RESPONSE_BYTES_MAX);
    const { statusCode: status = 0, headers } = response;
    const isPacked = headers['content-encoding'] === 'gzip';
    const body = isPacked ? decompress(COMPRESSION_GZIP, raw, RESPONSE_BYTES_MAX) : raw;
    const isMessage = headers['content-type']?.startsWith(CONTENT_TYPE) === true;
    if (isMessage && (status === 200 || body.length > 0)) return body;
    if (status !== 200) throw toStatusError(status, Buffer.from(body).toString(), host);
    const type = headers['content-type'] ?? 'no content type';
    throw new CubeError('INTERNAL', `${host}: expected a response in ${CONTENT_TYPE}, got ${type}`);
  }

  /** Changed certificates take effect with new connections; open ones close when they are idle. */
  #getAgent(tlsOptions: object | undefined): HttpAgent {
    if (this.#agent !== undefined && tlsOptions === this.#tlsOptions) return this.#agent;
    this.#tlsOptions = tlsOptions;
    const { idleConnectionsMax: maxFreeSockets = IDLE_CONNECTIONS_MAX } = this.#limits;
    const options = { keepAlive: !this.#isShort, maxFreeSockets, ...tlsOptions };
    this.#agent = tlsOptions === undefined ? new HttpAgent(options) : new HttpsAgent(options);
    return this.#agent;
  }
}
