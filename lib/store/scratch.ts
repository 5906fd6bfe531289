/**
 * The front of every memory that holds parts of a layer: parameter blocks of the kernels, then for each thread an area
 * of its own through which keys go in and rows come out, then the parts (sections) themselves.
 *
 *      0                   2048        + thread · bytes                                         multiple of 4096
 *      ┌───────────────────┬─────────────────────────────────────────────┬─ … ─┬──────────┬─ … ─┬───────────
 *      │ parameter blocks  │ work │ default row │ default row f32 │ frame│     │ frame …  │     │ sections …
 *      └───────────────────┴─────────────────────────────────────────────┴─ … ─┴──────────┴─ … ─┴───────────
 *
 * A frame holds a chunk of keys and what is found of them, packed for the count at hand, so that it moves from one
 * memory to the next with one copy:
 *
 *      │ found │ decided │ keys │ rows │ places │ bits of places │ rows as f32 │
 *
 * A thread's area has about 64 KiB, which stays in a core's second-level cache, so that many small layers cost little.
 */
import { PARAMS_BYTES, WORK_BYTES } from '../core/kernels/contract.ts';
import { alignUp, type LayerHeader } from '../core/layer-format.ts';

const FRONT_BYTES = 2048;
/** Rows as stored, and rows as f32: what `fillMissing` needs to know of them. */
export const STORED_PARAMS_AT = 0;
export const WIDE_PARAMS_AT: number = PARAMS_BYTES;
const SECTION_PARAMS_AT: number = 2 * PARAMS_BYTES;
/** Sections that have room for their parameters in one memory. */
export const SECTIONS_MAX: number = (FRONT_BYTES - SECTION_PARAMS_AT) / PARAMS_BYTES;
const SCRATCH_BYTES = 65_536;
/**
 * Copying to or from shared memory goes by words only when both addresses are equal modulo 8, else byte by byte at a
 * sixth of the speed. So keys and rows are placed as far from a multiple of 8 as the caller's arrays are.
 */
const SKEW_BYTES = 8;
/** A chunk is a multiple of 8 keys, so that its bits of `found` are whole bytes. */
const CHUNK_KEYS_MIN = 8;
/** Between the parts of a frame, at most: three skews, four roundings up to 8, the last words of three bitmaps. */
const FRAME_GAPS_BYTES = 3 * SKEW_BYTES + 4 * 8 + 3 * 8;

/** What decides the sizes of a frame. */
export type RowShape = Pick<LayerHeader, 'dtype' | 'dim' | 'rowBytes'>;

/** Addresses are relative to the start of a thread's area. */
export interface ScratchLayout {
  readonly chunkKeys: number;
  readonly workAt: number;
  readonly defaultRowAt: number;
  readonly wideDefaultRowAt: number;
  readonly frameAt: number;
  /** Of one thread's area. */
  readonly bytes: number;
}

export function layOutScratch({ dtype, dim, rowBytes }: RowShape): ScratchLayout {
  const wideBytes = dtype === 'f32' ? 0 : 4 * dim;
  const defaultRowAt = WORK_BYTES;
  const wideDefaultRowAt = defaultRowAt + alignUp(rowBytes, 16);
  const frameAt = alignUp(wideDefaultRowAt + wideBytes, 64);
  const perKey = 16 + rowBytes + wideBytes + 3 / 8;
  const fitting = Math.floor((SCRATCH_BYTES - frameAt - FRAME_GAPS_BYTES) / perKey);
  const chunkKeys = Math.max(CHUNK_KEYS_MIN, fitting - (fitting % (fitting >= 32 ? 32 : 8)));
  const bytes = alignUp(frameAt + FRAME_GAPS_BYTES + Math.ceil(perKey * chunkKeys), 64);
  return { chunkKeys, workAt: 0, defaultRowAt, wideDefaultRowAt, frameAt, bytes };
}

/** Where the area of a thread starts. */
export function threadAddress(layout: ScratchLayout, thread: number): number {
  return FRONT_BYTES + thread * layout.bytes;
}

/** Where the first section may start. */
export function sectionsAddress(layout: ScratchLayout, threads: number): number {
  return alignUp(threadAddress(layout, threads), 4096);
}

export function sectionParamsAddress(section: number): number {
  return SECTION_PARAMS_AT + section * PARAMS_BYTES;
}

/** Where the parts of a frame are: absolute addresses, alike in all memories of a table's layers. */
export class Frame {
  readonly workAt: number;
  readonly defaultRowAt: number;
  readonly wideDefaultRowAt: number;
  readonly foundAt: number;
  count = 0;
  decidedAt = 0;
  keysAt = 0;
  keysEnd = 0;
  rowsAt = 0;
  rowsEnd = 0;
  placesAt = 0;
  placeBitsAt = 0;
  wideAt = 0;
  readonly #shape: RowShape;

  constructor(shape: RowShape, thread: number) {
    const layout = layOutScratch(shape);
    const base = threadAddress(layout, thread);
    this.#shape = shape;
    this.workAt = base + layout.workAt;
    this.defaultRowAt = base + layout.defaultRowAt;
    this.wideDefaultRowAt = base + layout.wideDefaultRowAt;
    this.foundAt = base + layout.frameAt;
  }

  /** @param keysSkew, rowsSkew the caller's addresses modulo 8, or 0 */
  pack(count: number, keysSkew: number, rowsSkew: number): void {
    const bitsBytes = 8 * ((count + 63) >>> 6);
    this.count = count;
    this.decidedAt = this.foundAt + bitsBytes;
    this.keysAt = this.decidedAt + bitsBytes + keysSkew;
    this.keysEnd = this.keysAt + 8 * count;
    this.rowsAt = ((this.keysEnd + 7) & ~7) + rowsSkew;
    this.rowsEnd = this.rowsAt + this.#shape.rowBytes * count;
    this.placesAt = (this.rowsEnd + 7) & ~7;
    this.placeBitsAt = this.placesAt + 8 * count;
    this.wideAt = this.placeBitsAt + bitsBytes + rowsSkew;
  }

  get placesEnd(): number {
    return this.placeBitsAt;
  }

  /** Bytes of a bitmap of the frame, whole words. */
  get bitsBytes(): number {
    return this.decidedAt - this.foundAt;
  }
}
