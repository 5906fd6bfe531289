/**
 * Rows as columns, for protocols whose requests are tensors. The slot spec gives names, pooled
 * slots and scaling.
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
  spec: FeatureSpec,
): FileColumns {
  const { slotNum, denseNum } = shape;
  if (rows.kind === 'positions and keys') {
    throw new CubeError(
      'UNSUPPORTED',
      `${source} has rows by position and rows of keys; use --protocol ctr, or split the file`,
    );
  }
  const columns =
    rows.kind === 'lines'
      ? parseLines(rows.values, source, spec)
      : parseJsonRows(JsonReader.of({ rows: jsonRows(rows) }, source).field('rows'), spec, count);
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
