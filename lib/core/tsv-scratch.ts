/** The memory that lines are read in by the kernel (kernels/contract.ts), a chunk at a time. */
import { LINE_CHARS_MAX } from './feature-rows.ts';
import type { Kernels } from './kernels/contract.ts';
import { createKernels, createMemory, type KernelKind } from './kernels/kernels.ts';
import type { HashSpec } from './slots.ts';

/** Keys, or dense values, of one call of the kernel. */
export const VALUES_MAX = 8192;
/** Of lines that are read at once. */
export const CHUNK_BYTES: number = 256 << 10;
/** A line break behind the last line, and what the kernel reads beyond. */
const SLACK_BYTES = 64;
const NEWLINE = 10;
const PREFIX_BYTES = 16;
const PARAMS_AT = 0;
const PREFIXES_AT = 128;
const KEYS_AT: number = PREFIXES_AT + PREFIX_BYTES * VALUES_MAX;
const DENSE_AT: number = KEYS_AT + 8 * VALUES_MAX;
const LABELS_AT: number = DENSE_AT + 8 * VALUES_MAX;
const ODD_AT: number = LABELS_AT + 4 * VALUES_MAX;
const STAGE_AT: number = ODD_AT + 12 * VALUES_MAX;
const TEXT_AT: number = STAGE_AT + LINE_CHARS_MAX + SLACK_BYTES;
/** Words of the parameter block. */
const DENSE_NUM_WORD = 4;
const LABELLED_WORD = 8;
const LINE_MAX_WORD = 9;
const ODD_NUM_WORD = 14;
const WIDE_WORD = 15;
const NEXT_WORD = 16;
const ODD_WORD: number = ODD_AT / 4;

/** What lines are like, and how their features are hashed. */
export interface TsvLines {
  readonly hash: HashSpec;
  readonly denseNum: number;
  /** What each slot puts before its feature: less than PREFIX_BYTES each. */
  readonly prefixes: readonly Uint8Array[];
}

/** Where what is read goes: as many as there are lines. */
export interface TsvColumns {
  readonly keys: Uint32Array;
  /** NaN: none. */
  readonly dense: Float64Array;
  readonly labels: Float32Array;
}

export class TsvScratch {
  /** Features of what was read hold bytes beyond ASCII. */
  isWide = false;
  readonly #kernels: Kernels;
  readonly #bytes: Uint8Array;
  readonly #wide: BigUint64Array;
  readonly #words: Uint32Array;
  readonly #keys: Uint32Array;
  readonly #dense: Float64Array;
  readonly #labels: Float32Array;
  #lines: TsvLines | undefined;
  #end = TEXT_AT;

  constructor(kind: KernelKind | undefined) {
    const memory = createMemory(TEXT_AT + CHUNK_BYTES + SLACK_BYTES);
    const { buffer } = memory;
    this.#kernels = createKernels(memory, kind);
    this.#bytes = new Uint8Array(buffer);
    this.#wide = new BigUint64Array(buffer, PARAMS_AT, 2);
    this.#words = new Uint32Array(buffer);
    this.#keys = new Uint32Array(buffer, KEYS_AT, 2 * VALUES_MAX);
    this.#dense = new Float64Array(buffer, DENSE_AT, VALUES_MAX);
    this.#labels = new Float32Array(buffer, LABELS_AT, VALUES_MAX);
    this.#words.set([LINE_CHARS_MAX, KEYS_AT, DENSE_AT, LABELS_AT, ODD_AT], LINE_MAX_WORD);
  }

  /** Takes whole lines, CHUNK_BYTES at most. @returns how many they are */
  load(chunk: Uint8Array): number {
    this.#bytes.set(chunk, TEXT_AT);
    this.#end = TEXT_AT + chunk.length;
    if (chunk[chunk.length - 1] !== NEWLINE) this.#bytes[this.#end++] = NEWLINE;
    return this.#kernels.countLines(TEXT_AT, this.#end);
  }

  /**
   * Reads the lines that were taken.
   * @param readOdd takes the bytes of the chunk [from, to) of a number that is not plainly an integer; undefined refuses it
   * @returns false for what is no plain line
   */
  read(
    lines: TsvLines,
    isLabelled: boolean,
    { keys, dense, labels }: TsvColumns,
    readOdd: (from: number, to: number) => number | undefined,
  ): boolean {
    this.#use(lines);
    this.#words[LABELLED_WORD] = isLabelled ? 1 : 0;
    this.isWide = false;
    const { denseNum, prefixes } = lines;
    const rowsMax = Math.floor(VALUES_MAX / Math.max(denseNum, prefixes.length, 1));
    let done = 0;
    for (let at = TEXT_AT; at < this.#end; at = this.#words[NEXT_WORD]!) {
      const rows = this.#kernels.readTsv(PARAMS_AT, at, this.#end, rowsMax);
      if (rows <= 0) return false;
      const values = this.#dense.subarray(0, rows * denseNum);
      if (!this.#readOdd(values, readOdd)) return false;
      const slotNum = prefixes.length;
      keys.set(this.#keys.subarray(0, 2 * rows * slotNum), 2 * done * slotNum);
      dense.set(values, done * denseNum);
      if (isLabelled) labels.set(this.#labels.subarray(0, rows), done);
      this.isWide ||= this.#words[WIDE_WORD] !== 0;
      done += rows;
    }
    return true;
  }

  #readOdd(dense: Float64Array, read: (from: number, to: number) => number | undefined): boolean {
    const words = this.#words;
    const end = ODD_WORD + 3 * words[ODD_NUM_WORD]!;
    for (let odd = ODD_WORD; odd < end; odd += 3) {
      const value = read(words[odd + 1]! - TEXT_AT, words[odd + 2]! - TEXT_AT);
      if (value === undefined) return false;
      dense[words[odd]!] = value;
    }
    return true;
  }

  #use(lines: TsvLines): void {
    if (this.#lines === lines) return;
    const { hash, denseNum, prefixes } = lines;
    this.#lines = lines;
    this.#wide.set([hash.seed, hash.modulo]);
    this.#words.set([denseNum, prefixes.length, PREFIXES_AT, STAGE_AT], DENSE_NUM_WORD);
    prefixes.forEach((prefix, slot) => {
      const at = PREFIXES_AT + PREFIX_BYTES * slot;
      this.#bytes.fill(0, at, at + PREFIX_BYTES).set(prefix, at);
      this.#bytes[at + PREFIX_BYTES - 1] = prefix.length;
    });
  }
}

const scratches = new Map<KernelKind | undefined, TsvScratch>();

/** A thread's: calls are synchronous, so all parsers share it. */
export function tsvScratchOf(kind: KernelKind | undefined): TsvScratch {
  let scratch = scratches.get(kind);
  if (scratch === undefined) {
    scratch = new TsvScratch(kind);
    scratches.set(kind, scratch);
  }
  return scratch;
}
