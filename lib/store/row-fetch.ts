/**
 * Fetches the data of locations that a search found: rows on disk, and variable-length values from
 * memory or disk. Every location is checked before it is read, because an index may be wrong.
 */
import { getKeySegments, getRowSegments } from '../core/layer-format.ts';
import type { ReadRanges } from './disk-rows.ts';
import type { LayerChain } from './layer-chain.ts';
import type { LookupBatch } from './lookup-batch.ts';
import type { ResidentLayer } from './resident-layer.ts';
import type { FoundValues, RowLocations } from './row-locations.ts';

/** Indices of keys whose locations are in layer `number`. */
function selectKeys(places: RowLocations, number: number): Uint32Array {
  const { layers } = places;
  let count = 0;
  for (let i = 0; i < layers.length; i++) if (layers[i] === number + 1) count++;
  const keys = new Uint32Array(count);
  for (let i = 0, at = 0; at < count; i++) if (layers[i] === number + 1) keys[at++] = i;
  return keys;
}

function createReadRanges(count: number, target: Uint8Array): ReadRanges {
  return {
    count,
    target,
    positions: new Float64Array(count),
    lengths: new Uint32Array(count),
    targetOffsets: new Float64Array(count),
  };
}

/**
 * Waits for all reads, so that none writes to the caller's arrays afterwards. @throws the first
 * error
 */
async function settleAll(reads: readonly Promise<void>[]): Promise<void> {
  for (const result of await Promise.allSettled(reads)) {
    if (result.status === 'rejected') throw result.reason;
  }
}

/** Reads rows on disk of all layers to where `lookup` would have written them. */
export function fetchRows(
  chain: LayerChain,
  batch: LookupBatch,
  places: RowLocations,
): Promise<void> {
  const { rows, rowsAt, asF32 } = batch;
  const reads = chain.layers.map(async (layer, number) => {
    if (layer.disk === undefined) return;
    const keys = selectKeys(places, number);
    const { rowBytes, dtype } = layer.header;
    const convert = asF32 && dtype !== 'f32';
    const target = convert ? new Uint8Array(keys.length * rowBytes) : rows;
    const pieces = createReadRanges(keys.length, target);
    const segments =
      layer.header.layout === 'dense' ? getKeySegments(layer.header) : getRowSegments(layer.header);
    for (let i = 0; i < keys.length; i++) {
      const { section, offset } = layer.locator.locateRow(places.rowNumber(keys[i]!));
      pieces.positions[i] = segments[section]!.offset + offset;
      pieces.lengths[i] = rowBytes;
      pieces.targetOffsets[i] = convert ? i * rowBytes : rowsAt + keys[i]! * rowBytes;
    }
    await layer.disk.read(pieces);
    if (convert) chain.expandRows(target, keys, batch);
  });
  return settleAll(reads);
}

/** Copies values in memory, concatenated. */
export function copyValues(
  layers: readonly ResidentLayer[],
  values: FoundValues,
  target: Uint8Array,
  at: number,
): void {
  const { locations, lengths, count } = values;
  for (let i = 0; i < count; i++) {
    if (!locations.has(i)) continue;
    const length = lengths[i]!;
    const layer = layers[locations.layers[i]! - 1]!;
    const { section, offset } = layer.locator.locateValue(locations.valueOffset(i), length);
    const { memory, address } = layer.rows[section]!;
    const from = address + offset;
    target.set(memory.bytes.subarray(from, from + length), at);
    at += length;
  }
}

/** Like `copyValues`, also for values on disk. */
export async function fetchValues(
  layers: readonly ResidentLayer[],
  values: FoundValues,
  target: Uint8Array,
  at: number,
): Promise<void> {
  const { locations, lengths, count } = values;
  const targets = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    targets[i] = at;
    at += lengths[i]!;
  }
  const reads = layers.map(async (layer, number) => {
    const keys = selectKeys(locations, number);
    const segments = getRowSegments(layer.header);
    const pieces = createReadRanges(keys.length, target);
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i]!;
      const length = lengths[key]!;
      const { section, offset } = layer.locator.locateValue(locations.valueOffset(key), length);
      pieces.targetOffsets[i] = targets[key]!;
      pieces.lengths[i] = length;
      pieces.positions[i] = segments[section]!.offset + offset;
      if (layer.disk !== undefined) continue;
      const { memory, address } = layer.rows[section]!;
      const from = address + offset;
      target.set(memory.bytes.subarray(from, from + length), targets[key]!);
    }
    if (layer.disk !== undefined) await layer.disk.read(pieces);
  });
  await settleAll(reads);
}
