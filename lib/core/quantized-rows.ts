/**
 * Rows with 8 bits per element. Our dtype i8 stores f16 scale, f16 offset and one u8 q per element,
 * which means offset + q · scale. Encoding keeps the range of a row, so that no element is clipped.
 * Cube's own 8-bit values (`min f32, max f32, u8 q`) mean min + q · (max − min) / 256 and are only
 * read.
 */
import { CubeError } from './errors.ts';
import { F16_MAX, f16ToNumber, roundDownToF16, roundUpToF16 } from './half-floats.ts';

/**
 * How scale and offset are chosen. `range`: from the row's smallest and largest element. `greedy`:
 * that range is narrowed step by step while the squared error falls (arXiv 1911.02079), slower and
 * never worse.
 */
export type QuantizationSearch = 'range' | 'greedy';

const LEVELS = 255;
/** Number of steps of the range, and the share of it that the greedy search may give up. */
const GREEDY_STEPS = 200;
const GREEDY_SHARE = 0.16;

/** Bits of scale and offset of one row. */
interface Scaling {
  scale: number;
  offset: number;
}

/** Encodes rows of f32, one at a time. */
export class RowQuantizer {
  readonly #search: QuantizationSearch;
  #row: Float32Array = new Float32Array(0);
  #start = 0;
  #end = 0;

  constructor(search: QuantizationSearch) {
    this.#search = search;
  }

  /**
   * Encodes rows[start .. start + dim) to bytes[at ..]: 4 + dim bytes.
   * @returns false, with nothing written, when an element is not finite, or too large for an f16
   * offset and scale
   */
  encode(rows: Float32Array, start: number, dim: number, bytes: Uint8Array, at: number): boolean {
    let least = Number.POSITIVE_INFINITY;
    let greatest = Number.NEGATIVE_INFINITY;
    for (let i = start; i < start + dim; i++) {
      const value = rows[i]!;
      // Also false for NaN.
      if (!(Math.abs(value) <= F16_MAX)) return false;
      if (value < least) least = value;
      if (value > greatest) greatest = value;
    }
    this.#row = rows;
    this.#start = start;
    this.#end = start + dim;
    let scaling = computeScaling(least, greatest);
    if (this.#search === 'greedy') scaling = this.#narrow(least, greatest, scaling);
    this.#write(scaling, bytes, at);
    return true;
  }

  #narrow(least: number, greatest: number, widest: Scaling): Scaling {
    const step = (greatest - least) / GREEDY_STEPS;
    let low = least;
    let high = greatest;
    let best = widest;
    let bestLoss = this.#loss(widest);
    while (low + GREEDY_STEPS * (1 - GREEDY_SHARE) * step < high) {
      const fromLeft = computeScaling(low + step, high);
      const fromRight = computeScaling(low, high - step);
      const leftLoss = this.#loss(fromLeft);
      const rightLoss = this.#loss(fromRight);
      const left = leftLoss < rightLoss;
      if (left) low += step;
      else high -= step;
      if (Math.min(leftLoss, rightLoss) >= bestLoss) continue;
      bestLoss = left ? leftLoss : rightLoss;
      best = left ? fromLeft : fromRight;
    }
    return best;
  }

  #loss(scaling: Scaling): number {
    const scale = f16ToNumber(scaling.scale);
    const offset = f16ToNumber(scaling.offset);
    let loss = 0;
    for (let i = this.#start; i < this.#end; i++) {
      const value = this.#row[i]!;
      const error = value - (offset + computeLevel(value, scale, offset) * scale);
      loss += error * error;
    }
    return loss;
  }

  #write(scaling: Scaling, bytes: Uint8Array, at: number): void {
    bytes[at] = scaling.scale;
    bytes[at + 1] = scaling.scale >>> 8;
    bytes[at + 2] = scaling.offset;
    bytes[at + 3] = scaling.offset >>> 8;
    const scale = f16ToNumber(scaling.scale);
    const offset = f16ToNumber(scaling.offset);
    const target = at + 4 - this.#start;
    for (let i = this.#start; i < this.#end; i++) {
      bytes[target + i] = computeLevel(this.#row[i]!, scale, offset);
    }
  }
}

/** Rounded outwards, so that every element of [low, high] lies within the levels. */
function computeScaling(low: number, high: number): Scaling {
  const offset = roundDownToF16(low);
  const scale = roundUpToF16((high - f16ToNumber(offset)) / LEVELS);
  return { scale, offset };
}

function computeLevel(value: number, scale: number, offset: number): number {
  if (scale === 0) return 0;
  return Math.max(0, Math.min(LEVELS, Math.round((value - offset) / scale)));
}

/**
 * Decodes one of Cube's own 8-bit values: min f32, max f32, one byte for each element of `row`.
 * @throws CubeError INVALID_ARGUMENT when its length or its range is not that of such a value
 */
export function decodeCubeRow(value: Uint8Array, row: Float32Array): void {
  if (value.length !== 8 + row.length) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `an 8-bit value of ${value.length} bytes, a row of ${row.length} takes ${8 + row.length}`,
    );
  }
  const view = new DataView(value.buffer, value.byteOffset, 8);
  const min = view.getFloat32(0, true);
  const max = view.getFloat32(4, true);
  if (!(min <= max && Number.isFinite(max - min))) {
    throw new CubeError('INVALID_ARGUMENT', `an 8-bit value with the range ${min} to ${max}`);
  }
  const scale = Math.fround(max - min) / 256;
  for (let i = 0; i < row.length; i++) row[i] = min + Math.fround(value[8 + i]! * scale);
}
