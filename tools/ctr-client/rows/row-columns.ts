/**
 * Rows as columns, for protocols whose requests are tensors. The slot spec gives names, pooled
 * slots and scaling; without one, slots have one value and dense features are not scaled.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import type {
  LabelledFeatureRows,
  LabelledKeyedRows,
  RowShape,
} from '../../../lib/core/feature-rows.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { parseJsonRows } from '../../../lib/core/json-rows.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import { parseTsvRows } from '../../../lib/core/tsv-rows.ts';
import type { RowsFile, RowValues } from './rows-file.ts';

export interface FileColumns {
  readonly columns: LabelledFeatureRows | LabelledKeyedRows;
  readonly slotNum: number;
  readonly denseNum: number;
}

/**
 * @param shape numbers of slots and dense features of the model
 * @throws CubeError INVALID_ARGUMENT naming source, row and column
 */
export function toFileColumns(
  { source, rows, count }: RowsFile,
  shape: { readonly slotNum: number; readonly denseNum: number },
  spec: FeatureSpec | undefined,
): FileColumns {
  const { slotNum, denseNum } = shape;
  if (spec === undefined && rows.kind === 'names') {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${source}: rows by name need --slots with the model's slots.json, or --protocol ctr`,
    );
  }
  if (rows.kind === 'positions and keys') {
    throw new CubeError(
      'UNSUPPORTED',
      `${source} has rows by position and rows of keys; use --protocol ctr, or split the file`,
    );
  }
  const rowShape = spec ?? createUnnamedShape(slotNum, denseNum);
  const columns =
    rows.kind === 'lines'
      ? parseLines(rows.values, source, rowShape)
      : parseJsonRows(
          JsonReader.of({ rows: jsonRows(rows) }, source).field('rows'),
          rowShape,
          count,
        );
  return { columns, slotNum, denseNum };
}

function parseLines(
  lines: readonly string[],
  source: string,
  shape: RowShape,
): LabelledFeatureRows {
  try {
    return parseTsvRows(lines.join('\n'), shape, lines.length);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `${source}: ${message}`, { cause: error });
  }
}

function jsonRows(rows: RowValues): readonly unknown[] {
  return rows.kind === 'keys' ? rows.values.map(formatKeys) : rows.values;
}

/** Formats 64-bit keys as JSON strings. */
function formatKeys({ keys, scaled }: { keys: readonly unknown[]; scaled: readonly number[] }) {
  const text = keys.map((key) => (Array.isArray(key) ? key.map(String) : String(key)));
  return { keys: text, scaled };
}

function createUnnamedShape(slotNum: number, denseNum: number): RowShape {
  const names = (prefix: string, length: number): string[] =>
    Array.from({ length }, (_, i) => `${prefix}${i + 1}`);
  const features = names('dense ', denseNum).map((name) => {
    return { name, missing: 0, log: false, shift: 0, scale: 1 };
  });
  return {
    slots: names('categorical ', slotNum).map((name, index) => ({ name, index })),
    dense: denseNum === 0 ? undefined : { input: 'dense', features },
  };
}
