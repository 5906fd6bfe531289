/**
 * One layer in memory: each segment in a memory of its own, behind a small scratch area through which keys go in and
 * rows come out.
 *
 *      0        128     448            (all sizes but the first two follow from rowBytes)
 *      ┌────────┬───────┬─────────────┬──────┬───────┬──────┬─ … ─┬──────────────────────┐
 *      │ params │ work  │ default row │ keys │ found │ rows │     │ segment              │
 *      └────────┴───────┴─────────────┴──────┴───────┴──────┴─ … ─┴──────────────────────┘
 *                                                                 multiple of 4096
 *
 * The scratch holds a chunk of keys and rows: about 64 KiB, which stays in a core's second-level cache, so that many
 * small layers cost little. A layer of several segments hands a chunk from one segment's scratch to the next.
 */
import { CubeError } from '../core/errors.ts';
import { PARAMS_BYTES, READ_AHEAD_BYTES, WORK_BYTES } from '../core/kernels/contract.ts';
import { keyToBigint, shardOf } from '../core/keys.ts';
import { alignUp, type LayerHeader } from '../core/layer-format.ts';
import type { PooledMemory } from './memory-pool.ts';

const PARAMS_AT = 0;
export const WORK_AT: number = PARAMS_BYTES;
const DEFAULT_ROW_AT: number = WORK_AT + WORK_BYTES;
const SCRATCH_BYTES = 65_536;
/**
 * Copying to or from shared memory goes by words only when both addresses are equal modulo 8, else byte by byte at a
 * sixth of the speed. So keys and rows are placed as far from a multiple of 8 as the caller's arrays are.
 */
const SKEW_BYTES = 8;
/** A chunk is a multiple of 8 keys, so that its bits of `found` are whole bytes. */
const CHUNK_KEYS_MIN = 8;

/** Where things are in a memory of a layer with rows of this size. */
interface ScratchLayout {
  readonly chunkKeys: number;
  readonly keysAt: number;
  readonly foundAt: number;
  readonly rowsAt: number;
  readonly segmentAt: number;
}

function layOutScratch(rowBytes: number): ScratchLayout {
  const keysAt = alignUp(DEFAULT_ROW_AT + rowBytes, 64);
  const perKey = 8 + rowBytes;
  const fitting = Math.floor((SCRATCH_BYTES - keysAt - 1024) / (perKey + 1 / 8));
  const chunkKeys = Math.max(CHUNK_KEYS_MIN, fitting - (fitting % (fitting >= 32 ? 32 : 8)));
  const foundAt = keysAt + 8 * chunkKeys + SKEW_BYTES;
  const rowsAt = alignUp(foundAt + 4 * Math.ceil(chunkKeys / 32), 64);
  const segmentAt = alignUp(rowsAt + rowBytes * chunkKeys + SKEW_BYTES, 4096);
  return { chunkKeys, keysAt, foundAt, rowsAt, segmentAt };
}

/** Where in its memory a segment of the layer starts. */
export function segmentAddress(header: LayerHeader): number {
  return layOutScratch(header.rowBytes).segmentAt;
}

/** The memory that each segment of a layer needs. */
export function memorySizes(header: LayerHeader): number[] {
  const { segmentAt } = layOutScratch(header.rowBytes);
  return header.segments.map((segment) => segmentAt + segment.bytes + READ_AHEAD_BYTES);
}

function powerOfTwo(value: bigint): number {
  return (value & (value - 1n)) === 0n ? value.toString(2).length - 1 : -1;
}

function writeParams(header: LayerHeader, segment: number, memory: PooledMemory): void {
  const view = new DataView(memory.memory.buffer, PARAMS_AT, PARAMS_BYTES);
  const { rows } = header.segments[segment]!;
  const inline = header.layout === 'inline';
  const { segmentAt } = layOutScratch(header.rowBytes);
  view.setBigUint64(0, inline ? header.emptyKey : header.firstKey, true);
  view.setBigUint64(8, header.keyStep, true);
  view.setBigUint64(16, BigInt(header.homeSlots), true);
  view.setBigUint64(24, BigInt(segment * header.rowsPerSegment), true);
  view.setBigUint64(32, BigInt(rows), true);
  view.setUint32(40, segmentAt, true);
  view.setUint32(44, header.stride, true);
  view.setUint32(48, header.rowBytes, true);
  view.setUint32(52, segment, true);
  view.setUint32(56, header.segments.length, true);
  view.setInt32(64, powerOfTwo(header.keyStep), true);
  view.setUint32(68, header.shardIndex, true);
  view.setUint32(72, header.shardNum, true);
}

export class ResidentLayer {
  readonly header: LayerHeader;
  /** How many resident versions name this layer; at 0 its memories are given back and it answers nothing. */
  references = 0;
  readonly memories: readonly PooledMemory[];
  readonly #layout: ScratchLayout;

