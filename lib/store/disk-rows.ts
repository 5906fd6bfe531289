/**
 * Rows of a layer that stay in its file. A block of 1 MiB is verified when first used; later reads
 * fetch only the rows needed. A damaged block fails only the reads that touch it. The file stays
 * open, so that its path may be replaced or removed.
 */
import { CubeError } from '../core/errors.ts';
import {
  BLOCK_BYTES,
  getRowSegments,
  HEADER_BYTES,
  type LayerHeader,
} from '../core/layer-format.ts';
import type { OpenFile } from '../platform/open-file.ts';
import type { DiskIo } from './disk-io.ts';
import { createBlockMismatchError } from './layer-reader.ts';

/** Ranges with a smaller gap are read together: an extra page is cheaper than an extra read. */
const GAP_BYTES = 4096;
const RUN_BYTES_MAX = 65_536;
/** Parallel reads of one lookup. */
const PARALLEL_READS_MAX = 32;

/**
 * Ranges of the file and their targets: `lengths[i]` bytes at `positions[i]` go to
 * target[targetOffsets[i]…].
 */
export interface ReadRanges {
  readonly count: number;
  readonly positions: Float64Array;
  readonly lengths: Uint32Array;
  readonly target: Uint8Array;
  readonly targetOffsets: Float64Array;
}

export class DiskRows {
  readonly header: LayerHeader;
  readonly #file: OpenFile;
  readonly #checksums: Uint32Array;
  readonly #io: DiskIo;
  /** 1 for each block that has been verified. */
  readonly #verified: Uint8Array;
  readonly #verifying = new Map<number, Promise<void>>();
  readonly #damaged = new Map<number, CubeError>();

  /** @param checksums block checksums as words (low, high), already verified themselves */
  constructor(header: LayerHeader, file: OpenFile, checksums: Uint32Array, io: DiskIo) {
    this.header = header;
    this.#file = file;
    this.#checksums = checksums;
    this.#io = io;
    this.#verified = new Uint8Array(header.blockCount);
  }

  get path(): string {
    return this.#file.path;
  }

  /** Valid in this process until `close`. */
  get descriptor(): number {
    return this.#file.descriptor;
  }

  /** Size of all rows or values. */
  get bytes(): number {
    const { layout } = this.header;
    const segments = layout === 'dense' ? this.header.segments : getRowSegments(this.header);
    return segments.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /**
   * Reads ranges, all from verified blocks.
   * @throws CubeError CORRUPT when a block is damaged, IO when the disk fails; the target's content
   *   is then undefined
   */
  read(pieces: ReadRanges): Promise<void> {
    return new Promise((resolve, reject) => {
      new RunReader(this, this.#file, this.#io, pieces, (error) =>
        error === undefined ? resolve() : reject(error),
      ).start();
    });
  }

  /** The first unverified block of a range, or -1. */
  findUnverifiedBlock(from: number, to: number): number {
    const last = Math.floor((to - 1 - HEADER_BYTES) / BLOCK_BYTES);
    for (let block = Math.floor((from - HEADER_BYTES) / BLOCK_BYTES); block <= last; block++) {
      if (this.#verified[block] !== 1) return block;
    }
    return -1;
  }

  /** Reads and verifies a block once for all concurrent callers. */
  verifyBlock(block: number): Promise<void> {
    const damage = this.#damaged.get(block);
    if (damage !== undefined) return Promise.reject(damage);
    let verifying = this.#verifying.get(block);
    if (verifying === undefined) {
      verifying = this.#verify(block).finally(() => this.#verifying.delete(block));
      this.#verifying.set(block, verifying);
    }
    return verifying;
  }

  close(): void {
    this.#file.close();
  }

  #verify(block: number): Promise<void> {
    return this.#io.withHasher(async (hasher) => {
      const position = HEADER_BYTES + block * BLOCK_BYTES;
      const length = Math.min(BLOCK_BYTES, this.header.checksumsOffset - position);
      const bytes = hasher.block.subarray(0, length);
      await new Promise<void>((resolve, reject) => {
        this.#file.read(bytes, position, (error) =>
          error === undefined ? resolve() : reject(error),
        );
      });
      const [low, high] = hasher.hash(length);
      if (low === this.#checksums[2 * block] && high === this.#checksums[2 * block + 1]) {
        this.#verified[block] = 1;
        return;
      }
      const damage = createBlockMismatchError(this.#file.path, block);
      this.#damaged.set(block, damage);
      this.#io.reportDamage(damage);
      throw damage;
    });
  }
}

