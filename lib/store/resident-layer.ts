/**
 * A layer ready for lookups: sections in memories laid out as in scratch-layout.ts, and rows on
 * disk if they stay there. Immutable, and shared by all versions that name it.
 */
import { CubeError } from '../core/errors.ts';
import {
  BASE_ADDRESS,
  EMPTY_KEY,
  FIRST_KEY,
  FIRST_ROW,
  HOME_SLOTS,
  KEY_STEP,
  KEY_STEP_SHIFT,
  PARAMS_BYTES,
  ROW_BYTES,
  ROW_COUNT,
  SEGMENT_COUNT,
  SEGMENT_INDEX,
  SHARD_INDEX,
  SHARD_NUM,
  STRIDE,
} from '../core/kernels/params.ts';
import { keyToBigint } from '../core/keys.ts';
import {
  computeRowStride,
  DELETED_STRIDE,
  INDEX_STRIDE,
  type LayerHeader,
} from '../core/layer-format.ts';
import type { DiskRows } from './disk-rows.ts';
import type { PooledMemory } from './memory-pool.ts';
import { DenseRowFinder, RowLocator } from './row-locations.ts';
import { F32_PARAMS_AT, STORED_PARAMS_AT } from './scratch-layout.ts';
import type { LayerPlacement, PlacedSection } from './section-placement.ts';

/** Size of a location, which an index stores where an inline table stores rows. */
const LOCATION_BYTES = 8;

/** A section of a layer, ready for a kernel. */
export interface ResidentSection {
  readonly memory: PooledMemory;
  readonly paramsAt: number;
  readonly address: number;
  readonly bytes: number;
}

function getPowerOfTwo(value: bigint): number {
  return (value & (value - 1n)) === 0n ? value.toString(2).length - 1 : -1;
}

/** Writes the parameter blocks of all sections and row shapes, as kernels/params.ts lists them. */
class ParamsWriter {
  readonly #header: LayerHeader;

  constructor(header: LayerHeader) {
    this.#header = header;
  }

  writeShape(memory: PooledMemory): void {
    const { rowBytes, dim } = this.#header;
    this.#view(memory, STORED_PARAMS_AT).setUint32(ROW_BYTES, rowBytes, true);
    this.#view(memory, F32_PARAMS_AT).setUint32(ROW_BYTES, 4 * dim, true);
  }

  writeSection(section: PlacedSection, memory: PooledMemory): void {
    const view = this.#view(memory, section.paramsAt);
    view.setUint32(BASE_ADDRESS, section.address, true);
    view.setUint32(SEGMENT_INDEX, section.index, true);
    if (section.role === 'deleted') this.#writeDeleted(view);
    else if (section.role === 'rows') this.#writeRows(view, section.index);
    else if (this.#header.layout === 'dense') this.#writeDense(view, section.index);
    else this.#writeSearched(view);
  }

  /** Clears a block and writes the shard. */
  #view(memory: PooledMemory, at: number): DataView {
    const { shardIndex, shardNum } = this.#header;
    memory.bytes.fill(0, at, at + PARAMS_BYTES);
    const view = new DataView(memory.memory.buffer, at, PARAMS_BYTES);
    view.setUint32(SHARD_INDEX, shardIndex, true);
    view.setUint32(SHARD_NUM, shardNum, true);
    return view;
  }

  #writeDeleted(view: DataView): void {
    view.setBigUint64(EMPTY_KEY, this.#header.emptyKey, true);
    view.setBigUint64(HOME_SLOTS, BigInt(this.#header.deletedHomeSlots), true);
    view.setUint32(STRIDE, DELETED_STRIDE, true);
    view.setUint32(SEGMENT_COUNT, 1, true);
  }

  #writeSearched(view: DataView): void {
    const { emptyKey, homeSlots, stride, rowBytes, layout, segments, rowSegmentCount } =
      this.#header;
    view.setBigUint64(EMPTY_KEY, emptyKey, true);
    view.setBigUint64(HOME_SLOTS, BigInt(homeSlots), true);
    view.setUint32(STRIDE, layout === 'indexed' ? INDEX_STRIDE : stride, true);
    view.setUint32(ROW_BYTES, layout === 'indexed' ? LOCATION_BYTES : rowBytes, true);
    view.setUint32(SEGMENT_COUNT, segments.length - rowSegmentCount, true);
  }

  #writeDense(view: DataView, index: number): void {
    const { firstKey, keyStep, rowsPerSegment, rowBytes, stride, segments } = this.#header;
    view.setBigUint64(FIRST_KEY, firstKey, true);
    view.setBigUint64(KEY_STEP, keyStep, true);
    view.setBigUint64(FIRST_ROW, BigInt(index * rowsPerSegment), true);
    view.setBigUint64(ROW_COUNT, BigInt(segments[index]!.rows), true);
    view.setUint32(STRIDE, stride, true);
    view.setUint32(ROW_BYTES, rowBytes, true);
    view.setUint32(SEGMENT_COUNT, segments.length, true);
    view.setInt32(KEY_STEP_SHIFT, getPowerOfTwo(keyStep), true);
  }

