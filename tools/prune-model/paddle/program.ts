/**
 * The decoded view of a Paddle program (`__model__`, `*.pdmodel`): names, types and attributes, and
 * every field with its exact bytes, so that unchanged messages are written back byte for byte,
 * unknown fields included. Field numbers: framework.proto of PaddlePaddle 1 and 2.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import type { RawField } from '../cut/protobuf-fields.ts';

export const TYPE_BOOL = 0;
export const TYPE_INT32 = 2;
export const TYPE_INT64 = 3;
export const TYPE_FP32 = 5;
export const TYPE_FP64 = 6;
export const TYPE_LOD_TENSOR = 7;
export const TYPE_SELECTED_ROWS = 8;
export const TYPE_FEED = 9;
export const TYPE_FETCH = 10;
const TYPE_READER = 15;
const TYPE_RAW = 17;

/** NumPy's names of element types. */
const ELEMENT_NAMES: Readonly<Record<number, string>> = {
  0: 'bool',
  1: 'int16',
  2: 'int32',
  3: 'int64',
  4: 'float16',
  5: 'float32',
  6: 'float64',
  20: 'uint8',
  21: 'int8',
  22: 'bfloat16',
};

/** Names of element types and kinds of variables in the text form. */
export const TYPE_NAMES: Readonly<Record<number, string>> = {
  0: 'BOOL',
  1: 'INT16',
  2: 'INT32',
  3: 'INT64',
  4: 'FP16',
  5: 'FP32',
  6: 'FP64',
  7: 'LOD_TENSOR',
  8: 'SELECTED_ROWS',
  9: 'FEED_MINIBATCH',
  10: 'FETCH_LIST',
  11: 'STEP_SCOPES',
  12: 'LOD_RANK_TABLE',
  13: 'LOD_TENSOR_ARRAY',
  14: 'PLACE_LIST',
  15: 'READER',
  17: 'RAW',
  18: 'TUPLE',
  19: 'SIZE_T',
  20: 'UINT8',
  21: 'INT8',
  22: 'BF16',
};

const ELEMENT_BYTES: Readonly<Record<number, number>> = {
  0: 1,
  1: 2,
  2: 4,
  3: 8,
  4: 2,
  5: 4,
  6: 8,
  20: 1,
  21: 1,
  22: 2,
};

export function getElementTypeName(type: number): string {
  return ELEMENT_NAMES[type] ?? `element type ${type}`;
}

/** Undefined for types without a fixed size. */
export function getElementBytes(type: number): number | undefined {
  return ELEMENT_BYTES[type];
}

export interface Program {
  /** In file order; those with field number PROGRAM_BLOCK are the blocks. */
  readonly fields: readonly RawField[];
  readonly blocks: readonly Block[];
  /** The first block. */
  readonly main: Block;
}

export const PROGRAM_BLOCK = 1;
export const BLOCK_VAR = 3;
export const BLOCK_OP = 4;
export const OP_ATTR = 4;

export interface Block {
  readonly fields: readonly RawField[];
  readonly vars: readonly Variable[];
  readonly ops: readonly Op[];
}

/** A declared variable. */
export interface Variable {
  readonly raw: RawField;
  readonly name: string;
  /** TYPE_LOD_TENSOR, TYPE_SELECTED_ROWS, ... */
  readonly kind: number;
  readonly persistable: boolean;
  /** -1 when the variable is not a tensor. */
  readonly elementType: number;
  /** -1 is an axis of any size. */
  readonly dims: readonly number[];
  /** 1 when rows belong to sequences of any length. */
  readonly lodLevel: number;
}

export interface Op {
  readonly raw: RawField;
  readonly type: string;
  /** Variable names by parameter. */
  readonly inputs: ReadonlyMap<string, readonly string[]>;
  readonly outputs: ReadonlyMap<string, readonly string[]>;
  readonly attrs: ReadonlyMap<string, Attribute>;
  /** Blocks that the operator runs. */
  readonly blocks: readonly number[];
}

export interface Attribute {
  readonly raw: RawField;
  /** Numbers of i, f, l, b and their lists; a bool is 0 or 1. */
  readonly numbers: readonly number[];
  readonly texts: readonly string[];
  /** The value is a variable or has a newer type: it is not in `numbers` or `texts`. */
  readonly isOther?: boolean;
}

/** Whether the value of the variable is stored with the parameters. */
export function isParameter({ persistable, kind }: Variable): boolean {
  return (
    persistable &&
    kind !== TYPE_FEED &&
    kind !== TYPE_FETCH &&
    kind !== TYPE_READER &&
    kind !== TYPE_RAW
  );
}

export function getInputNames({ inputs }: Op): string[] {
  return [...inputs.values()].flat();
}

export function getOutputNames({ outputs }: Op): string[] {
  return [...outputs.values()].flat();
}

/** Names an operator in messages. */
export function describeOp(op: Op): string {
  const [output] = getOutputNames(op);
  return output === undefined
    ? `a ${op.type} operator`
    : `the ${op.type} operator that computes ${JSON.stringify(output)}`;
}

/** @param reason what is not supported, as a clause about the operator, and what to do about it */
export function refuseOperator(op: Op, reason: string): never {
  throw new CubeError('UNSUPPORTED', `cannot prune ${describeOp(op)}: ${reason}`);
}
