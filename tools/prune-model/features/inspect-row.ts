/** Shows what one row becomes: the key of every value, and the tensors that training would feed. */
import type { FeatureRows, KeyedRows } from '../../../lib/core/feature-rows.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { parseJsonRows } from '../../../lib/core/json-rows.ts';
import { keyToBigint } from '../../../lib/core/keys.ts';
import type { TrainedFeatures } from '../../../lib/core/slots.ts';
import { parseTsvRows } from '../../../lib/core/tsv-rows.ts';
import { RowKeys } from '../../../lib/features/row-keys.ts';
import { findBagEnd } from '../../../lib/features/slot-ids.ts';
import { formatTable } from '../../../lib/platform/terminal-output.ts';

export interface RowReport {
  readonly slots: readonly {
    readonly name: string;
    readonly index: number;
    /** The values as they are hashed; absent for a row of keys. */
    readonly features?: readonly string[];
    /** 64-bit keys as decimal numbers. */
    readonly keys: readonly string[];
  }[];
  readonly tensors: readonly {
    readonly input: string;
    readonly dtype: 'int64' | 'float32';
    readonly values: readonly (string | number)[];
  }[];
}

/** @throws CubeError INVALID_ARGUMENT naming the field or column that is wrong */
export function inspectRow(spec: TrainedFeatures, text: string): RowReport {
  const rows: FeatureRows | KeyedRows = text.trimStart().startsWith('{')
    ? parseJsonRows(JsonReader.of([JsonReader.parse(text, '--row').value], '--row'), spec, 1)
    : parseTsvRows(text, spec, 1);
  const { keys, ends, dense } = new RowKeys(spec).toKeyedRows(rows);
  const slots = spec.slots.map(({ name, index }, i) => {
    const from = findBagEnd(ends, i - 1);
    const to = findBagEnd(ends, i);
    const features = 'features' in rows ? { features: rows.features.slice(from, to) } : {};
    const positions = Array.from({ length: to - from }, (_, value) => from + value);
    return { name, index, ...features, keys: positions.map((at) => `${keyToBigint(keys, at)}`) };
  });
  const keysBySlot = new Map(slots.map((slot) => [slot.name, slot.keys]));
  return { slots, tensors: [...listIds(spec, keysBySlot), ...listDense(spec, dense)] };
}

function listIds(
  { ids }: TrainedFeatures,
  keys: ReadonlyMap<string, readonly string[]>,
): RowReport['tensors'] {
  return ids.map(({ input, slots }) => {
    const values = slots.flatMap((slot) => keys.get(slot) ?? []);
    return { input, dtype: 'int64', values };
  });
}

function listDense({ dense }: TrainedFeatures, values: Float32Array): RowReport['tensors'] {
  if (dense === undefined) return [];
  const inputs = [...new Set(dense.features.map(({ input = dense.input }) => input))];
  return inputs.map((input) => ({
    input,
    dtype: 'float32',
    values: [...values].filter((_, i) => (dense.features[i]?.input ?? dense.input) === input),
  }));
}

export function formatRowReport({ slots, tensors }: RowReport): string {
  const slotRows = slots.map(({ name, index, features = [], keys }) => [
    name,
    String(index),
    features.map((feature) => JSON.stringify(feature)).join(', '),
    keys.join(', '),
  ]);
  const tensorRows = tensors.map(({ input, dtype, values }) => [
    input,
    dtype,
    `[1, ${values.length}]`,
    values.join(', '),
  ]);
  return [
    formatTable(['slot', 'index', 'value', 'key'], slotRows),
    formatTable(['input', 'dtype', 'shape', 'values'], tensorRows),
  ].join('\n\n');
}
