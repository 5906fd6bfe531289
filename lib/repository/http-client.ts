/**
 * Requests to a server of static files: bounded redirects, times and retries. Credentials in the URL go to its own origin
 * only, and are in no message.
 */
import { CubeError } from '../core/errors.ts';
import type { Clock } from '../platform/clock.ts';

const REDIRECTS_MAX = 5;
const TRIES_MAX = 4;
const FIRST_PAUSE_MS = 100;
/** Answers that a later try may improve. */
const PASSING = new Set([408, 425, 429, 500, 502, 503, 504]);

export interface HttpClientOptions {
  readonly clock: Clock;
  /** Milliseconds without a byte after which a request is given up. */
  readonly idleMs: number;
}

export interface HttpAnswer {
  readonly status: number;
  readonly headers: Headers;
  /** Pieces of the body as they come. @throws CubeError UNAVAILABLE when it is cut or stands still */
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

  /** @returns an answer whose status is not a passing failure. @throws CubeError UNAVAILABLE, DENIED */
  async request(
    method: 'GET' | 'HEAD',
    path: string,
    headers: Readonly<Record<string, string>> = {},
  ): Promise<HttpAnswer> {
    for (let attempt = 1; ; attempt++) {
      const outcome = await this.#once(method, path, headers).catch((error: unknown) => error);
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
      await this.#options.clock.sleep(FIRST_PAUSE_MS * 2 ** (attempt - 1));
    }
  }

  async #once(
    method: string,
    path: string,
    headers: Readonly<Record<string, string>>,
  ): Promise<HttpAnswer> {
    const name = `${this.location}/${path}`;
    let url = new URL(path, this.#base);
    for (let redirects = 0; redirects <= REDIRECTS_MAX; redirects++) {
      const answer = await this.#send(method, url, headers, name);
      if (answer.status < 300 || answer.status >= 400 || answer.status === 304) {
        refuseUnusable(answer, name);
        return answer;
      }
      answer.discard();
      url = redirectTarget(url, answer.headers.get('location'), name);
    }
    throw new CubeError('UNSUPPORTED', `${name}: redirected more than ${REDIRECTS_MAX} times`);
  }

  async #send(
    method: string,
    url: URL,
    headers: Readonly<Record<string, string>>,
    name: string,
  ): Promise<HttpAnswer> {
    const isOwn = url.origin === this.#base.origin && this.#authorization !== undefined;
    const idle = new IdleTimer(this.#options.idleMs);
    try {
      const response = await fetch(url, {
        method,
        redirect: 'manual',
        signal: idle.signal,
        headers: {
          // What is compressed on the way has other bytes than those that were asked for.
          'accept-encoding': 'identity',
          ...headers,
          ...(isOwn ? { authorization: this.#authorization ?? '' } : {}),
        },
      });
      return toAnswer(response, idle, name);
    } catch (error) {
      idle.stop();
      throw unavailable(name, error);
    }
  }
}

function toAnswer(response: Response, idle: IdleTimer, name: string): HttpAnswer {
  const body = async function* (): AsyncGenerator<Uint8Array> {
    try {
      for await (const piece of response.body ?? []) {
        idle.touch();
        yield piece as Uint8Array;
      }
    } catch (error) {
      throw unavailable(name, error);
    } finally {
      idle.stop();
    }
  };
  const discard = (): void => {
    idle.stop();
    // A body that was cut rejects here, and nobody wants it.
    response.body?.cancel().catch(() => undefined);
  };
  return { status: response.status, headers: response.headers, body, discard };
}

/** Gives a request up when nothing has come for so long, however large the whole is. */
class IdleTimer {
  readonly #controller = new AbortController();
  readonly #timer: NodeJS.Timeout;

  constructor(idleMs: number) {
    const giveUp = (): void => this.#controller.abort(new Error(`nothing came for ${idleMs} ms`));
    this.#timer = setTimeout(giveUp, idleMs);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  touch(): void {
    this.#timer.refresh();
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
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

function unavailable(name: string, error: unknown): CubeError {
  if (error instanceof CubeError) return error;
  const { message, cause } = error as Error;
  const why = cause instanceof Error ? cause.message || String(cause) : message;
  return new CubeError('UNAVAILABLE', `${name}: ${why}`, { cause: error });
}
