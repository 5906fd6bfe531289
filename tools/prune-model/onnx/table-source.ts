/** The rows of a table, read from where they stand in the model. */
import { CubeError } from '../../../lib/core/errors.ts';
import type { Table } from '../table.ts';
import { wrongLength } from './constants.ts';
import { ELEM_FLOAT, type OnnxTensor } from './onnx-model.ts';

/** Shape and rows of a float32 tensor of rank 2. @throws CubeError CORRUPT when they do not fit each other */
export function readTable(tensor: OnnxTensor): Pick<Table, 'rows' | 'dim' | 'readRows'> {
  const [rows = 0, dim = 0] = tensor.dims;
  const pieces = tensor.data?.encoding === 'packed' ? tensor.data.pieces : [];
  const length = pieces.reduce((sum, piece) => sum + piece.length, 0);
  const expected = rows * dim * 4;
  if (tensor.elemType !== ELEM_FLOAT || tensor.dims.length !== 2) {
    throw new CubeError('INTERNAL', `tensor ${tensor.name} is not a float32 matrix`);
  }
  if (length !== expected) throw wrongLength(tensor, `${expected} bytes`, length);
  const bytes = pieces.length === 1 ? pieces[0]! : joined(pieces, length);
  return {
    rows,
    dim,
    readRows: (first, target) => {
      const start = first * dim * 4;
      const view = new Uint8Array(target.buffer, target.byteOffset, target.byteLength);
      view.set(bytes.subarray(start, start + target.byteLength));
    },
  };
}

function joined(pieces: readonly Uint8Array[], length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}
