/** The rows of a warm-up: JSON values as golden.jsonl has them, parsed when they are needed. */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { FeatureSpec } from '../../lib/core/slots.ts';

/** JSON rows, one a line, as golden.jsonl has them. */
export interface WarmUpRows {
  /** What to call them in errors. */
  readonly source: string;
  readonly values: readonly unknown[];
}

const ROWS_MAX = 1_000;

/** @throws CubeError INVALID_ARGUMENT naming the line that is not JSON */
export function readWarmUpRows(text: string, source: string): WarmUpRows {
  const values: unknown[] = [];
  for (const [i, line] of text.split('\n').entries()) {
    if (line === '') continue;
    values.push(JsonReader.parse(line, `${source} line ${i + 1}`).value);
    if (values.length === ROWS_MAX) break;
  }
  if (values.length > 0) return { source, values };
  throw new CubeError('INVALID_ARGUMENT', `${source}: no rows`);
}

/** One made-up row. "0" is a feature under every hash scheme; raw has no missing ones. */
export function syntheticRows({ slots, dense }: FeatureSpec): WarmUpRows {
  const categorical = slots.map(() => '0');
  const row = { dense: dense?.features.map(() => null) ?? [], categorical };
  return { source: 'a made-up row', values: [row] };
}
