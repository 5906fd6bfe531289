/**
 * Writes the layer of a shard that is larger than memory, from its sorted run: the same bytes as lib/store's writeLayer makes
 * of the same rows. Sizes first, from the keys alone; then every section at once, each row to where it belongs; checksums
 * and content id last, from what was written.
 */
import { createHash } from 'node:crypto';
import { xxh64 } from '../../lib/core/hash.ts';
import {
  BLOCK_BYTES,
  HEADER_BYTES,
  homeSlotsOf,
  type LayerHeader,
  rowStrideOf,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNT_MAX,
  type SegmentSize,
  strideOf,
} from '../../lib/core/layer-format.ts';
import { encodeHeader, encodeUnsignedHeader } from '../../lib/core/layer-header.ts';
import {
  EmptyKeyFinder,
  leastSegmentCount,
  type Progression,
  ProgressionFinder,
  SlotCursor,
  segmentOf,
} from '../../lib/core/layer-placement.ts';
import {
  type LayerContent,
  type LayerSubject,
  layOut,
  layoutFor,
  rowSegmentSizes,
  rowsPerSegmentOf,
  tooManySegments,
} from '../../lib/core/layer-sections.ts';
import { ValuePacker } from '../../lib/core/value-places.ts';
import { fileExists, RandomWriter } from '../../lib/platform/files.ts';
import { BlockHasher } from '../../lib/store/block-hasher.ts';
import type { WrittenLayer } from '../../lib/store/section-writer.ts';
import { fillDense } from './dense-fill.ts';
import { type Fill, fillDeleted, fillIndexed, fillInline } from './slot-fill.ts';
import { readRun, type SortedRun } from './sorted-run.ts';

export interface StreamOptions {
  /** Bytes in memory at a time, about. */
  readonly budgetBytes: number;
  readonly layout: 'indexed' | undefined;
  /** The final path of a content id. */
  readonly target: (contentId: string) => string;
  /** Smaller segments than the format allows, for tests. */
  readonly segmentBytesMax?: number;
}

/** Any number of homes will do where order does not matter: pieces only have to end somewhere. */
const ANY_HOMES = 1 << 20;

/** @throws CubeError TOO_LARGE when no layer can hold the shard */
export function writeStreamedLayer(
  subject: LayerSubject,
  run: SortedRun,
  options: StreamOptions,
): WrittenLayer {
  const sizer = new Sizer(subject, run, options);
  const { header, progression } = sizer.plan();
  const writer = new RandomWriter(options.target(header.contentId));
  try {
    const fill: Fill = { header, run, writer, budgetBytes: options.budgetBytes };
    if (progression !== undefined) fillDense(fill, progression);
    else if (header.layout === 'inline') fillInline(fill);
    else fillIndexed(fill, options.segmentBytesMax ?? SEGMENT_BYTES_MAX);
    if (header.deletedCount > 0) fillDeleted(fill);
    const { finished, sha256 } = seal(writer, header);
    const path = options.target(finished.contentId);
    if (fileExists(path)) writer.abort();
    else writer.commit(path);
    return {
      contentId: finished.contentId,
      path,
      bytes: finished.fileBytes,
      sha256,
      rows: finished.rowCount,
      deleted: finished.deletedCount,
      kind: finished.kind,
      layout: finished.layout,
    };
  } catch (error) {
    writer.abort();
    throw error;
  }
}

/** Decides layout, segments and sizes in passes over the keys. */
class Sizer {
  readonly #subject: LayerSubject;
  readonly #run: SortedRun;
  readonly #options: StreamOptions;
  readonly #pieceBytes: number;
  readonly #segmentBytesMax: number;

  constructor(subject: LayerSubject, run: SortedRun, options: StreamOptions) {
    this.#subject = subject;
    this.#run = run;
    this.#options = options;
    this.#pieceBytes = options.budgetBytes / 8;
    this.#segmentBytesMax = options.segmentBytesMax ?? SEGMENT_BYTES_MAX;
  }

  plan(): { header: LayerHeader; progression: Progression | undefined } {
    const { dtype, parentContentId } = this.#subject;
    const { count, deletedCount, rowBytes } = this.#run;
    const kind = parentContentId === '' ? 'base' : 'delta';
    const facts = this.#facts();
    const isProgression = facts.progression !== undefined;
    const layout = this.#options.layout ?? layoutFor(kind, dtype, rowBytes, isProgression);
    const deletedHomeSlots = deletedCount === 0 ? 0 : homeSlotsOf(deletedCount, 1);
    const content: LayerContent = {
      ...{ layout, rowCount: count, deletedCount, deletedHomeSlots },
      ...{ emptyKey: facts.emptyKey, homeSlots: 0, firstKey: 0n, keyStep: 0n, rowsPerSegment: 0 },
    };
    if (layout === 'dense') return this.#planDense(content, facts.progression!);
    const searched = this.#searchedSizes(strideOf(layout, rowBytes));
    const deletedSlots = deletedCount === 0 ? 0 : this.#deletedSlots(deletedHomeSlots);
    const { homeSlots, sizes } = searched;
    const rows = layout === 'inline' ? [] : this.#rowSizes(sizes.length, homeSlots);
    const rowsPerSegment = layout === 'inline' || rowBytes === 0 ? 0 : this.#rowsPerSegment();
    const header = layOut(
      this.#subject,
      { ...content, homeSlots, rowsPerSegment },
      { keys: sizes, rows, deletedSlots },
    );
    return { header, progression: undefined };
  }

