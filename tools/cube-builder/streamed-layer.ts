/**
 * Writes the layer of a shard that is larger than memory, from its sorted run. The bytes are the
 * same as those that writeLayer of lib/store writes. Sizes are computed first, from the keys; then
 * all sections are filled at the same time; checksums and content id are computed from the file.
 */

import { createHash } from 'node:crypto';
import { requireDefined } from '../../lib/core/errors.ts';
import { xxh64 } from '../../lib/core/hash.ts';
import {
  BLOCK_BYTES,
  computeHomeSlots,
  computeRowStride,
  computeStride,
  HEADER_BYTES,
  type LayerHeader,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNT_MAX,
  type SegmentSize,
} from '../../lib/core/layer-format.ts';
import { encodeHeader, encodeUnsignedHeader } from '../../lib/core/layer-header.ts';
import {
  computeSegment,
  EmptyKeyFinder,
  minSegmentCount,
  type Progression,
  ProgressionFinder,
  SlotCursor,
} from '../../lib/core/layer-placement.ts';
import {
  buildLayerHeader,
  chooseLayout,
  computeRowSegmentSizes,
  computeRowsPerSegment,
  failTooManySegments,
  type LayerIdentity,
  type LayerShape,
} from '../../lib/core/layer-sections.ts';
import { ValuePacker } from '../../lib/core/value-locations.ts';
import { fileExists, RandomAccessWriter } from '../../lib/platform/files.ts';
import { BlockHasher } from '../../lib/store/block-hasher.ts';
import type { WrittenLayer } from '../../lib/store/section-writer.ts';
import { fillDense } from './dense-fill.ts';
import { type FillTask, fillDeleted, fillIndexed, fillInline } from './slot-fill.ts';
import { readRun, type SortedRun } from './sorted-run.ts';

export interface StreamedLayerOptions {
  /** Approximate maximum memory. */
  readonly budgetBytes: number;
  readonly layout: 'indexed' | undefined;
  /** Returns the final path of the layer with a content id. */
  readonly getLayerPath: (contentId: string) => string;
  /** Maximum segment size; tests use less than the format allows. */
  readonly segmentBytesMax?: number;
}

/** Number of home slots for scans in which the order of rows does not matter. */
const HOME_SLOTS_FOR_SCAN = 1 << 20;

