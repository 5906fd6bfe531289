/** Which columns of a Parquet file hold the key and the row, and what their values are. */
import type { SchemaTree } from 'hyparquet';
import { CubeError } from '../../../lib/core/errors.ts';
import { chooseColumns } from './delimited-file.ts';
import type { InputSpec } from './row-source.ts';

export interface ParquetColumns {
  readonly key: string;
  /** Keys are text, features of the slot with this index. */
  readonly slot: number | undefined;
  /** number: a column for each element; list: one column of lists; bytes: one column of binary values. */
  readonly kind: 'number' | 'list' | 'bytes';
  readonly values: readonly string[];
}

type ColumnKind = ParquetColumns['kind'];

/** @throws CubeError INVALID_ARGUMENT saying which column does not fit */
export function parquetColumns(schema: SchemaTree, spec: InputSpec, path: string): ParquetColumns {
  const fail = (what: string): never => {
    throw new CubeError('INVALID_ARGUMENT', `${path}: ${what}`);
  };
  const columns = schema.children;
  const names = columns.map(({ element }) => element.name);
  const { key, values } = chooseColumns(names, names.length, spec, fail);
  const chosen = values.map((i) => columns[i] as SchemaTree);
  const kinds = chosen.map((column) => kindOf(column) ?? fail(`${describe(column)} is no row`));
  const kind = kinds[0] as ColumnKind;
  if (kinds.some((other) => other !== kind) || (kind !== 'number' && chosen.length > 1)) {
    fail(
      `columns ${chosen.map(describe).join(', ')} do not make one row; choose those that do ` +
        '(--value-columns)',
    );
  }
  if (kind !== 'bytes' && (spec.valueFormat ?? 'f32') !== 'f32') {
    fail(`columns of numbers have no value format ${spec.valueFormat}`);
  }
  return {
    key: names[key] as string,
    slot: spec.signKey,
    kind,
    values: chosen.map(({ element }) => element.name),
  };
}

const NUMBER_TYPES = ['FLOAT', 'DOUBLE', 'INT32', 'INT64'];

function isNumber({ element, children }: SchemaTree): boolean {
  if (children.length > 0) return false;
  return NUMBER_TYPES.includes(element.type ?? '') || element.logical_type?.type === 'FLOAT16';
}

function kindOf(column: SchemaTree): ColumnKind | undefined {
  const { element, children } = column;
  const isRepeated = element.repetition_type === 'REPEATED';
  if (isNumber(column)) return isRepeated ? 'list' : 'number';
  if (children.length === 0) {
    const isBytes = element.type === 'BYTE_ARRAY' || element.type === 'FIXED_LEN_BYTE_ARRAY';
    return isBytes && element.converted_type !== 'UTF8' && !isRepeated ? 'bytes' : undefined;
  }
  // Lists have one repeated group, with or without a group around the element.
  let inner = column;
  while (inner.children.length === 1) inner = inner.children[0] as SchemaTree;
  return element.converted_type === 'LIST' && isNumber(inner) ? 'list' : undefined;
}

function describe({ element, children }: SchemaTree): string {
  const type = children.length > 0 ? (element.converted_type ?? 'group') : element.type;
  return `${element.name} (${element.logical_type?.type ?? type})`;
}
