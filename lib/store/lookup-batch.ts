/** A lookup as its caller fills it in, and how far the table has come with it. */
import type { FoundPlaces } from './found-places.ts';

const NOTHING = new Uint8Array(0);

/** What the caller says: arrays, and where in them keys and answers begin. */
export interface LookupFields {
  /** u64 little-endian, `count` of them from `keysAt`. */
  keys: Uint8Array;
  keysAt: number;
  count: number;
  /** Rows go here from `rowsAt`, the default row for a missing key: as stored, or 4 · dim bytes each when `asF32`. */
  rows: Uint8Array;
  rowsAt: number;
  /** Bit i of found[foundAt..] (least significant first, whole bytes) will say whether key i was found. */
  found: Uint8Array;
  foundAt: number;
  asF32: boolean;
}

/** One object serves any number of lookups, one after another: the fields above stay as the caller set them. */
export class LookupBatch implements LookupFields {
  keys: Uint8Array = NOTHING;
  keysAt = 0;
  count = 0;
  rows: Uint8Array = NOTHING;
  rowsAt = 0;
  found: Uint8Array = NOTHING;
  foundAt = 0;
  asF32 = false;

  /** For the store. Of a row as answered. */
  rowBytes = 0;
  /** For the store. Where to note rows that no memory has, and values. */
  places: FoundPlaces | undefined;
  /** For the store. The chunk being looked up: its first key, a multiple of 8, and how many. */
  first = 0;
  length = 0;

  constructor(fields: Partial<LookupFields> = {}) {
    Object.assign(this, fields);
  }

  /** Where the chunk's keys begin; the same of its rows and bits. */
  get chunkKeysAt(): number {
    return this.keysAt + 8 * this.first;
  }

  get chunkRowsAt(): number {
    return this.rowsAt + this.rowBytes * this.first;
  }

  get chunkFoundAt(): number {
    return this.foundAt + (this.first >>> 3);
  }
}
