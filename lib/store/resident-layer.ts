/**
 * One layer that lookups can use: its parts in memories that are laid out as scratch.ts draws, and its rows on disk
 * when they stay there. Immutable once made; shared by all versions that name it.
 */
import { CubeError } from '../core/errors.ts';
import { PARAMS_BYTES } from '../core/kernels/contract.ts';
import { keyToBigint } from '../core/keys.ts';
import {
  DELETED_STRIDE,
  INDEX_STRIDE,
  type LayerHeader,
  rowStrideOf,
} from '../core/layer-format.ts';
import { DenseRows } from './dense-rows.ts';
import type { DiskRows } from './disk-rows.ts';
import { PlaceFinder } from './found-places.ts';
import type { PooledMemory } from './memory-pool.ts';
import { STORED_PARAMS_AT, WIDE_PARAMS_AT } from './scratch.ts';
import type { LayerPlacement, PlacedSection } from './section-placement.ts';

/** Bytes of a place, which an index has where an inline table has rows. */
const PLACE_BYTES = 8;

/** A part of a layer, ready for a kernel. */
export interface ResidentSection {
  readonly memory: PooledMemory;
  readonly paramsAt: number;
  readonly address: number;
  readonly bytes: number;
}

function powerOfTwo(value: bigint): number {
  return (value & (value - 1n)) === 0n ? value.toString(2).length - 1 : -1;
}

/** The parameter blocks of all sections, and of the rows of the layer, as contract.ts draws them. */
class ParamsWriter {
  readonly #header: LayerHeader;

  constructor(header: LayerHeader) {
    this.#header = header;
  }

  writeShape(memory: PooledMemory): void {
    const { rowBytes, dim } = this.#header;
    this.#view(memory, STORED_PARAMS_AT).setUint32(48, rowBytes, true);
    this.#view(memory, WIDE_PARAMS_AT).setUint32(48, 4 * dim, true);
  }

  writeSection(section: PlacedSection, memory: PooledMemory): void {
    const view = this.#view(memory, section.paramsAt);
    view.setUint32(40, section.address, true);
    view.setUint32(52, section.index, true);
    if (section.role === 'deleted') this.#writeDeleted(view);
    else if (section.role === 'rows') this.#writeRows(view, section.index);
    else if (this.#header.layout === 'dense') this.#writeDense(view, section.index);
    else this.#writeSearched(view);
  }

  /** A block of zeros but for the shard. */
  #view(memory: PooledMemory, at: number): DataView {
    const { shardIndex, shardNum } = this.#header;
    memory.bytes.fill(0, at, at + PARAMS_BYTES);
    const view = new DataView(memory.memory.buffer, at, PARAMS_BYTES);
    view.setUint32(68, shardIndex, true);
    view.setUint32(72, shardNum, true);
    return view;
  }

  #writeDeleted(view: DataView): void {
    view.setBigUint64(0, this.#header.emptyKey, true);
    view.setBigUint64(16, BigInt(this.#header.deletedHomeSlots), true);
    view.setUint32(44, DELETED_STRIDE, true);
    view.setUint32(56, 1, true);
  }

  #writeSearched(view: DataView): void {
    const { emptyKey, homeSlots, stride, rowBytes, layout, segments, rowSegmentCount } =
      this.#header;
    view.setBigUint64(0, emptyKey, true);
    view.setBigUint64(16, BigInt(homeSlots), true);
    view.setUint32(44, layout === 'indexed' ? INDEX_STRIDE : stride, true);
    view.setUint32(48, layout === 'indexed' ? PLACE_BYTES : rowBytes, true);
    view.setUint32(56, segments.length - rowSegmentCount, true);
  }

  #writeDense(view: DataView, index: number): void {
    const { firstKey, keyStep, rowsPerSegment, rowBytes, stride, segments } = this.#header;
    view.setBigUint64(0, firstKey, true);
    view.setBigUint64(8, keyStep, true);
    view.setBigUint64(24, BigInt(index * rowsPerSegment), true);
    view.setBigUint64(32, BigInt(segments[index]!.rows), true);
    view.setUint32(44, stride, true);
    view.setUint32(48, rowBytes, true);
    view.setUint32(56, segments.length, true);
    view.setInt32(64, powerOfTwo(keyStep), true);
  }

  /** Rows that an index points to are dense ones whose keys are their numbers. */
  #writeRows(view: DataView, index: number): void {
    const { rowsPerSegment, rowBytes, segments, rowSegmentCount } = this.#header;
    const { rows } = segments[segments.length - rowSegmentCount + index]!;
    view.setBigUint64(8, 1n, true);
    view.setBigUint64(24, BigInt(index * rowsPerSegment), true);
    view.setBigUint64(32, BigInt(rows), true);
    view.setUint32(44, rowStrideOf(this.#header), true);
    view.setUint32(48, rowBytes, true);
    view.setUint32(56, rowSegmentCount, true);
  }
}

export class ResidentLayer {
  readonly header: LayerHeader;
  /** How many resident versions name this layer; at 0 its memories are given back and it answers nothing. */
  references = 0;
  readonly memories: readonly PooledMemory[];
  /** Where the rows are that no memory has. */
  readonly disk: DiskRows | undefined;
  readonly keys: readonly ResidentSection[];
  readonly rows: readonly ResidentSection[];
  readonly deleted: ResidentSection | undefined;
  /** Of a delta: which keys it may decide. */
  readonly filter: Uint32Array | undefined;
  /** Of an index, and of rows on disk. */
  readonly finder: PlaceFinder;
  readonly dense: DenseRows;

  /** @param memories of the placement's sizes, with the verified bytes of its sections, prepared by `prepareMemories` */
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
          ...{ paramsAt, address, bytes },
        }));
    this.keys = ofRole('keys');
    this.rows = ofRole('rows');
    this.deleted = ofRole('deleted')[0];
    this.finder = new PlaceFinder(header);
    this.dense = new DenseRows(header);
  }

  get bytes(): number {
    return this.memories.reduce((sum, memory) => sum + memory.length, 0);
  }

  get bytesOnDisk(): number {
    return this.disk === undefined ? 0 : this.disk.bytes;
  }

  /** Found keys have a place, and what is there is fetched afterwards: rows on disk, values of any length. */
  get isFetched(): boolean {
    return this.disk !== undefined || this.header.dtype === 'bytes';
  }
}

/**
 * Writes the parameters of a layer whose sections were just read.
 * @param source the file, for errors
 * @throws CubeError CORRUPT when a search could run out of a section
 */
export function prepareMemories(
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

/** A search ends at an empty slot, so the last one must be empty, whatever the file's author meant. */
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
