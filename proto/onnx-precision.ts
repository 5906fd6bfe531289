/**
 * Stores the float weights of an ONNX graph with fewer bits, as a graph of standard operators with
 * the same inputs and outputs. `fp16` and `bf16` round every weight of matrices and convert it back
 * to float32 when the graph is loaded; `int8` multiplies 8-bit matrices: one scale for each column
 * of the weights, and one for each row of the other operand, so that the result of a row does not
 * depend on the batch in which it is.
 */
import { CubeError } from '../lib/core/errors.ts';
import { f32BitsToBf16, f32BitsToF16 } from '../lib/core/half-floats.ts';
import type { Precision } from '../lib/core/precisions.ts';
import { encodeOnnxNode, encodeTensor } from './onnx-encoding.ts';
import { type FloatWeight, type GraphEdit, type GraphNode, OnnxGraph } from './onnx-graph.ts';

const FLOAT = 1;
const UINT8 = 2;
const INT8 = 3;
const INT64 = 7;

const FLOAT16 = 10;
const BFLOAT16 = 16;
/** Smaller weights, such as biases, stay as they are. */
const ELEMENTS_MIN = 256;
const INT8_MAX = 127;
/**
 * Weights have seven bits: processors with AVX2 and without VNNI add two products in 16 bits, where
 * 255 · 127 + 255 · 127 is cut off, and 255 · 64 + 255 · 64 is not.
 */
const WEIGHT_MAX = 64;
/** The unsigned byte that stands for 0. */
const UINT8_ZERO = 128;
/** A row of zeros has no scale of its own. */
const SMALLEST_SCALE = 1e-30;
/** The first opset with axes of ReduceMax as an input. */
const AXES_INPUT_OPSET = 18;
const INT8_OPSET = 13;

export interface ConvertedGraph {
  readonly model: Uint8Array;
  /** Weights that have fewer bits now. */
  readonly weightCount: number;
  /** Bytes of these weights before and after. */
  readonly bytesBefore: number;
  readonly bytesAfter: number;
}

/**
 * @param source names the model in errors
 * @throws CubeError UNSUPPORTED when the graph has no weights that can be converted
 */
export function convertPrecision(
  model: Uint8Array,
  precision: Exclude<Precision, 'fp32'>,
  source: string,
): ConvertedGraph {
  const graph = new OnnxGraph(model, source);
  const nodes = new Map<number, readonly Uint8Array[]>();
  const edit = { nodes, firstNodes: [] as Uint8Array[], initializers: [] as Uint8Array[] };
  const weights =
    precision === 'int8'
      ? quantizeMatrices(graph, edit, source)
      : roundWeights(graph, edit, precision);
  if (weights.length === 0) {
    const kind =
      precision === 'int8' ? 'matrix products with a constant float32 matrix' : 'weights';
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: precision ${precision} changes nothing, because the graph has no ${kind} of ` +
        `${ELEMENTS_MIN} or more values in its own file; use fp32`,
    );
  }
  const elements = weights.reduce((sum, { values }) => sum + values.length, 0);
  return {
    model: graph.write(edit),
    weightCount: weights.length,
    bytesBefore: 4 * elements,
    bytesAfter: (precision === 'int8' ? 1 : 2) * elements,
  };
}

interface Edit extends GraphEdit {
  readonly nodes: Map<number, readonly Uint8Array[]>;
  readonly firstNodes: Uint8Array[];
  readonly initializers: Uint8Array[];
}

function node(
  opType: string,
  inputs: readonly string[],
  output: string,
  attributes: Readonly<Record<string, number | readonly number[]>> = {},
): Uint8Array {
  return encodeOnnxNode({ opType, inputs, outputs: [output], attributes });
}

function roundWeights(
  graph: OnnxGraph,
  edit: Edit,
  precision: 'fp16' | 'bf16',
): readonly FloatWeight[] {
  const [elemType, round] =
    precision === 'fp16'
      ? ([FLOAT16, f32BitsToF16] as const)
      : ([BFLOAT16, f32BitsToBf16] as const);
  const large = [...graph.weights.values()].filter(({ values }) => values.length >= ELEMENTS_MIN);
  for (const { position, name, dims, values } of large) {
    const stored = `${name}@${precision}`;
    const bits = Uint16Array.from(new Uint32Array(values.buffer), round);
    edit.initializers.push(encodeTensor(stored, elemType, dims, new Uint8Array(bits.buffer)));
    edit.nodes.set(position, []);
    edit.firstNodes.push(node('Cast', [stored], name, { to: FLOAT }));
  }
  return large;
}

/** Replaces MatMul and Gemm with a constant matrix as their second operand. */
function quantizeMatrices(graph: OnnxGraph, edit: Edit, source: string): FloatWeight[] {
  if (graph.opset < INT8_OPSET) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: precision int8 needs version ${INT8_OPSET} of the standard operators; the ` +
        `graph has ${graph.opset}; export it again, or use fp16 or fp32`,
    );
  }
  const converted = new Map<string, FloatWeight>();
  for (const product of graph.nodes) {
    const weight = findMatrix(graph, product);
    if (weight === undefined) continue;
    const isTransposed = product.numbers.get('transB') === 1;
    const stored = `${weight.name}@int8${isTransposed ? '_transposed' : ''}`;
    if (!converted.has(stored)) addQuantizedMatrix(edit, weight, stored, isTransposed);
    converted.set(stored, weight);
    edit.nodes.set(product.position, makeInt8Product(graph.opset, product, stored));
  }
  if (converted.size > 0) addInt8Constants(edit, graph.opset);
  removeUnusedWeights(graph, edit, [...converted.values()]);
  return [...converted.values()];
}

