/**
 * Finds the fields of CSV and TSV records in bytes, without creating strings (RFC 4180: quoted
 * fields may contain delimiters, line ends and doubled quotes). A line ends with LF or CRLF.
 */

const QUOTE = 34;
const LF = 10;
const CR = 13;

/** The record is incomplete. */
export const INCOMPLETE = -1;
/** A closing quote is missing, or not followed by a delimiter, line end or end of input. */
export const BAD_QUOTE = -2;

export class RecordScanner {
  readonly delimiter: number;
  /** Number of fields of the last record. */
  count = 0;
  starts: Int32Array = new Int32Array(64);
  ends: Int32Array = new Int32Array(64);
  /** 1 if the field contains doubled quotes. */
  escaped: Uint8Array = new Uint8Array(64);

  constructor(delimiter: number) {
    this.delimiter = delimiter;
  }

  /**
   * Finds the fields of the record at `start`.
   * @param isLast whether `end` is the end of the input, which ends a record too
   * @returns the start of the next record, or INCOMPLETE or BAD_QUOTE
   */
  scan(bytes: Uint8Array, start: number, end: number, isLast: boolean): number {
    const { delimiter } = this;
    this.count = 0;
    let at = start;
    for (;;) {
      let stop: number;
      if (at < end && bytes[at] === QUOTE) {
        stop = this.#quoted(bytes, at, end);
        if (stop < 0) return stop === INCOMPLETE && isLast ? BAD_QUOTE : stop;
      } else {
        stop = at;
        while (stop < end && bytes[stop] !== delimiter && bytes[stop] !== LF) stop += 1;
        const beforeLf = stop > at && bytes[stop - 1] === CR && (stop < end || isLast);
        const isEnd = stop === end || bytes[stop] === LF;
        this.#add(at, beforeLf && isEnd ? stop - 1 : stop, 0);
      }
      if (stop < end && bytes[stop] === delimiter) {
        at = stop + 1;
        continue;
      }
      if (stop < end && bytes[stop] === CR) stop += 1;
      if (stop < end) return bytes[stop] === LF ? stop + 1 : BAD_QUOTE;
      return isLast ? end : INCOMPLETE;
    }
  }

  /** @returns the position after the closing quote, or INCOMPLETE or BAD_QUOTE */
  #quoted(bytes: Uint8Array, open: number, end: number): number {
    let escaped = 0;
    let at = open + 1;
    for (;;) {
      while (at < end && bytes[at] !== QUOTE) at += 1;
      if (at >= end) {
        this.#add(open + 1, end, escaped);
        return INCOMPLETE;
      }
      if (at + 1 < end && bytes[at + 1] === QUOTE) {
        escaped = 1;
        at += 2;
        continue;
      }
      this.#add(open + 1, at, escaped);
      const next = bytes[at + 1];
      if (at + 1 >= end || next === this.delimiter || next === LF || next === CR) return at + 1;
      return BAD_QUOTE;
    }
  }

  #add(start: number, end: number, escaped: number): void {
    const at = this.count;
    if (at === this.starts.length) this.#grow();
    this.starts[at] = start;
    this.ends[at] = end;
    this.escaped[at] = escaped;
    this.count += 1;
  }

  #grow(): void {
    const length = 2 * this.starts.length;
    const grown = [new Int32Array(length), new Int32Array(length), new Uint8Array(length)] as const;
    grown[0].set(this.starts);
    grown[1].set(this.ends);
    grown[2].set(this.escaped);
    [this.starts, this.ends, this.escaped] = grown;
  }
}
