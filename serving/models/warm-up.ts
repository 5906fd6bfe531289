/**
 * Warms up a version before it serves requests. Each row is predicted alone, so that a failure
 * names the row. Then batches of growing size run, as many at a time as there are model instances,
 * so that every instance is warm. Configured entries replace both: each gives the size of its
 * requests and their number.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { parseJsonRows } from '../../lib/core/json-rows.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import { readText } from '../../lib/platform/files.ts';
import type { WarmUpConfig } from '../config/warm-up-config.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { Predictor } from '../engine/predictor.ts';
import {
  formatWarmUpEntry,
  parseWarmUpRows,
  type WarmUpEntry,
  type WarmUpRows,
} from '../engine/warm-up-rows.ts';
import { requireNotCancelled } from '../stores/embedding-store.ts';

const FILE_BYTES_MAX = 1 << 30;

/** Rows of a synthetic warm-up without entries: one of zeros, the others random. */
const SYNTHETIC_ROWS = 8;

/** Retires the version when it fails. @throws CubeError naming the row */
export async function warmUp(
  loaded: LoadedBundle,
  predictor: Predictor,
  config: WarmUpConfig & {
    readonly onStep?: (step: string) => void;
    readonly signal?: AbortSignal;
  },
  clock: Clock = systemClock,
): Promise<void> {
  try {
    const { timeoutMs, entries = [], onStep = () => undefined, signal } = config;
    const beginStep = (step: string): void => {
      requireNotCancelled(loaded.manifest, signal);
      onStep(step);
    };
    const deadlineMs = clock.nowMs() + timeoutMs;
    const run = { loaded, predictor, deadlineMs, onStep: beginStep };
    if (entries.length > 0) await predictEntries(run, entries);
    else await predictRows(run, chooseRows(loaded, config));
  } catch (error) {
    await loaded.retire();
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `the warm-up failed: ${message}`, { cause: error });
  }
}

/** A warm-up in progress. */
interface WarmUpRun {
  readonly loaded: LoadedBundle;
  readonly predictor: Predictor;
  readonly deadlineMs: number;
  readonly onStep: (step: string) => void;
}

function chooseRows(loaded: LoadedBundle, { kind, file }: WarmUpConfig): WarmUpRows {
  const { golden, synthetic, features } = loaded;
  if (file !== undefined) return parseWarmUpRows(readText(file, FILE_BYTES_MAX), file, features);
  if (kind === 'golden' && golden !== undefined) return golden;
  const random = synthetic.create('random', SYNTHETIC_ROWS - 1);
  return { source: 'synthetic rows', values: [...synthetic.create('zeros', 1), ...random] };
}

async function predictEntries(run: WarmUpRun, entries: readonly WarmUpEntry[]): Promise<void> {
  for (const [i, entry] of entries.entries()) {
    const source = `entry ${i + 1} of ${entries.length}, ${formatWarmUpEntry(entry)}`;
    run.onStep(`warm-up, ${source}`);
    for (let request = 0; request < entry.count; request++) {
      const values = run.loaded.synthetic.create(entry.data, entry.rows);
      await predictOnInstances(run, { source, values });
    }
  }
}

async function predictRows(run: WarmUpRun, rows: WarmUpRows): Promise<void> {
  const { loaded, predictor, deadlineMs, onStep } = run;
  for (const [i, value] of rows.values.entries()) {
    onStep(`warm-up, row ${i + 1} of ${rows.values.length}`);
    try {
      await predictor.predict(loaded, parse({ ...rows, values: [value] }, loaded), { deadlineMs });
    } catch (error) {
      throw addSource(error, `${rows.source}, row ${i + 1}`);
    }
  }
  const { maxBatch } = loaded.batching;
  for (let size = 2; size < 2 * maxBatch; size *= 2) {
    const count = Math.min(size, maxBatch);
    onStep(`warm-up, batches of ${count}`);
    await predictOnInstances(run, repeatRows(rows, count));
  }
}

/** Predicts the rows as one request on each instance. */
async function predictOnInstances(
  { loaded, predictor, deadlineMs }: WarmUpRun,
  rows: WarmUpRows,
): Promise<void> {
  try {
    const batch = parse(rows, loaded);
    const requests: Promise<unknown>[] = [];
    for (let instance = 0; instance < loaded.pool.aliveInstances; instance++) {
      const request = predictor.predict(loaded, batch, { deadlineMs });
      // It may fail during the pauses, before anything waits for it.
      request.catch(() => undefined);
      requests.push(request);
      // Without a pause the runs would be merged. Each goes to an instance that has not run yet.
      await new Promise((resolve) => setImmediate(resolve));
    }
    await Promise.all(requests);
  } catch (error) {
    throw addSource(error, rows.source);
  }
}

function addSource(error: unknown, source: string): CubeError {
  const { code, message } = CubeError.from(error);
  return new CubeError(code, `${source}: ${message}`, { cause: error });
}

function parse({ source, values }: WarmUpRows, loaded: LoadedBundle): FeatureRows | KeyedRows {
  return parseJsonRows(JsonReader.of(values, source), loaded.features, values.length);
}

/** A file may contain rows of features and rows of keys, but a request may not contain both. */
function repeatRows({ source, values }: WarmUpRows, count: number): WarmUpRows {
  const hasKeys = (value: unknown): boolean => Object.hasOwn(value as object, 'keys');
  const alike = values.filter((value) => hasKeys(value) === hasKeys(values[0]));
  return { source, values: Array.from({ length: count }, (_, i) => alike[i % alike.length]) };
}
