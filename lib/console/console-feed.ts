/**
 * What a process shows in its console: samples for charts and a state, as one snapshot and then as
 * a stream of events.
 *
 * Cost: while a page is open, a timer samples once a second. Without a page there is no timer: the
 * process calls `touch` when it has answered a request, which samples at most once a second. So the
 * charts have a history when a page is opened, and an idle process does nothing.
 */
import type { ServerResponse } from 'node:http';
import { CubeError } from '../core/errors.ts';
import { type Clock, systemClock, wallClockMs } from '../platform/clock.ts';
import { PRODUCT_VERSION } from '../platform/version.ts';
import { PROCESS_SERIES, ProcessSampler } from './process-series.ts';
import { type HistoryJson, roundValue, SampleHistory } from './sample-history.ts';

/** The views of the page that have something to show in this process. */
export type ConsoleView =
  | 'fleet'
  | 'predict'
  | 'live'
  | 'versions'
  | 'rollout'
  | 'pipeline'
  | 'tables'
  | 'problems';

export interface ConsoleSource {
  readonly role: 'serving' | 'controller' | 'agent';
  readonly views: readonly ConsoleView[];
  /** Names of the values that `sample` returns. */
  readonly series: readonly string[];
  /** The values of a second without requests: 0 for rates and counts, NaN for the others. */
  readonly idleValues: readonly number[];
  /** @returns a value for each series; NaN when there is none */
  sample(elapsedSeconds: number): readonly number[];
  /** What else the page shows, as JSON. Called once a second while a page is open. */
  getState(): Promise<object> | object;
}

export interface ConsoleSnapshot {
  readonly role: string;
  readonly product: string;
  readonly pid: number;
  readonly startedMs: number;
  readonly views: readonly ConsoleView[];
  readonly series: readonly string[];
  readonly history: HistoryJson;
  readonly state: object;
}

const SAMPLE_MS = 1_000;
/** Without samples for this long, the process was idle in between. */
const GAP_MS = 2_500;
/** The delay of the event loop is only of the last second; CPU and memory are of the whole gap. */
const DELAY_AT = PROCESS_SERIES.indexOf('loopDelayMs');
/** Pages that can be open at a time. */
export const PAGES_MAX = 128;
/** Unread bytes of a stream above which it is closed: the page connects again. */
const UNREAD_BYTES_MAX = 1 << 20;

export class ConsoleFeed {
  readonly source: ConsoleSource;
  readonly #clock: Clock;
  readonly #history: SampleHistory;
  readonly #process = new ProcessSampler();
  readonly #values: Float64Array;
  /** The open pages, and what checks whether each may still read. */
  readonly #streams = new Map<ServerResponse, () => Promise<void>>();
  readonly #startedMs = wallClockMs();
  #lastMs: number;
  #timer: NodeJS.Timeout | undefined;
  #stateText = '';
  #isReadingState = false;
  #isClosed = false;
  /** Streams that were closed because their readers were too slow. */
  slowReaders = 0;
  /** Samples taken since the start. */
  samples = 0;

  constructor(source: ConsoleSource, clock: Clock = systemClock) {
    this.source = source;
    this.#clock = clock;
    const names: readonly string[] = [...PROCESS_SERIES, ...source.series];
    this.#history = new SampleHistory(names.length);
    this.#values = new Float64Array(names.length);
    this.#lastMs = clock.nowMs();
  }

  /** Open pages. */
  get pages(): number {
    return this.#streams.size;
  }