  /**
   * @param memories one for each segment, of `memorySizes`, with the segment's verified bytes at `segmentAddress`
   * @param source the file, for errors
   * @throws CubeError CORRUPT when a probe could run out of a segment
   */
  constructor(header: LayerHeader, memories: readonly PooledMemory[], source: string) {
    this.header = header;
    this.memories = memories;
    this.#layout = layOutScratch(header.rowBytes);
    memories.forEach((memory, segment) => {
      writeParams(header, segment, memory);
      if (header.layout === 'inline') this.#requireLastSlotEmpty(segment, source);
    });
  }

  get chunkKeys(): number {
    return this.#layout.chunkKeys;
  }

  get bytes(): number {
    return this.memories.reduce((sum, memory) => sum + memory.length, 0);
  }

  /**
   * Looks up at most `chunkKeys` keys; arguments as of `ResidentTable.lookup`, already checked.
   * @returns hits, or -1 - i when missing key i belongs to another shard
   */
  lookupChunk(
    keys: Uint8Array,
    keysAt: number,
    count: number,
    rows: Uint8Array,
    rowsAt: number,
    found: Uint8Array,
    foundAt: number,
    defaultRow: Uint8Array,
  ): number {
    const first = this.memories[0];
    if (first === undefined) {
      return this.#missAll(keys, keysAt, count, rows, rowsAt, found, foundAt, defaultRow);
    }
    const { foundAt: bitsAt, keysAt: keysStart, rowsAt: rowsStart } = this.#layout;
    const keysFrom = keys.byteOffset + keysAt;
    // The twin works on words, so it needs them aligned.
    const skewed = first.kind === 'wasm' ? SKEW_BYTES - 1 : 0;
    const inKeys = keysStart + (keysFrom & skewed);
    const inRows = rowsStart + ((rows.byteOffset + rowsAt) & skewed);
    const rowsEnd = inRows + this.header.rowBytes * count;
    first.bytes.set(new Uint8Array(keys.buffer, keysFrom, 8 * count), inKeys);
    let memory = first;
    let hits = this.#lookupSegment(first, inKeys, inRows, count);
    for (let i = 1; i < this.memories.length && hits < count; i++) {
      const next = this.memories[i]!;
      next.bytes.set(memory.bytes.subarray(keysStart, rowsEnd), keysStart);
      memory = next;
      hits += this.#lookupSegment(memory, inKeys, inRows, count);
    }
    if (hits < count) {
      const stranger = this.#fillMissing(memory, inKeys, inRows, count, defaultRow);
      if (stranger >= 0) return -1 - stranger;
    }
    rows.set(memory.bytes.subarray(inRows, rowsEnd), rowsAt);
    found.set(memory.bytes.subarray(bitsAt, bitsAt + ((count + 7) >>> 3)), foundAt);
    return hits;
  }

  #lookupSegment({ kernels }: PooledMemory, keys: number, rows: number, count: number): number {
    const { foundAt } = this.#layout;
    return this.header.layout === 'inline'
      ? kernels.lookupInline(PARAMS_AT, WORK_AT, keys, foundAt, rows, count)
      : kernels.lookupDense(PARAMS_AT, WORK_AT, keys, foundAt, rows, count);
  }

  #fillMissing(
    { bytes, kernels }: PooledMemory,
    keys: number,
    rows: number,
    count: number,
    defaultRow: Uint8Array,
  ): number {
    bytes.set(defaultRow, DEFAULT_ROW_AT);
    return kernels.fillMissing(PARAMS_AT, keys, this.#layout.foundAt, rows, count, DEFAULT_ROW_AT);
  }

  /** An empty shard has no segment and no memory: every key is missing. */
  #missAll(
    keys: Uint8Array,
    keysAt: number,
    count: number,
    rows: Uint8Array,
    rowsAt: number,
    found: Uint8Array,
    foundAt: number,
    defaultRow: Uint8Array,
  ): number {
    const { shardIndex, shardNum } = this.header;
    const words = new Uint32Array(
      Uint8Array.from(keys.subarray(keysAt, keysAt + 8 * count)).buffer,
    );
    for (let i = 0; i < count; i++) {
      if (shardOf(words[2 * i]!, words[2 * i + 1]!, shardNum) !== shardIndex) return -1 - i;
      rows.set(defaultRow, rowsAt + i * defaultRow.length);
    }
    found.fill(0, foundAt, foundAt + ((count + 7) >>> 3));
    return 0;
  }

  /** A search ends at an empty slot, so the last one must be empty, whatever the file's author meant. */
  #requireLastSlotEmpty(segment: number, source: string): void {
    const { segments, stride, emptyKey } = this.header;
    const at = this.#layout.segmentAt + segments[segment]!.bytes - stride;
    const key = new Uint32Array(this.memories[segment]!.memory.buffer, at, 2);
    if (keyToBigint(key, 0) === emptyKey) return;
    throw new CubeError(
      'CORRUPT',
      `${source}: segment ${segment}: its last slot is not empty; build it again`,
    );
  }
}
