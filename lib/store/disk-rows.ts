/**
 * Rows of a layer that stay in its file. A block of 1 MiB is verified when something of it is first read; from then on
 * its rows are read alone. A damaged block fails what touches it and nothing else. The file is kept open, so that it
 * may be replaced or removed meanwhile.
 */
import { CubeError } from '../core/errors.ts';
import { BLOCK_BYTES, HEADER_BYTES, type LayerHeader, rowSegments } from '../core/layer-format.ts';
import type { OpenFile } from '../platform/open-file.ts';
import type { DiskIo } from './disk-io.ts';
import { blockMismatch } from './layer-reader.ts';

/** Pieces no further apart are read at once: a page more costs less than a read more. */
const GAP_BYTES = 4096;
const RUN_BYTES_MAX = 65_536;
/** Reads of one lookup under way at once. */
const LANES = 32;

/** Pieces of the file, and where they go: piece i is `lengths[i]` bytes at `positions[i]`, to target[targets[i]…]. */
export interface Pieces {
  readonly count: number;
  readonly positions: Float64Array;
  readonly lengths: Uint32Array;
  readonly target: Uint8Array;
  readonly targets: Float64Array;
}

export class DiskRows {
  readonly header: LayerHeader;
  readonly #file: OpenFile;
  readonly #checksums: Uint32Array;
  readonly #io: DiskIo;
  /** 1 for a block that was right when it was first read. */
  readonly #verified: Uint8Array;
  readonly #verifying = new Map<number, Promise<void>>();
  readonly #damaged = new Map<number, CubeError>();

  /** @param checksums of the blocks, words (low, high), checked themselves */
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

  /** Good while this is open, within this process. */
  get descriptor(): number {
    return this.#file.descriptor;
  }

  /** Of all rows or values. */
  get bytes(): number {
    const { layout } = this.header;
    const segments = layout === 'dense' ? this.header.segments : rowSegments(this.header);
    return segments.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /**
   * Reads pieces, each from verified blocks.
   * @throws CubeError CORRUPT when a block is damaged, IO when the disk fails; the target then holds anything
   */
  read(pieces: Pieces): Promise<void> {
    return new Promise((resolve, reject) => {
      new RunReader(this, this.#file, this.#io, pieces, (error) =>
        error === undefined ? resolve() : reject(error),
      ).start();
    });
  }

  /** The first block of a range that was not verified yet, or -1. */
  unverified(from: number, to: number): number {
    const last = Math.floor((to - 1 - HEADER_BYTES) / BLOCK_BYTES);
    for (let block = Math.floor((from - HEADER_BYTES) / BLOCK_BYTES); block <= last; block++) {
      if (this.#verified[block] !== 1) return block;
    }
    return -1;
  }

  /** Reads and checks a block, once, however many wait for it. */
  verify(block: number): Promise<void> {
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
      const damage = blockMismatch(this.#file.path, block);
      this.#damaged.set(block, damage);
      this.#io.noteDamage(damage);
      throw damage;
    });
  }
}

/** Pieces in file order that are read at once: order[first … end), bytes from … to. */
interface Run {
  readonly first: number;
  readonly end: number;
  readonly from: number;
  readonly to: number;
}

/** The reads of one request: callbacks and no promise, because there may be one for each row. */
class RunReader {
  readonly #rows: DiskRows;
  readonly #file: OpenFile;
  readonly #io: DiskIo;
  readonly #pieces: Pieces;
  readonly #done: (error: CubeError | undefined) => void;
  readonly #order: Uint32Array;
  /** The first piece of the next run. */
  #next = 0;
  #underWay = 0;
  #waiting = false;
  #ended = false;
  #error: CubeError | undefined;

  constructor(
    rows: DiskRows,
    file: OpenFile,
    io: DiskIo,
    pieces: Pieces,
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
    while (this.#next < this.#order.length && this.#underWay < LANES && !this.#error) {
      if (this.#waiting) return;
      this.#waiting = !this.#io.tryBegin(this.#wake);
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
    const block = this.#rows.unverified(run.from, run.to);
    if (block >= 0) {
      this.#rows.verify(block).then(
        () => this.#readRun(run),
        (error: unknown) => this.#settle(CubeError.from(error)),
      );
      return;
    }
    const { target, targets } = this.#pieces;
    const length = run.to - run.from;
    const alone = run.end === run.first + 1;
    const at = targets[this.#order[run.first]!]!;
    const bytes = alone ? target.subarray(at, at + length) : new Uint8Array(length);
    this.#file.read(bytes, run.from, (error) => {
      if (error === undefined && !alone) this.#deal(run, bytes);
      this.#settle(error);
    });
  }

  #deal(run: Run, bytes: Uint8Array): void {
    const { positions, lengths, target, targets } = this.#pieces;
    for (let i = run.first; i < run.end; i++) {
      const piece = this.#order[i]!;
      const from = positions[piece]! - run.from;
      target.set(bytes.subarray(from, from + lengths[piece]!), targets[piece]!);
    }
  }

  #settle(error: CubeError | undefined): void {
    this.#error ??= error;
    this.#underWay--;
    this.#io.end();
    this.#pump();
  }
}
