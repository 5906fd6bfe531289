/** What the interpreter reads from the files of a model: whole parameters, and rows of tables. */
import { requireDefined } from '../../../lib/core/errors.ts';
import { notVerifiedError } from '../cut/refusals.ts';
import type { InterpreterValues } from './interpreter.ts';
import type { PaddleTable } from './lookup-finder.ts';
import type { Op } from './program.ts';
import {
  getElementBytes,
  TYPE_BOOL,
  TYPE_FP32,
  TYPE_FP64,
  TYPE_INT32,
  TYPE_INT64,
} from './program.ts';
import type { PaddleCut } from './program-cutter.ts';
import type { SampledTableRows } from './table-rows.ts';
import { createTensor, getTensorDtype, type Tensor } from './tensor.ts';

type Pieces = Pick<PaddleCut, 'graph' | 'parameters' | 'lookups'>;

export class ParameterValues implements InterpreterValues {
  readonly #pieces: Pieces;
  readonly #rows: ReadonlyMap<PaddleTable, SampledTableRows>;
  readonly #loaded = new Map<string, Tensor>();

  constructor(pieces: Pieces, rows: ReadonlyMap<PaddleTable, SampledTableRows>) {
    this.#pieces = pieces;
    this.#rows = rows;
  }

  parameter(name: string): Tensor {
    const loaded = this.#loaded.get(name);
    if (loaded !== undefined) return loaded;
    const parameter = this.#pieces.parameters.get(name);
    if (parameter === undefined || parameter.keysOffset !== undefined) {
      throw notVerifiedError(`${JSON.stringify(name)} is not a tensor among the parameters`);
    }
    const tensor = createTensor(getTensorDtype(parameter.elementType), parameter.dims);
    const itemBytes = requireDefined(
      getElementBytes(parameter.elementType),
      'the size of an element',
    );
    const bytes = new Uint8Array(tensor.data.length * itemBytes);
    parameter.reader.readInto(bytes, parameter.dataOffset);
    decodeElements(bytes, parameter.elementType, tensor.data);
    this.#loaded.set(name, tensor);
    return tensor;
  }

  lookUp(op: Op, position: number, ids: Tensor): Tensor | undefined {
    const parameter = op.outputs.has('Outputs') ? 'Outputs' : 'Out';
    const name = op.outputs.get(parameter)?.[position];
    const lookup = this.#pieces.lookups.find(
      (candidate) => candidate.op === op && candidate.output.name === name,
    );
    if (lookup === undefined) return undefined;
    const rows = requireDefined(this.#rows.get(lookup.table), 'the rows of a table');
    const { dim } = lookup.table;
    const [, ...tail] = lookup.output.dims;
    const [first = 0] = ids.dims;
    if (lookup.isPooled) return sumRowsOfSequences(rows, ids, dim);
    const result = createTensor('float32', [first, ...tail], ids.lod);
    if (result.data.length !== ids.data.length * dim) {
      throw notVerifiedError(`${JSON.stringify(name)} is declared [-1, ${tail.join(', ')}]`);
    }
    const data = result.data as Float32Array;
    ids.data.forEach((key, i) => {
      fillRow(rows, key, data.subarray(i * dim, (i + 1) * dim));
    });
    return result;
  }
}

function fillRow(rows: SampledTableRows, key: number, target: Float32Array): void {
  if (!rows.fillRow(key, target))
    throw notVerifiedError(`key ${key} is not in table ${rows.source.name}`);
}

function sumRowsOfSequences(rows: SampledTableRows, ids: Tensor, dim: number): Tensor {
  const { lod = [0] } = ids;
  const pooled = createTensor('float32', [lod.length - 1, dim]);
  const row = new Float32Array(dim);
  for (let s = 0; s + 1 < lod.length; s++) {
    const sums = new Float64Array(dim);
    for (let i = lod[s]!; i < lod[s + 1]!; i++) {
      fillRow(rows, ids.data[i]!, row);
      for (let d = 0; d < dim; d++) sums[d]! += row[d]!;
    }
    pooled.data.set(sums, s * dim);
  }
  return pooled;
}

function decodeElements(
  bytes: Uint8Array,
  elementType: number,
  target: Float32Array | Float64Array,
): void {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const read: Readonly<Record<number, (at: number) => number>> = {
    [TYPE_FP32]: (at) => view.getFloat32(4 * at, true),
    [TYPE_FP64]: (at) => view.getFloat64(8 * at, true),
    [TYPE_INT32]: (at) => view.getInt32(4 * at, true),
    [TYPE_INT64]: (at) => Number(view.getBigInt64(8 * at, true)),
    [TYPE_BOOL]: (at) => bytes[at]!,
  };
  const of = read[elementType]!;
  for (let i = 0; i < target.length; i++) target[i] = of(i);
}
