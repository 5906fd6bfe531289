/**
 * Finds the files beside an ONNX model that have some of its tensors. Field numbers: onnx.proto of
 * the ONNX project.
 */
import { CubeError } from '../lib/core/errors.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader } from './wire.ts';

/** The messages in a message by field. An empty map is a tensor. */
type Fields = ReadonlyMap<number, () => Fields>;

const TENSOR: Fields = new Map();
const SPARSE_TENSOR: Fields = new Map([
  [1, () => TENSOR],
  [2, () => TENSOR],
]);
const ATTRIBUTE: Fields = new Map([
  [5, () => TENSOR],
  [6, () => GRAPH],
  [10, () => TENSOR],
  [11, () => GRAPH],
  [22, () => SPARSE_TENSOR],
  [23, () => SPARSE_TENSOR],
]);
const NODE: Fields = new Map([[5, () => ATTRIBUTE]]);
const GRAPH: Fields = new Map([
  [1, () => NODE],
  [5, () => TENSOR],
  [15, () => SPARSE_TENSOR],
]);
const FUNCTION: Fields = new Map([
  [7, () => NODE],
  [11, () => ATTRIBUTE],
]);
const MODEL: Fields = new Map([
  [7, () => GRAPH],
  [25, () => FUNCTION],
]);
const EXTERNAL_DATA = 13;
const DATA_LOCATION = 14;
const EXTERNAL = 1;
/** Graphs in graphs; real models have one or two levels, each of three messages. */
const DEPTH_MAX = 128;

/**
 * @param source names the model in errors
 * @returns the locations as the model has them, in the order of their first use
 * @throws CubeError CORRUPT when the bytes are not an ONNX model
 */
export function listExternalFiles(model: Uint8Array, source: string): string[] {
  const found = new Set<string>();
  try {
    visitMessage(new WireReader(model), MODEL, 0, found);
  } catch (error) {
    const { message } = CubeError.from(error);
    throw new CubeError('CORRUPT', `${source} is not a valid ONNX model: ${message}`);
  }
  return [...found];
}

function visitMessage(reader: WireReader, fields: Fields, depth: number, found: Set<string>): void {
  if (depth > DEPTH_MAX) throw new CubeError('CORRUPT', 'its graphs nest too deep');
  if (fields === TENSOR) {
    visitTensor(reader, found);
    return;
  }
  while (reader.next()) {
    const inner = reader.wireType === WIRE_BYTES ? fields.get(reader.field) : undefined;
    if (inner === undefined) reader.skip();
    else visitMessage(reader.message(), inner(), depth + 1, found);
  }
}

function visitTensor(reader: WireReader, found: Set<string>): void {
  let isExternal = false;
  let location: string | undefined;
  while (reader.next()) {
    const { field, wireType } = reader;
    if (field === DATA_LOCATION && wireType === WIRE_VARINT) {
      isExternal = reader.uint32() === EXTERNAL;
    } else if (field === EXTERNAL_DATA && wireType === WIRE_BYTES) {
      location = readLocation(reader.message()) ?? location;
    } else reader.skip();
  }
  if (isExternal && location !== undefined) found.add(location);
}

/** @returns the value of an entry with the key `location` */
function readLocation(entry: WireReader): string | undefined {
  let key = '';
  let value = '';
  while (entry.next()) {
    if (entry.field === 1 && entry.wireType === WIRE_BYTES) key = entry.string();
    else if (entry.field === 2 && entry.wireType === WIRE_BYTES) value = entry.string();
    else entry.skip();
  }
  return key === 'location' ? value : undefined;
}
