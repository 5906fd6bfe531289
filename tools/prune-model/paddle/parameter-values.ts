/** What the interpreter takes from the files of a model: parameters whole, tables row by row. */
import type { CutPieces } from './cut-pieces.ts';
import type { Values } from './interpreter.ts';
import type { TableSource } from './lookups.ts';
import type { Op } from './program.ts';
import {
  elementBytes,
  TYPE_BOOL,
  TYPE_FP32,
  TYPE_FP64,
  TYPE_INT32,
  TYPE_INT64,
} from './program.ts';
import type { SampledRows } from './table-rows.ts';
import { dtypeOf, makeTensor, type Tensor, unproved } from './tensor.ts';

type Pieces = Pick<CutPieces, 'graph' | 'parameters' | 'lookups'>;

export class ParameterValues implements Values {
  readonly #pieces: Pieces;
  readonly #rows: ReadonlyMap<TableSource, SampledRows>;
  readonly #loaded = new Map<string, Tensor>();

  constructor(pieces: Pieces, rows: ReadonlyMap<TableSource, SampledRows>) {
    this.#pieces = pieces;
    this.#rows = rows;
  }

  parameter(name: string): Tensor {
    const known = this.#loaded.get(name);
    if (known !== undefined) return known;
    const parameter = this.#pieces.parameters.get(name);
    if (parameter === undefined || parameter.keysOffset !== undefined) {
      throw unproved(`${JSON.stringify(name)} is not a tensor among the parameters`);
    }
    const tensor = makeTensor(dtypeOf(parameter.elementType), parameter.dims);
    const bytes = new Uint8Array(tensor.data.length * elementBytes(parameter.elementType)!);
    parameter.reader.readInto(bytes, parameter.dataOffset);
    decode(bytes, parameter.elementType, tensor.data);
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
    const rows = this.#rows.get(lookup.table)!;
    const { dim } = lookup.table;
    const [, ...tail] = lookup.output.dims;
    const [first = 0] = ids.dims;
    if (lookup.isPooled) return poolRows(rows, ids, dim);
    const result = makeTensor('float32', [first, ...tail], ids.lod);
    if (result.data.length !== ids.data.length * dim) {
      throw unproved(`${JSON.stringify(name)} is declared [-1, ${tail.join(', ')}]`);
    }
    const data = result.data as Float32Array;
    ids.data.forEach((key, i) => {
      fill(rows, key, data.subarray(i * dim, (i + 1) * dim));
    });
    return result;
  }
}

function fill(rows: SampledRows, key: number, target: Float32Array): void {
  if (!rows.fill(key, target)) throw unproved(`the key ${key} is not in ${rows.source.name}`);
}

function poolRows(rows: SampledRows, ids: Tensor, dim: number): Tensor {
  const { lod = [0] } = ids;
  const pooled = makeTensor('float32', [lod.length - 1, dim]);
  const row = new Float32Array(dim);
  for (let s = 0; s + 1 < lod.length; s++) {
    const sums = new Float64Array(dim);
    for (let i = lod[s]!; i < lod[s + 1]!; i++) {
      fill(rows, ids.data[i]!, row);
      for (let d = 0; d < dim; d++) sums[d]! += row[d]!;
    }
    pooled.data.set(sums, s * dim);
  }
  return pooled;
}

function decode(bytes: Uint8Array, elementType: number, target: Float32Array | Float64Array): void {
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
