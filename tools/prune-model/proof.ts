/**
 * What every format's proof shares: tables read back from the output, numbers drawn from a seed, and the comparison of what
 * the full and the pruned model gave.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { decodeNpyHeader, NPY_HEADER_BYTES_MAX } from '../../lib/core/npy.ts';
import type { SlotSpec } from '../../lib/core/slots.ts';
import { RandomReader } from '../../lib/platform/files.ts';
import { SLOTS_FILE, tablePath } from './output-folder.ts';

/** Largest difference that passes, absolute; relative for outputs above one. */
const DIFFERENCE_MAX = 1e-6;
export const PROOF_SEED = 1;

export interface ProofRequest {
  /** Where the pruned model was written. */
  readonly folder: string;
  readonly samples: number;
  /** In a process of its own, so that a native crash does not take the tool down. */
  readonly isolated: boolean;
}

export interface Proof {
  readonly samples: number;
  readonly seed: number;
  readonly batches: readonly number[];
  readonly maxAbsDifference: number;
}

export interface ProofResult {
  readonly proof: Proof;
  /** Of each output, as the model gave it. */
  readonly outputShapes: ReadonlyMap<string, readonly number[]>;
}

/** Rows of a table file, read one at a time. */
export class TableRows {
  readonly rows: number;
  readonly dim: number;
  readonly #reader: RandomReader;
  readonly #dataOffset: number;

  constructor(path: string, table: { name: string; rows: number; dim: number }) {
    this.#reader = new RandomReader(path);
    const head = new Uint8Array(Math.min(this.#reader.bytes, NPY_HEADER_BYTES_MAX));
    this.#reader.readInto(head, 0);
    const { dtype, shape, dataOffset } = decodeNpyHeader(head, this.#reader.bytes, path);
    if (dtype !== 'f4' || shape.length !== 2 || shape[0] !== table.rows || shape[1] !== table.dim) {
      throw new CubeError('INTERNAL', `${path} does not hold table ${table.name} of ${SLOTS_FILE}`);
    }
    this.rows = table.rows;
    this.dim = table.dim;
    this.#dataOffset = dataOffset;
  }

  /** Copies row `id` to the elements of `target` that begin at `at`. */
  copyRow(id: number, target: Float32Array, at: number): void {
    const row = new Uint8Array(target.buffer, target.byteOffset + at * 4, this.dim * 4);
    this.#reader.readInto(row, this.#dataOffset + id * this.dim * 4);
  }

  close(): void {
    this.#reader.close();
  }
}

export function openTables(folder: string, spec: SlotSpec): Map<string, TableRows> {
  return new Map(
    spec.tables
      .filter(({ external }) => external !== true)
      .map((table) => [table.name, new TableRows(tablePath(folder, table.name), table)]),
  );
}

/** Small, fast and good enough to spread samples: mulberry32. */
export class RandomNumbers {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** In [0, 1). */
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

/** The largest difference over all outputs of all runs. Equal infinities and NaN beside NaN are no difference. */
export class Comparison {
  #worst = 0;
  #maxAbsDifference = 0;
  #where = '';
  #finite = 0;
  #count = 0;
  readonly #differenceMax: number;

  constructor(differenceMax: number = DIFFERENCE_MAX) {
    this.#differenceMax = differenceMax;
  }

  add(name: string, expected: OutputTensor, actual: OutputTensor | undefined): void {
    const shapes = [expected.dims, actual?.dims ?? []].map((dims) => `[${dims.join(', ')}]`);
    if (actual === undefined || shapes[0] !== shapes[1] || actual.dtype !== expected.dtype) {
      throw disagreement(`output ${JSON.stringify(name)} is ${shapes[1]} instead of ${shapes[0]}`);
    }
    for (let i = 0; i < expected.data.length; i++) {
      const want = Number(expected.data[i]);
      const got = Number(actual.data[i]);
      this.#count++;
      if (Number.isFinite(want)) this.#finite++;
      if (Object.is(want, got) || want === got) continue;
      const difference = Math.abs(want - got);
      const scaled = difference / Math.max(1, Math.abs(want));
      this.#maxAbsDifference = Math.max(this.#maxAbsDifference, difference);
      // A NaN on one side only is worse than any number.
      if (!(scaled <= this.#worst)) {
        this.#worst = Number.isNaN(scaled) ? Number.POSITIVE_INFINITY : scaled;
        this.#where = `output ${JSON.stringify(name)}: ${got} instead of ${want}`;
      }
    }
  }

  /** @returns the largest absolute difference. @throws CubeError when it is too large, or nothing was compared */
  finish(source: string): number {
    if (this.#worst > this.#differenceMax) throw disagreement(this.#where);
    if (this.#count > 0 && this.#finite === 0) {
      throw new CubeError(
        'CORRUPT',
        `${source}: every output of the model is infinite or not a number`,
      );
    }
    return this.#maxAbsDifference;
  }
}

function disagreement(where: string): CubeError {
  return new CubeError(
    'INVALID_ARGUMENT',
    `the proof failed: the pruned model does not agree with the full one (${where}); unless the model draws random numbers, please report it`,
  );
}
