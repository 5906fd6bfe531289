/** The arguments of a lookup, and the table's progress with it. */
import type { RowLocations } from './row-locations.ts';

const EMPTY = new Uint8Array(0);

/** Set by the caller: arrays, and offsets of keys and results in them. */
export interface LookupFields {
  /** `count` keys as u64 little-endian from `keysAt`. */
  keys: Uint8Array;
  keysAt: number;
  count: number;
  /**
   * Rows are written from `rowsAt`, default rows for missing keys: as stored, or 4 · dim bytes when
   * `asF32`.
   */
  rows: Uint8Array;
  rowsAt: number;
  /**
   * Bit i of found[foundAt..] (least significant first, whole bytes) tells whether key i was found.
   */
  found: Uint8Array;
  foundAt: number;
  asF32: boolean;
}

/** One object serves any number of consecutive lookups; the caller's fields are never changed. */
export class LookupBatch implements LookupFields {
  keys: Uint8Array = EMPTY;
  keysAt = 0;
  count = 0;
  rows: Uint8Array = EMPTY;
  rowsAt = 0;
  found: Uint8Array = EMPTY;
  foundAt = 0;
  asF32 = false;

  /** Set by the store: size of a returned row. */
  rowBytes = 0;
  /** Set by the store: collects locations of values, and of rows that are not in memory. */
  locations: RowLocations | undefined;
  /** Set by the store: first key and length of the current chunk; the first is a multiple of 8. */
  chunkStart = 0;
  chunkLength = 0;

  constructor(fields: Partial<LookupFields> = {}) {
    Object.assign(this, fields);
  }

  /** Where the chunk's keys begin; likewise for its rows and bits below. */
  get chunkKeysAt(): number {
    return this.keysAt + 8 * this.chunkStart;
  }

  get chunkRowsAt(): number {
    return this.rowsAt + this.rowBytes * this.chunkStart;
  }

  get chunkFoundAt(): number {
    return this.foundAt + (this.chunkStart >>> 3);
  }
}
