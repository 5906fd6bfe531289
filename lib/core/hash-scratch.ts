/** The memory that texts are put in to be hashed, many in one kernel call. */
import type { Kernels } from './kernels/contract.ts';
import { createKernels, createMemory, type KernelKind } from './kernels/kernels.ts';
import type { HashSpec } from './slots.ts';

const PARAMS_AT = 0;
const ENDS_AT = 64;
export const TEXTS_MAX = 4096;
const KEYS_AT = ENDS_AT + 4 * TEXTS_MAX;
const TEXT_AT = KEYS_AT + 8 * TEXTS_MAX;
export const TEXT_BYTES: number = 128 << 10;

/** A thread's scratch memory for hashing: calls are synchronous, so all hashers of a thread share it. */
export class HashScratch {
  readonly kernels: Kernels;
  readonly ends: Uint32Array;
  readonly keys: Uint32Array;
  readonly text: Uint8Array;
  readonly #params: BigUint64Array;

  constructor(kind: KernelKind | undefined) {
    const memory = createMemory(TEXT_AT + TEXT_BYTES);
    this.kernels = createKernels(memory, kind);
    this.#params = new BigUint64Array(memory.buffer, PARAMS_AT, 2);
    this.ends = new Uint32Array(memory.buffer, ENDS_AT, TEXTS_MAX);
    this.keys = new Uint32Array(memory.buffer, KEYS_AT, 2 * TEXTS_MAX);
    this.text = new Uint8Array(memory.buffer, TEXT_AT, TEXT_BYTES);
  }

  use(spec: HashSpec): void {
    this.#params[0] = spec.seed;
    this.#params[1] = spec.modulo;
  }

  hash(count: number): void {
    this.kernels.hashTexts(PARAMS_AT, TEXT_AT, ENDS_AT, count, KEYS_AT);
  }
}

const scratches = new Map<KernelKind | undefined, HashScratch>();

export function scratchOf(kind: KernelKind | undefined): HashScratch {
  let scratch = scratches.get(kind);
  if (scratch === undefined) {
    scratch = new HashScratch(kind);
    scratches.set(kind, scratch);
  }
  return scratch;
}
