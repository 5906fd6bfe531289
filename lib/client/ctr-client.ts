/**
 * A client of a serving process, which predicts click probabilities over HTTP or gRPC. Connections
 * are kept open. A call has one deadline, retries included. Only retryable errors are retried, and
 * only within the retry budget: a server that fails every call receives a tenth more calls, not
 * three times as many.
 */
import { CubeError } from '../core/errors.ts';
import { mapInOrder } from '../core/map-in-order.ts';
import { systemClock } from '../platform/clock.ts';
import { type Credentials, NO_CREDENTIALS } from '../rpc/credentials.ts';
import { CtrGrpc } from './ctr-grpc.ts';
import { CtrHttp } from './ctr-http.ts';
import type { CtrCallOptions, CtrPrediction, CtrRow, CtrRows, CtrTransport } from './ctr-rows.ts';

export interface CtrClientOptions {
  /** `http://host:port`, `https://…`, `grpc://host:port`, or `grpcs://…`. */
  readonly url: string;
  /**
   * The API key of every call, and the certificates of https and grpcs. Default: no key, and the
   * authorities of Node. gRPC reads the files of certificates once.
   */
  readonly credentials?: Credentials;
  /** Default timeout of a call in milliseconds. Default 1000. */
  readonly timeoutMs?: number;
  /** Maximum retries of one call. Default 2; 0 disables retries. */
  readonly retryMax?: number;
  /** Maximum HTTP connections. Default 64. */
  readonly connectionsMax?: number;
}

export interface ScoreOptions extends CtrCallOptions {
  /** Rows per call. Default 256. */
  readonly batchRows?: number;
  /** Concurrent calls. Default 4. */
  readonly concurrency?: number;
}

/** The prediction of one row. */
export interface CtrScore {
  readonly probability: number;
  readonly version: string;
  /** Some rows of the same call used default rows, because their keys were unavailable. */
  readonly degraded: boolean;
}

const TIMEOUT_MS = 1_000;
const RETRY_MAX = 2;
const CONNECTIONS_MAX = 64;
const BATCH_ROWS = 256;
const CALLS_IN_FLIGHT = 4;
/** The wait before the first retry; doubled for each further one, with jitter. */
const BACKOFF_MS = 10;
/** Each call adds this share of a retry to the budget, up to RETRY_BUDGET_MAX retries. */
const RETRY_SHARE = 0.1;
const RETRY_BUDGET_MAX = 10;

export class CtrClient {
  readonly #transport: CtrTransport;
  readonly #timeoutMs: number;
  readonly #retryMax: number;
  #budget: number = RETRY_BUDGET_MAX;
  #isClosed = false;

  /** Connects at the first call. @throws CubeError INVALID_ARGUMENT for an invalid URL */
  constructor(options: CtrClientOptions) {
    const { timeoutMs = TIMEOUT_MS, retryMax = RETRY_MAX } = options;
    this.#transport = openTransport(options);
    this.#timeoutMs = timeoutMs;
    this.#retryMax = retryMax;
  }

  /**
   * Predicts the click probability of each row.
   * @param rows all by position, all by name or all as keys; or lines of tab-separated columns, as
   *   text or bytes
   * @throws CubeError with the server's own code; UNAVAILABLE when it cannot be reached, or
   *   DEADLINE_EXCEEDED
   */
  async predict(rows: CtrRows, call: CtrCallOptions = {}): Promise<CtrPrediction> {
    if (this.#isClosed) throw new CubeError('STOPPING', 'the client is closed');
    const timeoutMs = call.timeoutMs ?? this.#timeoutMs;
    const deadlineMs = systemClock.nowMs() + timeoutMs;
    this.#budget = Math.min(RETRY_BUDGET_MAX, this.#budget + RETRY_SHARE);
    for (let retry = 0; ; retry++) {
      try {
        return await this.#transport.predict(rows, call, deadlineMs - systemClock.nowMs());
      } catch (error) {
        const failure = CubeError.from(error);
        const waitMs = BACKOFF_MS * 2 ** retry * (0.5 + Math.random());
        if (!this.#canRetry(failure, retry) || systemClock.nowMs() + waitMs >= deadlineMs) {
          throw failure;
        }
        await systemClock.sleep(waitMs);
      }
    }
  }

  /**
   * Predicts a stream of rows, in batches, and yields one score per row in the same order. Reads
   * only as many rows as the concurrent calls need. The first failed call ends the stream.
   */
  async *score(
    rows: Iterable<CtrRow> | AsyncIterable<CtrRow>,
    options: ScoreOptions = {},
  ): AsyncGenerator<CtrScore, void, undefined> {
    const { batchRows = BATCH_ROWS, concurrency = CALLS_IN_FLIGHT, ...call } = options;
    const predictions = mapInOrder(
      toBatches(rows, batchRows),
      (batch) => this.predict(batch, { priority: 2, ...call }),
      concurrency,
    );
    for await (const { probabilities, version, degraded } of predictions) {
      for (const probability of probabilities) yield { probability, version, degraded };
    }
  }

  /** Fails the calls in flight. */
  close(): void {
    this.#isClosed = true;
    this.#transport.close();
  }

  #canRetry({ status }: CubeError, retry: number): boolean {
    if (!status.retryable || retry >= this.#retryMax || this.#budget < 1 || this.#isClosed) {
      return false;
    }
    this.#budget--;
    return true;
  }
}

function openTransport({
  url: address,
  connectionsMax = CONNECTIONS_MAX,
  credentials = NO_CREDENTIALS,
}: CtrClientOptions): CtrTransport {
  const url = URL.canParse(address) ? new URL(address) : undefined;
  if (url?.protocol === 'http:' || url?.protocol === 'https:') {
    return new CtrHttp(url, connectionsMax, credentials);
  }
  if ((url?.protocol === 'grpc:' || url?.protocol === 'grpcs:') && url.port !== '') {
    return new CtrGrpc(url.host, url.protocol === 'grpcs:', credentials);
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    'url: expected http://, https://, grpc:// or grpcs://, and host:port, ' +
      `got ${JSON.stringify(address)}`,
  );
}

async function* toBatches(
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
