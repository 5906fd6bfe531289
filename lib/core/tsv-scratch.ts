/**
 * The scratch memory in which the kernel reads lines (kernels/contract.ts), one chunk at a time.
 */
import { LINE_CHARS_MAX } from './feature-rows.ts';
import type { Kernels } from './kernels/contract.ts';
import { createKernels, createMemory, type KernelKind, shareByKind } from './kernels/kernels.ts';
import {
  HASH_MODULO,
  HASH_SEED,
  PARAMS_BYTES,
  TSV_DENSE,
  TSV_DENSE_NUM,
  TSV_KEYS,
  TSV_LABELLED,
  TSV_LABELS,
  TSV_LINE_MAX,
  TSV_NEXT_LINE,
  TSV_NON_ASCII,
  TSV_OTHER_COUNT,
  TSV_OTHER_NUMBERS,
  TSV_PREFIX_BYTES,
  TSV_PREFIXES,
  TSV_SLOT_NUM,
  TSV_STAGE,
} from './kernels/params.ts';
import type { HashSpec } from './slots.ts';

/** Maximum number of keys, or of dense values, of one kernel call. */
export const VALUES_MAX = 8192;
/** Bytes of a chunk. */
export const CHUNK_BYTES: number = 256 << 10;
/** Room for a line break after the last line, and for what the kernel reads beyond. */
const SLACK_BYTES = 64;
const NEWLINE = 10;
const PARAMS_AT = 0;
const PREFIXES_AT: number = PARAMS_BYTES;
const KEYS_AT: number = PREFIXES_AT + TSV_PREFIX_BYTES * VALUES_MAX;
const DENSE_AT: number = KEYS_AT + 8 * VALUES_MAX;
const LABELS_AT: number = DENSE_AT + 8 * VALUES_MAX;
const ODD_AT: number = LABELS_AT + 4 * VALUES_MAX;
const STAGE_AT: number = ODD_AT + 12 * VALUES_MAX;
const TEXT_AT: number = STAGE_AT + LINE_CHARS_MAX + SLACK_BYTES;
const ODD_WORD: number = ODD_AT / 4;

/** The columns of lines, and how their features are hashed. */
export interface TsvLineFormat {
  readonly hash: HashSpec;
  readonly denseNum: number;
  /** The bytes that each slot prepends to its features: fewer than TSV_PREFIX_BYTES each. */
  readonly prefixes: readonly Uint8Array[];
}

/** Receives the parsed values, for as many rows as there are lines. */
export interface TsvOutput {
  readonly keys: Uint32Array;
  /** NaN: missing. */
  readonly dense: Float64Array;
  readonly labels: Float32Array;
}

export class TsvScratch {
  /** True when features of the last `read` contain bytes beyond ASCII. */
  hasNonAscii = false;
  readonly #kernels: Kernels;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #words: Uint32Array;
  readonly #keys: Uint32Array;
  readonly #dense: Float64Array;
  readonly #labels: Float32Array;
  #lines: TsvLineFormat | undefined;
  #end = TEXT_AT;

  constructor(kind: KernelKind | undefined) {
    const memory = createMemory(TEXT_AT + CHUNK_BYTES + SLACK_BYTES);
    const { buffer } = memory;
    this.#kernels = createKernels(memory, kind);
    this.#bytes = new Uint8Array(buffer);
    this.#view = new DataView(buffer, PARAMS_AT, PARAMS_BYTES);
    this.#words = new Uint32Array(buffer);
    this.#keys = new Uint32Array(buffer, KEYS_AT, 2 * VALUES_MAX);
    this.#dense = new Float64Array(buffer, DENSE_AT, VALUES_MAX);
    this.#labels = new Float32Array(buffer, LABELS_AT, VALUES_MAX);
    this.#setParam(TSV_LINE_MAX, LINE_CHARS_MAX);
    this.#setParam(TSV_KEYS, KEYS_AT);
    this.#setParam(TSV_DENSE, DENSE_AT);
    this.#setParam(TSV_LABELS, LABELS_AT);
    this.#setParam(TSV_OTHER_NUMBERS, ODD_AT);
  }

