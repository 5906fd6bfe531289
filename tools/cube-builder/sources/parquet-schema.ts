/** Chooses the columns of a Parquet file that contain the key and the row. */
import type { SchemaTree } from 'hyparquet';
import { CubeError } from '../../../lib/core/errors.ts';
import { chooseColumns } from './delimited-file.ts';
import type { InputSpec } from './row-source.ts';

export interface ParquetColumns {
  readonly key: string;
  /** If set, keys are text: features of the slot with this index. */
  readonly slot: number | undefined;
  /** number: one column per element; list: one column of lists; bytes: one binary column. */
  readonly kind: 'number' | 'list' | 'bytes';
  readonly values: readonly string[];
}

type ColumnKind = ParquetColumns['kind'];

/** @throws CubeError INVALID_ARGUMENT for a column that cannot be used */
export function chooseParquetColumns(
  schema: SchemaTree,
  spec: InputSpec,
  path: string,
): ParquetColumns {
  const fail = (what: string): never => {
    throw new CubeError('INVALID_ARGUMENT', `${path}: ${what}`);
  };
  const columns = schema.children;
  const names = columns.map(({ element }) => element.name);
  const { key, values } = chooseColumns(names, names.length, spec, fail);
  const chosen = values.map((i) => columns[i] as SchemaTree);
  const kinds = chosen.map(
    (column) => detectKind(column) ?? fail(`column ${describeColumn(column)} cannot be a row`),
  );
  const kind = kinds[0] as ColumnKind;
  if (kinds.some((other) => other !== kind) || (kind !== 'number' && chosen.length > 1)) {
    fail(
      `columns ${chosen.map(describeColumn).join(', ')} do not form one row; select columns ` +
        'with --value-columns',
    );
  }
  if (kind !== 'bytes' && (spec.valueFormat ?? 'f32') !== 'f32') {
    fail(`--value-format ${spec.valueFormat} is not possible for columns of numbers`);
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

function detectKind(column: SchemaTree): ColumnKind | undefined {
  const { element, children } = column;
  const isRepeated = element.repetition_type === 'REPEATED';
  if (isNumber(column)) return isRepeated ? 'list' : 'number';
  if (children.length === 0) {
    const isBytes = element.type === 'BYTE_ARRAY' || element.type === 'FIXED_LEN_BYTE_ARRAY';
    return isBytes && element.converted_type !== 'UTF8' && !isRepeated ? 'bytes' : undefined;
  }
  // Lists have one repeated group, with or without another group around the element.
  let inner = column;
  while (inner.children.length === 1) inner = inner.children[0] as SchemaTree;
  return element.converted_type === 'LIST' && isNumber(inner) ? 'list' : undefined;
}

function describeColumn({ element, children }: SchemaTree): string {
  const type = children.length > 0 ? (element.converted_type ?? 'group') : element.type;
  return `${element.name} (${element.logical_type?.type ?? type})`;
}
