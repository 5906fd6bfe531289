/** What a layer is built from: keys with rows or values of one shard, and the deleted keys of a delta; and its checks. */
import { CubeError } from './errors.ts';
import { keyToBigint, shardOf } from './keys.ts';
import { DIM_MAX, NO_CONTENT_ID, SHARD_NUM_MAX, VALUE_BYTES_MAX } from './layer-format.ts';
import type { LayerSubject } from './layer-sections.ts';
import { CONTENT_ID_PATTERN, checkName } from './names.ts';
import { type RowDtype, rowBytesOf } from './row-codec.ts';

interface LayerInputCommon {
  readonly table: string;
  readonly shardIndex: number;
  readonly shardNum: number;
  /** 2n words (low, high), distinct, in any order. */
  readonly keys: Uint32Array;
  /** Of a delta: 2m words, distinct, none of them in `keys`. */
  readonly deleted?: Uint32Array;
  /** Makes the layer a delta on that one. */
  readonly parentContentId?: string;
  /** Asks for an index where another layout would be chosen: its rows can stay on disk. */
  readonly layout?: 'indexed';
}

export interface RowsInput extends LayerInputCommon {
  readonly dtype: RowDtype;
  readonly dim: number;
  /** n · rowBytes as `encodeRows` makes them, in the order of the keys. */
  readonly rows: Uint8Array;
}

export interface ValuesInput extends LayerInputCommon {
  readonly dtype: 'bytes';
  /** The values one after the other, in the order of the keys. */
  readonly values: Uint8Array;
  /** Where each value ends in `values`. */
  readonly ends: Uint32Array;
}

export type LayerInput = RowsInput | ValuesInput;

function refuse(table: string, text: string): never {
  throw new CubeError('INVALID_ARGUMENT', `table ${table}: ${text}`);
}

function checkKeys(input: LayerInput, keys: Uint32Array): void {
  const { table, shardIndex, shardNum } = input;
  for (let i = 0; i < keys.length / 2; i++) {
    if (shardOf(keys[2 * i]!, keys[2 * i + 1]!, shardNum) === shardIndex) continue;
    const key = keyToBigint(keys, i);
    refuse(table, `key ${key} does not belong to shard ${shardIndex} of ${shardNum}`);
  }
}

/** @throws CubeError INVALID_ARGUMENT saying what is wrong, and with which key */
export function checkInput(input: LayerInput): LayerSubject {
  const { table, dtype, shardIndex, shardNum, keys, deleted, parentContentId = '' } = input;
  checkName(table, 'table');
  if (!Number.isInteger(shardNum) || shardNum < 1 || shardNum > SHARD_NUM_MAX) {
    refuse(table, `shardNum ${shardNum}`);
  }
  if (!Number.isInteger(shardIndex) || shardIndex < 0 || shardIndex >= shardNum) {
    refuse(table, `shard ${shardIndex} of ${shardNum}`);
  }
  const isParent = CONTENT_ID_PATTERN.test(parentContentId) && parentContentId !== NO_CONTENT_ID;
  if (parentContentId !== '' && !isParent) {
    refuse(table, `parentContentId ${JSON.stringify(parentContentId)} is not a contentId`);
  }
  if (parentContentId === '' && deleted !== undefined && deleted.length > 0) {
    refuse(table, 'a base has no deleted keys; give the parentContentId of a delta');
  }
  checkKeys(input, keys);
  if (deleted !== undefined) checkKeys(input, deleted);
  const dim = input.dtype === 'bytes' ? 0 : input.dim;
  if (input.dtype === 'bytes') checkValues(input);
  else checkRows(input);
  return { table, dtype, dim, shardIndex, shardNum, parentContentId };
}

function checkRows({ table, dtype, dim, keys, rows }: RowsInput): void {
  if (!Number.isInteger(dim) || dim < 1 || dim > DIM_MAX) refuse(table, `dim ${dim}`);
  if (rows.length === (keys.length / 2) * rowBytesOf(dtype, dim)) return;
  refuse(
    table,
    `${keys.length} key words and ${rows.length} bytes are not keys with rows of ${dim}`,
  );
}

function checkValues({ table, keys, values, ends }: ValuesInput): void {
  if (ends.length !== keys.length / 2) {
    refuse(table, `${keys.length} key words with ${ends.length} ends of values`);
  }
  let start = 0;
  for (let i = 0; i < ends.length; i++) {
    const length = ends[i]! - start;
    if (length < 0 || length > VALUE_BYTES_MAX) {
      refuse(
        table,
        `the value of key ${keyToBigint(keys, i)} has ${length} bytes, at most ${VALUE_BYTES_MAX}`,
      );
    }
    start = ends[i]!;
  }
  if (start !== values.length)
    refuse(table, `${values.length} bytes of values, of which ${start} are used`);
}
