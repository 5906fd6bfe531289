/**
 * The values of a constant table and of the operators that a graph applies to it before the lookup:
 * Identity, Cast, DequantizeLinear, Transpose, Concat. Values are read in pieces, so a table need
 * not fit in memory.
 */

import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import { f16ToNumber, nearestF16Value } from '../../../lib/core/half-floats.ts';
import { countElements } from '../cut/table.ts';
import type { GraphScope } from './graph-index.ts';
import {
  ELEM_BFLOAT16,
  ELEM_FLOAT,
  ELEM_FLOAT16,
  ELEM_INT8,
  ELEM_UINT8,
  getElementTypeName,
  getIntAttribute,
  type NodeProto,
  type TensorProto,
} from './onnx-model.ts';
import {
  countTensorElements,
  type ExternalData,
  getElementBytes,
  openTensor,
} from './tensor-data.ts';

/** A constant tensor as float32 values, row-major. */
export interface TableValues {
  readonly dims: readonly number[];
  /** Element type that the values have in the graph. */
  readonly elemType: number;
  /** Initializers and Constant nodes that hold the values. */
  readonly sources: readonly string[];
  /**
   * Fills `target` with the values from position `first` on; both are whole rows. @throws CubeError
   * CORRUPT
   */
  read(first: number, target: Float32Array): void;
}

const NESTING_MAX = 32;
const TABLE_TYPES = new Set([ELEM_FLOAT, ELEM_FLOAT16, ELEM_BFLOAT16, ELEM_INT8, ELEM_UINT8]);

/** @returns the table, or the reason why it is not supported */
export function readTableValues(
  name: string,
  scope: GraphScope,
  external: ExternalData,
  depth = 0,
): TableValues | string {
  const { source } = scope.origins.get(name);
  if (source?.tensor !== undefined) return readTensorValues(source.name, source.tensor, external);
  const node = findProducerInScope(name, scope);
  const make =
    node?.domain === '' || node?.domain === 'com.microsoft'
      ? TABLE_OPERATORS[node.opType]
      : undefined;
  if (node === undefined || make === undefined || depth > NESTING_MAX) {
    return (
      `its table is computed from constants by ${node?.opType ?? 'other nodes'}, which is ` +
      'not supported; ' +
      'fold constants when exporting the model'
    );
  }
  const parts: TableValues[] = [];
  // The scales of DequantizeLinear are read by the wrapper itself.
  const inputs = node.opType === 'Concat' ? node.inputs : node.inputs.slice(0, 1);
  for (const input of inputs) {
    const part = readTableValues(input, scope, external, depth + 1);
    if (typeof part === 'string') return part;
    parts.push(part);
  }
  const [table] = parts;
  if (table === undefined) return `its table is computed by ${node.opType} without an input`;
  return make(node, table, parts, scope, external);
}

/** The node that computes a value, in the body that reads it or in a graph around it. */
export function findProducerInScope(name: string, scope: GraphScope): NodeProto | undefined {
  let at: GraphScope | undefined = scope;
  while (at !== undefined && !at.defines(name)) at = at.outer;
  return at?.findProducer(name);
}

type TableOperator = (
  node: NodeProto,
  table: TableValues,
  parts: readonly TableValues[],
  scope: GraphScope,
  external: ExternalData,
) => TableValues | string;

const TABLE_OPERATORS: Readonly<Record<string, TableOperator>> = {
  Identity: (_, table) => table,
  Cast: castTable,
  DequantizeLinear: (node, table, _, scope, external) =>
    dequantizeTable(node, table, scope, external),
  Transpose: applyTranspose,
  Concat: concatenateTables,
};

function readTensorValues(
  name: string,
  tensor: TensorProto,
  external: ExternalData,
): TableValues | string {
  const { elemType, dims } = tensor;
  if (!TABLE_TYPES.has(elemType)) {
    const type = getElementTypeName(elemType);
    return `tables of ${type} are not supported; store the table as float32`;
  }
  const itemBytes = requireDefined(getElementBytes(elemType), 'the size of an element');
  const bytes = openTensor(tensor, external);
  const read = (first: number, target: Float32Array): void => {
    const isFloat = elemType === ELEM_FLOAT;
    const view = isFloat
      ? new Uint8Array(target.buffer, target.byteOffset, target.byteLength)
      : new Uint8Array(target.length * itemBytes);
    bytes.readInto(view, first * itemBytes);
    if (!isFloat) convertToFloat32(elemType, view, target);
  };
  return { dims, elemType, sources: [name], read };
}

function convertToFloat32(elemType: number, bytes: Uint8Array, target: Float32Array): void {
  if (elemType === ELEM_UINT8) target.set(bytes);
  else if (elemType === ELEM_INT8) target.set(new Int8Array(bytes.buffer, 0, target.length));
  else if (elemType === ELEM_BFLOAT16) {
    const halves = new Uint16Array(bytes.buffer, 0, target.length);
    const words = new Uint32Array(target.buffer, target.byteOffset, target.length);
    for (let i = 0; i < words.length; i++) words[i] = halves[i]! << 16;
  } else {
    const halves = new Uint16Array(bytes.buffer, 0, target.length);
    for (let i = 0; i < halves.length; i++) target[i] = f16ToNumber(halves[i]!);
  }
}

