/**
 * Looks keys up in a layer file on disk without loading it. A batch is searched in file order, so
 * that each block is read and verified at most once. For tools; servers use the resident store.
 */
import { CubeError } from '../core/errors.ts';
import { mixKey } from '../core/keys.ts';
import {
  BLOCK_BYTES,
  DELETED_STRIDE,
  getDeletedSegment,
  getKeySegments,
  getRowSegments,
  type LayerHeader,
  type LayerSegment,
} from '../core/layer-format.ts';
import { computeHomeSlot, computeSegment } from '../core/layer-placement.ts';
import { getLocationLength, getLocationOffset } from '../core/value-locations.ts';
import { LayerReader } from './layer-reader.ts';
import { DenseRowFinder, RowLocator } from './row-locations.ts';

/** Results of searching one or several layers for a batch of keys. */
export class KeySearch {
  /** 2n words (low, high). */
  readonly keys: Uint32Array;
  readonly count: number;
  /** 0: no layer has a row of the key; else the layer's number plus one. */
  readonly layers: Uint8Array;
  /** 0: no layer deletes the key; else the layer's number plus one, and `layers` is 0. */
  readonly deletedBy: Uint8Array;
  /** For found keys: position of the row or value in the file, and its length in bytes. */
  readonly positions: Float64Array;
  readonly lengths: Uint32Array;

  constructor(keys: Uint32Array) {
    this.keys = keys;
    this.count = keys.length / 2;
    this.layers = new Uint8Array(this.count);
    this.deletedBy = new Uint8Array(this.count);
    this.positions = new Float64Array(this.count);
    this.lengths = new Uint32Array(this.count);
  }

  isDecided(i: number): boolean {
    return this.layers[i] !== 0 || this.deletedBy[i] !== 0;
  }
}

const ORDER_UNIT = 0x1_0000_0000;

/** Indices of a batch, ordered by the blocks of their positions. */
function sortByFilePosition(
  indices: readonly number[],
  placeOf: (i: number) => number,
): Float64Array {
  const order = new Float64Array(indices.length);
  indices.forEach((index, at) => {
    order[at] = Math.floor(placeOf(index) / BLOCK_BYTES) * ORDER_UNIT + index;
  });
  return order.sort().map((packed) => packed % ORDER_UNIT);
}

/** A table of slots to search: row or index segments, or the deleted keys. */
interface SlotTable {
  readonly segments: readonly LayerSegment[];
  readonly stride: number;
  readonly homeSlots: number;
}

export class LayerSearch {
  readonly header: LayerHeader;
  readonly #reader: LayerReader;
  readonly #finder: RowLocator;
  readonly #dense: DenseRowFinder;
  readonly #rowSegments: readonly LayerSegment[];
  readonly #rows: SlotTable;
  readonly #deleted: SlotTable | undefined;
  readonly #emptyLow: number;
  readonly #emptyHigh: number;
  readonly #mixed = new Uint32Array(2);
  readonly #slot = new Uint32Array(4);
  readonly #slotBytes: Uint8Array;

