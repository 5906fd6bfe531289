/**
 * Compares the answers of a graph with fewer bits with those of the original on the golden rows of
 * its version. The rows have the embeddings and dense values of real requests, which the sampled
 * inputs of precision-check.ts do not have. It runs when the tables are ready.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { KeyedRows } from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { parseJsonRows } from '../../lib/core/json-rows.ts';
import type { FeatureSpec } from '../../lib/core/slots.ts';
import type { ComputedKeys } from '../../lib/features/computed-keys.ts';
import type { RowKeys } from '../../lib/features/row-keys.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Batcher } from './batcher.ts';
import type { EngineRequest } from './engine-request.ts';
import type { ModelPool } from './model-pool.ts';
import {
  type LowerPrecision,
  measureDifference,
  PRECISION_TOLERANCES,
} from './precision-difference.ts';
import type { WarmUpRows } from './warm-up-rows.ts';

/** Time for a row, including the lookup of its keys. */
const ROW_TIMEOUT_MS = 60_000;

/** The parts of a loaded bundle that a row needs. */
interface CheckedBundle {
  readonly features: FeatureSpec;
  readonly keys: ComputedKeys;
  readonly rowKeys: RowKeys;
  readonly pool: ModelPool;
  readonly batcher: Batcher<KeyedRows, EngineRequest>;
  acquire(): void;
  release(): void;
}

interface RowOutputs {
  readonly outputs: readonly { readonly name: string; readonly data: Float32Array }[];
  /** Some keys were unavailable: their default rows were used. */
  readonly degraded: boolean;
}

export interface GoldenCheck {
  readonly golden: WarmUpRows;
  readonly original: CheckedBundle;
  readonly converted: CheckedBundle;
  readonly precision: LowerPrecision;
  readonly logger: Logger;
  /** Called before each row; what it throws ends the check. */
  readonly onRow: () => void;
}

/**
 * @throws CubeError UNSUPPORTED naming the row, the output and the difference that exceeds the
 *   tolerance; the errors of predictions with the row
 */
export async function checkGoldenRows(check: GoldenCheck): Promise<void> {
  const { golden, precision, logger, onRow } = check;
  let difference = 0;
  let degraded = 0;
  for (const [i, value] of golden.values.entries()) {
    onRow();
    const source = `${golden.source}, row ${i + 1}`;
    const found = await compareRow(check, value, source);
    if (found === undefined) degraded++;
    else difference = Math.max(difference, found);
  }
  const rows = golden.values.length - degraded;
  logger.info({ precision, rows, difference }, 'golden rows compared with the original graph');
  if (degraded === 0) return;
  const text = 'golden rows were not compared, because some of their keys are unavailable';
  logger.warn({ precision, rows: degraded }, text);
}

/** @returns the largest difference; undefined when keys were unavailable, so that inputs differ */
async function compareRow(
  { original, converted, precision }: GoldenCheck,
  value: unknown,
  source: string,
): Promise<number | undefined> {
  const [expected, actual] = await Promise.all([
    predictRow(original, value, source),
    predictRow(converted, value, source),
  ]);
  if (expected.degraded || actual.degraded) return undefined;
  const tolerance = PRECISION_TOLERANCES[precision];
  let largest = 0;
  for (const { name, data } of expected.outputs) {
    const other = actual.outputs.find((output) => output.name === name);
    const difference = measureDifference(data, other?.data);
    largest = Math.max(largest, difference);
    if (difference <= tolerance) continue;
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: with precision ${precision} the output ${JSON.stringify(name)} differs ` +
        `from the original by ${difference.toPrecision(3)}, the limit is ${tolerance}; ` +
        'use a precision with more bits',
    );
  }
  return largest;
}

async function predictRow(
  bundle: CheckedBundle,
  value: unknown,
  source: string,
): Promise<RowOutputs> {
  const deadlineMs = systemClock.nowMs() + ROW_TIMEOUT_MS;
  try {
    const rows = parseJsonRows(JsonReader.of([value], source), bundle.features, 1);
    const keyed = bundle.keys.addComputedKeys(bundle.rowKeys.toKeyedRows(rows));
    bundle.acquire();
    const request = await bundle.batcher.submit(keyed, { deadlineMs }, () => bundle.release());
    const outputs = bundle.pool.outputs.map(({ name }, i) => ({ name, data: request.outputs[i]! }));
    return { outputs, degraded: request.counts.unavailable > 0 };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `${source}: ${message}`, { cause: error });
  }
}
