/** A table of a resident version: one shard's chain of layers and the version's default row. */
import { CubeError } from '../core/errors.ts';
import type { TableDtype, TableRef } from '../core/manifest.ts';
import { encodeRows } from '../core/row-codec.ts';
import { copyValues, fetchRows, fetchValues } from './fetch.ts';
import { FilteredChain } from './filtered-chain.ts';
import { FoundPlaces } from './found-places.ts';
import { FoundValues } from './found-values.ts';
import { type DefaultRows, LayerChain } from './layer-chain.ts';
import { LookupBatch } from './lookup-batch.ts';
import type { ResidentLayer } from './resident-layer.ts';

export interface ResidentTable {
  readonly name: string;
  /** 0 for dtype bytes. */
  readonly dim: number;
  readonly dtype: TableDtype;
  /** Of a row as stored; 0 for dtype bytes. */
  readonly rowBytes: number;
  /** Some rows or values are read from disk: ask with `lookupLater` and `copyValuesLater`. */
  readonly onDisk: boolean;
  /**
   * Synchronous.
   * @returns hits, or -1 - i when missing key i belongs to another shard; the outputs then hold anything
   * @throws CubeError INVALID_ARGUMENT when an array is too short, VERSION_ABSENT when the version was unloaded,
   * UNSUPPORTED for rows on disk and values of any length
   */
  lookup(batch: LookupBatch): number;
  /**
   * The same where rows may be on disk; the batch and its arrays are the lookup's until it is done.
   * @throws CubeError CORRUPT when a block that it touches is damaged, and IO, besides those of `lookup`
   */
  lookupLater(batch: LookupBatch): Promise<number>;
  /** dtype bytes: where the values of u64 keys are, and how long; `hits` as of `lookup`. */
  findValues(keys: Uint8Array, keysAt: number, count: number): FoundValues;
  /** Copies the values, one after another, to target[at..]. @throws CubeError CORRUPT when one lies outside the layer */
  copyValues(values: FoundValues, target: Uint8Array, at: number): void;
  /** The same where values may be on disk; the target is the call's until it is done. */
  copyValuesLater(values: FoundValues, target: Uint8Array, at: number): Promise<void>;
}

/** @throws CubeError INVALID_ARGUMENT when the default row is none of the table's rows */
function defaultRowsOf(table: TableRef): DefaultRows {
  if (table.dtype === 'bytes') return { stored: new Uint8Array(0), wide: new Uint8Array(0) };
  const row = new Float32Array(table.dim);
  row.set(table.defaultRow);
  const { rows } = encodeRows(table.dtype, row, table.dim);
  return { stored: rows, wide: new Uint8Array(row.buffer) };
}

export class ChainTable implements ResidentTable {
  readonly name: string;
  readonly dim: number;
  readonly dtype: TableDtype;
  readonly rowBytes: number;
  readonly onDisk: boolean;
  readonly layers: readonly ResidentLayer[];
  readonly #chain: LayerChain;
  /** The chain, or its quick way when it has deltas in memory. */
  readonly #search: LayerChain | FilteredChain;

  /** @param layers base first. @param thread whose area of the memories its lookups use */
  constructor(table: TableRef, layers: readonly ResidentLayer[], thread: number) {
    this.name = table.name;
    this.dim = table.dim;
    this.dtype = table.dtype;
    this.rowBytes = layers[0]!.header.rowBytes;
    this.onDisk = layers.some((layer) => layer.disk !== undefined);
    this.layers = layers;
    const defaults = defaultRowsOf(table);
    this.#chain = new LayerChain(layers, thread, defaults);
    const fetched = this.onDisk || this.dtype === 'bytes';
    this.#search =
      layers.length > 1 && !fetched ? new FilteredChain(layers, thread, defaults) : this.#chain;
  }

  lookup(batch: LookupBatch): number {
    if (this.onDisk || this.dtype === 'bytes') this.#refuseFetched();
    this.#open(batch);
    return this.#lookup(batch);
  }

