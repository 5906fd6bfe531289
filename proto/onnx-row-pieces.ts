/**
 * Rows whose elements come from the rows of several tensors, and the order in which operators that
 * only move elements take them. A row has the dimensions after the first one, which is the batch.
 */

import type { Constant, GraphNode } from './onnx-graph.ts';
import { countElements } from './onnx-row-shapes.ts';

/** Rows with more elements are not followed, which bounds the time of a load. */
export const ELEMENTS_MAX = 65_536;

/** Part of a row: elements of a tensor's row, which has them once for each user or row. */
export interface Piece {
  readonly tensor: string;
  readonly isUser: boolean;
  /** First element in the row of the tensor, and how many. */
  readonly start: number;
  readonly length: number;
}

/** Joins pieces that follow each other in their tensor. */
export function mergePieces(pieces: readonly Piece[]): Piece[] {
  const merged: Piece[] = [];
  for (const piece of pieces) {
    const last = merged.at(-1);
    if (last?.tensor === piece.tensor && last.start + last.length === piece.start) {
      merged[merged.length - 1] = { ...last, length: last.length + piece.length };
    } else merged.push(piece);
  }
  return merged;
}

/** @param order positions in the row of `pieces` @returns the pieces of the row in this order */
export function pickPieces(pieces: readonly Piece[], order: readonly number[]): Piece[] {
  const elements = pieces.flatMap((piece) =>
    Array.from({ length: piece.length }, (_, i): Piece => {
      return { ...piece, start: piece.start + i, length: 1 };
    }),
  );
  return mergePieces(order.flatMap((position) => elements[position] ?? []));
}

/** A vector of a row: its side, and its position among the vectors of this side. */
export interface RowVector {
  readonly isUser: boolean;
  readonly at: number;
}

/** Where the dot products of vectors are. */
export interface VectorProducts {
  /** Tensor [users, users] for each user. */
  readonly ofUsers: string;
  /** Tensor [items, items + users] for each row. */
  readonly ofItems: string;
  /** Numbers of vectors. */
  readonly users: number;
  readonly items: number;
}

/** @returns the pieces of a row with the products of each vector and all vectors */
export function pairVectors(
  vectors: readonly RowVector[],
  { ofUsers, ofItems, users, items }: VectorProducts,
): Piece[] {
  const columns = items + users;
  const pieces = vectors.flatMap((a) =>
    vectors.map((b): Piece => {
      if (a.isUser && b.isUser) {
        return { tensor: ofUsers, isUser: true, start: a.at * users + b.at, length: 1 };
      }
      const [item, paired] = a.isUser ? [b, a] : [a, b];
      const column = paired.isUser ? items + paired.at : paired.at;
      return { tensor: ofItems, isUser: false, start: item.at * columns + column, length: 1 };
    }),
  );
  return mergePieces(pieces);
}

/**
 * @param row dimensions of a row of the node's first input
 * @param constants the node's other inputs
 * @returns for each element of the output's row its position in the input's; undefined when the
 *   operator does more than move elements, or the order is unknown
 */
export function inferElementOrder(
  node: GraphNode,
  row: readonly number[],
  constants: readonly (Constant | undefined)[],
): number[] | undefined {
  if (countElements(row) > ELEMENTS_MAX) return undefined;
  const rank = row.length + 1;
  const lists = constants.map((constant) => constant?.integers);
  switch (node.opType) {
    case 'Transpose':
      return orderTransposed(row, node.lists.get('perm') ?? []);
    case 'Gather': {
      const axis = node.numbers.get('axis') ?? 0;
      const indices = lists[0];
      const at = (axis < 0 ? axis + rank : axis) - 1;
      return indices && orderPicked(row, at, indices);
    }
    case 'Slice':
      return orderSliced(row, lists);
    default:
      return undefined;
  }
}

/** Takes ranges of axes, as `inferRowDims` knows them: without steps, with axes. */
function orderSliced(
  row: readonly number[],
  [starts = [], ends = [], axes = []]: readonly (readonly number[] | undefined)[],
): number[] | undefined {
  const dims = [...row];
  let order: number[] | undefined = Array.from({ length: countElements(row) }, (_, i) => i);
  for (const [i, axis] of axes.entries()) {
    const at = (axis < 0 ? axis + row.length + 1 : axis) - 1;
    const size = dims[at] ?? 0;
    const clamp = (value: number): number =>
      Math.min(size, Math.max(0, value < 0 ? value + size : value));
    const start = clamp(starts[i] ?? 0);
    const length = Math.max(0, clamp(ends[i] ?? 0) - start);
    const taken = orderPicked(
      dims,
      at,
      Array.from({ length }, (_, k) => start + k),
    );
    const before: readonly number[] = order;
    order = taken?.map((position) => before[position] ?? 0);
    if (order === undefined) return undefined;
    dims[at] = length;
  }
  return order;
}

function orderTransposed(row: readonly number[], perm: readonly number[]): number[] {
  const axes = perm.slice(1).map((axis) => axis - 1);
  let order = [0];
  for (const axis of axes) {
    const stride = countElements(row.slice(axis + 1));
    const size = row[axis] ?? 0;
    order = order.flatMap((base) => Array.from({ length: size }, (_, i) => base + i * stride));
  }
  return order;
}

function orderPicked(
  row: readonly number[],
  axis: number,
  indices: readonly number[],
): number[] | undefined {
  const size = row[axis] ?? 0;
  const inner = countElements(row.slice(axis + 1));
  const outer = countElements(row.slice(0, axis));
  if (outer * indices.length * inner > ELEMENTS_MAX) return undefined;
  const picked = indices.map((index) => (index < 0 ? index + size : index));
  if (picked.some((index) => index < 0 || index >= size)) return undefined;
  const order: number[] = [];
  for (let o = 0; o < outer; o++) {
    for (const index of picked) {
      const start = (o * size + index) * inner;
      for (let i = 0; i < inner; i++) order.push(start + i);
    }
  }
  return order;
}

export function gcd(a: number, b: number): number {
  return b === 0 ? a : gcd(b, a % b);
}

/** A matrix by rows, or its transpose by rows. */
export interface Matrix {
  readonly values: Float32Array;
  readonly columns: number;
  readonly isTransposed: boolean;
}

/**
 * @param pieces rows of the matrix from `at` on, which are added to those of the result from
 *   `start` on
 * @returns a matrix with `height` rows
 */
export function takeMatrixRows(
  { values, columns, isTransposed }: Matrix,
  pieces: readonly { readonly at: number; readonly start: number; readonly length: number }[],
  height: number,
): Float32Array {
  const rows = values.length / columns;
  const part = new Float32Array(height * columns);
  for (const { start, length, at } of pieces) {
    for (let i = 0; i < length; i++) {
      const to = (start + i) * columns;
      for (let c = 0; c < columns; c++) {
        part[to + c]! += values[isTransposed ? c * rows + at + i : (at + i) * columns + c]!;
      }
    }
  }
  return part;
}
