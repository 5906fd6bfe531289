/**
 * Open-loop load over HTTP: requests are sent when they are due, whether or not earlier ones were
 * answered. A request takes a free connection, or opens one; with too many connections open it is
 * counted as not sent.
 */
import { connect, type Socket } from 'node:net';
import { requireDefined } from '../../lib/core/errors.ts';

const HEAD_END = Buffer.from('\r\n\r\n');
const STATUS_AT = 'HTTP/1.1 '.length;
const READ_BUFFER_BYTES = 64 << 10;

export interface OverloadOptions {
  readonly url: URL;
  /** Requests encoded in advance, sent in turn. */
  readonly requests: readonly Uint8Array[];
  readonly perSecond: number;
  readonly forMs: number;
  readonly connectionsMax: number;
  /** Answers within this time of the moment when they were due count as good. */
  readonly timeoutMs: number;
  /** The load is applied for this long before it is measured. */
  readonly warmMs: number;
  /** Called when the measurement begins. */
  readonly onWarm: () => void;
}

export interface OverloadResult {
  readonly seconds: number;
  /** Answers with status 200 in time. */
  readonly good: number;
  /** Answers with status 200 that came too late. */
  readonly late: number;
  /** Answers with status 429 or 503. */
  readonly refused: number;
  /** Other answers, by status; broken connections have status 0. */
  readonly failures: ReadonlyMap<number, number>;
  readonly notSent: number;
  readonly connections: number;
  /** Milliseconds from the moment when a request was due, sorted. */
  readonly goodLatencies: Float64Array;
  readonly refusedLatencies: Float64Array;
}

/** A keep-alive connection with at most one request in flight. */
class LoadConnection {
  readonly #socket: Socket;
  readonly #onAnswer: (connection: LoadConnection, status: number) => void;
  #head = '';
  #status = 0;
  #missing = -1;
  isClosed = false;
  dueMs = -1;

  constructor(url: URL, onAnswer: (connection: LoadConnection, status: number) => void) {
    this.#onAnswer = onAnswer;
    const buffer = Buffer.allocUnsafe(READ_BUFFER_BYTES);
    const callback = (count: number): boolean => {
      this.#receive(buffer, count);
      return true;
    };
    const target = { host: url.hostname, port: Number(url.port), noDelay: true };
    this.#socket = connect({ ...target, onread: { buffer, callback } });
    this.#socket.on('error', () => undefined);
    this.#socket.on('close', () => {
      this.isClosed = true;
      if (this.dueMs >= 0) this.#onAnswer(this, 0);
    });
  }

  send(request: Uint8Array, dueMs: number): void {
    this.dueMs = dueMs;
    this.#missing = -1;
    this.#head = '';
    this.#socket.write(request);
  }

  close(): void {
    this.dueMs = -1;
    this.#socket.destroy();
  }

  #receive(bytes: Buffer, count: number): void {
    let bodyBytes = count;
    if (this.#missing < 0) {
      const end = bytes.subarray(0, count).indexOf(HEAD_END);
      this.#head += bytes.toString('latin1', 0, end < 0 ? count : end);
      if (end < 0) return;
      this.#status = Number(this.#head.slice(STATUS_AT, STATUS_AT + 3));
      this.#missing = Number(/content-length: (\d+)/i.exec(this.#head)?.[1] ?? 0);
      bodyBytes = count - end - HEAD_END.length;
    }
    this.#missing -= bodyBytes;
    if (this.#missing <= 0 && this.dueMs >= 0) this.#onAnswer(this, this.#status);
  }
}

/** The connections and counts of a run. */
class OverloadRun {
  readonly #options: OverloadOptions;
  readonly #free: LoadConnection[] = [];
  readonly #open = new Set<LoadConnection>();
  readonly #failures = new Map<number, number>();
  readonly #good: number[] = [];
  readonly #refused: number[] = [];
  readonly #startMs = performance.now();
  readonly #measuredFromMs: number;
  #late = 0;
  #notSent = 0;
  #inFlight = 0;

  constructor(options: OverloadOptions) {
    this.#options = options;
    this.#measuredFromMs = this.#startMs + options.warmMs;
  }

  /** Sends all requests when they are due. */
  async send(): Promise<void> {
    const { requests, perSecond, forMs, warmMs, onWarm } = this.#options;
    const total = Math.floor((perSecond * (warmMs + forMs)) / 1_000);
    let isWarm = false;
    for (let sent = 0; sent < total; ) {
      const elapsedMs = performance.now() - this.#startMs;
      if (!isWarm && elapsedMs >= warmMs) {
        isWarm = true;
        onWarm();
      }
      for (; sent < total && (sent * 1_000) / perSecond <= elapsedMs; sent++) {
        const connection = this.#takeConnection();
        if (connection === undefined) {
          if (isWarm) this.#notSent++;
          continue;
        }
        this.#inFlight++;
        const request = requireDefined(requests[sent % requests.length], 'a request');
        connection.send(request, this.#startMs + (sent * 1_000) / perSecond);
      }
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  /** Waits for the answers that may still be in time, and closes the connections. */
  async finish(): Promise<OverloadResult> {
    const seconds = (performance.now() - this.#measuredFromMs) / 1_000;
    for (let waitMs = 2 * this.#options.timeoutMs; this.#inFlight > 0 && waitMs > 0; waitMs -= 10) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    if (this.#inFlight > 0) this.#failures.set(-1, this.#inFlight);
    const connections = this.#open.size;
    for (const connection of this.#open) connection.close();
    return {
      seconds,
      good: this.#good.length,
      late: this.#late,
      refused: this.#refused.length,
      failures: this.#failures,
      notSent: this.#notSent,
      connections,
      goodLatencies: Float64Array.from(this.#good).sort(),
      refusedLatencies: Float64Array.from(this.#refused).sort(),
    };
  }

  #takeConnection(): LoadConnection | undefined {
    for (let found = this.#free.pop(); found !== undefined; found = this.#free.pop()) {
      if (!found.isClosed) return found;
      this.#open.delete(found);
    }
    if (this.#open.size >= this.#options.connectionsMax) return undefined;
    const made = new LoadConnection(this.#options.url, this.#onAnswer);
    this.#open.add(made);
    return made;
  }

  readonly #onAnswer = (connection: LoadConnection, status: number): void => {
    const latencyMs = performance.now() - connection.dueMs;
    const isCounted = connection.dueMs >= this.#measuredFromMs;
    connection.dueMs = -1;
    this.#inFlight--;
    if (connection.isClosed) this.#open.delete(connection);
    else this.#free.push(connection);
    if (!isCounted) return;
    if (status === 429 || status === 503) this.#refused.push(latencyMs);
    else if (status !== 200) this.#failures.set(status, (this.#failures.get(status) ?? 0) + 1);
    else if (latencyMs <= this.#options.timeoutMs) this.#good.push(latencyMs);
    else this.#late++;
  };
}

/** Sends the load, then waits until all requests are answered or too late. */
export async function runOverload(options: OverloadOptions): Promise<OverloadResult> {
  const run = new OverloadRun(options);
  await run.send();
  return run.finish();
}
