/**
 * What a version must show before it answers anybody: every warm-up row predicted by itself, so that a failure names the row; then
 * batches of growing sizes, as many at a time as there are model instances, so that none is met cold.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { type FeatureRows, type KeyedRows, parseJsonRows } from '../../lib/core/features.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import { readText } from '../../lib/platform/files.ts';
import type { WarmUpConfig } from '../config/serving-config.ts';
import type { Predictor } from '../engine/predictor.ts';
import type { LoadedBundle } from './bundle.ts';
import { readWarmUpRows, syntheticRows, type WarmUpRows } from './warm-up-rows.ts';

const FILE_BYTES_MAX = 1 << 30;

/** Nothing stays behind when it fails. @throws CubeError naming the row */
export async function warmUp(
  loaded: LoadedBundle,
  predictor: Predictor,
  config: WarmUpConfig & { readonly onStep?: (step: string) => void },
  clock: Clock = systemClock,
): Promise<void> {
  try {
    const { timeoutMs, onStep = () => undefined } = config;
    const call = { deadlineMs: clock.nowMs() + timeoutMs, onStep };
    await tryRows(loaded, predictor, chooseRows(loaded, config), call);
  } catch (error) {
    await loaded.retire();
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `its warm-up failed: ${message}`, { cause: error });
  }
}

function chooseRows(loaded: LoadedBundle, { kind, file }: WarmUpConfig): WarmUpRows {
  if (kind === 'synthetic') return syntheticRows(loaded.features);
  return file === undefined ? loaded.golden : readWarmUpRows(readText(file, FILE_BYTES_MAX), file);
}

async function tryRows(
  loaded: LoadedBundle,
  predictor: Predictor,
  rows: WarmUpRows,
  { deadlineMs, onStep }: { deadlineMs: number; onStep: (step: string) => void },
): Promise<void> {
  for (const [i, value] of rows.values.entries()) {
    onStep(`warm-up, row ${i + 1} of ${rows.values.length}`);
    try {
      await predictor.predict(loaded, parse({ ...rows, values: [value] }, loaded), { deadlineMs });
    } catch (error) {
      const { code, message } = CubeError.from(error);
      const text = `${rows.source}, row ${i + 1}: ${message}`;
      throw new CubeError(code, text, { cause: error });
    }
  }
  const { maxBatch } = loaded.batching;
  for (let size = 2; size < 2 * maxBatch; size *= 2) {
    onStep(`warm-up, batches of ${Math.min(size, maxBatch)}`);
    const batch = parse(repeated(rows, Math.min(size, maxBatch)), loaded);
    const runs: Promise<unknown>[] = [];
    for (let instance = 0; instance < loaded.pool.alive; instance++) {
      runs.push(predictor.predict(loaded, batch, { deadlineMs }));
      // Together they would be merged; each by itself takes an instance that has run nothing yet, while there is one.
      await new Promise((resolve) => setImmediate(resolve));
    }
    await Promise.all(runs);
  }
}

function parse({ source, values }: WarmUpRows, loaded: LoadedBundle): FeatureRows | KeyedRows {
  return parseJsonRows(JsonReader.of(values, source), loaded.features, values.length);
}

/** Rows of features and rows of keys may lie in one file, but not in one request. */
function repeated({ source, values }: WarmUpRows, count: number): WarmUpRows {
  const hasKeys = (value: unknown): boolean => Object.hasOwn(value as object, 'keys');
  const alike = values.filter((value) => hasKeys(value) === hasKeys(values[0]));
  return { source, values: Array.from({ length: count }, (_, i) => alike[i % alike.length]) };
}
