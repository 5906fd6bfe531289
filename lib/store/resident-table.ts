/** A table of a resident version: one shard's chain of layers, and the version's default row. */
import { CubeError, requireDefined } from '../core/errors.ts';
import type { TableDtype, TableRef } from '../core/manifest.ts';
import { encodeRows } from '../core/row-codec.ts';
import { FilteredChain } from './filtered-chain.ts';
import { type DefaultRows, LayerChain } from './layer-chain.ts';
import { LookupBatch } from './lookup-batch.ts';
import type { ResidentLayer } from './resident-layer.ts';
import { copyValues, fetchRows, fetchValues } from './row-fetch.ts';
import { FoundValues, RowLocations } from './row-locations.ts';

export interface ResidentTable {
  readonly name: string;
  /** 0 for dtype bytes. */
  readonly dim: number;
  readonly dtype: TableDtype;
  /** Size of a stored row; 0 for dtype bytes. */
  readonly rowBytes: number;
  /** Some rows or values are on disk: use `lookupAsync` and `copyValuesAsync`. */
  readonly onDisk: boolean;
  /**
   * Looks keys up synchronously.
   * @returns hits, or -1 - i when missing key i belongs to another shard; the outputs are then
   *   undefined
   * @throws CubeError INVALID_ARGUMENT when an array is too short, VERSION_ABSENT when the version
   *   was unloaded, UNSUPPORTED for rows on disk and variable-length values
   */
  lookup(batch: LookupBatch): number;
  /**
   * Like `lookup`, also for rows on disk. The caller must not touch the batch and its arrays until
   * the promise settles.
   * @throws CubeError as `lookup`; also CORRUPT when a block it reads is damaged, and IO
   */
  lookupAsync(batch: LookupBatch): Promise<number>;
  /** For dtype bytes: locations and lengths of the values of u64 keys; `hits` as in `lookup`. */
  findValues(keys: Uint8Array, keysAt: number, count: number): FoundValues;
  /**
   * Copies the concatenated values to target[at..]. @throws CubeError CORRUPT when one lies outside
   * the layer
   */
  copyValues(values: FoundValues, target: Uint8Array, at: number): void;
  /**
   * Like `copyValues`, also for values on disk. The target must not be touched until the promise
   * settles.
   */
  copyValuesAsync(values: FoundValues, target: Uint8Array, at: number): Promise<void>;
}

/** @throws CubeError INVALID_ARGUMENT when the default row is not a valid row of the table */
function encodeDefaultRows(table: TableRef): DefaultRows {
  if (table.dtype === 'bytes') return { stored: new Uint8Array(0), f32: new Uint8Array(0) };
  const row = new Float32Array(table.dim);
  row.set(table.defaultRow);
  const { rows } = encodeRows(table.dtype, row, table.dim);
  return { stored: rows, f32: new Uint8Array(row.buffer) };
}

export class ChainTable implements ResidentTable {
  readonly name: string;
  readonly dim: number;
  readonly dtype: TableDtype;
  readonly rowBytes: number;
  readonly onDisk: boolean;
  readonly layers: readonly ResidentLayer[];
  readonly #base: ResidentLayer;
  readonly #chain: LayerChain;
  /** The chain itself, or the filtered chain when there are deltas in memory. */
  readonly #search: LayerChain | FilteredChain;

  /**
   * @param layers base first
   * @param thread index of the thread area that lookups use
   */
  constructor(table: TableRef, layers: readonly ResidentLayer[], thread: number) {
    this.name = table.name;
    this.dim = table.dim;
    this.dtype = table.dtype;
    this.#base = requireDefined(layers[0], 'the base layer');
    this.rowBytes = this.#base.header.rowBytes;
    this.onDisk = layers.some((layer) => layer.disk !== undefined);
    this.layers = layers;
    const defaults = encodeDefaultRows(table);
    this.#chain = new LayerChain(layers, thread, defaults);
    const fetched = this.onDisk || this.dtype === 'bytes';
    this.#search =
      layers.length > 1 && !fetched ? new FilteredChain(layers, thread, defaults) : this.#chain;
  }

  lookup(batch: LookupBatch): number {
    if (this.onDisk || this.dtype === 'bytes') this.#refuseFetched();
    this.#prepare(batch);
    return this.#lookup(batch);
  }

  async lookupAsync(batch: LookupBatch): Promise<number> {
    if (this.dtype === 'bytes') this.#refuseFetched();
    this.#prepare(batch);
    const places = new RowLocations(batch.count);
    batch.locations = places;
    const hits = this.#lookup(batch);
    if (hits <= 0 || !this.onDisk) return hits;
    await this.#whileLoaded(fetchRows(this.#chain, batch, places));
    return hits;
  }

  findValues(keys: Uint8Array, keysAt: number, count: number): FoundValues {
    if (this.dtype !== 'bytes') this.#refuseRows();
    const values = new FoundValues(count);
    const batch = new LookupBatch({ keys, keysAt, count, found: values.found });
    this.#prepare(batch);
    batch.locations = values.locations;
    values.hits = this.#lookup(batch);
    if (values.hits > 0) values.measure();
    return values;
  }

  copyValues(values: FoundValues, target: Uint8Array, at: number): void {
    if (this.onDisk) this.#refuseFetched();
    this.#checkTarget(values, target, at);
    copyValues(this.#chain.layers, values, target, at);
  }

  async copyValuesAsync(values: FoundValues, target: Uint8Array, at: number): Promise<void> {
    this.#checkTarget(values, target, at);
    await this.#whileLoaded(fetchValues(this.#chain.layers, values, target, at));
  }

  /** Looks up chunk after chunk. */
  #lookup(batch: LookupBatch): number {
    const search = this.#search;
    const { chunkKeys } = search;
    const { count } = batch;
    let hits = 0;
    for (let first = 0; first < count; first += chunkKeys) {
      batch.chunkStart = first;
      batch.chunkLength = Math.min(chunkKeys, count - first);
      const inChunk = search.lookupChunk(batch);
      if (inChunk < 0) return inChunk - first;
      hits += inChunk;
    }
    return hits;
  }

  /**
   * A read fails when its file is closed meanwhile; the reason is then that the version was
   * unloaded.
   */
  async #whileLoaded(fetching: Promise<void>): Promise<void> {
    try {
      await fetching;
    } catch (error) {
      if (!this.#isLoaded) this.#refuseUnloaded();
      throw error;
    }
  }

  get #isLoaded(): boolean {
    return this.#base.references > 0;
  }

  /** Checks the caller's fields and sets those of the store. */
  #prepare(batch: LookupBatch): void {
    if (!this.#isLoaded) this.#refuseUnloaded();
    const { keys, keysAt, count, rows, rowsAt, found, foundAt } = batch;
    const rowBytes = batch.asF32 ? 4 * this.dim : this.rowBytes;
    batch.rowBytes = rowBytes;
    batch.locations = undefined;
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
      `table ${this.name}: the arrays are too short for ${count} keys ` +
        `and rows of ${rowBytes} bytes`,
    );
  }

  #refuseUnloaded(): never {
    throw new CubeError('VERSION_ABSENT', `table ${this.name}: its version was unloaded`);
  }

  #refuseFetched(): never {
    const what = this.onDisk ? 'rows on disk' : 'variable-length values';
    const instead = this.onDisk ? 'lookupAsync or copyValuesAsync' : 'findValues';
    throw new CubeError('UNSUPPORTED', `table ${this.name} has ${what}; use ${instead}`);
  }

  #refuseRows(): never {
    throw new CubeError('UNSUPPORTED', `table ${this.name} has rows, not values; use lookup`);
  }
}