  /** Rows of an indexed layer are dense rows whose keys are their numbers. */
  #writeRows(view: DataView, index: number): void {
    const { rowsPerSegment, rowBytes, segments, rowSegmentCount } = this.#header;
    const { rows } = segments[segments.length - rowSegmentCount + index]!;
    view.setBigUint64(KEY_STEP, 1n, true);
    view.setBigUint64(FIRST_ROW, BigInt(index * rowsPerSegment), true);
    view.setBigUint64(ROW_COUNT, BigInt(rows), true);
    view.setUint32(STRIDE, computeRowStride(this.#header), true);
    view.setUint32(ROW_BYTES, rowBytes, true);
    view.setUint32(SEGMENT_COUNT, rowSegmentCount, true);
  }
}

export class ResidentLayer {
  readonly header: LayerHeader;
  /** Number of resident versions that name this layer; at 0 its memories are released. */
  references = 0;
  readonly memories: readonly PooledMemory[];
  /** Rows that are not in memory. */
  readonly disk: DiskRows | undefined;
  readonly keys: readonly ResidentSection[];
  readonly rows: readonly ResidentSection[];
  readonly deleted: ResidentSection | undefined;
  /** Key filter of a delta. */
  readonly filter: Uint32Array | undefined;
  /** For indexed layers and rows on disk. */
  readonly locator: RowLocator;
  readonly denseRows: DenseRowFinder;

  /**
   * @param memories of the placement's sizes, with verified sections, prepared by
   *   `initializeMemories`
   */
  constructor(
    header: LayerHeader,
    placement: LayerPlacement,
    memories: readonly PooledMemory[],
    filter: Uint32Array | undefined,
    disk: DiskRows | undefined,
  ) {
    this.header = header;
    this.memories = memories;
    this.filter = filter;
    this.disk = disk;
    const ofRole = (role: PlacedSection['role']): ResidentSection[] =>
      placement.sections
        .filter((section) => section.role === role)
        .map(({ memory, paramsAt, address, bytes }) => ({
          memory: memories[memory]!,
          paramsAt,
          address,
          bytes,
        }));
    this.keys = ofRole('keys');
    this.rows = ofRole('rows');
    this.deleted = ofRole('deleted')[0];
    this.locator = new RowLocator(header);
    this.denseRows = new DenseRowFinder(header);
  }

  get bytes(): number {
    return this.memories.reduce((sum, memory) => sum + memory.length, 0);
  }

  get bytesOnDisk(): number {
    return this.disk === undefined ? 0 : this.disk.bytes;
  }

  /**
   * Lookups return locations, and the data is fetched afterwards: rows on disk, variable-length
   * values.
   */
  get needsFetch(): boolean {
    return this.disk !== undefined || this.header.dtype === 'bytes';
  }
}

/**
 * Writes the parameters of a layer whose sections were just read.
 * @param source path of the file, for errors
 * @throws CubeError CORRUPT when a search could run past the end of a section
 */
export function initializeMemories(
  header: LayerHeader,
  placement: LayerPlacement,
  memories: readonly PooledMemory[],
  source: string,
): void {
  const params = new ParamsWriter(header);
  for (const memory of memories) params.writeShape(memory);
  for (const section of placement.sections) {
    const memory = memories[section.memory]!;
    params.writeSection(section, memory);
    requireLastSlotEmpty(header, section, memory, source);
  }
}

/** A search ends at an empty slot, so the last slot must be empty. */
function requireLastSlotEmpty(
  header: LayerHeader,
  section: PlacedSection,
  memory: PooledMemory,
  source: string,
): void {
  if (section.role === 'rows' || (section.role === 'keys' && header.layout === 'dense')) return;
  const stride = section.role === 'deleted' ? DELETED_STRIDE : header.stride;
  const at = section.address + section.bytes - stride;
  if (keyToBigint(new Uint32Array(memory.memory.buffer, at, 2), 0) === header.emptyKey) return;
  const name = section.role === 'deleted' ? 'the deleted keys' : `segment ${section.index}`;
  throw new CubeError('CORRUPT', `${source}: ${name}: the last slot is not empty; build it again`);
}
