/**
 * What the verifications of both formats share: tables read back from the output, seeded random
 * numbers, and the comparison of the outputs of the full and the pruned model.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { decodeNpyHeader, NPY_HEADER_BYTES_MAX } from '../../../lib/core/npy.ts';
import type { SlotSpec } from '../../../lib/core/slots.ts';
import { RandomAccessReader } from '../../../lib/platform/files.ts';
import { getTablePath, SLOTS_FILE } from './output-folder.ts';

/** Maximum difference: absolute for outputs up to one, relative above. */
export const DIFFERENCE_MAX = 1e-6;
/**
 * `DIFFERENCE_MAX` of a converted model: onnxruntime adds in another order and always in float32.
 */
export const CONVERTED_DIFFERENCE_MAX = 1e-5;
export const VERIFICATION_SEED = 1;

export interface VerificationRequest {
  /** Folder with the pruned model. */
  readonly folder: string;
  readonly samples: number;
  /** Runs in a child process, so that a native crash does not end the tool. */
  readonly isolated: boolean;
}

export interface Verification {
  readonly samples: number;
  readonly seed: number;
  readonly batches: readonly number[];
  readonly maxAbsDifference: number;
}

export interface VerificationResult {
  readonly verification: Verification;
  /** Shape of each output in the last run. */
  readonly outputShapes: ReadonlyMap<string, readonly number[]>;
}

/** Reads single rows of a table file. */
export class TableRowReader {
  readonly rows: number;
  readonly dim: number;
  readonly #reader: RandomAccessReader;
  readonly #dataOffset: number;

  constructor(path: string, table: { name: string; rows: number; dim: number }) {
    this.#reader = new RandomAccessReader(path);
    const head = new Uint8Array(Math.min(this.#reader.bytes, NPY_HEADER_BYTES_MAX));
    this.#reader.readInto(head, 0);
    const { dtype, shape, dataOffset } = decodeNpyHeader(head, this.#reader.bytes, path);
    if (dtype !== 'f4' || shape.length !== 2 || shape[0] !== table.rows || shape[1] !== table.dim) {
      throw new CubeError(
        'INTERNAL',
        `${path} does not match table ${table.name} of ${SLOTS_FILE}`,
      );
    }
    this.rows = table.rows;
    this.dim = table.dim;
    this.#dataOffset = dataOffset;
  }

  /** Copies row `id` to `target`, beginning at element `offset`. */
  copyRow(id: number, target: Float32Array, offset: number): void {
    const row = new Uint8Array(target.buffer, target.byteOffset + offset * 4, this.dim * 4);
    this.#reader.readInto(row, this.#dataOffset + id * this.dim * 4);
  }

  close(): void {
    this.#reader.close();
  }
}

export function openTables(folder: string, spec: SlotSpec): Map<string, TableRowReader> {
  return new Map(
    spec.tables
      .filter(({ external }) => external !== true)
      .map((table) => [table.name, new TableRowReader(getTablePath(folder, table.name), table)]),
  );
}

/** mulberry32: small, fast, and good enough to spread samples. */
export class RandomNumbers {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** @returns a number in [0, 1) */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(this.#state ^ (this.#state >>> 15), this.#state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  normal(): number {
    return Math.sqrt(-2 * Math.log(1 - this.next())) * Math.cos(2 * Math.PI * this.next());
  }
}

/** An output of a run. */
export interface OutputTensor {
  readonly dtype: string;
  readonly dims: readonly number[];
  readonly data: ArrayLike<number | bigint>;
}

/** The largest difference of all outputs. Equal infinities and NaN with NaN are equal. */
export class OutputComparison {
  #worst = 0;
  #maxAbsDifference = 0;
  #worstOutput = '';
  #finite = 0;
  #count = 0;
  readonly #differenceMax: number;

  constructor(differenceMax: number = DIFFERENCE_MAX) {
    this.#differenceMax = differenceMax;
  }

  compare(name: string, expected: OutputTensor, actual: OutputTensor | undefined): void {
    const shapes = [expected.dims, actual?.dims ?? []].map((dims) => `[${dims.join(', ')}]`);
    if (actual === undefined || shapes[0] !== shapes[1] || actual.dtype !== expected.dtype) {
      throw disagreementError(
        `output ${JSON.stringify(name)} is ${shapes[1]} instead of ${shapes[0]}`,
      );
    }
    for (let i = 0; i < expected.data.length; i++) {
      const expectedValue = Number(expected.data[i]);
      const actualValue = Number(actual.data[i]);
      this.#count++;
      if (Number.isFinite(expectedValue)) this.#finite++;
      if (Object.is(expectedValue, actualValue) || expectedValue === actualValue) continue;
      const difference = Math.abs(expectedValue - actualValue);
      const scaled = difference / Math.max(1, Math.abs(expectedValue));
      this.#maxAbsDifference = Math.max(this.#maxAbsDifference, difference);
      // A NaN in one of the models only is worse than any difference.
      if (!(scaled <= this.#worst)) {
        this.#worst = Number.isNaN(scaled) ? Number.POSITIVE_INFINITY : scaled;
        const values = `${actualValue} instead of ${expectedValue}`;
        this.#worstOutput = `output ${JSON.stringify(name)}: ${values}`;
      }
    }
  }

  /** @returns the largest absolute difference. @throws CubeError when it is too large */
  finish(source: string): number {
    if (this.#worst > this.#differenceMax) throw disagreementError(this.#worstOutput);
    if (this.#count > 0 && this.#finite === 0) {
      throw new CubeError(
        'CORRUPT',
        `${source}: every output of the model is infinite or not a number on the sampled inputs`,
      );
    }
    return this.#maxAbsDifference;
  }
}

function disagreementError(where: string): CubeError {
  return new CubeError(
    'INVALID_ARGUMENT',
    'the verification failed: the outputs of the pruned model differ from those of the full ' +
      `model (${where}); ` +
      'if the model draws random numbers, use --verify 0; otherwise please report a bug',
  );
}