/** @throws CubeError TOO_LARGE if the shard does not fit into one layer */
export function writeStreamedLayer(
  identity: LayerIdentity,
  run: SortedRun,
  options: StreamedLayerOptions,
): WrittenLayer {
  const sizer = new LayerSizer(identity, run, options);
  const { header, progression } = sizer.plan();
  const writer = new RandomAccessWriter(options.getLayerPath(header.contentId));
  try {
    const fill: FillTask = { header, run, writer, budgetBytes: options.budgetBytes };
    if (progression !== undefined) fillDense(fill, progression);
    else if (header.layout === 'inline') fillInline(fill);
    else fillIndexed(fill, options.segmentBytesMax ?? SEGMENT_BYTES_MAX);
    if (header.deletedCount > 0) fillDeleted(fill);
    const { finished, sha256 } = finishFile(writer, header);
    const path = options.getLayerPath(finished.contentId);
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

/** Chooses layout, segments and sizes in passes over the keys. */
class LayerSizer {
  readonly #identity: LayerIdentity;
  readonly #run: SortedRun;
  readonly #options: StreamedLayerOptions;
  readonly #pieceBytes: number;
  readonly #segmentBytesMax: number;

  constructor(identity: LayerIdentity, run: SortedRun, options: StreamedLayerOptions) {
    this.#identity = identity;
    this.#run = run;
    this.#options = options;
    this.#pieceBytes = options.budgetBytes / 8;
    this.#segmentBytesMax = options.segmentBytesMax ?? SEGMENT_BYTES_MAX;
  }

  plan(): { header: LayerHeader; progression: Progression | undefined } {
    const { dtype, parentContentId } = this.#identity;
    const { count, deletedCount, rowBytes } = this.#run;
    const kind = parentContentId === '' ? 'base' : 'delta';
    const scan = this.#scanKeys();
    const isProgression = scan.progression !== undefined;
    const layout = this.#options.layout ?? chooseLayout(kind, dtype, rowBytes, isProgression);
    const deletedHomeSlots = deletedCount === 0 ? 0 : computeHomeSlots(deletedCount, 1);
    const content: LayerShape = {
      layout,
      rowCount: count,
      deletedCount,
      deletedHomeSlots,
      emptyKey: scan.emptyKey,
      homeSlots: 0,
      firstKey: 0n,
      keyStep: 0n,
      rowsPerSegment: 0,
    };
    if (layout === 'dense') {
      const progression = requireDefined(scan.progression, 'the progression of dense keys');
      return this.#planDense(content, progression);
    }
    const keySegments = this.#computeKeySegments(computeStride(layout, rowBytes));
    const deletedSlots = deletedCount === 0 ? 0 : this.#countDeletedSlots(deletedHomeSlots);
    const { homeSlots, sizes } = keySegments;
    const rows = layout === 'inline' ? [] : this.#computeRowSegments(sizes.length, homeSlots);
    const rowsPerSegment =
      layout === 'inline' || rowBytes === 0 ? 0 : this.#computeRowsPerSegment();
    const header = buildLayerHeader(
      this.#identity,
      { ...content, homeSlots, rowsPerSegment },
      { keys: sizes, rows, deletedSlots },
    );
    return { header, progression: undefined };
  }

  #planDense(
    content: LayerShape,
    progression: Progression,
  ): { header: LayerHeader; progression: Progression } {
    const { firstLow, firstHigh, step } = progression;
    const firstKey = (BigInt(firstHigh) << 32n) | BigInt(firstLow);
    const rowsPerSegment = this.#computeRowsPerSegment();
    const dense = { ...content, emptyKey: 0n, firstKey, keyStep: BigInt(step), rowsPerSegment };
    const keys = computeRowSegmentSizes(this.#run.count, rowsPerSegment);
    const header = buildLayerHeader(this.#identity, dense, { keys, rows: [], deletedSlots: 0 });
    return { header, progression };
  }

  #computeRowsPerSegment(): number {
    const { dtype } = this.#identity;
    const stride = computeRowStride({ dtype, rowBytes: this.#run.rowBytes });
    return computeRowsPerSegment(stride, this.#segmentBytesMax);
  }

  #scanKeys(): { emptyKey: bigint; progression: Progression | undefined } {
    const empty = new EmptyKeyFinder(this.#run.count + this.#run.deletedCount);
    const progressions = new ProgressionFinder();
    for (const { keys, count } of readRun(
      this.#run,
      HOME_SLOTS_FOR_SCAN,
      'keys',
      this.#pieceBytes,
    )) {
      empty.add(keys.subarray(0, 2 * count));
      progressions.add(keys.subarray(0, 2 * count));
    }
    for (const { keys, count } of readRun(
      this.#run,
      HOME_SLOTS_FOR_SCAN,
      'deleted keys',
      this.#pieceBytes,
    )) {
      empty.add(keys.subarray(0, 2 * count));
    }
    return { emptyKey: empty.emptyKey(), progression: progressions.progression() };
  }

  /** Finds the smallest number of segments that all fit; usually the first attempt succeeds. */
  #computeKeySegments(stride: number): { homeSlots: number; sizes: SegmentSize[] } {
    const { count } = this.#run;
    if (count === 0) return { homeSlots: 0, sizes: [] };
    const slotsMax = Math.floor(this.#segmentBytesMax / stride);
    let segments = minSegmentCount(count, slotsMax);
    for (; segments <= SEGMENT_COUNT_MAX; segments++) {
      const homeSlots = computeHomeSlots(count, segments);
      const cursors = Array.from({ length: segments }, () => new SlotCursor());
      const rows = new Float64Array(segments);
      for (const piece of readRun(this.#run, homeSlots, 'keys', this.#pieceBytes)) {
        for (let i = 0; i < piece.count; i++) {
          const segment = computeSegment(piece.mixed, 2 * i, segments);
          cursors[segment]!.takeSlot(piece.homes[i]!);
          rows[segment]! += 1;
        }
      }
      const sizes = cursors.map((cursor, i) => ({
        rows: rows[i]!,
        slots: cursor.slotCount(homeSlots),
      }));
      if (sizes.every(({ slots }) => slots <= slotsMax)) return { homeSlots, sizes };
    }
    return failTooManySegments(this.#identity.table, count);
  }

  #countDeletedSlots(homeSlots: number): number {
    const cursor = new SlotCursor();
    for (const piece of readRun(this.#run, homeSlots, 'deleted keys', this.#pieceBytes)) {
      for (let i = 0; i < piece.count; i++) cursor.takeSlot(piece.homes[i]!);
    }
    return cursor.slotCount(homeSlots);
  }

  /** Rows are stored in index order, so packing values takes one pass per index segment. */
  #computeRowSegments(indexSegments: number, homeSlots: number): readonly SegmentSize[] {
    const run = this.#run;
    if (run.rowBytes > 0) return computeRowSegmentSizes(run.count, this.#computeRowsPerSegment());
    const packer = new ValuePacker(this.#segmentBytesMax);
    for (let segment = 0; segment < indexSegments; segment++) {
      for (const piece of readRun(run, homeSlots, 'keys and lengths', this.#pieceBytes)) {
        for (const i of piece.order) {
          if (computeSegment(piece.mixed, 2 * i, indexSegments) === segment)
            packer.reserve(piece.lengths[i]!);
        }
      }
    }
    return packer.sizes();
  }
}

/**
 * Computes block checksums and content id from the written bytes, writes the header, and
 * computes the SHA-256 of the complete file.
 */
function finishFile(
  writer: RandomAccessWriter,
  header: LayerHeader,
): { finished: LayerHeader; sha256: string } {
  const hasher = new BlockHasher();
  const sha = createHash('sha256');
  const checksums = new Uint32Array(2 * header.blockCount);
  const section = new Uint8Array(checksums.buffer);
  // This write extends the file; gaps before it read as zeros.
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
  return { finished, sha256: computeFileDigest(writer, header.fileBytes) };
}

function computeFileDigest(writer: RandomAccessWriter, bytes: number): string {
  const sha = createHash('sha256');
  const piece = new Uint8Array(BLOCK_BYTES);
  for (let at = 0; at < bytes; at += BLOCK_BYTES) {
    const part = piece.subarray(0, Math.min(BLOCK_BYTES, bytes - at));
    writer.readInto(part, at);
    sha.update(part);
  }
  return sha.digest('hex');
}
