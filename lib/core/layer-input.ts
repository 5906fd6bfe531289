/**
 * The input of a layer build (keys of one shard with rows or values, and the deleted keys of a
 * delta), and its checks.
 */
import { CubeError } from './errors.ts';
import { computeShard, keyToBigint } from './keys.ts';
import { DIM_MAX, NO_CONTENT_ID, SHARD_NUM_MAX, VALUE_BYTES_MAX } from './layer-format.ts';
import type { LayerIdentity } from './layer-sections.ts';
import { CONTENT_ID_PATTERN, checkName } from './names.ts';
import { computeRowBytes, type RowDtype } from './row-codec.ts';

interface LayerInputBase {
  readonly table: string;
  readonly shardIndex: number;
  readonly shardNum: number;
  /** 2n words (low, high), distinct, in any order. */
  readonly keys: Uint32Array;
  /** Delta: 2m words, distinct, none of them in `keys`. */
  readonly deleted?: Uint32Array;
  /** Content id of the parent; makes the layer a delta. */
  readonly parentContentId?: string;
  /** Requests an index instead of the default layout, so that rows can stay on disk. */
  readonly layout?: 'indexed';
}

export interface RowsInput extends LayerInputBase {
  readonly dtype: RowDtype;
  readonly dim: number;
  /** n · rowBytes bytes as `encodeRows` makes them, in the order of the keys. */
  readonly rows: Uint8Array;
}

export interface ValuesInput extends LayerInputBase {
  readonly dtype: 'bytes';
  /** The values one after the other, in the order of the keys. */
  readonly values: Uint8Array;
  /** End offset of each value in `values`. */
  readonly ends: Uint32Array;
}

export type LayerInput = RowsInput | ValuesInput;

function failTable(table: string, text: string): never {
  throw new CubeError('INVALID_ARGUMENT', `table ${table}: ${text}`);
}

function checkKeys(input: LayerInput, keys: Uint32Array): void {
  const { table, shardIndex, shardNum } = input;
  for (let i = 0; i < keys.length / 2; i++) {
    if (computeShard(keys[2 * i]!, keys[2 * i + 1]!, shardNum) === shardIndex) continue;
    const key = keyToBigint(keys, i);
    failTable(table, `key ${key} does not belong to shard ${shardIndex} of ${shardNum}`);
  }
}

/** @throws CubeError INVALID_ARGUMENT naming the table, the problem and the key */
export function checkLayerInput(input: LayerInput): LayerIdentity {
  const { table, dtype, shardIndex, shardNum, keys, deleted, parentContentId = '' } = input;
  checkName(table, 'table');
  if (!Number.isInteger(shardNum) || shardNum < 1 || shardNum > SHARD_NUM_MAX) {
    failTable(table, `shardNum is ${shardNum}, expected 1 to ${SHARD_NUM_MAX}`);
  }
  if (!Number.isInteger(shardIndex) || shardIndex < 0 || shardIndex >= shardNum) {
    failTable(table, `shardIndex is ${shardIndex}, expected 0 to ${shardNum - 1}`);
  }
  const isParent = CONTENT_ID_PATTERN.test(parentContentId) && parentContentId !== NO_CONTENT_ID;
  if (parentContentId !== '' && !isParent) {
    failTable(table, `parentContentId ${JSON.stringify(parentContentId)} is not a contentId`);
  }
  if (parentContentId === '' && deleted !== undefined && deleted.length > 0) {
    failTable(table, 'a base has no deleted keys; give the parentContentId of a delta');
  }
  checkKeys(input, keys);
  if (deleted !== undefined) checkKeys(input, deleted);
  const dim = input.dtype === 'bytes' ? 0 : input.dim;
  if (input.dtype === 'bytes') checkValues(input);
  else checkRows(input);
  return { table, dtype, dim, shardIndex, shardNum, parentContentId };
}

function checkRows({ table, dtype, dim, keys, rows }: RowsInput): void {
  if (!Number.isInteger(dim) || dim < 1 || dim > DIM_MAX) failTable(table, `dim ${dim}`);
  if (rows.length === (keys.length / 2) * computeRowBytes(dtype, dim)) return;
  failTable(
    table,
    `${keys.length} key words and ${rows.length} bytes are not keys with rows of ${dim}`,
  );
}

function checkValues({ table, keys, values, ends }: ValuesInput): void {
  if (ends.length !== keys.length / 2) {
    failTable(table, `${keys.length} key words with ${ends.length} ends of values`);
  }
  let start = 0;
  for (let i = 0; i < ends.length; i++) {
    const length = ends[i]! - start;
    if (length < 0 || length > VALUE_BYTES_MAX) {
      failTable(
        table,
        `the value of key ${keyToBigint(keys, i)} has ${length} bytes, at most ${VALUE_BYTES_MAX}`,
      );
    }
    start = ends[i]!;
  }
  if (start !== values.length)
    failTable(table, `${values.length} bytes of values, of which ${start} are used`);
}
