/**
 * The values of a constant table, wherever they stand and whatever the graph does to them before it looks rows up: Identity, Cast,
 * DequantizeLinear, Transpose, Concat of parts. Values are read in pieces, so a table need not fit in memory.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { float16ToFloat32, roundToFloat16 } from './float16.ts';
import type { Frame } from './graph-index.ts';
import {
  ELEM_BFLOAT16,
  ELEM_FLOAT,
  ELEM_FLOAT16,
  ELEM_INT8,
  ELEM_UINT8,
  elemName,
  type OnnxNode,
  type OnnxTensor,
} from './onnx-model.ts';
import { type ExternalData, elemBytes, elementCount, openTensor } from './tensor-data.ts';

/** A constant tensor as float32 values, row-major. */
export interface TableValues {
  readonly dims: readonly number[];
  /** Of the values as the graph has them. */
  readonly elemType: number;
  /** Initializers and Constant nodes it is made of. */
  readonly leaves: readonly string[];
  /** Fills `target` with the values from position `first` on; both whole rows. @throws CubeError CORRUPT */
  read(first: number, target: Float32Array): void;
}

/** Rows have no size in memory, but their number must fit; a row is read whole. */
const NESTING_MAX = 32;
const TABLE_TYPES = new Set([ELEM_FLOAT, ELEM_FLOAT16, ELEM_BFLOAT16, ELEM_INT8, ELEM_UINT8]);

/** @returns the table, or why it is none that is understood */
export function tableValues(
  name: string,
  frame: Frame,
  external: ExternalData,
  depth = 0,
): TableValues | string {
  const { source } = frame.scope.fact(name);
  if (source?.tensor !== undefined) return leafValues(source.name, source.tensor, external);
  const node = producerOf(name, frame);
  const make =
    node?.domain === '' || node?.domain === 'com.microsoft' ? WRAPPERS[node.opType] : undefined;
  if (node === undefined || make === undefined || depth > NESTING_MAX) {
    return `its table is computed from constants by ${node?.opType ?? 'other nodes'}, which is not supported`;
  }
  const parts: TableValues[] = [];
  // The scales of DequantizeLinear are read by the wrapper itself.
  const inputs = node.opType === 'Concat' ? node.inputs : node.inputs.slice(0, 1);
  for (const input of inputs) {
    const part = tableValues(input, frame, external, depth + 1);
    if (typeof part === 'string') return part;
    parts.push(part);
  }
  return make(node, parts, frame, external);
}

/** The node that makes a value, in the body that reads it or around it. */
export function producerOf(name: string, frame: Frame): OnnxNode | undefined {
  let at: Frame | undefined = frame;
  while (at !== undefined && !at.defines(name)) at = at.outer;
  return at?.producer(name);
}

type Wrapper = (
  node: OnnxNode,
  parts: readonly TableValues[],
  frame: Frame,
  external: ExternalData,
) => TableValues | string;

const WRAPPERS: Readonly<Record<string, Wrapper>> = {
  Identity: (_, [table]) => table!,
  Cast: castValues,
  DequantizeLinear: dequantised,
  Transpose: transposeNode,
  Concat: concatenated,
};

function leafValues(
  name: string,
  tensor: OnnxTensor,
  external: ExternalData,
): TableValues | string {
  const { elemType, dims } = tensor;
  if (!TABLE_TYPES.has(elemType)) return `tables of ${elemName(elemType)} are not supported`;
  const itemBytes = elemBytes(elemType)!;
  const bytes = openTensor(tensor, external);
  const read = (first: number, target: Float32Array): void => {
    const isFloat = elemType === ELEM_FLOAT;
    const view = isFloat
      ? new Uint8Array(target.buffer, target.byteOffset, target.byteLength)
      : new Uint8Array(target.length * itemBytes);
    bytes.readInto(view, first * itemBytes);
    if (!isFloat) convert(elemType, view, target);
  };
  return { dims, elemType, leaves: [name], read };
}

function convert(elemType: number, bytes: Uint8Array, target: Float32Array): void {
  if (elemType === ELEM_UINT8) target.set(bytes);
  else if (elemType === ELEM_INT8) target.set(new Int8Array(bytes.buffer, 0, target.length));
  else if (elemType === ELEM_BFLOAT16) {
    const halves = new Uint16Array(bytes.buffer, 0, target.length);
    const words = new Uint32Array(target.buffer, target.byteOffset, target.length);
    for (let i = 0; i < words.length; i++) words[i] = halves[i]! << 16;
  } else float16ToFloat32(new Uint16Array(bytes.buffer, 0, target.length), target);
}

function castValues(node: OnnxNode, [table]: readonly TableValues[]): TableValues | string {
  const to = Number(node.attributes.get('to')?.int ?? 0n);
  const { elemType } = table!;
  if (to === ELEM_FLOAT || to === elemType) return { ...table!, elemType: to };
  if (to !== ELEM_FLOAT16 || elemType === ELEM_BFLOAT16) {
    return `its table is cast from ${elemName(elemType)} to ${elemName(to)}, which is not supported`;
  }
  const read = (first: number, target: Float32Array): void => {
    table!.read(first, target);
    for (let i = 0; i < target.length; i++) target[i] = roundToFloat16(target[i]!);
  };
  return { ...table!, elemType: to, read };
}

