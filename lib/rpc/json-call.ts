/**
 * Calls a process of the fleet: JSON over HTTP or HTTPS, with a deadline and a limit on the
 * response.
 */
import { type IncomingHttpHeaders, type IncomingMessage, request as requestPlain } from 'node:http';
import { request as requestSecure } from 'node:https';
import { toErrorDetails } from '../core/error-details.ts';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import type { Credentials } from './credentials.ts';
import { parseEndpoint } from './endpoint.ts';

/** Far above the status of a thousand versions, about 200 KB. */
const RESPONSE_BYTES_MAX = 16 << 20;
/** The codes of failed connections that concern the peer's certificate. */
const CERTIFICATE_ERROR_CODES =
  /^(ERR_TLS_CERT|CERT_|CRL_|UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|INVALID_|PATH_LENGTH_|HOSTNAME_)/;

/** The codes of responses by servers of another kind. */
const STATUS_CODES: Readonly<Record<number, ErrorCode>> = {
  401: 'DENIED',
  403: 'DENIED',
  404: 'NOT_FOUND',
  503: 'UNAVAILABLE',
};
const SHOWN_CHARS_MAX = 200;

export interface Peer {
  /** host:port */
  readonly address: string;
  readonly credentials: Credentials;
  /** The kind of process, for messages: "cube-server". */
  readonly role: string;
}

export interface JsonCallOptions {
  /** Sent as JSON with POST; without a body the call is a GET. */
  readonly body?: object;
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
  /** Precedes the messages of the peer's own errors. */
  readonly errorPrefix?: string;
}

/** A peer's response, successful or not. */
export interface TextResponse {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
}

/**
 * Returns the JSON of a successful response.
 * @throws CubeError with the peer's own code and message; UNAVAILABLE or DEADLINE_EXCEEDED without
 *   a response, DENIED when the peer's certificate is not trusted, TOO_LARGE when the response
 *   exceeds its limit
 */
export async function callJson(
  peer: Peer,
  path: string,
  options: JsonCallOptions,
): Promise<JsonReader> {
  return readJson(peer, path, await callText(peer, path, options), options.errorPrefix ?? '');
}

/** Returns the JSON of a response. @throws CubeError as `callJson` */
export function readJson(
  peer: Peer,
  path: string,
  { status, text }: TextResponse,
  errorPrefix: string,
): JsonReader {
  if (status >= 400 && !text.startsWith('{')) {
    const shown = text.slice(0, SHOWN_CHARS_MAX);
    throw new CubeError(
      STATUS_CODES[status] ?? 'INTERNAL',
      `${peer.address} answered ${path} with HTTP status ${status}: ${shown}; ` +
        `check that it is a ${peer.role}`,
      { details: { server: peer.address } },
    );
  }
  const json = JsonReader.parse(text, `the response of ${peer.address} to ${path}`);
  if (status < 400) return json;
  const code = json.optional('code', (field) => field.string()) ?? '';
  const message = json.optional('error', (field) => field.string()) ?? `HTTP status ${status}`;
  const details = json.optional('details', (field) => toErrorDetails(field.value));
  throw new CubeError(
    Object.hasOwn(ERROR_STATUS, code) ? (code as ErrorCode) : 'INTERNAL',
    `${errorPrefix}${message}`,
    { details: { server: peer.address, ...details } },
  );
}

/**
 * Returns any response. @throws CubeError UNAVAILABLE, DEADLINE_EXCEEDED, DENIED or TOO_LARGE, as
 * callJson
 */
export async function callText(
  peer: Peer,
  path: string,
  options: JsonCallOptions,
): Promise<TextResponse> {
  const { timeoutMs, signal } = options;
  const timeout = AbortSignal.timeout(timeoutMs);
  const ended = signal === undefined ? timeout : AbortSignal.any([signal, timeout]);
  try {
    const response = await sendRequest(peer, path, options.body, ended);
    const { statusCode: status = 0, headers } = response;
    // Our servers never redirect, and the token must not be sent elsewhere.
    if (status >= 300 && status < 400) throw new Error(`it redirects elsewhere, HTTP ${status}`);
    return { status, headers, text: await readBoundedText(response, peer) };
  } catch (error) {
    throw toCallError(error, peer, { ...options, timeout });
  }
}

function sendRequest(
  { address, credentials }: Peer,
  path: string,
  body: object | undefined,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  const { token, tlsAgent: agent } = credentials;
  const text = body && JSON.stringify(body);
  const headers = {
    ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
    ...(text === undefined
      ? {}
      : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }),
  };
  const method = text === undefined ? 'GET' : 'POST';
  const options = { ...parseEndpoint(address), path, method, headers, signal };
  return new Promise((resolve, reject) => {
    const request =
      agent === undefined ? requestPlain(options) : requestSecure({ ...options, agent });
    request.on('response', resolve).on('error', reject).end(text);
  });
}

/** A response above the limit closes the connection. */
function readBoundedText(response: IncomingMessage, { role, address }: Peer): Promise<string> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  return new Promise((resolve, reject) => {
    response.on('data', (piece: Uint8Array) => {
      bytes += piece.length;
      pieces.push(piece);
      if (bytes <= RESPONSE_BYTES_MAX) return;
      const text = `${role} at ${address} sent more than ${RESPONSE_BYTES_MAX} bytes; `;
      const details = { server: address };
      response.destroy(
        new CubeError('TOO_LARGE', `${text}check that it is a ${role}`, { details }),
      );
    });
    response.on('end', () => resolve(Buffer.concat(pieces).toString()));
    response.on('error', reject);
  });
}

function toCallError(
  error: unknown,
  { role, address }: Peer,
  { timeout, timeoutMs, signal }: JsonCallOptions & { timeout: AbortSignal },
): CubeError {
  if (error instanceof CubeError) return error;
  const options = { cause: error, details: { server: address } };
  if (signal?.aborted) return new CubeError('STOPPING', 'the call was cancelled', options);
  if (timeout.aborted) {
    const text = `${role} at ${address} did not answer within ${timeoutMs} ms`;
    return new CubeError('DEADLINE_EXCEEDED', text, options);
  }
  const { code = '', message } = error as NodeJS.ErrnoException;
  if (CERTIFICATE_ERROR_CODES.test(code)) {
    const text = `the certificate of ${role} at ${address} is not trusted (${code}: ${message})`;
    return new CubeError('DENIED', text, options);
  }
  const isPlain = code === 'EPROTO' && message.includes('wrong version number');
  const reason = isPlain ? 'it does not use TLS: give it a certificate' : code || message;
  return new CubeError('UNAVAILABLE', `no ${role} answers at ${address} (${reason})`, options);
}
