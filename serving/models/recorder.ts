/**
 * Samples live requests into a file for warming up or gating later versions, one JSON document a
 * line (recorded-rows.ts, recorded-tensors.ts). Requests never wait for it: lines go through a
 * bounded buffer, and rows that do not fit are dropped and counted.
 *
 * Each line has the time `at` which its request arrived, in milliseconds since 1970 with
 * microseconds. The lines of one request follow one another and have the same time; those of the
 * next request have another one. Requests are in the order in which they were answered.
 */
import { toUnixMs } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { RotatingFile } from '../../lib/platform/rotating-file.ts';
import type { RecordConfig } from '../config/warm-up-config.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';

/** Maximum size of the buffered lines; further rows are dropped. */
const BUFFER_CHARS_MAX = 4 << 20;
/** A line of the file, without its end. */
export interface RecordedLine {
  readonly text: string;
  readonly rowCount: number;
}

/** A request that may be recorded. */
export interface Recordable {
  /** Rows to record; those that are in no line are counted as dropped. */
  readonly rowCount: number;
  /**
   * @param redacted names of the columns or inputs whose values are left out
   * @param at milliseconds since 1970
   */
  format(redacted: ReadonlySet<string>, at: number): readonly RecordedLine[];
}

interface RecorderStats {
  readonly rows: number;
  readonly dropped: number;
}

export class Recorder {
  readonly #config: RecordConfig;
  readonly #logger: Logger;
  readonly #file: RotatingFile;
  readonly #redacted: ReadonlySet<string>;
  #lines: RecordedLine[] = [];
  #chars = 0;
  #writing: Promise<void> | undefined;
  #rows = 0;
  #dropped = 0;
  #problem = '';
  /** The time of the last recorded request, in microseconds. */
  #lastMicros = 0;

  /** @throws CubeError when the file cannot be opened */
  constructor(config: RecordConfig, logger: Logger) {
    const { file: path, bytesMax, filesMax } = config;
    this.#config = config;
    this.#logger = logger;
    this.#file = new RotatingFile({ path, bytesMax, filesMax });
    this.#redacted = new Set(config.redact);
  }

  /** Names of columns or inputs whose values are left out. */
  get redacted(): readonly string[] {
    return this.#config.redact;
  }

  get stats(): RecorderStats {
    return { rows: this.#rows, dropped: this.#dropped };
  }

  /**
   * Records a request with the probability of the configured share.
   * @param arrivedMs in the time of `systemClock`
   * @param createRequest called if the request is recorded
   */
  record(arrivedMs: number, createRequest: () => Recordable): void {
    if (Math.random() >= this.#config.share) return;
    const request = createRequest();
    if (this.#chars > BUFFER_CHARS_MAX) {
      this.#dropped += request.rowCount;
      return;
    }
    let dropped = request.rowCount;
    for (const line of request.format(this.#redacted, this.#stampRequest(arrivedMs))) {
      this.#lines.push(line);
      this.#chars += line.text.length;
      dropped -= line.rowCount;
    }
    this.#dropped += dropped;
    this.#writing ??= this.#write().finally(() => {
      this.#writing = undefined;
    });
  }

  /** @returns the time of a request, different from that of the request before it */
  #stampRequest(arrivedMs: number): number {
    const micros = Math.round(1_000 * toUnixMs(arrivedMs));
    this.#lastMicros = micros === this.#lastMicros ? micros + 1 : micros;
    return this.#lastMicros / 1_000;
  }

  /** Waits until the buffered lines are written. */
  async close(): Promise<void> {
    await this.#writing;
  }

  /** Writes buffered lines in batches until the buffer is empty. */
  async #write(): Promise<void> {
    while (this.#lines.length > 0) {
      // Collects the lines of all requests of this event loop turn.
      await new Promise((resolve) => setImmediate(resolve));
      const lines = this.#lines;
      this.#lines = [];
      this.#chars = 0;
      const rowCount = lines.reduce((sum, line) => sum + line.rowCount, 0);
      try {
        const text = lines.map((line) => `${line.text}\n`).join('');
        await this.#file.append(new TextEncoder().encode(text));
        this.#rows += rowCount;
        this.#problem = '';
      } catch (error) {
        this.#dropped += rowCount;
        this.#report((error as Error).message);
      }
    }
  }

  #report(problem: string): void {
    if (this.#problem === problem) return;
    this.#problem = problem;
    this.#logger.warn({ problem }, 'requests cannot be recorded');
  }
}

/** The recorders of a process, by loaded version. */
export class Recorders {
  readonly #all: Recorder[] = [];
  readonly #byVersion = new WeakMap<LoadedVersion, Recorder>();

  /** @throws CubeError when the file cannot be opened */
  open(config: RecordConfig, logger: Logger): Recorder {
    const recorder = new Recorder(config, logger);
    this.#all.push(recorder);
    return recorder;
  }

  assign(version: LoadedVersion, recorder: Recorder): void {
    this.#byVersion.set(version, recorder);
  }

  /**
   * @param arrivedMs in the time of `systemClock`
   * @param createRequest called if the request is recorded
   */
  record(version: LoadedVersion, arrivedMs: number, createRequest: () => Recordable): void {
    this.#byVersion.get(version)?.record(arrivedMs, createRequest);
  }

  get stats(): RecorderStats {
    const rows = this.#all.reduce((sum, { stats }) => sum + stats.rows, 0);
    return { rows, dropped: this.#all.reduce((sum, { stats }) => sum + stats.dropped, 0) };
  }

  async close(): Promise<void> {
    await Promise.all(this.#all.map((recorder) => recorder.close()));
  }
}