  #planDense(
    content: LayerContent,
    progression: Progression,
  ): { header: LayerHeader; progression: Progression } {
    const { firstLow, firstHigh, step } = progression;
    const firstKey = (BigInt(firstHigh) << 32n) | BigInt(firstLow);
    const rowsPerSegment = this.#rowsPerSegment();
    const dense = { ...content, emptyKey: 0n, firstKey, keyStep: BigInt(step), rowsPerSegment };
    const keys = rowSegmentSizes(this.#run.count, rowsPerSegment);
    const header = layOut(this.#subject, dense, { keys, rows: [], deletedSlots: 0 });
    return { header, progression };
  }

  #rowsPerSegment(): number {
    const { dtype } = this.#subject;
    const stride = rowStrideOf({ dtype, rowBytes: this.#run.rowBytes });
    return rowsPerSegmentOf(stride, this.#segmentBytesMax);
  }

  #facts(): { emptyKey: bigint; progression: Progression | undefined } {
    const empty = new EmptyKeyFinder(this.#run.count + this.#run.deletedCount);
    const ladder = new ProgressionFinder();
    for (const { keys, count } of readRun(this.#run, ANY_HOMES, 'keys', this.#pieceBytes)) {
      empty.add(keys.subarray(0, 2 * count));
      ladder.add(keys.subarray(0, 2 * count));
    }
    for (const { keys, count } of readRun(this.#run, ANY_HOMES, 'deleted keys', this.#pieceBytes)) {
      empty.add(keys.subarray(0, 2 * count));
    }
    return { emptyKey: empty.emptyKey(), progression: ladder.progression() };
  }

  /** The least number of segments with which each fits: usually the first one tried. */
  #searchedSizes(stride: number): { homeSlots: number; sizes: SegmentSize[] } {
    const { count } = this.#run;
    if (count === 0) return { homeSlots: 0, sizes: [] };
    const slotsMax = Math.floor(this.#segmentBytesMax / stride);
    let segments = leastSegmentCount(count, slotsMax);
    for (; segments <= SEGMENT_COUNT_MAX; segments++) {
      const homeSlots = homeSlotsOf(count, segments);
      const cursors = Array.from({ length: segments }, () => new SlotCursor());
      const rows = new Float64Array(segments);
      for (const piece of readRun(this.#run, homeSlots, 'keys', this.#pieceBytes)) {
        for (let i = 0; i < piece.count; i++) {
          const segment = segmentOf(piece.mixed, 2 * i, segments);
          cursors[segment]!.take(piece.homes[i]!);
          rows[segment]! += 1;
        }
      }
      const sizes = cursors.map((cursor, i) => ({
        rows: rows[i]!,
        slots: cursor.slots(homeSlots),
      }));
      if (sizes.every(({ slots }) => slots <= slotsMax)) return { homeSlots, sizes };
    }
    return tooManySegments(this.#subject.table, count);
  }

  #deletedSlots(homeSlots: number): number {
    const cursor = new SlotCursor();
    for (const piece of readRun(this.#run, homeSlots, 'deleted keys', this.#pieceBytes)) {
      for (let i = 0; i < piece.count; i++) cursor.take(piece.homes[i]!);
    }
    return cursor.slots(homeSlots);
  }

  /** Rows lie in the order of the index: segment by segment, so values are packed in as many passes over their lengths. */
  #rowSizes(indexSegments: number, homeSlots: number): readonly SegmentSize[] {
    const run = this.#run;
    if (run.rowBytes > 0) return rowSegmentSizes(run.count, this.#rowsPerSegment());
    const packer = new ValuePacker(this.#segmentBytesMax);
    for (let segment = 0; segment < indexSegments; segment++) {
      for (const piece of readRun(run, homeSlots, 'keys and lengths', this.#pieceBytes)) {
        for (const i of piece.order) {
          if (segmentOf(piece.mixed, 2 * i, indexSegments) === segment)
            packer.take(piece.lengths[i]!);
        }
      }
    }
    return packer.sizes();
  }
}

/** Block checksums and content id from the file's own bytes, then the header, then the SHA-256 of it all. */
function seal(
  writer: RandomWriter,
  header: LayerHeader,
): { finished: LayerHeader; sha256: string } {
  const hasher = new BlockHasher();
  const sha = createHash('sha256');
  const checksums = new Uint32Array(2 * header.blockCount);
  const section = new Uint8Array(checksums.buffer);
  // What lies before it and was not written is zeros from here on.
  writer.writeAt(section, header.checksumsOffset);
  for (let block = 0; block < header.blockCount; block++) {
    const position = HEADER_BYTES + block * BLOCK_BYTES;
    const length = Math.min(BLOCK_BYTES, header.checksumsOffset - position);
    const bytes = hasher.block.subarray(0, length);
    writer.readInto(bytes, position);
    sha.update(bytes);
    checksums.set(hasher.hash(length), 2 * block);
  }
  writer.writeAt(section, header.checksumsOffset);
  const hashed = { ...header, checksumsChecksum: xxh64(section) };
  const contentId = sha
    .update(section)
    .update(encodeUnsignedHeader(hashed))
    .digest('hex')
    .slice(0, 32);
  const finished = { ...hashed, contentId };
  writer.writeAt(encodeHeader(finished), 0);
  return { finished, sha256: fileDigest(writer, header.fileBytes) };
}

function fileDigest(writer: RandomWriter, bytes: number): string {
  const sha = createHash('sha256');
  const piece = new Uint8Array(BLOCK_BYTES);
  for (let at = 0; at < bytes; at += BLOCK_BYTES) {
    const part = piece.subarray(0, Math.min(BLOCK_BYTES, bytes - at));
    writer.readInto(part, at);
    sha.update(part);
  }
  return sha.digest('hex');
}