  /** @throws CubeError when header or checksums are damaged */
  constructor(path: string) {
    this.#reader = new LayerReader(path);
    const { header } = this.#reader;
    this.header = header;
    this.#finder = new RowLocator(header);
    this.#dense = new DenseRowFinder(header);
    this.#rowSegments = header.layout === 'dense' ? header.segments : getRowSegments(header);
    const { stride, homeSlots, deletedHomeSlots, emptyKey } = header;
    this.#rows = { segments: getKeySegments(header), stride, homeSlots };
    const deleted = getDeletedSegment(header);
    this.#deleted = deleted && {
      segments: [deleted],
      stride: DELETED_STRIDE,
      homeSlots: deletedHomeSlots,
    };
    this.#emptyLow = Number(emptyKey & 0xffff_ffffn);
    this.#emptyHigh = Number(emptyKey >> 32n);
    // A key, followed in an index by its location.
    this.#slotBytes = new Uint8Array(this.#slot.buffer, 0, header.layout === 'indexed' ? 16 : 8);
  }

  /**
   * Decides keys that no newer layer decided: present here, or deleted here.
   * @param number of this layer, for the results
   * @throws CubeError CORRUPT naming the damaged block
   */
  find(searched: KeySearch, number: number): void {
    const open: number[] = [];
    for (let i = 0; i < searched.count; i++) if (!searched.isDecided(i)) open.push(i);
    if (open.length === 0) return;
    if (this.header.layout === 'dense') this.#findDense(searched, number, open);
    else if (this.header.rowCount > 0) this.#findRows(searched, number, open);
    const deleted = this.#deleted;
    if (deleted === undefined) return;
    const left = open.filter((i) => !searched.isDecided(i));
    for (const i of this.#ordered(searched, left, deleted)) {
      if (this.#probe(searched, i, deleted) >= 0) searched.deletedBy[i] = number + 1;
    }
  }

  /**
   * Reads the rows or values found in this layer, in file order.
   * @param take called with a view that the next call overwrites
   */
  read(searched: KeySearch, number: number, take: (i: number, bytes: Uint8Array) => void): void {
    const { layers, positions, lengths } = searched;
    const own: number[] = [];
    for (let i = 0; i < searched.count; i++) if (layers[i] === number + 1) own.push(i);
    let buffer = new Uint8Array(this.header.rowBytes);
    for (const i of sortByFilePosition(own, (index) => positions[index]!)) {
      if (lengths[i]! > buffer.length) buffer = new Uint8Array(lengths[i]!);
      const bytes = buffer.subarray(0, lengths[i]!);
      this.#reader.read(bytes, positions[i]!);
      take(i, bytes);
    }
  }

  close(): void {
    this.#reader.close();
  }

  #findDense(searched: KeySearch, number: number, open: readonly number[]): void {
    const { keys } = searched;
    for (const i of open) {
      const row = this.#dense.findRow(keys[2 * i]!, keys[2 * i + 1]!);
      if (row >= 0) this.#foundRow(searched, number, i, row);
    }
  }

  #findRows(searched: KeySearch, number: number, open: readonly number[]): void {
    const { layout, dtype, rowBytes } = this.header;
    for (const i of this.#ordered(searched, open, this.#rows)) {
      const position = this.#probe(searched, i, this.#rows);
      if (position < 0) continue;
      const [, , low = 0, high = 0] = this.#slot;
      if (layout === 'inline') {
        searched.layers[i] = number + 1;
        searched.positions[i] = position + 8;
        searched.lengths[i] = rowBytes;
      } else if (dtype === 'bytes') this.#foundValue(searched, number, i, low, high);
      else this.#foundRow(searched, number, i, high * 0x1_0000_0000 + low);
    }
  }

  #foundRow(searched: KeySearch, number: number, i: number, row: number): void {
    const { section, offset } = this.#finder.locateRow(row);
    searched.layers[i] = number + 1;
    searched.positions[i] = this.#rowSegments[section]!.offset + offset;
    searched.lengths[i] = this.header.rowBytes;
  }

  #foundValue(searched: KeySearch, number: number, i: number, low: number, high: number): void {
    const length = getLocationLength(high);
    const { section, offset } = this.#finder.locateValue(getLocationOffset(low, high), length);
    searched.layers[i] = number + 1;
    searched.positions[i] = this.#rowSegments[section]!.offset + offset;
    searched.lengths[i] = length;
  }

  #ordered({ keys }: KeySearch, indices: readonly number[], slots: SlotTable): Float64Array {
    return sortByFilePosition(indices, (i) => this.#home(keys, i, slots));
  }

  /** Position of a key's home slot; also sets `#segment`. */
  #home(keys: Uint32Array, i: number, { segments, stride, homeSlots }: SlotTable): number {
    mixKey(keys[2 * i]!, keys[2 * i + 1]!, this.#mixed, 0);
    this.#segment = segments[computeSegment(this.#mixed, 0, segments.length)]!;
    return this.#segment.offset + computeHomeSlot(this.#mixed, 0, homeSlots) * stride;
  }

  #segment!: LayerSegment;

  /** @returns the position of the key's slot, with its bytes in `#slot`; -1 when there is none */
  #probe({ keys }: KeySearch, i: number, slots: SlotTable): number {
    const low = keys[2 * i]!;
    const high = keys[2 * i + 1]!;
    if (low === this.#emptyLow && high === this.#emptyHigh) return -1;
    const home = this.#home(keys, i, slots);
    const end = this.#segment.offset + this.#segment.bytes;
    const bytes = slots === this.#rows ? this.#slotBytes : this.#slotBytes.subarray(0, 8);
    for (let position = home; position < end; position += slots.stride) {
      this.#reader.read(bytes, position);
      const [foundLow, foundHigh] = this.#slot;
      if (foundLow === low && foundHigh === high) return position;
      if (foundLow === this.#emptyLow && foundHigh === this.#emptyHigh) return -1;
    }
    throw new CubeError(
      'CORRUPT',
      `${this.#reader.path}: a slot segment has no empty slot at its end; build the layer again`,
    );
  }
}
