/** A request for a plain model: its tensors on their way through the batches, and its results. */
import { CubeError } from '../../lib/core/errors.ts';
import type { GraphSignature, TensorSpec } from '../../lib/core/graph-signature.ts';
import { concatRows, countElements, type NamedTensor, type Tensor } from '../../lib/core/tensor.ts';
import { QueuedRequest, type QueueEntry } from './queued-request.ts';

/** Tensors for one run of a graph, checked by `checkGraphInputs`. */
export interface GraphInputs {
  /** In the order of the signature. */
  readonly tensors: readonly Tensor[];
  /** The batch; 1 for a graph without a batch dimension. */
  readonly rowCount: number;
  /** The outputs to return, in this order. */
  readonly outputs: readonly string[];
}

export class GraphRequest extends QueuedRequest {
  readonly inputs: GraphInputs;
  /** The parts of each requested output, by their first row. */
  readonly #parts: Map<number, readonly Tensor[]> = new Map();

  constructor(inputs: GraphInputs, entry: QueueEntry, group: string | undefined) {
    super(inputs.rowCount, entry, group);
    this.inputs = inputs;
  }

  /** @param parts one for each requested output */
  addOutputs(firstRow: number, parts: readonly Tensor[]): void {
    this.#parts.set(firstRow, parts);
  }

  /** @throws CubeError INTERNAL when parts of different batches do not fit together */
  collectOutputs(): NamedTensor[] {
    const parts = [...this.#parts].sort(([a], [b]) => a - b).map(([, tensors]) => tensors);
    return this.inputs.outputs.map((name, o) => {
      const pieces = parts.map((tensors) => tensors[o]!);
      const [first] = pieces;
      if (first !== undefined && pieces.length === 1) return { name, ...first };
      const shapes = new Set(pieces.map(({ shape }) => shape.slice(1).join()));
      if (shapes.size === 1) return { name, ...concatRows(pieces) };
      throw new CubeError(
        'INTERNAL',
        `output ${JSON.stringify(name)} has different shapes in the batches of this request; ` +
          'send fewer rows',
      );
    });
  }
}

/**
 * Checks tensors against the signature of a graph.
 * @param isBatched the first dimension of every tensor is the batch
 * @throws CubeError INVALID_ARGUMENT naming the tensor and the field
 */
export function checkGraphInputs(
  given: readonly NamedTensor[],
  { inputs }: GraphSignature,
  isBatched: boolean,
): Pick<GraphInputs, 'tensors' | 'rowCount'> {
  const byName = new Map<string, NamedTensor>();
  for (const tensor of given) {
    if (byName.has(tensor.name)) failInput(tensor.name, 'name: expected each input once');
    byName.set(tensor.name, tensor);
  }
  const tensors = inputs.map((spec) => {
    const tensor = byName.get(spec.name);
    if (tensor !== undefined) return checkTensor(tensor, spec);
    const names = inputs.map(({ name }) => name).join(', ');
    throw new CubeError(
      'INVALID_ARGUMENT',
      `inputs: expected an input ${spec.name} too (the model takes ${names || 'none'})`,
    );
  });
  if (byName.size > inputs.length) {
    const known = inputs.map(({ name }) => name);
    const unknown = given.find(({ name }) => !known.includes(name));
    failInput(unknown?.name ?? '', `name: expected one of ${known.join(', ')}`);
  }
  if (!isBatched) return { tensors, rowCount: 1 };
  return { tensors, rowCount: checkBatch(tensors) };
}

function checkBatch(tensors: readonly NamedTensor[]): number {
  const [rowCount = 0] = tensors[0]?.shape ?? [];
  for (const { name, shape } of tensors) {
    if (shape[0] !== rowCount) {
      failInput(
        name,
        `shape: expected as many rows as the other inputs have (${rowCount}), got ${shape[0]}`,
      );
    }
  }
  if (rowCount === 0) throw new CubeError('INVALID_ARGUMENT', 'inputs: expected at least one row');
  return rowCount;
}

function checkTensor(tensor: NamedTensor, { dataType, dims }: TensorSpec): NamedTensor {
  const { name, shape, data } = tensor;
  if (tensor.dataType !== dataType) {
    failInput(name, `datatype: expected ${dataType}, got ${tensor.dataType}`);
  }
  const isSame =
    dims === undefined ||
    (dims.length === shape.length &&
      dims.every((dim, i) => typeof dim === 'string' || dim === shape[i]));
  if (!isSame) {
    const expected = dims.map((dim) => (dim === '' ? '-1' : dim)).join(', ');
    failInput(name, `shape: expected [${expected}], got [${shape.join(', ')}]`);
  }
  if (dataType === 'BYTES' && data.length !== countElements(shape)) {
    failInput(name, `data: expected ${countElements(shape)} strings, got ${data.length}`);
  }
  return tensor;
}

function failInput(name: string, problem: string): never {
  throw new CubeError('INVALID_ARGUMENT', `input ${JSON.stringify(name)}: ${problem}`);
}
