/**
 * The rows of a request as lines of a recording: JSON rows in the format of golden.jsonl, with a
 * time and without labels. Redacted features are missing, redacted keys 0.
 */
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import type { FeatureSpec } from '../../lib/core/slots.ts';
import type { Recordable, RecordedLine } from './recorder.ts';

/** Maximum rows recorded from one request. */
const ROWS_PER_REQUEST_MAX = 64;

export function recordRows(given: FeatureRows | KeyedRows, features: FeatureSpec): Recordable {
  const rows = showFeatures(given);
  const rowCount = Math.min(rows.rowCount, ROWS_PER_REQUEST_MAX);
  return {
    rowCount,
    format: (redacted, at) =>
      Array.from({ length: rowCount }, (_, row): RecordedLine => {
        const line = { at, ...formatRow(rows, row, features, redacted) };
        return { text: JSON.stringify(line), rowCount: 1 };
      }),
  };
}

/** The features of rows where this process knows them, for `formatRow`. */
export function showFeatures(rows: FeatureRows | KeyedRows): FeatureRows | KeyedRows {
  return 'keys' in rows ? (rows.readFeatures?.() ?? rows) : rows;
}

/** One row in the format of golden.jsonl. */
export function formatRow(
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
