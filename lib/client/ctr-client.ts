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
import { ConcurrencyLimit } from './concurrency-limit.ts';
import { CtrGrpc } from './ctr-grpc.ts';
import { CtrHttp } from './ctr-http.ts';
import type { CtrCallOptions, CtrPrediction, CtrRow, CtrRows, CtrTransport } from './ctr-rows.ts';
import { RequestBudget } from './request-budget.ts';

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
  /**
   * `refuse`: a call fails at once with OVERLOADED while as many are in flight as the server
   * answers without queueing, a limit that follows its latency. Default `never`: no limit.
   */
  readonly concurrencyLimit?: 'refuse' | 'never';
}

/** Counters since the creation of a client, and its state. */
export interface CtrClientStats {
  readonly calls: number;
  readonly failures: number;
  readonly retries: number;
  /** Retries not sent because the retry budget was spent. */
  readonly retryBudgetRefusals: number;
  /** Calls refused at the concurrency limit. */
  readonly concurrencyRefusals: number;
  readonly inFlight: number;
  /** The calls in flight that the server answers without queueing. */
  readonly concurrencyLimit: number;
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
/** Retries that a server which fails all calls gets at once. */
const RETRY_BURST = 10;

export class CtrClient {
  readonly #transport: CtrTransport;
  readonly #timeoutMs: number;
  readonly #retryMax: number;
  readonly #budget = new RequestBudget(RETRY_BURST);
  readonly #limit = new ConcurrencyLimit();
  readonly #isLimited: boolean;
  readonly #counters = {
    calls: 0,
    failures: 0,
    retries: 0,
    retryBudgetRefusals: 0,
    concurrencyRefusals: 0,
  };
  #inFlight = 0;
  #isClosed = false;

  /** Connects at the first call. @throws CubeError INVALID_ARGUMENT for an invalid URL */
  constructor(options: CtrClientOptions) {
    const { timeoutMs = TIMEOUT_MS, retryMax = RETRY_MAX } = options;
    this.#transport = openTransport(options);
    this.#timeoutMs = timeoutMs;
    this.#retryMax = retryMax;
    this.#isLimited = options.concurrencyLimit === 'refuse';
  }

  get stats(): CtrClientStats {
    const concurrencyLimit = this.#limit.value;
    return { ...this.#counters, inFlight: this.#inFlight, concurrencyLimit };
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
    this.#counters.calls++;
    this.#checkLimit();
    this.#budget.countRequest();
    for (let retry = 0; ; retry++) {
      try {
        return await this.#send(rows, call, deadlineMs - systemClock.nowMs());
      } catch (error) {
        const failure = CubeError.from(error);
        const waitMs = BACKOFF_MS * 2 ** retry * (0.5 + Math.random());
        const isInTime = systemClock.nowMs() + waitMs < deadlineMs;
        if (!isInTime || !this.#canRetry(failure, retry)) {
          this.#counters.failures++;
          throw failure;
        }
        this.#counters.retries++;
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

  /** @throws CubeError OVERLOADED at the concurrency limit */
  #checkLimit(): void {
    if (!this.#isLimited || this.#inFlight < this.#limit.value) return;
    this.#counters.concurrencyRefusals++;
    throw new CubeError(
      'OVERLOADED',
      `${this.#inFlight} calls are in flight, as many as the server answers without queueing; ` +
        'send fewer at once',
    );
  }

  async #send(rows: CtrRows, call: CtrCallOptions, timeoutMs: number): Promise<CtrPrediction> {
    const startMs = systemClock.nowMs();
    this.#limit.recordCall(++this.#inFlight);
    try {
      const prediction = await this.#transport.predict(rows, call, timeoutMs);
      const nowMs = systemClock.nowMs();
      this.#limit.recordAnswer(nowMs - startMs, nowMs);
      return prediction;
    } catch (error) {
      const nowMs = systemClock.nowMs();
      const { code } = CubeError.from(error);
      if (code === 'OVERLOADED') this.#limit.recordRefusal(nowMs);
      else if (code === 'DEADLINE_EXCEEDED') this.#limit.recordAnswer(nowMs - startMs, nowMs);
      throw error;
    } finally {
      this.#inFlight--;
    }
  }

  #canRetry({ status }: CubeError, retry: number): boolean {
    if (!status.retryable || retry >= this.#retryMax || this.#isClosed) return false;
    if (this.#budget.tryTake(true)) return true;
    this.#counters.retryBudgetRefusals++;
    return false;
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
