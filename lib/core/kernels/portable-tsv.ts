/**
 * Parses lines of tab-separated columns to numbers and keys in portable TypeScript, as the
 * WebAssembly kernel does.
 */
import {
  HASH_MODULO,
  HASH_SEED,
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
} from './params.ts';
import { xxh64Words } from './xxh64.ts';

const TAB = 9;
const NEWLINE = 10;
const CARRIAGE_RETURN = 13;
const MINUS = 45;
const ZERO = 48;
/** Any integer of this many digits is exact as a double. */
const DIGITS_MAX = 15;
const NOT_PLAIN = -1;

export class PortableTsvReader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #words: Uint32Array;
  /** State of the call in progress. */
  #params = 0;
  #at = 0;
  #row = 0;
  #oddNum = 0;
  #seen = 0;

  constructor(buffer: SharedArrayBuffer) {
    this.#bytes = new Uint8Array(buffer);
    this.#view = new DataView(buffer);
    this.#words = new Uint32Array(buffer);
  }

  countLines(at: number, end: number): number {
    let lines = 0;
    for (let i = at; i < end; i++) if (this.#bytes[i] === NEWLINE) lines++;
    return lines;
  }

  readTsv(params: number, at: number, end: number, rowsMax: number): number {
    this.#params = params;
    this.#at = at;
    this.#oddNum = 0;
    this.#seen = 0;
    for (this.#row = 0; this.#row < rowsMax && this.#at < end; this.#row++) {
      const start = this.#at;
      const isPlain = this.#readLabel() && this.#readDense() && this.#readFeatures();
      if (!isPlain || this.#at - start > this.#param(TSV_LINE_MAX)) return NOT_PLAIN;
    }
    this.#words[(params + TSV_OTHER_COUNT) >>> 2] = this.#oddNum;
    this.#words[(params + TSV_NON_ASCII) >>> 2] = this.#seen;
    this.#words[(params + TSV_NEXT_LINE) >>> 2] = this.#at;
    return this.#row;
  }

  #param(offset: number): number {
    return this.#words[(this.#params + offset) >>> 2]!;
  }

  #readLabel(): boolean {
    if (this.#param(TSV_LABELLED) === 0) return true;
    const label = this.#bytes[this.#at]! - ZERO;
    if ((label !== 0 && label !== 1) || this.#bytes[this.#at + 1] !== TAB) return false;
    this.#view.setFloat32(this.#param(TSV_LABELS) + 4 * this.#row, label, true);
    this.#at += 2;
    return true;
  }

  #readDense(): boolean {
    const bytes = this.#bytes;
    const denseNum = this.#param(TSV_DENSE_NUM);
    for (let i = 0; i < denseNum; i++) {
      const from = this.#at;
      let at = from;
      const isNegative = bytes[at] === MINUS;
      if (isNegative) at++;
      const digitsFrom = at;
      let value = 0;
      for (let digit = bytes[at]! - ZERO; digit >= 0 && digit <= 9; digit = bytes[++at]! - ZERO) {
        value = value * 10 + digit;
      }
      const digits = at - digitsFrom;
      if (bytes[at] === TAB && digits > 0 && digits <= DIGITS_MAX) {
        value = isNegative ? -value : value;
      } else {
        value = Number.NaN;
        while (bytes[at] !== TAB && bytes[at] !== NEWLINE) at++;
        if (bytes[at] === NEWLINE) return false;
        const place = this.#row * denseNum + i;
        const odd = (this.#param(TSV_OTHER_NUMBERS) >>> 2) + 3 * this.#oddNum;
        if (at > from) {
          this.#words.set([place, from, at], odd);
          this.#oddNum++;
        }
      }
      this.#view.setFloat64(this.#param(TSV_DENSE) + 8 * (this.#row * denseNum + i), value, true);
      this.#at = at + 1;
    }
    return true;
  }

  #readFeatures(): boolean {
    const slotNum = this.#param(TSV_SLOT_NUM);
    for (let slot = 0; slot < slotNum; slot++) {
      const from = this.#at;
      let end = from;
      while (this.#bytes[end] !== TAB && this.#bytes[end] !== NEWLINE) {
        this.#seen |= this.#bytes[end++]! & 0x80;
      }
      const isLast = slot + 1 === slotNum;
      if ((this.#bytes[end] === NEWLINE) !== isLast) return false;
      this.#at = end + 1;
      if (isLast && end > from && this.#bytes[end - 1] === CARRIAGE_RETURN) end--;
      this.#hash(slot, from, end);
    }
    return true;
  }

  /** Hashes a feature after its slot's prefix. */
  #hash(slot: number, from: number, end: number): void {
    const prefix = this.#param(TSV_PREFIXES) + TSV_PREFIX_BYTES * slot;
    const length = this.#bytes[prefix + TSV_PREFIX_BYTES - 1]!;
    const stage = this.#param(TSV_STAGE);
    if (end - from > this.#param(TSV_LINE_MAX)) return;
    this.#bytes.copyWithin(stage, prefix, prefix + length);
    this.#bytes.copyWithin(stage + length, from, end);
    const to = (this.#param(TSV_KEYS) >>> 2) + 2 * (this.#row * this.#param(TSV_SLOT_NUM) + slot);
    const stop = stage + length + end - from;
    xxh64Words(
      this.#bytes,
      stage,
      stop,
      this.#param(HASH_SEED),
      this.#param(HASH_SEED + 4),
      this.#words,
      to,
    );
    const view = this.#view;
    const modulo = view.getBigUint64(this.#params + HASH_MODULO, true);
    if (modulo === 0n) return;
    view.setBigUint64(4 * to, view.getBigUint64(4 * to, true) % modulo, true);
  }
}
