/** A table of a resident version: one shard's layer and the version's default row, looked up synchronously. */
import { CubeError } from '../core/errors.ts';
import type { TableDtype, TableRef } from '../core/manifest.ts';
import type { ResidentLayer } from './resident-layer.ts';

export interface ResidentTable {
  readonly name: string;
  readonly dim: number;
  readonly dtype: TableDtype;
  readonly rowBytes: number;
  /**
   * Synchronous. Keys are u64 little-endian at keys[keysAt..]; rows go to rows[rowsAt..], the default row for a missing
   * key; bit i of found[foundAt..] (least significant first, whole bytes) says whether key i was found.
   * @returns hits, or -1 - i when missing key i belongs to another shard; the outputs then hold anything
   * @throws CubeError INVALID_ARGUMENT when an array is too short, VERSION_ABSENT when the version was unloaded
   */
  lookup(
    keys: Uint8Array,
    keysAt: number,
    count: number,
    rows: Uint8Array,
    rowsAt: number,
    found: Uint8Array,
    foundAt: number,
  ): number;
}

function encodeDefaultRow(table: TableRef): Uint8Array {
  const row = new Float32Array(table.dim);
  row.set(table.defaultRow);
  return new Uint8Array(row.buffer);
}

export class LayerTable implements ResidentTable {
  readonly name: string;
  readonly dim: number;
  readonly dtype: TableDtype;
  readonly rowBytes: number;
  readonly layer: ResidentLayer;
  readonly #defaultRow: Uint8Array;

  constructor(table: TableRef, layer: ResidentLayer) {
    this.name = table.name;
    this.dim = table.dim;
    this.dtype = table.dtype;
    this.rowBytes = layer.header.rowBytes;
    this.layer = layer;
    this.#defaultRow = encodeDefaultRow(table);
  }

  lookup(
    keys: Uint8Array,
    keysAt: number,
    count: number,
    rows: Uint8Array,
    rowsAt: number,
    found: Uint8Array,
    foundAt: number,
  ): number {
    const { layer, rowBytes } = this;
    if (layer.references === 0) this.#refuseUnloaded();
    if (
      keys.length < keysAt + 8 * count ||
      rows.length < rowsAt + rowBytes * count ||
      found.length < foundAt + ((count + 7) >>> 3)
    ) {
      this.#refuseShort(count);
    }
    const { chunkKeys } = layer;
    let hits = 0;
    for (let done = 0; done < count; done += chunkKeys) {
      const inChunk = layer.lookupChunk(
        keys,
        keysAt + 8 * done,
        Math.min(chunkKeys, count - done),
        rows,
        rowsAt + rowBytes * done,
        found,
        foundAt + (done >>> 3),
        this.#defaultRow,
      );
      if (inChunk < 0) return inChunk - done;
      hits += inChunk;
    }
    return hits;
  }

  #refuseUnloaded(): never {
    throw new CubeError('VERSION_ABSENT', `table ${this.name}: its version was unloaded`);
  }

  #refuseShort(count: number): never {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `table ${this.name}: the arrays are too short for ${count} keys and rows of ${this.rowBytes} bytes`,
    );
  }
}
