/**
 * Requests to a server of static files: bounded redirects, times and retries. Credentials in the URL go to its own origin
 * only, and are in no message.
 */
import { CubeError } from '../core/errors.ts';
import type { Clock } from '../platform/clock.ts';
import { PaceTimer } from './pace-timer.ts';

const REDIRECTS_MAX = 5;
const TRIES_MAX = 4;
const FIRST_PAUSE_MS = 100;
/** Answers that a later try may improve. */
const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]);

export interface HttpClientOptions {
  readonly clock: Clock;
  /** A request is given up when in so many milliseconds nothing comes, or less than 1 KiB a second. */
  readonly idleMs: number;
}

export interface HttpAnswer {
  readonly status: number;
  readonly headers: Headers;
  /** Pieces of the body as they come. @throws CubeError UNAVAILABLE when it is cut or stands still; STOPPING */
  body(): AsyncGenerator<Uint8Array>;
  /** Ends a body that nobody reads. */
  discard(): void;
}

export class HttpClient {
  /** Of the base, without credentials and slash at its end. */
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
        `${url.origin}${url.pathname}: a repository's URL has no query and no fragment`,
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

  /** @returns an answer whose status is not a passing failure. @throws CubeError UNAVAILABLE, DENIED; STOPPING by the signal */
  async request(
    method: 'GET' | 'HEAD',
    path: string,
    headers: Readonly<Record<string, string>> = {},
    signal?: AbortSignal,
  ): Promise<HttpAnswer> {
    const wish = { method, headers, signal };
    for (let attempt = 1; ; attempt++) {
      const outcome = await this.#once(path, wish).catch((error: unknown) => error);
      const isFinal = attempt === TRIES_MAX;
      if (outcome instanceof CubeError) {
        if (isFinal || outcome.code !== 'UNAVAILABLE') throw outcome;
      } else {
        const answer = outcome as HttpAnswer;
        if (!PASSING.has(answer.status)) return answer;
        answer.discard();
        if (isFinal) {
          throw new CubeError('UNAVAILABLE', `${this.location}/${path}: answers ${answer.status}`);
        }
      }
      await this.#options.clock.sleep(FIRST_PAUSE_MS * 2 ** (attempt - 1), signal);
    }
  }

  async #once(path: string, wish: Wish): Promise<HttpAnswer> {
    const name = `${this.location}/${path}`;
    let url = new URL(path, this.#base);
    for (let redirects = 0; redirects <= REDIRECTS_MAX; redirects++) {
      const answer = await this.#send(url, wish, name);
      if (answer.status < 300 || answer.status >= 400 || answer.status === 304) {
        refuseUnusable(answer, name);
        return answer;
      }
      answer.discard();
      url = redirectTarget(url, answer.headers.get('location'), name);
    }
    throw new CubeError('UNSUPPORTED', `${name}: redirected more than ${REDIRECTS_MAX} times`);
  }

  async #send(url: URL, { method, headers, signal }: Wish, name: string): Promise<HttpAnswer> {
    const isOwn = url.origin === this.#base.origin && this.#authorization !== undefined;
    const pace = new PaceTimer(this.#options.idleMs);
    const signals = [pace.signal, ...(signal === undefined ? [] : [signal])];
    try {
      const response = await fetch(url, {
        method,
        redirect: 'manual',
        signal: AbortSignal.any(signals),
        headers: {
          // What is compressed on the way has other bytes than those that were asked for.
          'accept-encoding': 'identity',
          ...headers,
          ...(isOwn ? { authorization: this.#authorization ?? '' } : {}),
        },
      });
      return toAnswer(response, pace, (error) => failure(name, error, signal));
    } catch (error) {
      pace.stop();
      throw failure(name, error, signal);
    }
  }
}

interface Wish {
  readonly method: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly signal: AbortSignal | undefined;
}

function toAnswer(
  response: Response,
  pace: PaceTimer,
  failed: (error: unknown) => CubeError,
): HttpAnswer {
  const body = async function* (): AsyncGenerator<Uint8Array> {
    try {
      for await (const piece of response.body ?? []) {
        pace.count((piece as Uint8Array).length);
        yield piece as Uint8Array;
      }
    } catch (error) {
      throw failed(error);
    } finally {
      pace.stop();
    }
  };
  const discard = (): void => {
    pace.stop();
    // A body that was cut rejects here, and nobody wants it.
    response.body?.cancel().catch(() => undefined);
  };
  return { status: response.status, headers: response.headers, body, discard };
}

function parseUrl(text: string): URL {
  try {
    return new URL(text);
  } catch (error) {
    throw new CubeError('INVALID_ARGUMENT', 'the repository is not a URL', { cause: error });
  }
}

function refuseUnusable(answer: HttpAnswer, name: string): void {
  const coding = answer.headers.get('content-encoding') ?? 'identity';
  if (answer.status === 401 || answer.status === 403) {
    answer.discard();
    throw new CubeError(
      'DENIED',
      `${name}: the server answers ${answer.status}; give credentials as https://user:password@host/…, ` +
        'or let it say 404 for what is absent',
    );
  }
  if (coding === 'identity') return;
  answer.discard();
  throw new CubeError(
    'UNSUPPORTED',
    `${name}: the server sends it as ${coding} although identity was asked for; switch that off for the repository`,
  );
}

/** @throws CubeError UNSUPPORTED for a redirect to where a repository must not lead */
function redirectTarget(from: URL, location: string | null, name: string): URL {
  const target = URL.canParse(location ?? '', from.href)
    ? new URL(location ?? '', from)
    : undefined;
  if (location === null || target === undefined) {
    throw new CubeError('UNSUPPORTED', `${name}: a redirect to nowhere`);
  }
  const isSafer = target.protocol === 'https:' || target.protocol === from.protocol;
  if (!isSafer || !/^https?:$/.test(target.protocol)) {
    throw new CubeError(
      'UNSUPPORTED',
      `${name}: a redirect from ${from.protocol}// to ${target.protocol}// is not followed`,
    );
  }
  target.username = '';
  target.password = '';
  return target;
}

function failure(name: string, error: unknown, signal: AbortSignal | undefined): CubeError {
  if (error instanceof CubeError) return error;
  if (signal?.aborted) return new CubeError('STOPPING', `stopped while reading ${name}`);
  const { message, cause } = error as Error;
  const why = cause instanceof Error ? cause.message || String(cause) : message;
  return new CubeError('UNAVAILABLE', `${name}: ${why}`, { cause: error });
}
