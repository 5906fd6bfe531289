import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { mixKey, setKey } from '../../lib/core/keys.ts';
import { computeHomeSlots, computeStride, SEGMENT_BYTES_MAX } from '../../lib/core/layer-format.ts';
import {
  computeHomeSlot,
  computeSegment,
  EmptyKeyFinder,
  minSegmentCount,
  ProgressionFinder,
  SlotCursor,
} from '../../lib/core/layer-placement.ts';
import { buildLayerHeader, chooseLayout } from '../../lib/core/layer-sections.ts';
import { computeRowBytes } from '../../lib/core/row-codec.ts';
import { writeLayer } from '../../lib/store/layer-file.ts';
import { SectionWriter, type WrittenLayer } from '../../lib/store/section-writer.ts';
import {
  type AnyLayer,
  type AnyTable,
  arbitraryLayer,
  arbitraryTable,
  createLayerInput,
  storedBytes,
} from './support/arbitrary-layer.ts';
import { packKeys, temporaryFolder } from './support/layers.ts';

interface Placed {
  readonly key: bigint;
  readonly segment: number;
  readonly home: number;
}

/** Sorts by (segment, home, key) with an ordinary sort. */
function place(keys: readonly bigint[], segmentCount: number, homeSlots: number): Placed[] {
  const mixed = new Uint32Array(2);
  const words = new Uint32Array(2);
  const placed = keys.map((key) => {
    setKey(words, 0, key);
    mixKey(words[0]!, words[1]!, mixed, 0);
    const segment = computeSegment(mixed, 0, segmentCount);
    return { key, segment, home: computeHomeSlot(mixed, 0, homeSlots) };
  });
  return placed.sort(
    (a, b) => a.segment - b.segment || a.home - b.home || (a.key < b.key ? -1 : 1),
  );
}

/** Writes an inline base slot by slot, using only exported parts. */
function writeSlots(
  folder: string,
  table: AnyTable,
  { keys, salt }: AnyLayer,
  segmentBytesMax: number,
): WrittenLayer {
  const rowBytes = computeRowBytes(table.dtype, table.dim);
  const stride = computeStride('inline', rowBytes);
  const slotsMax = Math.floor(segmentBytesMax / stride);
  const finder = new EmptyKeyFinder(keys.length);
  for (const key of keys) finder.add(packKeys([key]));
  let segmentCount = minSegmentCount(keys.length, slotsMax);
  let homeSlots = 0;
  let placed: Placed[] = [];
  let sizes: { rows: number; slots: number }[] = [];
  for (; keys.length > 0; segmentCount++) {
    homeSlots = computeHomeSlots(keys.length, segmentCount);
    placed = place(keys, segmentCount, homeSlots);
    sizes = Array.from({ length: segmentCount }, (_, segment) => {
      const cursor = new SlotCursor();
      const own = placed.filter((one) => one.segment === segment);
      for (const { home } of own) cursor.takeSlot(home);
      return { rows: own.length, slots: cursor.slotCount(homeSlots) };
    });
    if (sizes.every(({ slots }) => slots <= slotsMax)) break;
  }
  const writer = new SectionWriter((id) => join(folder, 'slots', `${id}.cube`));
  const emptyKey = finder.emptyKey();
  for (const [segment, { slots }] of sizes.entries()) {
    writer.pad();
    const cursor = new SlotCursor();
    const bytes = new Uint8Array(slots * stride);
    const view = new DataView(bytes.buffer);
    for (let slot = 0; slot < slots; slot++) view.setBigUint64(slot * stride, emptyKey, true);
    for (const one of placed) {
      if (one.segment !== segment) continue;
      const at = cursor.takeSlot(one.home) * stride;
      view.setBigUint64(at, one.key, true);
      bytes.set(storedBytes(table, one.key, salt), at + 8);
    }
    // Written in pieces, as by a writer with limited memory.
    for (let at = 0; at < bytes.length; at += 1000) writer.write(bytes.subarray(at, at + 1000));
  }
  const subject = { ...table, table: 't', parentContentId: '' };
  const none = {
    deletedCount: 0,
    deletedHomeSlots: 0,
    firstKey: 0n,
    keyStep: 0n,
    rowsPerSegment: 0,
  };
  const content = {
    layout: 'inline' as const,
    rowCount: keys.length,
    emptyKey,
    homeSlots,
    ...none,
  };
  return writer.finish(
    buildLayerHeader(subject, content, { keys: sizes, rows: [], deletedSlots: 0 }),
  );
}

test('writing slot by slot gives the same file as writing a whole shard', (context) => {
  const folder = temporaryFolder(context);
  const scenario = arbitraryTable
    .filter(({ dtype }) => dtype !== 'bytes')
    .chain((table) =>
      fc.record({ table: fc.constant(table), layer: arbitraryLayer(table, false) }),
    );
  fc.assert(
    fc.property(scenario, ({ table, layer }) => {
      const finder = new ProgressionFinder();
      finder.add(packKeys(layer.keys));
      const isProgression = finder.progression() !== undefined;
      const input = createLayerInput(table, { ...layer, indexed: false });
      const whole = writeLayer(input, (id) => join(folder, `${id}.cube`), layer.segmentBytesMax);
      const rowBytes = computeRowBytes(table.dtype, table.dim);
      assert.equal(whole.layout, chooseLayout('base', table.dtype, rowBytes, isProgression));
      if (whole.layout !== 'inline') return;
      const bySlot = writeSlots(folder, table, layer, layer.segmentBytesMax ?? SEGMENT_BYTES_MAX);
      assert.deepEqual({ ...bySlot, path: whole.path }, whole);
    }),
    { numRuns: 80 },
  );
});
