/** Reads the values of a general model service tensor from whichever field holds them. */

import { CubeError } from '../../lib/core/errors.ts';
import { bf16ToF32Bits, f16ToF32Bits } from '../../lib/core/half-floats.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import { ELEM_TYPE, type GeneralTensor } from '../../proto/general-tensor.ts';

/** Bytes per element of tensor_content. */
const ELEM_BYTES: Readonly<Record<number, number>> = {
  [ELEM_TYPE.INT64]: 8,
  [ELEM_TYPE.FP32]: 4,
  [ELEM_TYPE.INT32]: 4,
  [ELEM_TYPE.FP64]: 8,
  [ELEM_TYPE.INT16]: 2,
  [ELEM_TYPE.FP16]: 2,
  [ELEM_TYPE.BF16]: 2,
  [ELEM_TYPE.UINT8]: 1,
  [ELEM_TYPE.INT8]: 1,
  [ELEM_TYPE.BOOL]: 1,
};

/** Ids as 64-bit keys. Negative ids are sign-extended, for tables that count from the end. */
export interface IdValues {
  /** Writes id `at` to words[to] (low) and words[to + 1] (high). */
  copy(at: number, words: Uint32Array, to: number): void;
}

/** The number of values. @throws CubeError INVALID_ARGUMENT when several fields have values */
export function countValues(tensor: GeneralTensor): number {
  const { int64Words, float32, int32, float64, uint32, bool, strings } = tensor;
  const [ids, texts] = [int64Words.length / 2, strings.length];
  const [floats, ints, doubles] = [float32.length, int32.length, float64.length];
  const content = countContentValues(tensor);
  const total = ids + texts + floats + ints + doubles + uint32.length + bool.length + content;
  const largest = Math.max(ids, texts, floats, ints, doubles, uint32.length, bool.length, content);
  if (total !== largest) rejectTensor(tensor, 'it has values in several fields');
  return total;
}

function countContentValues(tensor: GeneralTensor): number {
  const { content, elemType } = tensor;
  if (content.length === 0) return 0;
  const bytes = ELEM_BYTES[elemType];
  if (bytes === undefined)
    return rejectTensor(tensor, `tensor_content of elem_type ${elemType} is not supported`);
  if (content.length % bytes === 0) return content.length / bytes;
  return rejectTensor(
    tensor,
    `its ${content.length} bytes are not a multiple of ${bytes}, the size of a value`,
  );
}

/** @throws CubeError INVALID_ARGUMENT when the values are not integers */
export function readIds(tensor: GeneralTensor): IdValues {
  const { int64Words, int32, uint32, content, elemType } = tensor;
  if (int64Words.length > 0) return idsFromWords(int64Words);
  if (int32.length > 0) return idsFromNumbers((at) => int32[at]!);
  if (uint32.length > 0) return idsFromNumbers((at) => uint32[at]!);
  if (content.length > 0) {
    const view = new DataView(content.buffer, content.byteOffset, content.length);
    if (elemType === ELEM_TYPE.INT64) {
      return idsFromWords(
        Uint32Array.from({ length: content.length / 4 }, (_, i) => view.getUint32(4 * i, true)),
      );
    }
    if (elemType === ELEM_TYPE.INT32) return idsFromNumbers((at) => view.getInt32(4 * at, true));
    if (elemType === ELEM_TYPE.INT16) return idsFromNumbers((at) => view.getInt16(2 * at, true));
    if (elemType === ELEM_TYPE.UINT8) return idsFromNumbers((at) => view.getUint8(at));
    if (elemType === ELEM_TYPE.INT8) return idsFromNumbers((at) => view.getInt8(at));
  } else if (countValues(tensor) === 0) {
    return idsFromNumbers(() => 0);
  }
  return rejectTensor(tensor, 'its values are not ids: send integers or feature strings');
}

function idsFromWords(words: Uint32Array): IdValues {
  return {
    copy(at, target, to) {
      target[to] = words[2 * at]!;
      target[to + 1] = words[2 * at + 1]!;
    },
  };
}

/** @param read returns a signed integer of at most 32 bits */
function idsFromNumbers(read: (at: number) => number): IdValues {
  return {
    copy(at, target, to) {
      const id = read(at);
      target[to] = id;
      target[to + 1] = id < 0 ? 0xffff_ffff : 0;
    },
  };
}

/** @throws CubeError INVALID_ARGUMENT when the values are not numbers */
export function readFloats(tensor: GeneralTensor): Float32Array {
  const { float32, float64, int32, uint32, int64Words, content } = tensor;
  if (float32.length > 0) return float32;
  for (const values of [float64, int32, uint32]) {
    if (values.length > 0) return Float32Array.from(values);
  }
  if (int64Words.length > 0) {
    return Float32Array.from(
      { length: int64Words.length / 2 },
      (_, i) => (int64Words[2 * i + 1]! | 0) * 2 ** 32 + int64Words[2 * i]!,
    );
  }
  return content.length > 0 ? readContentFloats(tensor) : rejectTensor(tensor, 'it has no numbers');
}

function readContentFloats(tensor: GeneralTensor): Float32Array {
  const { content, elemType } = tensor;
  const view = new DataView(content.buffer, content.byteOffset, content.length);
  const length = countContentValues(tensor);
  if (elemType === ELEM_TYPE.FP32) {
    return Float32Array.from({ length }, (_, i) => view.getFloat32(4 * i, true));
  }
  if (elemType === ELEM_TYPE.FP64) {
    return Float32Array.from({ length }, (_, i) => view.getFloat64(8 * i, true));
  }
  const toBits = { [ELEM_TYPE.FP16]: f16ToF32Bits, [ELEM_TYPE.BF16]: bf16ToF32Bits }[elemType];
  if (toBits === undefined)
    rejectTensor(tensor, `dense features of elem_type ${elemType} are not supported`);
  const bits = Uint32Array.from({ length }, (_, i) => toBits(view.getUint16(2 * i, true)));
  return new Float32Array(bits.buffer);
}

export function rejectTensor({ name, aliasName }: GeneralTensor, problem: string): never {
  const shownName = quoteInput(name || aliasName);
  throw new CubeError('INVALID_ARGUMENT', `tensor ${shownName}: ${problem}`);
}
