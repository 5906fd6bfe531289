/**
 * A table's layers as one: looked up newest first, a key being decided by the first layer that has it as a row or as
 * deleted. A chunk of keys moves from memory to memory in a frame (scratch.ts), and the rows found so far move with it.
 */
import { CubeError } from '../core/errors.ts';
import { DTYPE_NUMBERS } from '../core/kernels/contract.ts';
import type { LookupBatch } from './lookup-batch.ts';
import type { PooledMemory } from './memory-pool.ts';
import type { ResidentLayer, ResidentSection } from './resident-layer.ts';
import {
  Frame,
  layOutScratch,
  type RowShape,
  STORED_PARAMS_AT,
  WIDE_PARAMS_AT,
} from './scratch.ts';

/** The row of a missing key, as stored and as f32. */
export interface DefaultRows {
  readonly stored: Uint8Array;
  readonly wide: Uint8Array;
}

export class LayerChain {
  /** Newest first. */
  readonly layers: readonly ResidentLayer[];
  readonly chunkKeys: number;
  readonly #shape: RowShape;
  readonly #frame: Frame;
  readonly #overwrites: boolean;
  /** All there is to ask: one layer, in memory, of one section. */
  readonly #only: ResidentSection | undefined;
  readonly #defaults: DefaultRows;
  /** The memory whose frame has the keys and bitmaps, the one that has the rows, and the one that has places. */
  #head!: PooledMemory;
  #rowsIn: PooledMemory | undefined;
  #placesIn: PooledMemory | undefined;

  /** @param layers base first, as a manifest has them. @param thread whose area of the memories is used */
  constructor(layers: readonly ResidentLayer[], thread: number, defaults: DefaultRows) {
    this.layers = [...layers].reverse();
    const { header } = this.layers[0]!;
    this.chunkKeys = layOutScratch(header).chunkKeys;
    this.#shape = header;
    const sections = layers.length === 1 ? layers[0]!.keys : [];
    this.#overwrites = sections.length > 0;
    this.#only = sections.length === 1 && header.layout !== 'indexed' ? sections[0] : undefined;
    this.#frame = new Frame(header, thread);
    this.#defaults = defaults;
  }

  /**
   * Looks up the chunk of a batch: at most `chunkKeys` keys, already checked.
   * @returns hits, or -1 - i when the chunk's missing key i belongs to another shard
   */
  lookupChunk(batch: LookupBatch): number {
    this.#begin(batch);
    const only = this.#only;
    const hits = only === undefined ? this.#searchLayers(batch) : this.#searchOnly(only);
    return this.#end(batch, hits);
  }

  #begin(batch: LookupBatch): void {
    const memory = this.layers[0]!.memories[0]!;
    const frame = this.#frame;
    const { keys, length } = batch;
    const keysFrom = keys.byteOffset + batch.chunkKeysAt;
    // The twin works on words, so it needs them aligned.
    const skewed = memory.kind === 'wasm' ? 7 : 0;
    frame.pack(length, keysFrom & skewed, (batch.rows.byteOffset + batch.chunkRowsAt) & skewed);
    // The only layer overwrites the bits, unless it has none of its keys in memory.
    const { foundAt, bitsBytes } = frame;
    if (!this.#overwrites) memory.bytes.fill(0, foundAt, foundAt + 2 * bitsBytes);
    memory.bytes.set(new Uint8Array(keys.buffer, keysFrom, 8 * length), frame.keysAt);
    this.#head = memory;
    this.#rowsIn = undefined;
  }