/** Ranges in file order that one read covers: order[first … end), bytes from … to. */
interface Run {
  readonly first: number;
  readonly end: number;
  readonly from: number;
  readonly to: number;
}

/**
 * The reads of one request. Uses callbacks instead of promises, because there may be one read per
 * row.
 */
class RunReader {
  readonly #rows: DiskRows;
  readonly #file: OpenFile;
  readonly #io: DiskIo;
  readonly #pieces: ReadRanges;
  readonly #done: (error: CubeError | undefined) => void;
  readonly #order: Uint32Array;
  /** Index in `#order` of the next run's first range. */
  #next = 0;
  #underWay = 0;
  #waiting = false;
  #ended = false;
  #error: CubeError | undefined;

  constructor(
    rows: DiskRows,
    file: OpenFile,
    io: DiskIo,
    pieces: ReadRanges,
    done: (error: CubeError | undefined) => void,
  ) {
    this.#rows = rows;
    this.#file = file;
    this.#io = io;
    this.#pieces = pieces;
    this.#done = done;
    const { count, positions } = pieces;
    this.#order = Uint32Array.from({ length: count }, (_, i) => i);
    this.#order.sort((a, b) => positions[a]! - positions[b]!);
  }

  start(): void {
    this.#pump();
  }

  readonly #wake = (): void => {
    this.#waiting = false;
    this.#pump();
  };

  #pump(): void {
    while (this.#next < this.#order.length && this.#underWay < PARALLEL_READS_MAX && !this.#error) {
      if (this.#waiting) return;
      this.#waiting = !this.#io.tryStartRead(this.#wake);
      if (this.#waiting) return;
      this.#underWay++;
      this.#readRun(this.#takeRun());
    }
    if (this.#underWay > 0 || this.#ended) return;
    this.#ended = true;
    this.#done(this.#error);
  }

  #takeRun(): Run {
    const { positions, lengths } = this.#pieces;
    const order = this.#order;
    const first = this.#next;
    const from = positions[order[first]!]!;
    let to = from + lengths[order[first]!]!;
    let end = first + 1;
    for (; end < order.length; end++) {
      const at = positions[order[end]!]!;
      const pieceEnd = at + lengths[order[end]!]!;
      if (at - to > GAP_BYTES || pieceEnd - from > RUN_BYTES_MAX) break;
      to = Math.max(to, pieceEnd);
    }
    this.#next = end;
    return { first, end, from, to };
  }

  #readRun(run: Run): void {
    const block = this.#rows.findUnverifiedBlock(run.from, run.to);
    if (block >= 0) {
      this.#rows.verifyBlock(block).then(
        () => this.#readRun(run),
        (error: unknown) => this.#settle(CubeError.from(error)),
      );
      return;
    }
    const { target, targetOffsets } = this.#pieces;
    const length = run.to - run.from;
    const alone = run.end === run.first + 1;
    const at = targetOffsets[this.#order[run.first]!]!;
    const bytes = alone ? target.subarray(at, at + length) : new Uint8Array(length);
    this.#file.read(bytes, run.from, (error) => {
      if (error === undefined && !alone) this.#deal(run, bytes);
      this.#settle(error);
    });
  }

  #deal(run: Run, bytes: Uint8Array): void {
    const { positions, lengths, target, targetOffsets } = this.#pieces;
    for (let i = run.first; i < run.end; i++) {
      const piece = this.#order[i]!;
      const from = positions[piece]! - run.from;
      target.set(bytes.subarray(from, from + lengths[piece]!), targetOffsets[piece]!);
    }
  }

  #settle(error: CubeError | undefined): void {
    this.#error ??= error;
    this.#underWay--;
    this.#io.endRead();
    this.#pump();
  }
}
