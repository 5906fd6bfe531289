/**
 * Requests to a server of static files, with limited redirects, time and retries. Credentials of
 * the URL are sent only to its own origin and appear in no message.
 */
import { CubeError } from '../core/errors.ts';
import type { Clock } from '../platform/clock.ts';
import { StallDetector } from './remote-reads.ts';

const REDIRECTS_MAX = 5;
const ATTEMPTS_MAX = 4;
const FIRST_BACKOFF_MS = 100;
/** Statuses that a retry may change. */
const TRANSIENT_STATUSES = new Set([408, 425, 429, 500, 502, 503, 504]);

export interface HttpClientOptions {
  readonly clock: Clock;
  /** A request fails if in this time (ms) nothing arrives, or less than 1 KiB per second. */
  readonly idleMs: number;
}

export interface HttpResponse {
  readonly status: number;
  readonly headers: Headers;
  /** Streams the body. @throws CubeError UNAVAILABLE if it is cut off or stalls; STOPPING */
  body(): AsyncGenerator<Uint8Array>;
  /** Drops an unread body. */
  discard(): void;
}

export class HttpClient {
  /** The base URL without credentials and trailing slash. */
  readonly location: string;
  readonly #base: URL;
  readonly #authorization: string | undefined;
  readonly #options: HttpClientOptions;

  /** @throws CubeError INVALID_ARGUMENT */
  constructor(base: string, options: HttpClientOptions) {
    const url = parseUrl(base);
    if (url.search !== '' || url.hash !== '') {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${url.origin}${url.pathname}: the URL of a repository must not have a query or a fragment`,
      );
    }
    const user = decodeURIComponent(url.username);
    const password = decodeURIComponent(url.password);
    this.#authorization =
      user === '' && password === ''
        ? undefined
        : `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}`;
    url.username = '';
    url.password = '';
    url.pathname = url.pathname.replace(/\/*$/, '/');
    this.#base = url;
    this.location = url.href.slice(0, -1);
    this.#options = options;
  }

  /**
   * Retries transient failures.
   * @returns a response of any other status
   * @throws CubeError UNAVAILABLE, DENIED, UNSUPPORTED; STOPPING by the signal
   */
  async request(
    method: 'GET' | 'HEAD',
    path: string,
    headers: Readonly<Record<string, string>> = {},
    signal?: AbortSignal,
  ): Promise<HttpResponse> {
    const request = { method, headers, signal };
    for (let attempt = 1; ; attempt++) {
      const outcome = await this.#once(path, request).catch((error: unknown) => error);
      const isFinal = attempt === ATTEMPTS_MAX;
      if (outcome instanceof CubeError) {
        if (isFinal || outcome.code !== 'UNAVAILABLE') throw outcome;
      } else {
        const response = outcome as HttpResponse;
        if (!TRANSIENT_STATUSES.has(response.status)) return response;
        response.discard();
        if (isFinal) {
          throw new CubeError(
            'UNAVAILABLE',
            `${this.location}/${path}: the server responded with HTTP ${response.status}`,
          );
        }
      }
      await this.#options.clock.sleep(FIRST_BACKOFF_MS * 2 ** (attempt - 1), signal);
    }
  }

  async #once(path: string, request: HttpRequest): Promise<HttpResponse> {
    const name = `${this.location}/${path}`;
    let url = new URL(path, this.#base);
    for (let redirects = 0; redirects <= REDIRECTS_MAX; redirects++) {
      const response = await this.#send(url, request, name);
      if (response.status < 300 || response.status >= 400 || response.status === 304) {
        requireUsableResponse(response, name);
        return response;
      }
      response.discard();
      url = redirectTarget(url, response.headers.get('location'), name);
    }
    throw new CubeError('UNSUPPORTED', `${name}: redirected more than ${REDIRECTS_MAX} times`);
  }

  async #send(
    url: URL,
    { method, headers, signal }: HttpRequest,
    name: string,
  ): Promise<HttpResponse> {
    const isOwn = url.origin === this.#base.origin && this.#authorization !== undefined;
    const stall = new StallDetector(this.#options.idleMs);
    const signals = [stall.signal, ...(signal === undefined ? [] : [signal])];
    try {
      const response = await fetch(url, {
        method,
        redirect: 'manual',
        signal: AbortSignal.any(signals),
        headers: {
          // A compressed body would have other bytes than the requested range.
          'accept-encoding': 'identity',
          ...headers,
          ...(isOwn ? { authorization: this.#authorization ?? '' } : {}),
        },
      });
      return toHttpResponse(response, stall, (error) => toCubeError(name, error, signal));
    } catch (error) {
      stall.stop();
      throw toCubeError(name, error, signal);
    }
  }
}

interface HttpRequest {
  readonly method: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly signal: AbortSignal | undefined;
}

function toHttpResponse(
  response: Response,
  stall: StallDetector,
  failed: (error: unknown) => CubeError,
): HttpResponse {
  const body = async function* (): AsyncGenerator<Uint8Array> {
    try {
      for await (const chunk of response.body ?? []) {
        stall.count((chunk as Uint8Array).length);
        yield chunk as Uint8Array;
      }
    } catch (error) {
      throw failed(error);
    } finally {
      stall.stop();
    }
  };
  const discard = (): void => {
    stall.stop();
    // A body that was cut off rejects here; it is dropped anyway.
    response.body?.cancel().catch(() => undefined);
  };
  return { status: response.status, headers: response.headers, body, discard };
}

function parseUrl(text: string): URL {
  try {
    return new URL(text);
  } catch (error) {
    throw new CubeError('INVALID_ARGUMENT', 'the location of the repository is not a valid URL', {
      cause: error,
    });
  }
}

function requireUsableResponse(response: HttpResponse, name: string): void {
  const coding = response.headers.get('content-encoding') ?? 'identity';
  if (response.status === 401 || response.status === 403) {
    response.discard();
    throw new CubeError(
      'DENIED',
      `${name}: the server responded with HTTP ${response.status}; put credentials into the URL ` +
        '(https://user:password@host/…), or have the server respond with 404 for missing files',
    );
  }
  if (coding === 'identity') return;
  response.discard();
  throw new CubeError(
    'UNSUPPORTED',
    `${name}: the server sent content-encoding ${coding} although identity was requested; ` +
      'switch compression off for the repository',
  );
}

/** @throws CubeError UNSUPPORTED for a redirect to a less secure or unknown scheme */
function redirectTarget(from: URL, location: string | null, name: string): URL {
  const target = URL.canParse(location ?? '', from.href)
    ? new URL(location ?? '', from)
    : undefined;
  if (location === null || target === undefined) {
    throw new CubeError('UNSUPPORTED', `${name}: the redirect has no valid location`);
  }
  const isSafer = target.protocol === 'https:' || target.protocol === from.protocol;
  if (!isSafer || !/^https?:$/.test(target.protocol)) {
    throw new CubeError(
      'UNSUPPORTED',
      `${name}: redirects from ${from.protocol}// to ${target.protocol}// are not allowed`,
    );
  }
  target.username = '';
  target.password = '';
  return target;
}

function toCubeError(name: string, error: unknown, signal: AbortSignal | undefined): CubeError {
  if (error instanceof CubeError) return error;
  if (signal?.aborted) return new CubeError('STOPPING', `stopped while reading ${name}`);
  const { message, cause } = error as Error;
  const reason = cause instanceof Error ? cause.message || String(cause) : message;
  return new CubeError('UNAVAILABLE', `${name}: ${reason}`, { cause: error });
}
