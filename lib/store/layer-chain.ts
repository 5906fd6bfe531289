/**
 * Looks keys up in the layers of a table, newest first: the first layer that has a key as a row or
 * as deleted decides it. A chunk of keys is copied from memory to memory in a frame
 * (scratch-layout.ts), together with the rows found so far.
 */
import { CubeError, requireDefined } from '../core/errors.ts';
import { DTYPE_NUMBERS } from '../core/kernels/contract.ts';
import type { LookupBatch } from './lookup-batch.ts';
import type { PooledMemory } from './memory-pool.ts';
import type { ResidentLayer, ResidentSection } from './resident-layer.ts';
import {
  computeScratchLayout,
  F32_PARAMS_AT,
  LookupFrame,
  type RowShape,
  STORED_PARAMS_AT,
} from './scratch-layout.ts';

/** Row returned for a missing key, as stored and as f32. */
export interface DefaultRows {
  readonly stored: Uint8Array;
  readonly f32: Uint8Array;
}

export class LayerChain {
  /** Newest first. */
  readonly layers: readonly ResidentLayer[];
  readonly #newest: ResidentLayer;
  readonly chunkKeys: number;
  readonly #shape: RowShape;
  readonly #frame: LookupFrame;
  readonly #overwrites: boolean;
  /** Keys are sorted by segment: the chain is one layer with several. */
  readonly #sorts: boolean;
  /** Set when the chain is one layer with one section in memory: the fast path. */
  readonly #only: ResidentSection | undefined;
  readonly #defaults: DefaultRows;
  /**
   * Which memories have the current keys and bitmaps, the current rows, and the current locations.
   */
  #head!: PooledMemory;
  #rowsIn: PooledMemory | undefined;
  #placesIn: PooledMemory | undefined;

  /**
   * @param layers base first, as in a manifest
   * @param thread index of the thread area to use in each memory
   */
  constructor(layers: readonly ResidentLayer[], thread: number, defaults: DefaultRows) {
    this.layers = [...layers].reverse();
    this.#newest = requireDefined(this.layers[0], 'the newest layer');
    const { header } = this.#newest;
    this.chunkKeys = computeScratchLayout(header).chunkKeys;
    this.#shape = header;
    const sections = layers.length === 1 ? this.#newest.keys : [];
    this.#sorts = sections.length > 1 && header.layout === 'inline';
    this.#overwrites = sections.length > 0 && !this.#sorts;
    this.#only = sections.length === 1 && header.layout !== 'indexed' ? sections[0] : undefined;
    this.#frame = new LookupFrame(header, thread);
    this.#defaults = defaults;
  }

  /**
   * Looks up one chunk of a batch: at most `chunkKeys` keys, already checked.
   * @returns hits, or -1 - i when missing key i of the chunk belongs to another shard
   */
  lookupChunk(batch: LookupBatch): number {
    this.#begin(batch);
    const only = this.#only;
    const hits = only === undefined ? this.#searchLayers(batch) : this.#searchOnly(only);
    return this.#end(batch, hits);
  }

  #begin(batch: LookupBatch): void {
    const memory = requireDefined(this.#newest.memories[0], 'the memory of the newest layer');
    const frame = this.#frame;
    const { keys, chunkLength } = batch;
    const keysFrom = keys.byteOffset + batch.chunkKeysAt;
    // The portable kernel works on words and needs them aligned.
    const skewed = memory.kind === 'wasm' ? 7 : 0;
    frame.pack(
      chunkLength,
      keysFrom & skewed,
      (batch.rows.byteOffset + batch.chunkRowsAt) & skewed,
    );
    // A single layer overwrites the bits, unless it has none of its keys in memory.
    const { foundAt, bitsBytes } = frame;
    if (!this.#overwrites) memory.bytes.fill(0, foundAt, foundAt + 2 * bitsBytes);
    memory.bytes.set(new Uint8Array(keys.buffer, keysFrom, 8 * chunkLength), frame.keysAt);
    this.#head = memory;
    this.#rowsIn = undefined;
  }

  /** Fast path: nothing is moved, and no key is decided in advance. */
  #searchOnly(section: ResidentSection): number {
    this.#rowsIn = section.memory;
    const dense = this.#newest.header.layout === 'dense';
    return this.#searchSection(section, dense, this.#frame.rowsAt);
  }

