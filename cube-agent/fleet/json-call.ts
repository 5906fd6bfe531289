/** A call to a process of the fleet: JSON over HTTP, with a deadline and a bound on the answer. */
import { CubeError, ERROR_STATUS, type ErrorCode } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';

/** A status of a thousand versions has some 200 KB. */
const ANSWER_BYTES_MAX = 16 << 20;

export interface Peer {
  /** host:port */
  readonly address: string;
  readonly token: string | undefined;
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
  readonly headers: Headers;
  readonly text: string;
}

/**
 * @throws CubeError the peer's own code and text; UNAVAILABLE or DEADLINE_EXCEEDED when there is no answer, TOO_LARGE when
 *   there is no end of it
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

/** @throws CubeError UNAVAILABLE, DEADLINE_EXCEEDED or TOO_LARGE, as callJson */
export async function callText(
  peer: Peer,
  path: string,
  options: CallOptions,
): Promise<TextAnswer> {
  const { body, timeoutMs, signal } = options;
  const timeout = AbortSignal.timeout(timeoutMs);
  const headers: Record<string, string> = {};
  if (peer.token !== undefined) headers['authorization'] = `Bearer ${peer.token}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  const init: RequestInit =
    body === undefined ? { headers } : { method: 'POST', headers, body: JSON.stringify(body) };
  try {
    const response = await fetch(`http://${peer.address}${path}`, {
      ...init,
      // An answer that sends us elsewhere, with our token, is none of ours.
      redirect: 'error',
      signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
    });
    const text = await boundedText(response, peer);
    return { status: response.status, headers: response.headers, text };
  } catch (error) {
    throw noAnswer(error, peer, { ...options, timeout });
  }
}

/** Leaving the loop cancels the rest of the answer. */
async function boundedText({ body }: Response, { name, address }: Peer): Promise<string> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of body ?? []) {
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
  const { cause } = error as { cause?: { code?: string; message?: string } };
  const told = cause?.code ?? cause?.message ?? (error as Error).message;
  // The fetch standard forbids ports of other protocols (6000, 6665 to 6669, 10080 and so on).
  const why = told === 'bad port' ? 'HTTP clients refuse this port; take another' : told;
  return new CubeError('UNAVAILABLE', `no ${name} answers at ${address} (${why})`, {
    cause: error,
  });
}