  /** Call it after each request: it samples at most once a second. */
  touch(): void {
    if (this.#timer === undefined && this.#clock.nowMs() - this.#lastMs >= SAMPLE_MS)
      this.#sample();
  }

  async takeSnapshot(): Promise<ConsoleSnapshot> {
    // The history ends now, also after a time without requests.
    this.touch();
    const { role, views, series } = this.source;
    return {
      role,
      product: PRODUCT_VERSION,
      pid: process.pid,
      startedMs: this.#startedMs,
      views,
      series: [...PROCESS_SERIES, ...series],
      history: this.#history.toJson(),
      state: await this.source.getState(),
    };
  }

  /**
   * Sends events to a page until either side closes the response.
   * @param authorize called once a second; rejects when the caller may no longer read
   * @throws CubeError OVERLOADED, STOPPING
   */
  addStream(response: ServerResponse, authorize: () => Promise<void>): void {
    if (this.#isClosed) throw new CubeError('STOPPING', 'the process is stopping');
    if (this.#streams.size >= PAGES_MAX) {
      throw new CubeError('OVERLOADED', `${PAGES_MAX} pages are open already; close one of them`);
    }
    // The page has gone already, and no event will say so again. Only its socket tells that a
    // response over HTTP/2 is closed.
    if (response.destroyed || !response.socket) return;
    response.writeHead(200, {
      'content-type': 'text/event-stream',
      'cache-control': 'no-store',
      'x-content-type-options': 'nosniff',
    });
    response.write('retry: 1000\n\n');
    this.#streams.set(response, authorize);
    response.once('close', () => {
      this.#streams.delete(response);
      if (this.#streams.size === 0) this.#stopTimer();
    });
    this.#startTimer();
  }

  /** Ends all streams. Call it before the server stops. */
  close(): void {
    this.#isClosed = true;
    this.#stopTimer();
    for (const response of this.#streams.keys()) this.#end(response);
  }

  /** Nothing may be written to a response that has ended, and it closes only later. */
  #end(response: ServerResponse): void {
    this.#streams.delete(response);
    response.end();
  }

  #startTimer(): void {
    if (this.#timer !== undefined) return;
    this.#process.measureDelay(true);
    this.#timer = setInterval(() => this.#tick(), SAMPLE_MS);
    this.#timer.unref();
  }

  #stopTimer(): void {
    clearInterval(this.#timer);
    this.#timer = undefined;
    this.#process.measureDelay(false);
    this.#stateText = '';
  }

  #tick(): void {
    for (const [response, authorize] of this.#streams) {
      authorize().catch(() => this.#end(response));
    }
    const timeMs = this.#sample();
    const values = Array.from(this.#values, roundValue);
    this.#send('sample', JSON.stringify([timeMs, ...values]));
    void this.#sendState();
  }

  async #sendState(): Promise<void> {
    if (this.#isReadingState) return;
    this.#isReadingState = true;
    try {
      const text = JSON.stringify(await this.source.getState());
      if (text !== this.#stateText) this.#send('state', text);
      this.#stateText = text;
    } catch (error) {
      this.#send('failure', JSON.stringify({ error: CubeError.from(error).message }));
    } finally {
      this.#isReadingState = false;
    }
  }

  /** JSON has no line breaks, so that it is one line of an event. */
  #send(event: string, data: string): void {
    const text = `event: ${event}\ndata: ${data}\n\n`;
    for (const response of this.#streams.keys()) {
      if ((response.writableLength ?? 0) > UNREAD_BYTES_MAX) {
        this.slowReaders++;
        response.destroy();
      } else response.write(text);
    }
  }

  /** @returns the time of the sample */
  #sample(): number {
    const nowMs = this.#clock.nowMs();
    const elapsedMs = Math.max(1, nowMs - this.#lastMs);
    this.#lastMs = nowMs;
    this.samples++;
    const timeMs = wallClockMs();
    const isAfterGap = elapsedMs > GAP_MS;
    // What happened after a gap happened in its last second.
    const seconds = (isAfterGap ? SAMPLE_MS : elapsedMs) / 1_000;
    const process = this.#process.sample(elapsedMs / 1_000);
    this.#values.set(process);
    if (isAfterGap) {
      this.#values[DELAY_AT] = Number.NaN;
      this.#values.set(this.source.idleValues, PROCESS_SERIES.length);
      this.#history.add(timeMs - elapsedMs + SAMPLE_MS, this.#values);
      this.#history.add(timeMs - SAMPLE_MS, this.#values);
      this.#values.set(process);
    }
    this.#values.set(this.source.sample(seconds), PROCESS_SERIES.length);
    this.#history.add(timeMs, this.#values);
    return timeMs;
  }
}
