/** An embedding table as it stands in a model: rows × dim float32 values, as bytes. */
import { CubeError } from '../../lib/core/errors.ts';
import { toName } from '../../lib/core/names.ts';
import { wrongLength } from './constants.ts';
import { ELEM_FLOAT, type OnnxTensor } from './onnx-model.ts';

export interface Table {
  /** Its name from here on: legal in paths, unique in the model. */
  readonly name: string;
  /** Its name in the model. */
  readonly source: string;
  readonly rows: number;
  readonly dim: number;
  /** Little-endian float32, row-major; a view of the model's bytes where they stand together. */
  readonly bytes: Uint8Array;
}

/** The largest row that slots.json can say. */
export const DIM_MAX: number = 1 << 20;

/** Shape and bytes of a float32 tensor of rank 2. @throws CubeError CORRUPT when they do not fit each other */
export function readRows(tensor: OnnxTensor): { rows: number; dim: number; bytes: Uint8Array } {
  const [rows = 0, dim = 0] = tensor.dims;
  const pieces = tensor.data?.encoding === 'packed' ? tensor.data.pieces : [];
  const length = pieces.reduce((sum, piece) => sum + piece.length, 0);
  const expected = rows * dim * 4;
  if (tensor.elemType !== ELEM_FLOAT || tensor.dims.length !== 2) {
    throw new CubeError('INTERNAL', `tensor ${tensor.name} is not a float32 matrix`);
  }
  if (length !== expected) throw wrongLength(tensor, `${expected} bytes`, length);
  const [only] = pieces;
  if (pieces.length === 1 && only !== undefined) return { rows, dim, bytes: only };
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return { rows, dim, bytes };
}

/** Gives each tensor name a legal name; also unique where the file system ignores case. */
export class TableNames {
  readonly #taken = new Set<string>();

  claim(source: string): string {
    const wanted = toName(source);
    let name = wanted;
    for (let i = 2; this.#taken.has(name.toLowerCase()); i++) {
      const suffix = `_${i}`;
      name = `${wanted.slice(0, 128 - suffix.length)}${suffix}`;
    }
    this.#taken.add(name.toLowerCase());
    return name;
  }
}
