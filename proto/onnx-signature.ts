/**
 * Reads the signature of an ONNX file: its inputs and outputs, without running or loading the
 * graph. Field numbers: onnx.proto of the ONNX project.
 */
import { CubeError } from '../lib/core/errors.ts';
import type {
  GraphSignature,
  TensorDim,
  TensorSpec,
  TensorType,
} from '../lib/core/graph-signature.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader } from './wire.ts';

const ELEMENT_TYPES: Readonly<Record<number, TensorType>> = {
  1: 'FP32',
  2: 'UINT8',
  3: 'INT8',
  4: 'UINT16',
  5: 'INT16',
  6: 'INT32',
  7: 'INT64',
  8: 'BYTES',
  9: 'BOOL',
  10: 'FP16',
  11: 'FP64',
  12: 'UINT32',
  13: 'UINT64',
  16: 'BF16',
};
/** Maximum inputs and outputs together, and maximum dimensions of one tensor. */
const TENSORS_MAX = 10_000;
const DIMS_MAX = 64;

const nameDecoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

interface ValueInfo {
  readonly name: string;
  /** Undefined when the value is not a tensor. */
  readonly elemType: number | undefined;
  readonly dims: readonly TensorDim[] | undefined;
}

/**
 * @param source names the model in errors
 * @throws CubeError CORRUPT when the bytes are not an ONNX model, UNSUPPORTED naming a value that
 *   is not a tensor, or is one of an unknown element type
 */
export function readGraphSignature(bytes: Uint8Array, source: string): GraphSignature {
  try {
    const graph = readGraph(bytes);
    if (graph === undefined) fail('it has no graph');
    return readValues(graph, source);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    if (code === 'UNSUPPORTED') throw error;
    throw new CubeError('CORRUPT', `${source} is not a valid ONNX model: ${message}`, {
      cause: error,
    });
  }
}

function readGraph(bytes: Uint8Array): WireReader | undefined {
  const reader = new WireReader(bytes);
  let graph: WireReader | undefined;
  while (reader.next()) {
    if (reader.field === 7) graph = readMessage(reader);
    else reader.skip();
  }
  return graph;
}

function readValues(reader: WireReader, source: string): GraphSignature {
  const inputs: ValueInfo[] = [];
  const outputs: ValueInfo[] = [];
  // Constants that old files list among the inputs, too; callers do not give them.
  const constants = new Set<string>();
  while (reader.next()) {
    const { field } = reader;
    if (field === 5) constants.add(readTensorName(readMessage(reader)));
    else if (field === 11) inputs.push(readValue(readMessage(reader)));
    else if (field === 12) outputs.push(readValue(readMessage(reader)));
    else reader.skip();
    if (inputs.length + outputs.length > TENSORS_MAX) fail(`it has over ${TENSORS_MAX} tensors`);
  }
  const required = inputs.filter(({ name }) => !constants.has(name));
  return {
    inputs: required.map((value) => toSpec(value, `${source}: input`)),
    outputs: outputs.map((value) => toSpec(value, `${source}: output`)),
  };
}

function toSpec({ name, elemType, dims }: ValueInfo, place: string): TensorSpec {
  const where = `${place} ${JSON.stringify(name)}`;
  if (elemType === undefined) {
    throw new CubeError(
      'UNSUPPORTED',
      `${where} is not a tensor; export the model with tensors only (with scikit-learn: zipmap ` +
        'false)',
    );
  }
  const dataType = ELEMENT_TYPES[elemType];
  if (dataType !== undefined) return { name, dataType, dims };
  throw new CubeError(
    'UNSUPPORTED',
    `${where}: its element type (number ${elemType} of ONNX) is not supported; add a Cast to the ` +
      'graph',
  );
}

function readTensorName(reader: WireReader): string {
  let name = '';
  while (reader.next()) {
    if (reader.field === 8) name = readName(reader);
    else reader.skip();
  }
  return name;
}

function readValue(reader: WireReader): ValueInfo {
  let value: ValueInfo = { name: '', elemType: undefined, dims: undefined };
  while (reader.next()) {
    if (reader.field === 1) value = { ...value, name: readName(reader) };
    else if (reader.field === 2) value = { ...value, ...readType(readMessage(reader)) };
    else reader.skip();
  }
  return value;
}

function readType(reader: WireReader): Omit<ValueInfo, 'name'> {
  let type: Omit<ValueInfo, 'name'> = { elemType: undefined, dims: undefined };
  while (reader.next()) {
    if (reader.field === 1) type = readTensorType(readMessage(reader));
    else reader.skip();
  }
  return type;
}

function readTensorType(reader: WireReader): Omit<ValueInfo, 'name'> {
  let elemType = 0;
  let dims: TensorDim[] | undefined;
  while (reader.next()) {
    if (reader.field === 1) {
      reader.expect(WIRE_VARINT);
      elemType = reader.int32();
    } else if (reader.field === 2) dims = readShape(readMessage(reader));
    else reader.skip();
  }
  return { elemType, dims };
}

function readShape(reader: WireReader): TensorDim[] {
  const dims: TensorDim[] = [];
  while (reader.next()) {
    if (reader.field === 1) dims.push(readDim(readMessage(reader)));
    else reader.skip();
    if (dims.length > DIMS_MAX) fail(`a tensor has over ${DIMS_MAX} dimensions`);
  }
  return dims;
}

function readDim(reader: WireReader): TensorDim {
  let dim: TensorDim = '';
  while (reader.next()) {
    if (reader.field === 1) {
      reader.expect(WIRE_VARINT);
      const size = Number(reader.int64());
      // Some exporters write -1 for a dynamic dimension.
      dim = Number.isSafeInteger(size) && size >= 0 ? size : '';
    } else if (reader.field === 2) dim = readName(reader);
    else reader.skip();
  }
  return dim;
}

function readMessage(reader: WireReader): WireReader {
  reader.expect(WIRE_BYTES);
  return reader.message();
}

function readName(reader: WireReader): string {
  reader.expect(WIRE_BYTES);
  const bytes = reader.view();
  try {
    return nameDecoder.decode(bytes);
  } catch {
    fail(`a name is not UTF-8 (at byte ${reader.position})`);
  }
}

function fail(reason: string): never {
  throw new CubeError('CORRUPT', reason);
}
