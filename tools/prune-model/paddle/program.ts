/**
 * What prune-model knows of a Paddle program (`__model__`, `*.pdmodel`): names, types and attributes decoded, everything else as
 * the exact bytes it came in. A message that is not touched is written back byte for byte, fields that we do not know included.
 * Field numbers: framework.proto of PaddlePaddle, of its versions 1 and 2.
 */

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

/** Element types as NumPy calls them. */
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

/** The same as the text form has them, and the kinds of variables. */
export const TYPE_NAMES: Readonly<Record<number, string>> = {
  ...{ 0: 'BOOL', 1: 'INT16', 2: 'INT32', 3: 'INT64', 4: 'FP16', 5: 'FP32', 6: 'FP64' },
  ...{ 7: 'LOD_TENSOR', 8: 'SELECTED_ROWS', 9: 'FEED_MINIBATCH', 10: 'FETCH_LIST' },
  ...{ 11: 'STEP_SCOPES', 12: 'LOD_RANK_TABLE', 13: 'LOD_TENSOR_ARRAY', 14: 'PLACE_LIST' },
  ...{ 15: 'READER', 17: 'RAW', 18: 'TUPLE', 19: 'SIZE_T', 20: 'UINT8', 21: 'INT8', 22: 'BF16' },
};

const ELEMENT_BYTES: Readonly<Record<number, number>> = {
  ...{ 0: 1, 1: 2, 2: 4, 3: 8, 4: 2, 5: 4, 6: 8, 20: 1, 21: 1, 22: 2 },
};

export function elementName(type: number): string {
  return ELEMENT_NAMES[type] ?? `element type ${type}`;
}

/** Undefined for types of no fixed size. */
export function elementBytes(type: number): number | undefined {
  return ELEMENT_BYTES[type];
}

/** One field of a message: `bytes` is tag and value as they stood in the file. */
export interface RawField {
  readonly field: number;
  readonly bytes: Uint8Array;
}

export interface Program {
  /** In file order; those with field number PROGRAM_BLOCK are the blocks. */
  readonly fields: readonly RawField[];
  readonly blocks: readonly Block[];
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

/** A variable as it is declared. */
export interface Variable {
  readonly raw: RawField;
  readonly name: string;
  /** TYPE_LOD_TENSOR and the like. */
  readonly kind: number;
  readonly persistable: boolean;
  /** -1 when the variable is not a tensor. */
  readonly elementType: number;
  /** -1 is an axis of any size. */
  readonly dims: readonly number[];
  /** 1: rows belong to sequences of any length. */
  readonly lodLevel: number;
}

export interface Op {
  readonly raw: RawField;
  readonly type: string;
  /** Variable names of each parameter. */
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
  /** A variable's name or a newer type: its value is none of these. */
  readonly isOther?: boolean;
}

/** Whether the parameters hold the variable's value. */
export function isParameter({ persistable, kind }: Variable): boolean {
  return (
    persistable &&
    kind !== TYPE_FEED &&
    kind !== TYPE_FETCH &&
    kind !== TYPE_READER &&
    kind !== TYPE_RAW
  );
}

export function inputNames({ inputs }: Op): string[] {
  return [...inputs.values()].flat();
}

export function outputNames({ outputs }: Op): string[] {
  return [...outputs.values()].flat();
}

/** An operator as a message should name it. */
export function describeOp(op: Op): string {
  const [output] = outputNames(op);
  return output === undefined
    ? `a ${op.type} operator`
    : `the ${op.type} operator that makes ${JSON.stringify(output)}`;
}
