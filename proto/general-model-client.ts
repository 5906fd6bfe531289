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
  type ValueBudget,
} from './general-tensor.ts';
import { readVarintWords, WIRE_BYTES, WIRE_VARINT, WireReader, WireWriter } from './wire.ts';

const PROFILE_TIMES_MAX = 4_096;

/** A tensor of a request or response; the server knows it by name or by alias. */
export interface FeedTensor extends NamedTensor {
  readonly aliasName: string;
  /** Offsets of the rows of a tensor of variable length, from 0 to their end. Default: none. */
  readonly lod?: ArrayLike<number> | undefined;
}

export interface GeneralCall {
  /** Outputs to return; empty: all. */
  readonly fetchNames: readonly string[];
  /** Default 0. */
  readonly logId?: bigint;
  /** Ask for the times of the server's steps. Default false. */
  readonly profileServer?: boolean;
}

/** The answer of a model: a service may have several. */
export interface GeneralOutput {
  readonly engineName: string;
  readonly tensors: readonly FeedTensor[];
}

export interface GeneralAnswer {
  readonly outputs: readonly GeneralOutput[];
  /** Begin and end of the server's steps in microseconds; empty unless asked for. */
  readonly profileTime: readonly number[];
  readonly logId: bigint;
  /** A remark of a server that has answered; empty: none. */
  readonly errMsg: string;
}

/** @throws CubeError UNSUPPORTED for a type that the protocol does not have */
export function encodeGeneralRequest(
  tensors: readonly FeedTensor[],
  { fetchNames, logId = 0n, profileServer = false }: GeneralCall,
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
  if (profileServer) writer.uint(3, 1);
  if (logId !== 0n) writer.uint(4, BigInt.asUintN(64, logId));
  return writer.finish();
}

/** @throws CubeError as the server failed, or INVALID_ARGUMENT when this is not a Response */
export function decodeGeneralResponse(
  bytes: Uint8Array,
  limits: GeneralModelLimits,
): GeneralAnswer {
  const reader = new WireReader(bytes);
  const budget = { values: limits.values, tensors: limits.tensors };
  const outputs: GeneralOutput[] = [];
  const profileTime: number[] = [];
  let logId = 0n;
  let errNo = 0;
  let errMsg = '';
  while (reader.next()) {
    if (reader.field === 1) {
      reader.expect(WIRE_BYTES);
      outputs.push(decodeOutput(reader.message(), budget));
    } else if (reader.field === 2) readTimes(reader, profileTime);
    else if (reader.field === 4) {
      reader.expect(WIRE_VARINT);
      logId = reader.uint64();
    } else if (reader.field === 5) {
      reader.expect(WIRE_VARINT);
      errNo = reader.int32();
    } else if (reader.field === 6) {
      reader.expect(WIRE_BYTES);
      errMsg = reader.string();
    } else reader.skip();
  }
  if (errNo !== 0) throw CubeError.fromBrpc(errNo, errMsg);
  return { outputs, profileTime, logId, errMsg };
}

/** The tensors of all outputs. @throws as `decodeGeneralResponse` */
export function decodeGeneralTensors(
  bytes: Uint8Array,
  limits: GeneralModelLimits,
): readonly FeedTensor[] {
  return decodeGeneralResponse(bytes, limits).outputs.flatMap(({ tensors }) => tensors);
}

function decodeOutput(
  output: WireReader,
  budget: ValueBudget & { tensors: number },
): GeneralOutput {
  const tensors: FeedTensor[] = [];
  let engineName = '';
  while (output.next()) {
    if (output.field === 1) {
      output.expect(WIRE_BYTES);
      if (budget.tensors-- === 0)
        throw new CubeError('TOO_LARGE', 'a response has too many tensors');
      tensors.push(toFeedTensor(decodeTensor(output.message(), budget)));
    } else if (output.field === 2) {
      output.expect(WIRE_BYTES);
      engineName = output.string();
    } else output.skip();
  }
  return { engineName, tensors };
}

/** Times, packed or with a tag each. */
function readTimes(reader: WireReader, times: number[]): void {
  if (reader.wireType === WIRE_VARINT) {
    times.push(Number(reader.uint64()));
    return;
  }
  reader.expect(WIRE_BYTES);
  const run = reader.view();
  const words = new Uint32Array(2);
  for (let at = 0; at < run.length && times.length < PROFILE_TIMES_MAX; ) {
    at = readVarintWords(run, at, run.length, words, 0);
    if (at < 0) throw new CubeError('INVALID_ARGUMENT', 'protobuf: a time that is not a varint');
    times.push(words[1]! * 2 ** 32 + words[0]!);
  }
}

const TYPES: ReadonlyMap<number, TensorType> = new Map(
  Object.entries(ELEM_TYPES).map(([type, number]) => [number, type as TensorType]),
);

function toFeedTensor(tensor: GeneralTensor): FeedTensor {
  const { name, aliasName, shape, elemType, lod } = tensor;
  const dataType = TYPES.get(elemType);
  if (dataType === undefined) {
    throw new CubeError('UNSUPPORTED', `tensor ${name} has the element type ${elemType}`);
  }
  const data = selectData(tensor, dataType);
  // Servers that send no shape send a list.
  const dims = shape.length > 0 ? shape : [countItems(data, dataType)];
  return { name, aliasName, dataType, shape: dims, data, ...(lod.length > 0 && { lod }) };
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