function castTable(node: NodeProto, table: TableValues): TableValues | string {
  const to = getIntAttribute(node, 'to', 0);
  const { elemType } = table;
  if (to === ELEM_FLOAT || to === elemType) return { ...table, elemType: to };
  if (to !== ELEM_FLOAT16 || elemType === ELEM_BFLOAT16) {
    return (
      `its table is cast from ${getElementTypeName(elemType)} to ${getElementTypeName(to)}, ` +
      'which is not supported'
    );
  }
  const read = (first: number, target: Float32Array): void => {
    table.read(first, target);
    for (let i = 0; i < target.length; i++) target[i] = nearestF16Value(target[i]!);
  };
  return { ...table, elemType: to, read };
}

function concatenateTables(
  node: NodeProto,
  head: TableValues,
  parts: readonly TableValues[],
): TableValues | string {
  const inner = head.dims.slice(1).join();
  const axis = getIntAttribute(node, 'axis', 0);
  const isSame = parts.every(
    ({ dims, elemType }) => dims.slice(1).join() === inner && elemType === head.elemType,
  );
  if ((axis !== 0 && axis !== -head.dims.length) || !isSame) {
    return 'its table is a Concat of parts that are not rows of one table';
  }
  const counts = parts.map(({ dims }) => countElements(dims));
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
  const leaves = [...new Set(parts.flatMap((part) => part.sources))];
  return { dims: [rows, ...head.dims.slice(1)], elemType: head.elemType, sources: leaves, read };
}

function applyTranspose(node: NodeProto, table: TableValues): TableValues | string {
  const perm = node.attributes.get('perm')?.ints.join() ?? '1,0';
  if (table.dims.length !== 2 || (perm !== '1,0' && perm !== '0,1')) {
    return (
      `its table is transposed from rank ${table.dims.length} by [${perm}], which is not ` +
      'supported'
    );
  }
  return perm === '1,0' ? transposeTable(table) : table;
}

const transposedFrom = new WeakMap<TableValues, TableValues>();

/**
 * Reads a [dim, rows] table as [rows, dim]: a piece of rows takes a piece of each of `dim` runs.
 */
export function transposeTable(table: TableValues): TableValues {
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

/**
 * Dequantizes: (q − zero point) · scale per tensor, row or column, in the precision of the scale.
 */
export function dequantizeTable(
  node: NodeProto,
  table: TableValues,
  scope: GraphScope,
  external: ExternalData,
): TableValues | string {
  const { dims, elemType } = table;
  const scale = readConstantFloats(node.inputs[1] ?? '', scope, external);
  const zeroName = node.inputs[2] ?? '';
  const zero = zeroName === '' ? undefined : readConstantFloats(zeroName, scope, external);
  if (scale === undefined || (zeroName !== '' && zero === undefined)) {
    return 'the scale or zero point of its quantised table is not constant';
  }
  const blockSize = getIntAttribute(node, 'block_size', 0);
  const given = getIntAttribute(node, 'axis', 1);
  const axis = given < 0 ? given + dims.length : given;
  const isTensor = scale.length === 1;
  if (
    blockSize !== 0 ||
    (elemType !== ELEM_INT8 && elemType !== ELEM_UINT8) ||
    (!isTensor && scale.length !== dims[axis]) ||
    (zero !== undefined && zero.length !== scale.length)
  ) {
    const type = getElementTypeName(elemType);
    return `its table is quantised (${type}) in a form that is not supported`;
  }
  const scaleTensor = scope.origins.get(node.inputs[1] ?? '').source?.tensor;
  const scaleType = requireDefined(scaleTensor, 'the scales of a table').elemType;
  if (scaleType !== ELEM_FLOAT && scaleType !== ELEM_FLOAT16) {
    return (
      `its quantised table has scales of ${getElementTypeName(scaleType)}, which is not ` +
      'supported'
    );
  }
  const stride = countElements(dims.slice(axis + 1));
  const size = dims[axis] ?? 1;
  const read = (first: number, target: Float32Array): void => {
    table.read(first, target);
    for (let i = 0; i < target.length; i++) {
      const at = isTensor ? 0 : Math.floor((first + i) / stride) % size;
      const value = Math.fround(target[i]! - (zero?.[at] ?? 0)) * scale[at]!;
      target[i] = scaleType === ELEM_FLOAT16 ? nearestF16Value(value) : value;
    }
  };
  return { ...table, elemType: scaleType, read };
}

/** Reads scales or zero points: one, or one for each row or column. */
function readConstantFloats(
  name: string,
  scope: GraphScope,
  external: ExternalData,
): Float32Array | undefined {
  const { source } = scope.origins.get(name);
  if (source?.tensor === undefined) return undefined;
  const values = readTensorValues(source.name, source.tensor, external);
  const isList = source.tensor.dims.length <= 1 && countTensorElements(source.tensor) <= 2 ** 28;
  if (typeof values === 'string' || !isList) return undefined;
  const floats = new Float32Array(countTensorElements(source.tensor));
  values.read(0, floats);
  return floats;
}
