/** Lines of tab-separated columns to numbers and keys in plain TypeScript: the twin of the kernel. */
import { xxh64Words } from './xxh64.ts';

const TAB = 9;
const NEWLINE = 10;
const CARRIAGE_RETURN = 13;
const MINUS = 45;
const ZERO = 48;
/** What a double holds exactly whatever the digits are. */
const DIGITS_MAX = 15;
const NOT_PLAIN = -1;
const PREFIX_BYTES = 16;

export class TsvTwin {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #words: Uint32Array;
  /** Of the call under way. */
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
      if (!isPlain || this.#at - start > this.#param(36)) return NOT_PLAIN;
    }
    const results = [this.#oddNum, this.#seen, this.#at];
    this.#words.set(results, (params + 56) >>> 2);
    return this.#row;
  }

  #param(at: number): number {
    return this.#words[(this.#params + at) >>> 2]!;
  }

  #readLabel(): boolean {
    if (this.#param(32) === 0) return true;
    const label = this.#bytes[this.#at]! - ZERO;
    if ((label !== 0 && label !== 1) || this.#bytes[this.#at + 1] !== TAB) return false;
    this.#view.setFloat32(this.#param(48) + 4 * this.#row, label, true);
    this.#at += 2;
    return true;
  }

  #readDense(): boolean {
    const bytes = this.#bytes;
    const denseNum = this.#param(16);
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
        const odd = (this.#param(52) >>> 2) + 3 * this.#oddNum;
        if (at > from) {
          this.#words.set([place, from, at], odd);
          this.#oddNum++;
        }
      }
      this.#view.setFloat64(this.#param(44) + 8 * (this.#row * denseNum + i), value, true);
      this.#at = at + 1;
    }
    return true;
  }

  #readFeatures(): boolean {
    const slotNum = this.#param(20);
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

  /** The feature behind its slot's prefix. */
  #hash(slot: number, from: number, end: number): void {
    const prefix = this.#param(24) + PREFIX_BYTES * slot;
    const length = this.#bytes[prefix + PREFIX_BYTES - 1]!;
    const stage = this.#param(28);
    if (end - from > this.#param(36)) return;
    this.#bytes.copyWithin(stage, prefix, prefix + length);
    this.#bytes.copyWithin(stage + length, from, end);
    const to = (this.#param(40) >>> 2) + 2 * (this.#row * this.#param(20) + slot);
    const stop = stage + length + end - from;
    xxh64Words(this.#bytes, stage, stop, this.#param(0), this.#param(4), this.#words, to);
    const view = this.#view;
    const modulo = view.getBigUint64(this.#params + 8, true);
    if (modulo === 0n) return;
    view.setBigUint64(4 * to, view.getBigUint64(4 * to, true) % modulo, true);
  }
}
