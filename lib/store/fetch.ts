/**
 * What a search left at its place is fetched here: rows on disk, and values of any length from memory or disk. Places
 * are checked before anything is read: an index is what its author wrote.
 */
import { keySegments, rowSegments } from '../core/layer-format.ts';
import type { Pieces } from './disk-rows.ts';
import type { FoundPlaces } from './found-places.ts';
import type { FoundValues } from './found-values.ts';
import type { LayerChain } from './layer-chain.ts';
import type { LookupBatch } from './lookup-batch.ts';
import type { ResidentLayer } from './resident-layer.ts';

/** The keys whose places are in layer `number`. */
function keysOf(places: FoundPlaces, number: number): Uint32Array {
  const { layers } = places;
  let count = 0;
  for (let i = 0; i < layers.length; i++) if (layers[i] === number + 1) count++;
  const keys = new Uint32Array(count);
  for (let i = 0, at = 0; at < count; i++) if (layers[i] === number + 1) keys[at++] = i;
  return keys;
}

function newPieces(count: number, target: Uint8Array): Pieces {
  return {
    count,
    target,
    positions: new Float64Array(count),
    lengths: new Uint32Array(count),
    targets: new Float64Array(count),
  };
}

/** Waits for all, so that nobody writes to the caller's arrays afterwards. @throws the first error */
async function settleAll(reads: readonly Promise<void>[]): Promise<void> {
  for (const result of await Promise.allSettled(reads)) {
    if (result.status === 'rejected') throw result.reason;
  }
}

/** Reads the rows on disk of all layers to where `lookup` would have put them. */
export function fetchRows(
  chain: LayerChain,
  batch: LookupBatch,
  places: FoundPlaces,
): Promise<void> {
  const { rows, rowsAt, asF32 } = batch;
  const reads = chain.layers.map(async (layer, number) => {
    if (layer.disk === undefined) return;
    const keys = keysOf(places, number);
    const { rowBytes, dtype } = layer.header;
    const convert = asF32 && dtype !== 'f32';
    const target = convert ? new Uint8Array(keys.length * rowBytes) : rows;
    const pieces = newPieces(keys.length, target);
    const segments =
      layer.header.layout === 'dense' ? keySegments(layer.header) : rowSegments(layer.header);
    for (let i = 0; i < keys.length; i++) {
      const { section, offset } = layer.finder.findRow(places.row(keys[i]!));
      pieces.positions[i] = segments[section]!.offset + offset;
      pieces.lengths[i] = rowBytes;
      pieces.targets[i] = convert ? i * rowBytes : rowsAt + keys[i]! * rowBytes;
    }
    await layer.disk.read(pieces);
    if (convert) chain.expandRows(target, keys, batch);
  });
  return settleAll(reads);
}

/** Copies values that are in memory, one after another. */
export function copyValues(
  layers: readonly ResidentLayer[],
  values: FoundValues,
  target: Uint8Array,
  at: number,
): void {
  const { places, lengths, count } = values;
  for (let i = 0; i < count; i++) {
    if (!places.has(i)) continue;
    const length = lengths[i]!;
    const layer = layers[places.layers[i]! - 1]!;
    const { section, offset } = layer.finder.findValue(places.offset(i), length);
    const { memory, address } = layer.rows[section]!;
    const from = address + offset;
    target.set(memory.bytes.subarray(from, from + length), at);
    at += length;
  }
}

/** The same for values that may be on disk. */
export async function fetchValues(
  layers: readonly ResidentLayer[],
  values: FoundValues,
  target: Uint8Array,
  at: number,
): Promise<void> {
  const { places, lengths, count } = values;
  const targets = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    targets[i] = at;
    at += lengths[i]!;
  }
  const reads = layers.map(async (layer, number) => {
    const keys = keysOf(places, number);
    const segments = rowSegments(layer.header);
    const pieces = newPieces(keys.length, target);
    for (let i = 0; i < keys.length; i++) {
      const key = keys[i]!;
      const length = lengths[key]!;
      const { section, offset } = layer.finder.findValue(places.offset(key), length);
      pieces.targets[i] = targets[key]!;
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
