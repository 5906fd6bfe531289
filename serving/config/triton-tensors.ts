/** Reads the inputs and outputs of Triton's model configuration. */
import type { TextMessage } from '../../proto/text-format.ts';
import { readEnum } from './triton-fields.ts';
import { DATA_TYPES } from './triton-schema.ts';

/** A declared input or output; dimensions do not include the batch. */
export interface TritonTensor {
  readonly name: string;
  /** The data type in requests: FP32, INT64, BYTES, … */
  readonly datatype: string;
  /** The dimensions in requests; -1: any size. */
  readonly dims: readonly number[];
  /** The dimensions in the graph, where they differ. */
  readonly reshape?: readonly number[];
  /** File and line, for errors. */
  readonly location: string;
}

export interface TritonInput extends TritonTensor {
  readonly optional: boolean;
}

export interface TritonOutput extends TritonTensor {
  /** File with one label in each line, beside config.pbtxt. */
  readonly labelFile?: string;
}

const TENSORS_MAX = 1024;
const DIMENSION_MAX = 2 ** 31;

/** @throws CubeError INVALID_ARGUMENT with file, line and column */
export function readInputs(root: TextMessage, maxBatch: number | undefined): TritonInput[] {
  return readTensors(root, 'input').map((node) => ({
    ...readTensor(node, maxBatch),
    optional: node.boolean('optional') ?? false,
  }));
}

/** @throws CubeError INVALID_ARGUMENT with file, line and column */
export function readOutputs(root: TextMessage, maxBatch: number | undefined): TritonOutput[] {
  return readTensors(root, 'output').map((node) => {
    const labelFile = readFileName(node, 'label_filename');
    return { ...readTensor(node, maxBatch), ...(labelFile !== undefined && { labelFile }) };
  });
}

function readTensors(root: TextMessage, field: string): TextMessage[] {
  const nodes = root.messages(field);
  if (nodes.length > TENSORS_MAX)
    root.failField(field, `more than ${TENSORS_MAX} ${field} tensors`);
  const seen = new Set<string>();
  for (const node of nodes) {
    const name = node.string('name') || node.fail(`${field}: a tensor has no name`);
    if (seen.has(name)) node.fail(`${field} ${name} is declared twice`);
    seen.add(name);
  }
  return nodes;
}

function readTensor(node: TextMessage, maxBatch: number | undefined): TritonTensor {
  const name = node.string('name') ?? '';
  const dims = readDims(node, 'dims', name);
  if (dims.length === 0)
    node.fail(`${name}: dims is missing; give the dimensions without the batch`);
  const [reshapeNode] = node.messages('reshape');
  const reshape = reshapeNode && readDims(reshapeNode, 'shape', `${name}: reshape`);
  if (reshape?.length === 0 && maxBatch === 0) {
    node.fail(`${name}: a reshape to no dimensions needs max_batch_size of 1 or more`);
  }
  if (reshape !== undefined) checkReshape(node, name, dims, reshape);
  return {
    name,
    datatype: readDatatype(node, name),
    dims,
    ...(reshape !== undefined && { reshape }),
    location: node.location,
  };
}

/** The name that requests use for a data type. */
export function readDatatype(node: TextMessage, name: string): string {
  const type = readEnum(node, 'data_type', DATA_TYPES);
  if (type === 'TYPE_INVALID') node.fail(`${name}: data_type is missing`);
  return type === 'TYPE_STRING' ? 'BYTES' : type.slice('TYPE_'.length);
}

export function readDims(node: TextMessage, field: string, name: string): number[] {
  const dims = node.integers(field, -1, DIMENSION_MAX);
  if (dims.includes(0))
    node.failField(field, `${name}: a dimension is 0; expected 1 or more, or -1`);
  return dims;
}

/** Both shapes must have as many elements; only sizes that are known can be compared. */
function checkReshape(
  node: TextMessage,
  name: string,
  dims: readonly number[],
  reshape: readonly number[],
): void {
  const count = (sizes: readonly number[]): number =>
    sizes.filter((size) => size >= 0).reduce((product, size) => product * size, 1);
  const open = (sizes: readonly number[]): number => sizes.filter((size) => size < 0).length;
  if (open(dims) !== open(reshape) || count(dims) !== count(reshape)) {
    const shown = `dims [${dims.join(', ')}] and reshape [${reshape.join(', ')}]`;
    node.failField('reshape', `${name}: ${shown} have different numbers of elements`);
  }
}

/** A name of a file in one folder, never a path. */
export function readFileName(node: TextMessage, field: string): string | undefined {
  const name = node.string(field);
  if (name === undefined || name === '') return undefined;
  if (/^[^/\\\0]{1,255}$/.test(name) && name !== '.' && name !== '..') return name;
  return node.failField(
    field,
    `${field}: expected the name of a file, got ${JSON.stringify(name)}`,
  );
}
