/**
 * How a batch of a plain model reaches a worker and comes back. The main thread and a worker share
 * two memories, one for each batch that the worker may have. Batches use them in turn, so that no
 * message names one.
 *
 *     ┌ inferMicros ┬ inputs, each at a multiple of 8 ┬ outputs, each at a multiple of 8 ┐
 *     │ f64         │                                 │                                  │
 *     └─────────────┴─────────────────────────────────┴──────────────────────────────────┘
 *
 * An object in a message costs microseconds on both sides. Thus a batch with the same dimensions
 * besides its rows as the one before it in the memory is only a number, and so is its result.
 * Texts, and outputs too large for the memory, are parts of messages.
 */
import {
  TENSOR_TYPE_BYTES,
  type TensorSpec,
  type TensorType,
} from '../../lib/core/graph-signature.ts';
import { countElements, type Tensor } from '../../lib/core/tensor.ts';
import { BATCHES_PER_INSTANCE } from './engine-options.ts';

export type Shapes = readonly (readonly number[])[];
export type TensorData = Tensor['data'];

export const MEMORIES: number = BATCHES_PER_INSTANCE;
/** For outputs: larger ones move to the other thread, which costs less than copying them twice. */
export const OUTPUT_BYTES_MAX: number = 64 << 10;
/** Larger memories are used once. */
export const KEPT_BYTES_MAX: number = 16 << 20;
const HEADER_BYTES = 8;

/** Describes a batch anew. Otherwise the message is the number of rows. */
export interface RunMessage {
  readonly kind: 'run';
  readonly memory: SharedArrayBuffer;
  readonly shapes: Shapes;
  /** Positions of the outputs to compute. */
  readonly outputs: readonly number[];
  /** For each input its texts; undefined: numbers, in the memory. */
  readonly texts: readonly (readonly string[] | undefined)[];
}

/** Describes a result anew. Otherwise the message is the number of rows. */
export interface DoneMessage {
  readonly kind: 'done';
  readonly shapes: Shapes;
  readonly inferMicros: number;
  /** Outputs that are not in the memory. */
  readonly data?: readonly TensorData[];
}

/** Where the tensors of a list begin in a memory. */
export interface TensorLayout {
  readonly offsets: readonly number[];
  readonly byteLengths: readonly number[];
  readonly end: number;
}

/** @param begin a multiple of 8; texts take no room */
export function layOut(
  specs: readonly Pick<TensorSpec, 'dataType'>[],
  shapes: Shapes,
  begin: number = HEADER_BYTES,
): TensorLayout {
  const offsets: number[] = [];
  const byteLengths: number[] = [];
  let end = begin;
  for (let i = 0; i < shapes.length; i++) {
    const byteLength = countElements(shapes[i]!) * getElementBytes(specs[i]!.dataType);
    offsets.push(end);
    byteLengths.push(byteLength);
    end += 8 * Math.ceil(byteLength / 8);
  }
  return { offsets, byteLengths, end };
}

function getElementBytes(type: TensorType): number {
  return type === 'BYTES' ? 0 : TENSOR_TYPE_BYTES[type];
}

/** @param rows undefined: the first dimension is not the batch */
export function withRows(shapes: Shapes, rows: number | undefined): Shapes {
  if (rows === undefined || shapes.every((shape) => shape[0] === rows)) return shapes;
  return shapes.map(([, ...others]) => [rows, ...others]);
}

export function haveSameShapes(a: Shapes, b: Shapes): boolean {
  return a.length === b.length && a.every((shape, i) => isSameList(shape, b[i]!));
}

export function isSameList(a: readonly number[], b: readonly number[]): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}