/** @returns the matrix of a product that can be converted */
function findMatrix(graph: OnnxGraph, product: GraphNode): FloatWeight | undefined {
  const { opType, domain, numbers, inputs } = product;
  if (domain !== '' || (opType !== 'MatMul' && opType !== 'Gemm')) return undefined;
  const isPlain = (numbers.get('alpha') ?? 1) === 1 && (numbers.get('beta') ?? 1) === 1;
  if (!isPlain || numbers.get('transA') === 1) return undefined;
  const weight = graph.weights.get(inputs[1] ?? '');
  if (weight?.dims.length !== 2 || weight.values.length < ELEMENTS_MIN) return undefined;
  return weight.values.every(Number.isFinite) ? weight : undefined;
}

/** Adds the matrix [rows, columns] in 8 bits, and the scale of each column. */
function addQuantizedMatrix(
  { initializers }: Edit,
  { dims, values }: FloatWeight,
  name: string,
  isTransposed: boolean,
): void {
  const [first = 0, second = 0] = dims;
  const [rows, columns] = isTransposed ? [second, first] : [first, second];
  const at = (row: number, column: number): number =>
    values[isTransposed ? column * rows + row : row * columns + column] ?? 0;
  const scales = new Float32Array(columns);
  const bytes = new Int8Array(rows * columns);
  for (let column = 0; column < columns; column++) {
    let largest = 0;
    for (let row = 0; row < rows; row++) largest = Math.max(largest, Math.abs(at(row, column)));
    const scale = largest === 0 ? 1 : largest / WEIGHT_MAX;
    scales[column] = scale;
    for (let row = 0; row < rows; row++) {
      bytes[row * columns + column] = Math.round(at(row, column) / scale);
    }
  }
  initializers.push(encodeTensor(name, INT8, [rows, columns], new Uint8Array(bytes.buffer)));
  const scaleBytes = new Uint8Array(scales.buffer);
  initializers.push(encodeTensor(`${name}_scales`, FLOAT, [columns], scaleBytes));
}

const LIMIT = '@int8_limit';
const SMALLEST = '@int8_smallest_scale';
const OFFSET = '@int8_offset';
const ZERO_POINT = '@int8_zero_point';
const LAST_AXIS = '@int8_last_axis';

/** The nodes of a product in 8 bits: each row of the first operand has a scale. */
function makeInt8Product(opset: number, product: GraphNode, matrix: string): Uint8Array[] {
  const [operand = '', , added] = product.inputs;
  const [output = ''] = product.outputs;
  const name = (step: string): string => `${output}@int8_${step}`;
  const largest =
    opset >= AXES_INPUT_OPSET
      ? node('ReduceMax', [name('abs'), LAST_AXIS], name('largest'), { keepdims: 1 })
      : node('ReduceMax', [name('abs')], name('largest'), { axes: [-1], keepdims: 1 });
  const result = added === undefined || added === '' ? output : name('product');
  return [
    node('Abs', [operand], name('abs')),
    largest,
    node('Div', [name('largest'), LIMIT], name('row_scale')),
    node('Max', [name('row_scale'), SMALLEST], name('scale')),
    node('Div', [operand, name('scale')], name('divided')),
    node('Round', [name('divided')], name('rounded')),
    node('Add', [name('rounded'), OFFSET], name('shifted')),
    node('Cast', [name('shifted')], name('bytes'), { to: UINT8 }),
    node('MatMulInteger', [name('bytes'), matrix, ZERO_POINT], name('integers')),
    node('Cast', [name('integers')], name('floats'), { to: FLOAT }),
    node('Mul', [name('floats'), `${matrix}_scales`], name('scaled')),
    node('Mul', [name('scaled'), name('scale')], result),
    ...(result === output ? [] : [node('Add', [result, added ?? ''], output)]),
  ];
}

function addInt8Constants({ initializers }: Edit, opset: number): void {
  const floats = { [LIMIT]: INT8_MAX, [SMALLEST]: SMALLEST_SCALE, [OFFSET]: UINT8_ZERO };
  for (const [name, value] of Object.entries(floats)) {
    const data = new Uint8Array(Float32Array.of(value).buffer);
    initializers.push(encodeTensor(name, FLOAT, [], data));
  }
  initializers.push(encodeTensor(ZERO_POINT, UINT8, [], Uint8Array.of(UINT8_ZERO)));
  if (opset < AXES_INPUT_OPSET) return;
  const axes = new Uint8Array(BigInt64Array.of(-1n).buffer);
  initializers.push(encodeTensor(LAST_AXIS, INT64, [1], axes));
}

/** Removes the matrices that no other node reads. */
function removeUnusedWeights(graph: OnnxGraph, edit: Edit, weights: readonly FloatWeight[]): void {
  if (graph.nodes.some(({ hasBodies }) => hasBodies)) return;
  const used = new Set(graph.outputs);
  for (const { position, inputs } of graph.nodes) {
    const isConverted = edit.nodes.has(position);
    for (const [i, name] of inputs.entries()) if (!isConverted || i !== 1) used.add(name);
  }
  for (const { name, position } of weights) if (!used.has(name)) edit.nodes.set(position, []);
}
