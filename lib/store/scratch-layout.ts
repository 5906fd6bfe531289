/**
 * The layout of every memory with sections of a layer: parameter blocks of the kernels, then for
 * each thread an area through which keys go in and rows come out, then the sections.
 *
 *     0                  2048           + thread · bytes              multiple of 4096
 *     ┌──────────────────┬──────────────────────────────┬─ … ─┬─ … ─┬────────────
 *     │ parameter blocks │ area of thread 0             │     │     │ sections …
 *     └──────────────────┴──────────────────────────────┴─ … ─┴─ … ─┴────────────
 *
 * The area of a thread:
 *
 *     │ work │ default row │ default row as f32 │ frame │
 *
 * A frame has a chunk of keys and its results, packed for the current count, so that one copy moves
 * it to the next memory:
 *
 *     │ found │ decided │ keys │ rows │ locations │ bits of locations │ rows as f32 │
 *
 * When a layer has several segments, the places of keys in order of their segments lie where
 * locations would.
 *
 * An area has about 64 KiB, which stay in a core's second-level cache; this keeps chains of many
 * small layers fast.
 */
import { PARAMS_BYTES, WORK_BYTES } from '../core/kernels/contract.ts';
import { alignUp, type LayerHeader, SEGMENT_COUNT_MAX } from '../core/layer-format.ts';

const FRONT_BYTES = 2048;
/** Parameters of rows as stored and as f32, for `fillMissing`. */
export const STORED_PARAMS_AT = 0;
export const F32_PARAMS_AT: number = PARAMS_BYTES;
const SECTION_PARAMS_AT: number = 2 * PARAMS_BYTES;
/** Number of sections whose parameters fit one memory. */
export const SECTIONS_MAX: number = (FRONT_BYTES - SECTION_PARAMS_AT) / PARAMS_BYTES;
const SCRATCH_BYTES = 65_536;
/**
 * Copies to or from shared memory use words only when both addresses are equal modulo 8; other
 * copies are six times slower. Keys and rows are therefore placed at the alignment of the caller's
 * arrays.
 */
const SKEW_BYTES = 8;
/** Chunks have a multiple of 8 keys, so that their bits of `found` are whole bytes. */
const CHUNK_KEYS_MIN = 8;
/**
 * Maximum gaps between the parts of a frame: three skews, four roundings up to 8, the last words of
 * three bitmaps, and where the places of keys end in each segment.
 */
const FRAME_GAPS_BYTES = 3 * SKEW_BYTES + 4 * 8 + 3 * 8 + 4 * SEGMENT_COUNT_MAX;

/** Determines the sizes of a frame. */
export type RowShape = Pick<LayerHeader, 'dtype' | 'dim' | 'rowBytes'>;

/** Addresses are relative to the start of a thread's area. */
export interface ScratchLayout {
  readonly chunkKeys: number;
  readonly workAt: number;
  readonly defaultRowAt: number;
  readonly f32DefaultRowAt: number;
  readonly frameAt: number;
  /** Size of one thread's area. */
  readonly bytes: number;
}

export function computeScratchLayout({ dtype, dim, rowBytes }: RowShape): ScratchLayout {
  const wideBytes = dtype === 'f32' ? 0 : 4 * dim;
  const defaultRowAt = WORK_BYTES;
  const wideDefaultRowAt = defaultRowAt + alignUp(rowBytes, 16);
  const frameAt = alignUp(wideDefaultRowAt + wideBytes, 64);
  const perKey = 16 + rowBytes + wideBytes + 3 / 8;
  const fitting = Math.floor((SCRATCH_BYTES - frameAt - FRAME_GAPS_BYTES) / perKey);
  const chunkKeys = Math.max(CHUNK_KEYS_MIN, fitting - (fitting % (fitting >= 32 ? 32 : 8)));
  const bytes = alignUp(frameAt + FRAME_GAPS_BYTES + Math.ceil(perKey * chunkKeys), 64);
  return { chunkKeys, workAt: 0, defaultRowAt, f32DefaultRowAt: wideDefaultRowAt, frameAt, bytes };
}

/** Start of a thread's area. */
export function computeThreadAddress(layout: ScratchLayout, thread: number): number {
  return FRONT_BYTES + thread * layout.bytes;
}

/** First address available to sections. */
export function computeSectionsAddress(layout: ScratchLayout, threads: number): number {
  return alignUp(computeThreadAddress(layout, threads), 4096);
}

export function computeParamsAddress(section: number): number {
  return SECTION_PARAMS_AT + section * PARAMS_BYTES;
}

/** Absolute addresses of the parts of a frame, equal in all memories of a table's layers. */
export class LookupFrame {
  readonly workAt: number;
  readonly defaultRowAt: number;
  readonly f32DefaultRowAt: number;
  readonly foundAt: number;
  count = 0;
  decidedAt = 0;
  keysAt = 0;
  keysEnd = 0;
  rowsAt = 0;
  rowsEnd = 0;
  locationsAt = 0;
  locationBitsAt = 0;
  f32At = 0;
  readonly #shape: RowShape;

  constructor(shape: RowShape, thread: number) {
    const layout = computeScratchLayout(shape);
    const base = computeThreadAddress(layout, thread);
    this.#shape = shape;
    this.workAt = base + layout.workAt;
    this.defaultRowAt = base + layout.defaultRowAt;
    this.f32DefaultRowAt = base + layout.f32DefaultRowAt;
    this.foundAt = base + layout.frameAt;
  }

  /**
   * @param keysSkew address of the caller's keys modulo 8, or 0
   * @param rowsSkew address of the caller's rows modulo 8, or 0
   */
  pack(count: number, keysSkew: number, rowsSkew: number): void {
    const bitsBytes = 8 * ((count + 63) >>> 6);
    this.count = count;
    this.decidedAt = this.foundAt + bitsBytes;
    this.keysAt = this.decidedAt + bitsBytes + keysSkew;
    this.keysEnd = this.keysAt + 8 * count;
    this.rowsAt = ((this.keysEnd + 7) & ~7) + rowsSkew;
    this.rowsEnd = this.rowsAt + this.#shape.rowBytes * count;
    this.locationsAt = (this.rowsEnd + 7) & ~7;
    this.locationBitsAt = this.locationsAt + 8 * count;
    this.f32At = this.locationBitsAt + bitsBytes + rowsSkew;
  }

  /** End of the locations and of their bits, which move together. */
  get locationsEnd(): number {
    return this.locationBitsAt + this.bitsBytes;
  }

  /** Size of one bitmap of the frame in bytes, whole words. */
  get bitsBytes(): number {
    return this.decidedAt - this.foundAt;
  }
}
