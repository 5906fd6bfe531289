/**
 * Asks a serving process for click probabilities, over HTTP or gRPC. Connections are kept; a call has one deadline, retries
 * included; only what another try may get is tried again, and only while the budget lasts: a server that fails every call gets a
 * tenth more of them, not three times as many.
 */
import { CubeError } from '../core/errors.ts';
import { inOrder } from '../core/in-order.ts';
import { systemClock } from '../platform/clock.ts';
import { CtrGrpc } from './ctr-grpc.ts';
import { CtrHttp } from './ctr-http.ts';
import type { CtrCall, CtrPrediction, CtrRow, CtrRows, CtrTransport } from './ctr-rows.ts';

export interface CtrClientOptions {
  /** `http://host:port`, `https://…`, or `grpc://host:port`. */
  readonly url: string;
  /** Of a call that names none; default 1000. */
  readonly timeoutMs?: number;
  /** Further tries of one call; default 2, 0 for none. */
  readonly retryMax?: number;
  /** Of HTTP, kept open; default 64. */
  readonly connectionsMax?: number;
}

export interface ScoreOptions extends CtrCall {
  /** Rows of one call; default 256. */
  readonly batchRows?: number;
  /** Calls at once; default 4. */
  readonly inFlight?: number;
}

/** A row's answer. */
export interface CtrScore {
  readonly probability: number;
  readonly version: string;
  /** Some rows of its call had lookups that nobody answered. */
  readonly degraded: boolean;
}

const TIMEOUT_MS = 1_000;
const RETRY_MAX = 2;
const CONNECTIONS_MAX = 64;
const BATCH_ROWS = 256;
const CALLS_IN_FLIGHT = 4;
/** Before the first retry; doubled for each further one, and scattered so that callers do not come back together. */
const BACKOFF_MS = 10;
/** Each call puts so much of a retry into the budget, which holds so many at most. */
const RETRY_SHARE = 0.1;
const RETRIES_HELD_MAX = 10;

export class CtrClient {
  readonly #transport: CtrTransport;
  readonly #timeoutMs: number;
  readonly #retryMax: number;
  #budget: number = RETRIES_HELD_MAX;
  #closed = false;

  /** Connects at the first call. @throws CubeError INVALID_ARGUMENT for an address that is none */
  constructor(options: CtrClientOptions) {
    const { url, timeoutMs = TIMEOUT_MS, retryMax = RETRY_MAX } = options;
    this.#transport = openTransport(url, options.connectionsMax ?? CONNECTIONS_MAX);
    this.#timeoutMs = timeoutMs;
    this.#retryMax = retryMax;
  }

  /**
   * @param rows by position, by name or as keys, all in one way; or lines of tab-separated columns, as text or bytes
   * @throws CubeError the server's own code; UNAVAILABLE when it cannot be reached, DEADLINE_EXCEEDED
   */
  async predict(rows: CtrRows, call: CtrCall = {}): Promise<CtrPrediction> {
    if (this.#closed) throw new CubeError('STOPPING', 'the client is closed');
    const timeoutMs = call.timeoutMs ?? this.#timeoutMs;
    const deadlineMs = systemClock.nowMs() + timeoutMs;
    this.#budget = Math.min(RETRIES_HELD_MAX, this.#budget + RETRY_SHARE);
    for (let retry = 0; ; retry++) {
      try {
        return await this.#transport.predict(rows, call, deadlineMs - systemClock.nowMs());
      } catch (error) {
        const failure = CubeError.from(error);
        const waitMs = BACKOFF_MS * 2 ** retry * (0.5 + Math.random());
        if (!this.#mayRetry(failure, retry) || systemClock.nowMs() + waitMs >= deadlineMs) {
          throw failure;
        }
        await systemClock.sleep(waitMs);
      }
    }
  }

  /**
   * Scores rows as they come, a score for each in their order; no more are taken than the answers in flight allow, however many
   * there are. The first call that fails ends it.
   */
  async *score(
    rows: Iterable<CtrRow> | AsyncIterable<CtrRow>,
    options: ScoreOptions = {},
  ): AsyncGenerator<CtrScore, void, undefined> {
    const { batchRows = BATCH_ROWS, inFlight = CALLS_IN_FLIGHT, ...call } = options;
    const answers = inOrder(
      batchesOf(rows, batchRows),
      (batch) => this.predict(batch, { priority: 2, ...call }),
      inFlight,
    );
    for await (const { probabilities, version, degraded } of answers) {
      for (const probability of probabilities) yield { probability, version, degraded };
    }
  }

  /** Calls in flight fail. */
  close(): void {
    this.#closed = true;
    this.#transport.close();
  }

  #mayRetry({ status }: CubeError, retry: number): boolean {
    if (!status.retryable || retry >= this.#retryMax || this.#budget < 1 || this.#closed) {
      return false;
    }
    this.#budget--;
    return true;
  }
}

function openTransport(address: string, connectionsMax: number): CtrTransport {
  const url = URL.canParse(address) ? new URL(address) : undefined;
  if (url?.protocol === 'http:' || url?.protocol === 'https:') {
    return new CtrHttp(url, connectionsMax);
  }
  if (url?.protocol === 'grpc:' && url.port !== '') return new CtrGrpc(url.host);
  throw new CubeError(
    'INVALID_ARGUMENT',
    `url: expected http://host:port, https://host:port or grpc://host:port, got ${JSON.stringify(address)}`,
  );
}

async function* batchesOf(
  rows: Iterable<CtrRow> | AsyncIterable<CtrRow>,
  batchRows: number,
): AsyncGenerator<CtrRow[], void, undefined> {
  let batch: CtrRow[] = [];
  for await (const row of rows) {
    batch.push(row);
    if (batch.length < batchRows) continue;
    yield batch;
    batch = [];
  }
  if (batch.length > 0) yield batch;
}