  #searchLayers(batch: LookupBatch): number {
    const { layers } = this;
    let hits = 0;
    for (let i = 0; i < layers.length && hits < batch.chunkLength; i++) {
      const layer = layers[i]!;
      if (layer.deleted !== undefined) this.#searchDeleted(layer.deleted);
      if (layer.header.layout === 'indexed') hits += this.#searchIndex(i, batch);
      else if (layer.disk !== undefined) hits += this.#searchDense(i, batch);
      else hits += this.#searchRows(layer);
    }
    return hits;
  }

  #moveHead(to: PooledMemory): void {
    if (to === this.#head) return;
    const { foundAt, keysEnd } = this.#frame;
    to.bytes.set(this.#head.bytes.subarray(foundAt, keysEnd), foundAt);
    this.#head = to;
  }

  #moveRows(to: PooledMemory): void {
    const from = this.#rowsIn;
    if (from !== undefined && from !== to) {
      const { rowsAt, rowsEnd } = this.#frame;
      to.bytes.set(from.bytes.subarray(rowsAt, rowsEnd), rowsAt);
    }
    this.#rowsIn = to;
  }

  #movePlaces(to: PooledMemory): void {
    const from = this.#placesIn;
    if (from !== undefined && from !== to) {
      const { locationsAt, locationsEnd } = this.#frame;
      to.bytes.set(from.bytes.subarray(locationsAt, locationsEnd), locationsAt);
    }
    this.#placesIn = to;
  }

  #searchDeleted({ memory, paramsAt }: ResidentSection): void {
    const { workAt, keysAt, count, decidedAt } = this.#frame;
    this.#moveHead(memory);
    memory.kernels.chainDeleted(paramsAt, workAt, keysAt, count, decidedAt);
  }

  /**
   * Searches the segments of a single layer, each for its own keys. The places of keys lie where
   * locations would, right behind the rows, so that one copy moves both.
   */
  #searchSegments(sections: readonly ResidentSection[]): number {
    const { workAt, foundAt, keysAt, rowsAt, locationsAt: endsAt, count } = this.#frame;
    const placesAt = endsAt + 4 * sections.length;
    // The rows' place is free until the first search.
    const { kernels: first } = this.#head;
    first.sortBySegment(keysAt, count, sections.length, rowsAt, endsAt, placesAt);
    let hits = 0;
    for (const { memory, paramsAt } of sections) {
      if (hits === count) break;
      const from = this.#head;
      this.#moveHead(memory);
      if (memory !== from) {
        memory.bytes.set(from.bytes.subarray(rowsAt, placesAt + 4 * count), rowsAt);
      }
      const { kernels } = memory;
      hits += kernels.lookupPlaced(paramsAt, workAt, keysAt, foundAt, rowsAt, endsAt, placesAt);
    }
    this.#rowsIn = this.#head;
    return hits;
  }

  /** Writes rows, or locations when the section is an index, to `rowsAt`. */
  #searchSection({ memory, paramsAt }: ResidentSection, dense: boolean, rowsAt: number): number {
    const { workAt, keysAt, foundAt, count, decidedAt } = this.#frame;
    const { kernels } = memory;
    if (this.layers.length === 1) {
      return dense
        ? kernels.lookupDense(paramsAt, workAt, keysAt, foundAt, rowsAt, count)
        : kernels.lookupInline(paramsAt, workAt, keysAt, foundAt, rowsAt, count);
    }
    return dense
      ? kernels.chainDense(paramsAt, workAt, keysAt, foundAt, rowsAt, count, decidedAt)
      : kernels.chainInline(paramsAt, workAt, keysAt, foundAt, rowsAt, count, decidedAt);
  }

  #searchRows({ keys, header }: ResidentLayer): number {
    if (this.#sorts) return this.#searchSegments(keys);
    const dense = header.layout === 'dense';
    let hits = 0;
    for (const section of keys) {
      this.#moveHead(section.memory);
      this.#moveRows(section.memory);
      hits += this.#searchSection(section, dense, this.#frame.rowsAt);
    }
    return hits;
  }

  #searchIndex(number: number, batch: LookupBatch): number {
    const layer = this.layers[number]!;
    const { locationsAt, locationBitsAt, count } = this.#frame;
    let hits = 0;
    let locationsIn: PooledMemory | undefined;
    this.#placesIn = undefined;
    for (const section of layer.keys) {
      const { memory } = section;
      this.#moveHead(memory);
      if (locationsIn === undefined) memory.bytes.fill(0xff, locationsAt, locationBitsAt);
      this.#movePlaces(memory);
      locationsIn = memory;
      hits += this.#searchSection(section, false, locationsAt);
    }
    if (hits === 0 || locationsIn === undefined) return 0;
    if (!layer.needsFetch) this.#gatherRows(layer, hits);
    else {
      const words = new Uint32Array(locationsIn.memory.buffer, locationsAt, 2 * count);
      const locations = requireDefined(batch.locations, 'the locations of the batch');
      locations.addAll(number, batch.chunkStart, words);
    }
    return hits;
  }

  /**
   * Gathers the rows that the frame's locations refer to, as dense rows whose keys are their
   * numbers.
   */
  #gatherRows(layer: ResidentLayer, hits: number): void {
    const { workAt, locationsAt, locationBitsAt, rowsAt, count } = this.#frame;
    let gathered = 0;
    for (const { memory, paramsAt } of layer.rows) {
      if (gathered === hits) break;
      this.#moveHead(memory);
      this.#moveRows(memory);
      this.#movePlaces(memory);
      const { kernels } = memory;
      gathered += kernels.lookupDense(paramsAt, workAt, locationsAt, locationBitsAt, rowsAt, count);
    }
    if (gathered !== hits) {
      const { table, contentId } = layer.header;
      throw new CubeError(
        'CORRUPT',
        `table ${table}, layer ${contentId}: its index points outside its rows; build it again`,
      );
    }
  }

  /** Finds row numbers of a dense layer on disk, which no memory contains. */
  #searchDense(number: number, batch: LookupBatch): number {
    const { chunkStart } = batch;
    const locations = requireDefined(batch.locations, 'the locations of the batch');
    const { denseRows } = this.layers[number]!;
    const { foundAt, decidedAt, keysAt, count } = this.#frame;
    const bytes = this.#head.bytes;
    const view = new DataView(this.#head.memory.buffer, keysAt, 8 * count);
    let hits = 0;
    for (let i = 0; i < count; i++) {
      const bit = 1 << (i & 7);
      if ((bytes[decidedAt + (i >> 3)]! & bit) !== 0) continue;
      const row = denseRows.findRow(view.getUint32(8 * i, true), view.getUint32(8 * i + 4, true));
      if (row < 0) continue;
      locations.add(number, chunkStart + i, row >>> 0, Math.floor(row / 0x1_0000_0000));
      bytes[foundAt + (i >> 3)]! |= bit;
      bytes[decidedAt + (i >> 3)]! |= bit;
      hits++;
    }
    return hits;
  }

  /**
   * Converts fetched rows to f32 and writes row i of `stored` to the row of key `keys[i]`.
   * @throws CubeError VERSION_ABSENT when the memories were released meanwhile
   */
  expandRows(stored: Uint8Array, keys: Uint32Array, { rows, rowsAt }: LookupBatch): void {
    const { memories, references, header } = this.#newest;
    if (references === 0) {
      throw new CubeError('VERSION_ABSENT', `table ${header.table}: its version was unloaded`);
    }
    const memory = requireDefined(memories[0], 'the memory of the newest layer');
    const { bytes } = memory;
    const { rowBytes, dim } = header;
    const frame = this.#frame;
    for (let done = 0; done < keys.length; done += this.chunkKeys) {
      const count = Math.min(this.chunkKeys, keys.length - done);
      frame.pack(count, 0, 0);
      bytes.set(stored.subarray(done * rowBytes, (done + count) * rowBytes), frame.rowsAt);
      this.#expand(memory);
      for (let i = 0; i < count; i++) {
        const from = frame.f32At + i * 4 * dim;
        rows.set(bytes.subarray(from, from + 4 * dim), rowsAt + keys[done + i]! * 4 * dim);
      }
    }
  }

  /** Converts the rows, fills in default rows and copies the results out. */
  #end(batch: LookupBatch, hits: number): number {
    const frame = this.#frame;
    const memory = this.#rowsIn ?? this.#head;
    this.#moveHead(memory);
    const wide = batch.asF32 && this.#shape.dtype !== 'f32';
    if (wide) this.#expand(memory);
    if (hits < frame.count) {
      const stranger = this.#fillMissing(memory, wide);
      if (stranger >= 0) return -1 - stranger;
    }
    this.#answer(batch, memory, wide ? frame.f32At : frame.rowsAt);
    return hits;
  }

  #answer(batch: LookupBatch, { bytes }: PooledMemory, rowsAt: number): void {
    const { count, foundAt } = this.#frame;
    const rows = new Uint8Array(bytes.buffer, rowsAt, batch.rowBytes * count);
    batch.rows.set(rows, batch.chunkRowsAt);
    const { found, chunkFoundAt } = batch;
    const bitmapBytes = (count + 7) >>> 3;
    // For so few bytes a loop is faster than a view and `set`.
    for (let i = 0; i < bitmapBytes; i++) found[chunkFoundAt + i] = bytes[foundAt + i]!;
  }

  #expand({ kernels }: PooledMemory): void {
    const { dtype, dim, rowBytes } = this.#shape;
    const { rowsAt, f32At, count } = this.#frame;
    if (dtype === 'bytes') return;
    kernels.expandRows(DTYPE_NUMBERS[dtype], dim, rowBytes, rowsAt, f32At, count);
  }

  #fillMissing({ bytes, kernels }: PooledMemory, wide: boolean): number {
    const { keysAt, foundAt, rowsAt, f32At, count, defaultRowAt, f32DefaultRowAt } = this.#frame;
    if (wide) {
      bytes.set(this.#defaults.f32, f32DefaultRowAt);
      return kernels.fillMissing(F32_PARAMS_AT, keysAt, foundAt, f32At, count, f32DefaultRowAt);
    }
    bytes.set(this.#defaults.stored, defaultRowAt);
    return kernels.fillMissing(STORED_PARAMS_AT, keysAt, foundAt, rowsAt, count, defaultRowAt);
  }
}
