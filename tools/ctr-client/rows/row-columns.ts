/**
 * Rows as columns, for protocols whose requests are tensors. The slot spec says names, pooled slots and scaling; without one, rows
 * are of one value a slot, and dense features stay as they are.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import {
  type KeyColumns,
  parseJsonRows,
  parseTsvRows,
  type RowColumns,
  type RowShape,
} from '../../../lib/core/features.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import type { RowsFile, RowValues } from './rows-file.ts';

export interface FileColumns {
  readonly columns: RowColumns | KeyColumns;
  readonly slotNum: number;
  readonly denseNum: number;
}

/**
 * @param shape how many slots and dense features the model has
 * @throws CubeError INVALID_ARGUMENT naming source, row and column
 */
export function columnsOf(
  { source, rows, count }: RowsFile,
  shape: { readonly slotNum: number; readonly denseNum: number },
  spec: FeatureSpec | undefined,
): FileColumns {
  const { slotNum, denseNum } = shape;
  if (spec === undefined && rows.kind === 'names') {
    const what = 'rows by name need --slots here, the slots.json of the model';
    throw new CubeError('INVALID_ARGUMENT', `${source}: ${what}; or --protocol ctr`);
  }
  const rowShape = spec ?? namelessShape(slotNum, denseNum);
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

function parseLines(lines: readonly string[], source: string, shape: RowShape): RowColumns {
  try {
    return parseTsvRows(lines.join('\n'), shape, lines.length);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `${source}: ${message}`, { cause: error });
  }
}

function jsonRows(rows: RowValues): readonly unknown[] {
  return rows.kind === 'keys' ? rows.values.map(keysAsText) : rows.values;
}

/** As JSON has 64-bit keys. */
function keysAsText({ keys, scaled }: { keys: readonly unknown[]; scaled: readonly number[] }) {
  const text = keys.map((key) => (Array.isArray(key) ? key.map(String) : String(key)));
  return { keys: text, scaled };
}

function namelessShape(slotNum: number, denseNum: number): RowShape {
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