  /** The straight way: nothing moves, nothing is decided before. */
  #searchOnly(section: ResidentSection): number {
    this.#rowsIn = section.memory;
    const dense = this.layers[0]!.header.layout === 'dense';
    return this.#searchSection(section, dense, this.#frame.rowsAt);
  }

  #searchLayers(batch: LookupBatch): number {
    const { layers } = this;
    let hits = 0;
    for (let i = 0; i < layers.length && hits < batch.length; i++) {
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
      const { placesAt, placesEnd } = this.#frame;
      to.bytes.set(from.bytes.subarray(placesAt, placesEnd), placesAt);
    }
    this.#placesIn = to;
  }

  #searchDeleted({ memory, paramsAt }: ResidentSection): void {
    const { workAt, keysAt, count, decidedAt } = this.#frame;
    this.#moveHead(memory);
    memory.kernels.chainDeleted(paramsAt, workAt, keysAt, count, decidedAt);
  }

  /** Rows, or places when the section is an index, to `rowsAt`. */
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
    const { placesAt, placesEnd, count } = this.#frame;
    let hits = 0;
    this.#placesIn = undefined;
    for (const section of layer.keys) {
      const { memory } = section;
      this.#moveHead(memory);
      if (this.#placesIn === undefined) memory.bytes.fill(0xff, placesAt, placesEnd);
      this.#movePlaces(memory);
      hits += this.#searchSection(section, false, placesAt);
    }
    if (hits === 0) return 0;
    if (!layer.isFetched) this.#gatherRows(layer, hits);
    else {
      const words = new Uint32Array(this.#placesIn!.memory.buffer, placesAt, 2 * count);
      batch.places!.addAll(number, batch.first, words);
    }
    return hits;
  }

  /** The rows that the places of a frame point to: dense ones whose keys are the places. */
  #gatherRows(layer: ResidentLayer, hits: number): void {
    const { workAt, placesAt, placeBitsAt, rowsAt, count } = this.#frame;
    let gathered = 0;
    for (const { memory, paramsAt } of layer.rows) {
      if (gathered === hits) break;
      this.#moveHead(memory);
      this.#moveRows(memory);
      this.#movePlaces(memory);
      const { kernels } = memory;
      gathered += kernels.lookupDense(paramsAt, workAt, placesAt, placeBitsAt, rowsAt, count);
    }
    if (gathered !== hits) {
      const { table, contentId } = layer.header;
      throw new CubeError(
        'CORRUPT',
        `table ${table}, layer ${contentId}: its index points outside its rows; build it again`,
      );
    }
  }

  /** Rows of a dense layer on disk: no memory holds it, so its row numbers are found here. */
  #searchDense(number: number, { places, first }: LookupBatch): number {
    const { dense } = this.layers[number]!;
    const { foundAt, decidedAt, keysAt, count } = this.#frame;
    const bytes = this.#head.bytes;
    const view = new DataView(this.#head.memory.buffer, keysAt, 8 * count);
    let hits = 0;
    for (let i = 0; i < count; i++) {
      const bit = 1 << (i & 7);
      if ((bytes[decidedAt + (i >> 3)]! & bit) !== 0) continue;
      const row = dense.rowOf(view.getUint32(8 * i, true), view.getUint32(8 * i + 4, true));
      if (row < 0) continue;
      places!.add(number, first + i, row >>> 0, Math.floor(row / 0x1_0000_0000));
      bytes[foundAt + (i >> 3)]! |= bit;
      bytes[decidedAt + (i >> 3)]! |= bit;
      hits++;
    }
    return hits;
  }

  /**
   * Converts stored rows that were fetched: row i of `stored` to the place of the batch's key `keys[i]`.
   * @throws CubeError VERSION_ABSENT when the memories were given back meanwhile
   */
  expandRows(stored: Uint8Array, keys: Uint32Array, { rows, rowsAt }: LookupBatch): void {
    const { memories, references, header } = this.layers[0]!;
    if (references === 0) {
      throw new CubeError('VERSION_ABSENT', `table ${header.table}: its version was unloaded`);
    }
    const { bytes } = memories[0]!;
    const { rowBytes, dim } = header;
    const frame = this.#frame;
    for (let done = 0; done < keys.length; done += this.chunkKeys) {
      const count = Math.min(this.chunkKeys, keys.length - done);
      frame.pack(count, 0, 0);
      bytes.set(stored.subarray(done * rowBytes, (done + count) * rowBytes), frame.rowsAt);
      this.#expand(memories[0]!);
      for (let i = 0; i < count; i++) {
        const from = frame.wideAt + i * 4 * dim;
        rows.set(bytes.subarray(from, from + 4 * dim), rowsAt + keys[done + i]! * 4 * dim);
      }
    }
  }

  /** Default rows, conversion, and out. */
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
    this.#answer(batch, memory, wide ? frame.wideAt : frame.rowsAt);
    return hits;
  }

  #answer(batch: LookupBatch, { bytes }: PooledMemory, rowsAt: number): void {
    const { count, foundAt } = this.#frame;
    const rows = new Uint8Array(bytes.buffer, rowsAt, batch.rowBytes * count);
    batch.rows.set(rows, batch.chunkRowsAt);
    const { found, chunkFoundAt } = batch;
    const bitmapBytes = (count + 7) >>> 3;
    // So few bytes that a loop beats a view and `set`.
    for (let i = 0; i < bitmapBytes; i++) found[chunkFoundAt + i] = bytes[foundAt + i]!;
  }

  #expand({ kernels }: PooledMemory): void {
    const { dtype, dim, rowBytes } = this.#shape;
    const { rowsAt, wideAt, count } = this.#frame;
    if (dtype === 'bytes') return;
    kernels.expandRows(DTYPE_NUMBERS[dtype], dim, rowBytes, rowsAt, wideAt, count);
  }

  #fillMissing({ bytes, kernels }: PooledMemory, wide: boolean): number {
    const { keysAt, foundAt, rowsAt, wideAt, count, defaultRowAt, wideDefaultRowAt } = this.#frame;
    if (wide) {
      bytes.set(this.#defaults.wide, wideDefaultRowAt);
      return kernels.fillMissing(WIDE_PARAMS_AT, keysAt, foundAt, wideAt, count, wideDefaultRowAt);
    }
    bytes.set(this.#defaults.stored, defaultRowAt);
    return kernels.fillMissing(STORED_PARAMS_AT, keysAt, foundAt, rowsAt, count, defaultRowAt);
  }
}
