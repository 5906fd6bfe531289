/** A call to a process of the fleet: JSON over HTTP or HTTPS, with a deadline and a bound on the answer. */
import { type IncomingHttpHeaders, type IncomingMessage, request as requestPlain } from 'node:http';
import { request as requestSecure } from 'node:https';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import type { Credentials } from './credentials.ts';
import { parseEndpoint } from './endpoint.ts';

/** A status of a thousand versions has some 200 KB. */
const ANSWER_BYTES_MAX = 16 << 20;
/** Of the codes of connections that fail, those about the certificate that the other side shows. */
const NOT_BELIEVED =
  /^(ERR_TLS_CERT|CERT_|CRL_|UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|INVALID_|PATH_LENGTH_|HOSTNAME_)/;

export interface Peer {
  /** host:port */
  readonly address: string;
  readonly credentials: Credentials;
  /** For messages: "cube-server". */
  readonly name: string;
}

export interface CallOptions {
  /** Sent as JSON by POST; without one it is a GET. */
  readonly body?: object;
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
}

/** What a peer said, whatever it means. */
export interface TextAnswer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
}

/**
 * @throws CubeError the peer's own code and text; UNAVAILABLE or DEADLINE_EXCEEDED when there is no answer, DENIED when its
 *   certificate is not believed, TOO_LARGE when there is no end of the answer
 */
export async function callJson(
  peer: Peer,
  path: string,
  options: CallOptions,
): Promise<JsonReader> {
  const { status, text } = await callText(peer, path, options);
  const json = JsonReader.parse(text, `the answer of ${peer.address} to ${path}`);
  if (status < 400) return json;
  const code = json.optional('code', (field) => field.string()) ?? '';
  const message = json.optional('error', (field) => field.string()) ?? `HTTP status ${status}`;
  throw new CubeError(
    Object.hasOwn(ERROR_STATUS, code) ? (code as ErrorCode) : 'INTERNAL',
    message,
  );
}

/** @throws CubeError UNAVAILABLE, DEADLINE_EXCEEDED, DENIED or TOO_LARGE, as callJson */
export async function callText(
  peer: Peer,
  path: string,
  options: CallOptions,
): Promise<TextAnswer> {
  const { timeoutMs, signal } = options;
  const timeout = AbortSignal.timeout(timeoutMs);
  const ended = signal === undefined ? timeout : AbortSignal.any([signal, timeout]);
  try {
    const response = await send(peer, path, options.body, ended);
    const { statusCode: status = 0, headers } = response;
    // An answer that sends us elsewhere, with our token, is none of ours.
    if (status >= 300 && status < 400) throw new Error(`it leads elsewhere, HTTP ${status}`);
    return { status, headers, text: await boundedText(response, peer) };
  } catch (error) {
    throw noAnswer(error, peer, { ...options, timeout });
  }
}

function send(
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

/** Leaving the loop ends the connection, and with it the rest of the answer. */
async function boundedText(response: IncomingMessage, { name, address }: Peer): Promise<string> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of response as AsyncIterable<Uint8Array>) {
    bytes += piece.length;
    if (bytes > ANSWER_BYTES_MAX) {
      throw new CubeError(
        'TOO_LARGE',
        `${name} at ${address} answers more than ${ANSWER_BYTES_MAX} bytes; is it one?`,
      );
    }
    pieces.push(piece);
  }
  return Buffer.concat(pieces).toString();
}

function noAnswer(
  error: unknown,
  { name, address }: Peer,
  { timeout, timeoutMs, signal }: CallOptions & { timeout: AbortSignal },
): CubeError {
  if (error instanceof CubeError) return error;
  if (signal?.aborted) return new CubeError('STOPPING', 'stopped', { cause: error });
  if (timeout.aborted) {
    const text = `${name} at ${address} did not answer within ${timeoutMs} ms`;
    return new CubeError('DEADLINE_EXCEEDED', text, { cause: error });
  }
  const { code = '', message } = error as NodeJS.ErrnoException;
  if (NOT_BELIEVED.test(code)) {
    const text = `the certificate of ${name} at ${address} is not believed (${code}: ${message})`;
    return new CubeError('DENIED', text, { cause: error });
  }
  const isPlain = code === 'EPROTO' && message.includes('wrong version number');
  const why = isPlain ? 'it does not speak TLS: give it a certificate' : code || message;
  return new CubeError('UNAVAILABLE', `no ${name} answers at ${address} (${why})`, {
    cause: error,
  });
}
