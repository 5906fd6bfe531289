/** Codec of the general model service (general-model.proto) as its clients use it. */
import { CubeError } from '../lib/core/errors.ts';
import type { TensorType } from '../lib/core/graph-signature.ts';
import type { NamedTensor, Tensor } from '../lib/core/tensor.ts';
import {
  decodeTensor,
  ELEM_TYPES,
  encodeTensor,
  type GeneralModelLimits,
  type GeneralTensor,
  type GeneralTensorType,
} from './general-tensor.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader, WireWriter } from './wire.ts';

/** A tensor of a request; the server knows it by name or by alias. */
export interface FeedTensor extends NamedTensor {
  readonly aliasName: string;
}

/** @throws CubeError UNSUPPORTED for a type that the protocol does not have */
export function encodeGeneralRequest(
  tensors: readonly FeedTensor[],
  fetchNames: readonly string[],
  logId: bigint,
): Uint8Array {
  const writer = new WireWriter(1024);
  for (const tensor of tensors) {
    const { dataType, name } = tensor;
    if (!Object.hasOwn(ELEM_TYPES, dataType)) {
      throw new CubeError(
        'UNSUPPORTED',
        `tensor ${name}: the general model service has no type ${dataType}`,
      );
    }
    const typed = { ...tensor, dataType: dataType as GeneralTensorType };
    writer.message(1, (inner) => encodeTensor(inner, typed));
  }
  for (const name of fetchNames) writer.string(2, name);
  if (logId !== 0n) writer.uint(4, BigInt.asUintN(64, logId));
  return writer.finish();
}

/** @throws CubeError as the server failed, or INVALID_ARGUMENT when this is not a Response */
export function decodeGeneralTensors(
  bytes: Uint8Array,
  limits: GeneralModelLimits,
): readonly FeedTensor[] {
  const reader = new WireReader(bytes);
  const budget = { values: limits.values };
  const tensors: FeedTensor[] = [];
  let errNo = 0;
  let errMsg = '';
  while (reader.next()) {
    if (reader.field === 1) {
      reader.expect(WIRE_BYTES);
      const output = reader.message();
      while (output.next()) {
        if (output.field !== 1) output.skip();
        else if (tensors.length === limits.tensors) {
          throw new CubeError('TOO_LARGE', `a response has more than ${limits.tensors} tensors`);
        } else tensors.push(toFeedTensor(decodeTensor(output.message(), budget)));
      }
    } else if (reader.field === 5) {
      reader.expect(WIRE_VARINT);
      errNo = reader.int32();
    } else if (reader.field === 6) {
      reader.expect(WIRE_BYTES);
      errMsg = reader.string();
    } else reader.skip();
  }
  if (errNo !== 0) throw CubeError.fromBrpc(errNo, errMsg);
  return tensors;
}

const TYPES: ReadonlyMap<number, TensorType> = new Map(
  Object.entries(ELEM_TYPES).map(([type, number]) => [number, type as TensorType]),
);

function toFeedTensor(tensor: GeneralTensor): FeedTensor {
  const { name, aliasName, shape, elemType } = tensor;
  const dataType = TYPES.get(elemType);
  if (dataType === undefined) {
    throw new CubeError('UNSUPPORTED', `tensor ${name} has the element type ${elemType}`);
  }
  const data = selectData(tensor, dataType);
  // Servers that send no shape send a list.
  const dims = shape.length > 0 ? shape : [countItems(data, dataType)];
  return { name, aliasName, dataType, shape: dims, data };
}

function selectData(tensor: GeneralTensor, dataType: TensorType): Tensor['data'] {
  const { content, int64Words, float32, int32, float64, bool, strings } = tensor;
  if (dataType === 'BYTES') return strings;
  const arrays: Partial<Record<TensorType, ArrayBufferView>> = {
    INT64: int64Words,
    FP32: float32,
    INT32: int32,
    FP64: float64,
    BOOL: bool,
  };
  const array = arrays[dataType];
  // A copy: the response's bytes are valid only during the call.
  if (array === undefined || array.byteLength === 0) return new Uint8Array(content);
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

function countItems(data: Tensor['data'], dataType: TensorType): number {
  const wide: Partial<Record<TensorType, number>> = { INT64: 8, FP64: 8, FP32: 4, INT32: 4 };
  return data.length / (wide[dataType] ?? 1);
}
