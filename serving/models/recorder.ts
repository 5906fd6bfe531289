/**
 * Samples rows of live requests into a file for warming up or gating later versions: JSON rows in
 * the format of golden.jsonl, without labels. Requests never wait for it: lines go through a
 * bounded buffer, and rows that do not fit are dropped and counted.
 */
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import type { FeatureSpec } from '../../lib/core/slots.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { RotatingFile } from '../../lib/platform/rotating-file.ts';
import type { RecordConfig } from '../config/serving-config.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';

/** Maximum size of the buffered lines; further rows are dropped. */
const BUFFER_CHARS_MAX = 4 << 20;
/** Maximum rows recorded from one request. */
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

  /** Records a request with the probability of the configured share. */
  record(rows: FeatureRows | KeyedRows, features: FeatureSpec): void {
    if (Math.random() >= this.#config.share) return;
    const rowCount = Math.min(rows.rowCount, ROWS_PER_REQUEST_MAX);
    if (this.#chars > BUFFER_CHARS_MAX) {
      this.#dropped += rowCount;
      return;
    }
    for (let row = 0; row < rowCount; row++) {
      const line = `${JSON.stringify(formatRow(rows, row, features, this.#redacted))}\n`;
      this.#lines.push(line);
      this.#chars += line.length;
    }
    this.#writing ??= this.#write().finally(() => {
      this.#writing = undefined;
    });
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

/** The recorders of a process, by loaded version. */
export class Recorders {
  readonly #all: Recorder[] = [];
  readonly #byVersion = new WeakMap<LoadedBundle, Recorder>();

  /** @throws CubeError when the file cannot be opened */
  open(config: RecordConfig, logger: Logger): Recorder {
    const recorder = new Recorder(config, logger);
    this.#all.push(recorder);
    return recorder;
  }

  assign(version: LoadedBundle, recorder: Recorder): void {
    this.#byVersion.set(version, recorder);
  }

  /** Records a request if the version's model has a recorder. */
  record(version: LoadedBundle, rows: FeatureRows | KeyedRows): void {
    this.#byVersion.get(version)?.record(rows, version.features);
  }

  get stats(): RecorderStats {
    const rows = this.#all.reduce((sum, { stats }) => sum + stats.rows, 0);
    return { rows, dropped: this.#all.reduce((sum, { stats }) => sum + stats.dropped, 0) };
  }

  async close(): Promise<void> {
    await Promise.all(this.#all.map((recorder) => recorder.close()));
  }
}

/** One row in the format of golden.jsonl. */
function formatRow(
  rows: FeatureRows | KeyedRows,
  row: number,
  spec: FeatureSpec,
  redacted: ReadonlySet<string>,
): object {
  if ('keys' in rows) return formatKeyedRow(rows, row, spec, redacted);
  const denseFeatures = spec.dense?.features ?? [];
  // Ids cannot be missing; "0" is an id that every table with ids may have.
  const redactedFeature = spec.hash.scheme === 'raw' ? '0' : null;
  const shared = rows.shared;
  const ownSlots = spec.slots.length - (shared?.slots.length ?? 0);
  let column = 0;
  const categorical = spec.slots.map(({ name, pooling }, slot) => {
    const at = shared === undefined ? -1 : shared.slots.indexOf(slot);
    const values =
      shared !== undefined && at >= 0
        ? getBag(shared.features, shared.ends, at)
        : getBag(rows.features, rows.ends, row * ownSlots + column++);
    if (redacted.has(name)) return pooling === undefined ? redactedFeature : null;
    return values.length === 1 ? values[0] : values;
  });
  const dense = denseFeatures.map(({ name }, i) => {
    const value = rows.rawDense?.[row * denseFeatures.length + i] ?? Number.NaN;
    return redacted.has(name) || Number.isNaN(value) ? null : value;
  });
  return { dense, categorical };
}

/** Keys do not reveal features, but a redacted key is still written as 0. */
function formatKeyedRow(
  { keys, ends, dense }: KeyedRows,
  row: number,
  { slots, dense: denseSpec }: FeatureSpec,
  redacted: ReadonlySet<string>,
): object {
  const denseFeatures = denseSpec?.features ?? [];
  const keyColumns = slots.map(({ name }, slot) => {
    const i = row * slots.length + slot;
    const start = ends === undefined ? i : i === 0 ? 0 : ends[i - 1]!;
    const end = ends === undefined ? i + 1 : ends[i]!;
    const values = Array.from({ length: end - start }, (_, n) =>
      redacted.has(name) ? '0' : keyToBigint(keys, start + n).toString(),
    );
    return values.length === 1 ? values[0] : values;
  });
  const scaled = denseFeatures.map(({ name }, i) =>
    redacted.has(name) ? 0 : dense[row * denseFeatures.length + i]!,
  );
  return { scaled, keys: keyColumns };
}

function getBag(
  features: readonly string[],
  ends: Uint32Array | undefined,
  i: number,
): readonly string[] {
  if (ends === undefined) return [features[i]!];
  return features.slice(i === 0 ? 0 : ends[i - 1]!, ends[i]!);
}