  async lookupLater(batch: LookupBatch): Promise<number> {
    if (this.dtype === 'bytes') this.#refuseFetched();
    this.#open(batch);
    const places = new FoundPlaces(batch.count);
    batch.places = places;
    const hits = this.#lookup(batch);
    if (hits <= 0 || !this.onDisk) return hits;
    await this.#whileLoaded(fetchRows(this.#chain, batch, places));
    return hits;
  }

  findValues(keys: Uint8Array, keysAt: number, count: number): FoundValues {
    if (this.dtype !== 'bytes') this.#refuseRows();
    const values = new FoundValues(count);
    const batch = new LookupBatch({ keys, keysAt, count, found: values.found });
    this.#open(batch);
    batch.places = values.places;
    values.hits = this.#lookup(batch);
    if (values.hits > 0) values.measure();
    return values;
  }

  copyValues(values: FoundValues, target: Uint8Array, at: number): void {
    if (this.onDisk) this.#refuseFetched();
    this.#checkTarget(values, target, at);
    copyValues(this.#chain.layers, values, target, at);
  }

  async copyValuesLater(values: FoundValues, target: Uint8Array, at: number): Promise<void> {
    this.#checkTarget(values, target, at);
    await this.#whileLoaded(fetchValues(this.#chain.layers, values, target, at));
  }

  /** Chunk after chunk. */
  #lookup(batch: LookupBatch): number {
    const search = this.#search;
    const { chunkKeys } = search;
    const { count } = batch;
    let hits = 0;
    for (let first = 0; first < count; first += chunkKeys) {
      batch.first = first;
      batch.length = Math.min(chunkKeys, count - first);
      const inChunk = search.lookupChunk(batch);
      if (inChunk < 0) return inChunk - first;
      hits += inChunk;
    }
    return hits;
  }

  /** Reads from a file that is closed meanwhile fail: then the version was unloaded. */
  async #whileLoaded(fetching: Promise<void>): Promise<void> {
    try {
      await fetching;
    } catch (error) {
      if (!this.#isLoaded) this.#refuseUnloaded();
      throw error;
    }
  }

  get #isLoaded(): boolean {
    return this.layers[0]!.references > 0;
  }

  /** Checks what the caller filled in, and sets what is the store's own. */
  #open(batch: LookupBatch): void {
    if (!this.#isLoaded) this.#refuseUnloaded();
    const { keys, keysAt, count, rows, rowsAt, found, foundAt } = batch;
    const rowBytes = batch.asF32 ? 4 * this.dim : this.rowBytes;
    batch.rowBytes = rowBytes;
    batch.places = undefined;
    if (
      keys.length < keysAt + 8 * count ||
      rows.length < rowsAt + rowBytes * count ||
      found.length < foundAt + ((count + 7) >>> 3)
    ) {
      this.#refuseShort(batch);
    }
  }

  #checkTarget(values: FoundValues, target: Uint8Array, at: number): void {
    if (!this.#isLoaded) this.#refuseUnloaded();
    if (target.length >= at + values.bytes) return;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `table ${this.name}: the array is too short for ${values.bytes} bytes of values`,
    );
  }

  #refuseShort({ count, rowBytes }: LookupBatch): never {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `table ${this.name}: the arrays are too short for ${count} keys and rows of ${rowBytes} bytes`,
    );
  }

  #refuseUnloaded(): never {
    throw new CubeError('VERSION_ABSENT', `table ${this.name}: its version was unloaded`);
  }

  #refuseFetched(): never {
    const instead = this.onDisk ? 'lookupLater or copyValuesLater' : 'findValues';
    throw new CubeError(
      'UNSUPPORTED',
      `table ${this.name}: ${this.onDisk ? 'rows on disk' : 'values of any length'}; use ${instead}`,
    );
  }

  #refuseRows(): never {
    throw new CubeError('UNSUPPORTED', `table ${this.name} has rows, not values; use lookup`);
  }
}
