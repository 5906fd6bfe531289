/**
 * The page's view of one process: a snapshot, kept current by the event stream. When the stream
 * ends, the snapshot is fetched again until the process answers. The token is only kept in memory.
 */
import { useEffect, useState } from 'preact/hooks';
import type { Snapshot, State } from './types.ts';

/** As many as the process keeps. */
const SAMPLES_MAX = 900;
const RETRY_MS = 1_000;
/** Samples come once a second: without any for this long, the connection is dead. */
const SILENCE_MS = 6_000;

const NO_ANSWER = 'the process does not answer: check that it runs';

let token = '';

export function setToken(text: string): void {
  // A header takes no other characters, and no token has them: it stays a wrong one.
  token = text.trim().replaceAll(/[^ -~]/g, '?');
}

export class HttpError extends Error {
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

/** @throws HttpError with the message of the process */
async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (token !== '') headers.set('authorization', `Bearer ${token}`);
  const response = await fetch(path, { ...init, headers, cache: 'no-store' }).catch(() => {
    throw new HttpError(0, NO_ANSWER);
  });
  if (response.ok) return response;
  const text = await response.text();
  let message = text;
  try {
    message = (JSON.parse(text) as { error?: string }).error ?? text;
  } catch {
    // Not JSON: the text is the message.
  }
  throw new HttpError(response.status, message || `HTTP ${response.status}`);
}

export async function requestJson<T>(path: string, body?: unknown): Promise<T> {
  const init =
    body === undefined
      ? {}
      : {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify(body),
        };
  return (await (await request(path, init)).json()) as T;
}

/** The samples of a process as columns. */
export class Samples {
  readonly times: number[];
  readonly #columns: Map<string, (number | null)[]>;
  readonly #names: readonly string[];

  constructor({ series, history }: Snapshot) {
    this.times = history.times.map((ms) => ms / 1_000);
    this.#names = series;
    this.#columns = new Map(series.map((name, i) => [name, [...(history.values[i] ?? [])]]));
  }

  add([timeMs = 0, ...values]: readonly (number | null)[]): void {
    this.times.push((timeMs ?? 0) / 1_000);
    for (const [i, name] of this.#names.entries()) this.column(name).push(values[i] ?? null);
    if (this.times.length <= SAMPLES_MAX) return;
    this.times.shift();
    for (const column of this.#columns.values()) column.shift();
  }

  column(name: string): (number | null)[] {
    return this.#columns.get(name) ?? [];
  }

  last(name: string): number | null {
    return this.column(name).at(-1) ?? null;
  }
}

export interface Connection {
  /** Prefix of the paths of the process: empty for the one that serves the page. */
  readonly base: string;
  /** Where other clients call the process, such as http://127.0.0.1:8080. */
  readonly origin: string;
  readonly snapshot: Snapshot | undefined;
  readonly state: State;
  readonly samples: Samples | undefined;
  /** Changes with every sample, so that charts draw again. */
  readonly tick: number;
  readonly error: HttpError | undefined;
  /** Connects again at once, with a new token. */
  reconnect(): void;
}

/**
 * Connects while the component is shown.
 * @param base undefined: no connection
 * @param origin of the process, if another one than that of the page
 */
export function useConnection(base: string | undefined, origin = location.origin): Connection {
  const [snapshot, setSnapshot] = useState<Snapshot>();
  const [state, setState] = useState<State>({});
  const [samples, setSamples] = useState<Samples>();
  const [tick, setTick] = useState(0);
  const [error, setError] = useState<HttpError>();
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    if (base === undefined) return undefined;
    const stop = new AbortController();
    const run = async (): Promise<void> => {
      while (!stop.signal.aborted) {
        try {
          const fresh = await requestJson<Snapshot>(`${base}/v1/console/snapshot`);
          const columns = new Samples(fresh);
          setSnapshot(fresh);
          setState(fresh.state);
          setSamples(columns);
          setError(undefined);
          await readEvents(`${base}/v1/console/events`, stop.signal, (event, data) => {
            if (event === 'sample') {
              columns.add(data as (number | null)[]);
              setTick((count) => count + 1);
            } else if (event === 'state') setState(data as State);
          });
          throw new HttpError(0, 'the process closed the connection');
        } catch (cause) {
          if (stop.signal.aborted) return;
          setError(toHttpError(cause));
        }
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    };
    void run();
    return () => stop.abort();
  }, [base, attempt]);
  const reconnect = (): void => setAttempt((count) => count + 1);
  return { base: base ?? '', origin, snapshot, state, samples, tick, error, reconnect };
}

export function toHttpError(cause: unknown): HttpError {
  return cause instanceof HttpError ? cause : new HttpError(0, NO_ANSWER);
}

/** Reads server-sent events. EventSource is not used because it cannot send a token. */
async function readEvents(
  path: string,
  signal: AbortSignal,
  onEvent: (event: string, data: unknown) => void,
): Promise<void> {
  const silence = new AbortController();
  const stop = (): void => silence.abort();
  signal.addEventListener('abort', stop);
  let timer = setTimeout(stop, SILENCE_MS);
  try {
    const { body } = await request(path, { signal: silence.signal });
    if (body === null) return;
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let pending = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_MS);
      const events = (pending + value).split('\n\n');
      pending = events.pop() ?? '';
      for (const text of events) {
        const fields = new Map(
          text.split('\n').map((line) => {
            const colon = line.indexOf(': ');
            return [line.slice(0, colon), line.slice(colon + 2)] as const;
          }),
        );
        const data = fields.get('data');
        if (data !== undefined) onEvent(fields.get('event') ?? '', JSON.parse(data));
      }
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', stop);
  }
}