  /** Copies whole lines, at most CHUNK_BYTES. @returns the number of lines */
  load(chunk: Uint8Array): number {
    this.#bytes.set(chunk, TEXT_AT);
    this.#end = TEXT_AT + chunk.length;
    if (chunk[chunk.length - 1] !== NEWLINE) this.#bytes[this.#end++] = NEWLINE;
    return this.#kernels.countLines(TEXT_AT, this.#end);
  }

  /**
   * Parses the loaded lines.
   * @param readOdd parses bytes [from, to) of the chunk, a number that is not a plain integer;
   * undefined refuses it
   * @returns false when a line is not plain
   */
  read(
    lines: TsvLineFormat,
    isLabelled: boolean,
    { keys, dense, labels }: TsvOutput,
    readOdd: (from: number, to: number) => number | undefined,
  ): boolean {
    this.#use(lines);
    this.#setParam(TSV_LABELLED, isLabelled ? 1 : 0);
    this.hasNonAscii = false;
    const { denseNum, prefixes } = lines;
    const rowsMax = Math.floor(VALUES_MAX / Math.max(denseNum, prefixes.length, 1));
    let done = 0;
    for (let at = TEXT_AT; at < this.#end; at = this.#getParam(TSV_NEXT_LINE)) {
      const rows = this.#kernels.readTsv(PARAMS_AT, at, this.#end, rowsMax);
      if (rows <= 0) return false;
      const values = this.#dense.subarray(0, rows * denseNum);
      if (!this.#readOdd(values, readOdd)) return false;
      const slotNum = prefixes.length;
      keys.set(this.#keys.subarray(0, 2 * rows * slotNum), 2 * done * slotNum);
      dense.set(values, done * denseNum);
      if (isLabelled) labels.set(this.#labels.subarray(0, rows), done);
      this.hasNonAscii ||= this.#getParam(TSV_NON_ASCII) !== 0;
      done += rows;
    }
    return true;
  }

  #setParam(offset: number, value: number): void {
    this.#view.setUint32(offset, value, true);
  }

  #getParam(offset: number): number {
    return this.#view.getUint32(offset, true);
  }

  #readOdd(dense: Float64Array, read: (from: number, to: number) => number | undefined): boolean {
    const words = this.#words;
    const end = ODD_WORD + 3 * this.#getParam(TSV_OTHER_COUNT);
    for (let odd = ODD_WORD; odd < end; odd += 3) {
      const value = read(words[odd + 1]! - TEXT_AT, words[odd + 2]! - TEXT_AT);
      if (value === undefined) return false;
      dense[words[odd]!] = value;
    }
    return true;
  }

  #use(lines: TsvLineFormat): void {
    if (this.#lines === lines) return;
    const { hash, denseNum, prefixes } = lines;
    this.#lines = lines;
    this.#view.setBigUint64(HASH_SEED, hash.seed, true);
    this.#view.setBigUint64(HASH_MODULO, hash.modulo, true);
    this.#setParam(TSV_DENSE_NUM, denseNum);
    this.#setParam(TSV_SLOT_NUM, prefixes.length);
    this.#setParam(TSV_PREFIXES, PREFIXES_AT);
    this.#setParam(TSV_STAGE, STAGE_AT);
    prefixes.forEach((prefix, slot) => {
      const at = PREFIXES_AT + TSV_PREFIX_BYTES * slot;
      this.#bytes.fill(0, at, at + TSV_PREFIX_BYTES).set(prefix, at);
      this.#bytes[at + TSV_PREFIX_BYTES - 1] = prefix.length;
    });
  }
}

export const getTsvScratch: (kind: KernelKind | undefined) => TsvScratch = shareByKind(
  (kind) => new TsvScratch(kind),
);
