/**
 * Samples rows of live requests into a file that warms up or gates a later version: JSON rows as golden.jsonl has them, without
 * labels. Requests never wait for it: lines go through a bounded buffer, and what finds it full is dropped and counted.
 */
import type { FeatureRows, KeyedRows } from '../../lib/core/features.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import type { FeatureSpec } from '../../lib/core/slots.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { RotatingFile } from '../../lib/platform/rotating-file.ts';
import type { RecordConfig } from '../config/serving-config.ts';
import type { LoadedBundle } from './bundle.ts';

/** What waits to be written: more is dropped. */
const BUFFER_CHARS_MAX = 4 << 20;
/** Of one request: the rest of a large one adds little. */
const ROWS_PER_REQUEST_MAX = 64;

interface RecorderStats {
  readonly rows: number;
  readonly dropped: number;
}

class Recorder {
  readonly #config: RecordConfig;
  readonly #logger: Logger;
  readonly #file: RotatingFile;
  readonly #redacted: ReadonlySet<string>;
  #lines: string[] = [];
  #chars = 0;
  #writing: Promise<void> | undefined;
  #rows = 0;
  #dropped = 0;
  #problem = '';

  /** @throws CubeError when the file cannot be opened */
  constructor(config: RecordConfig, logger: Logger) {
    const { file: path, bytesMax, filesMax } = config;
    this.#config = config;
    this.#logger = logger;
    this.#file = new RotatingFile({ path, bytesMax, filesMax });
    this.#redacted = new Set(config.redact);
  }

  get stats(): RecorderStats {
    return { rows: this.#rows, dropped: this.#dropped };
  }

  /** Takes a request by chance, as often as its share says. */
  offer(rows: FeatureRows | KeyedRows, features: FeatureSpec): void {
    if (Math.random() >= this.#config.share) return;
    const rowCount = Math.min(rows.rowCount, ROWS_PER_REQUEST_MAX);
    if (this.#chars > BUFFER_CHARS_MAX) {
      this.#dropped += rowCount;
      return;
    }
    for (let row = 0; row < rowCount; row++) {
      const line = `${JSON.stringify(rowAsJson(rows, row, features, this.#redacted))}\n`;
      this.#lines.push(line);
      this.#chars += line.length;
    }
    this.#writing ??= this.#write().finally(() => {
      this.#writing = undefined;
    });
  }

  /** Writes what waits. */
  async close(): Promise<void> {
    await this.#writing;
  }

  /** Until nothing waits: what came together is written together. */
  async #write(): Promise<void> {
    while (this.#lines.length > 0) {
      // The requests of this turn first.
      await new Promise((resolve) => setImmediate(resolve));
      const lines = this.#lines;
      this.#lines = [];
      this.#chars = 0;
      try {
        await this.#file.append(new TextEncoder().encode(lines.join('')));
        this.#rows += lines.length;
        this.#problem = '';
      } catch (error) {
        this.#dropped += lines.length;
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

/** The recorders of a process, found by the version that answered. */
export class Recorders {
  readonly #all: Recorder[] = [];
  readonly #ofVersion = new WeakMap<LoadedBundle, Recorder>();

  /** @throws CubeError when the file cannot be opened */
  open(config: RecordConfig, logger: Logger): Recorder {
    const recorder = new Recorder(config, logger);
    this.#all.push(recorder);
    return recorder;
  }

  assign(version: LoadedBundle, recorder: Recorder): void {
    this.#ofVersion.set(version, recorder);
  }

  /** What was answered; models that record nothing are skipped. */
  offer(version: LoadedBundle, rows: FeatureRows | KeyedRows): void {
    this.#ofVersion.get(version)?.offer(rows, version.features);
  }

  get stats(): RecorderStats {
    const rows = this.#all.reduce((sum, { stats }) => sum + stats.rows, 0);
    return { rows, dropped: this.#all.reduce((sum, { stats }) => sum + stats.dropped, 0) };
  }

  async close(): Promise<void> {
    await Promise.all(this.#all.map((recorder) => recorder.close()));
  }
}

/** One row as golden.jsonl has it. */
function rowAsJson(
  rows: FeatureRows | KeyedRows,
  row: number,
  spec: FeatureSpec,
  redacted: ReadonlySet<string>,
): object {
  if ('keys' in rows) return keyedAsJson(rows, row, spec, redacted);
  const denseFeatures = spec.dense?.features ?? [];
  const shared = rows.shared;
  const own = spec.slots.length - (shared?.slots.length ?? 0);
  let column = 0;
  const categorical = spec.slots.map(({ name }, slot) => {
    const at = shared === undefined ? -1 : shared.slots.indexOf(slot);
    const values =
      shared !== undefined && at >= 0
        ? bag(shared.features, shared.ends, at)
        : bag(rows.features, rows.ends, row * own + column++);
    if (redacted.has(name)) return null;
    return values.length === 1 ? values[0]! : values;
  });
  const dense = denseFeatures.map(({ name }, i) => {
    const value = rows.rawDense?.[row * denseFeatures.length + i] ?? Number.NaN;
    return redacted.has(name) || Number.isNaN(value) ? null : value;
  });
  return { dense, categorical };
}

/** A key says nothing to who does not know the features; a redacted one is 0 all the same. */
function keyedAsJson(
  { keys, ends, dense }: KeyedRows,
  row: number,
  { slots, dense: denseSpec }: FeatureSpec,
  redacted: ReadonlySet<string>,
): object {
  const denseFeatures = denseSpec?.features ?? [];
  const keysOf = slots.map(({ name }, slot) => {
    const i = row * slots.length + slot;
    const start = ends === undefined ? i : i === 0 ? 0 : ends[i - 1]!;
    const end = ends === undefined ? i + 1 : ends[i]!;
    const values = Array.from({ length: end - start }, (_, n) =>
      redacted.has(name) ? '0' : keyToBigint(keys, start + n).toString(),
    );
    return values.length === 1 ? values[0]! : values;
  });
  const scaled = denseFeatures.map(({ name }, i) =>
    redacted.has(name) ? 0 : dense[row * denseFeatures.length + i]!,
  );
  return { scaled, keys: keysOf };
}

function bag(
  features: readonly string[],
  ends: Uint32Array | undefined,
  i: number,
): readonly string[] {
  if (ends === undefined) return [features[i]!];
  return features.slice(i === 0 ? 0 : ends[i - 1]!, ends[i]!);
}