function concatenated(node: OnnxNode, parts: readonly TableValues[]): TableValues | string {
  const [head] = parts;
  const inner = head?.dims.slice(1).join() ?? '';
  const axis = Number(node.attributes.get('axis')?.int ?? 0n);
  const isSame = parts.every(
    ({ dims, elemType }) => dims.slice(1).join() === inner && elemType === head!.elemType,
  );
  if (head === undefined || (axis !== 0 && axis !== -head.dims.length) || !isSame) {
    return 'its table is a Concat of parts that are not rows of one table';
  }
  const counts = parts.map(({ dims }) => countOf(dims));
  const rows = parts.reduce((sum, { dims }) => sum + (dims[0] ?? 0), 0);
  const read = (first: number, target: Float32Array): void => {
    let start = 0;
    parts.forEach((part, i) => {
      const from = Math.max(first, start);
      const to = Math.min(first + target.length, start + counts[i]!);
      if (from < to) part.read(from - start, target.subarray(from - first, to - first));
      start += counts[i]!;
    });
  };
  const leaves = [...new Set(parts.flatMap((part) => part.leaves))];
  return { dims: [rows, ...head.dims.slice(1)], elemType: head.elemType, leaves, read };
}

function transposeNode(node: OnnxNode, [table]: readonly TableValues[]): TableValues | string {
  const perm = node.attributes.get('perm')?.ints.join() ?? '1,0';
  if (table!.dims.length !== 2 || (perm !== '1,0' && perm !== '0,1')) {
    return `its table is transposed from rank ${table!.dims.length} by [${perm}], which is not supported`;
  }
  return perm === '1,0' ? transposed(table!) : table!;
}

const transposedFrom = new WeakMap<TableValues, TableValues>();

/** [dim, rows] as [rows, dim]: a piece of rows is a piece of each of `dim` runs. */
export function transposed(table: TableValues): TableValues {
  const original = transposedFrom.get(table);
  if (original !== undefined) return original;
  const [dim = 0, rows = 0] = table.dims;
  const read = (first: number, target: Float32Array): void => {
    const count = target.length / dim;
    if (first % dim !== 0 || !Number.isInteger(count)) {
      throw new CubeError('UNSUPPORTED', 'cannot prune this model: a table is transposed in parts');
    }
    const run = new Float32Array(count);
    for (let d = 0; d < dim; d++) {
      table.read(d * rows + first / dim, run);
      for (let row = 0; row < count; row++) target[row * dim + d] = run[row]!;
    }
  };
  const result = { ...table, dims: [rows, dim], read };
  transposedFrom.set(result, table);
  return result;
}

/** x = (q − zero point) · scale, per tensor, per row or per column; in the precision of the scale. */
export function dequantised(
  node: OnnxNode,
  [table]: readonly TableValues[],
  frame: Frame,
  external: ExternalData,
): TableValues | string {
  const { dims, elemType } = table!;
  const scale = constantFloats(node.inputs[1] ?? '', frame, external);
  const zeroName = node.inputs[2] ?? '';
  const zero = zeroName === '' ? undefined : constantFloats(zeroName, frame, external);
  if (scale === undefined || (zeroName !== '' && zero === undefined)) {
    return 'the scale of its quantised table is not constant';
  }
  const blockSize = node.attributes.get('block_size')?.int ?? 0n;
  const given = Number(node.attributes.get('axis')?.int ?? 1n);
  const axis = given < 0 ? given + dims.length : given;
  const isTensor = scale.length === 1;
  if (
    blockSize !== 0n ||
    (elemType !== ELEM_INT8 && elemType !== ELEM_UINT8) ||
    (!isTensor && scale.length !== dims[axis]) ||
    (zero !== undefined && zero.length !== scale.length)
  ) {
    return `quantised tables (${elemName(elemType)}) of this form are not supported`;
  }
  const scaleType = frame.scope.fact(node.inputs[1] ?? '').source!.tensor!.elemType;
  if (scaleType !== ELEM_FLOAT && scaleType !== ELEM_FLOAT16) {
    return `its quantised table has scales of ${elemName(scaleType)}, which is not supported`;
  }
  const stride = countOf(dims.slice(axis + 1));
  const size = dims[axis] ?? 1;
  const read = (first: number, target: Float32Array): void => {
    table!.read(first, target);
    for (let i = 0; i < target.length; i++) {
      const at = isTensor ? 0 : Math.floor((first + i) / stride) % size;
      const value = Math.fround(target[i]! - (zero?.[at] ?? 0)) * scale[at]!;
      target[i] = scaleType === ELEM_FLOAT16 ? roundToFloat16(value) : value;
    }
  };
  return { ...table!, elemType: scaleType, read };
}

/** Scales and zero points: one, or as many as rows. */
function constantFloats(
  name: string,
  frame: Frame,
  external: ExternalData,
): Float32Array | undefined {
  const { source } = frame.scope.fact(name);
  if (source?.tensor === undefined) return undefined;
  const values = leafValues(source.name, source.tensor, external);
  const isList = source.tensor.dims.length <= 1 && elementCount(source.tensor) <= 2 ** 28;
  if (typeof values === 'string' || !isList) return undefined;
  const floats = new Float32Array(elementCount(source.tensor));
  values.read(0, floats);
  return floats;
}

export function countOf(dims: readonly number[]): number {
  return dims.reduce((product, dim) => product * dim, 1);
}
