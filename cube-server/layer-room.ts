/** Whether a version would fit beside others, from what their manifests say; equal layers take memory once. */
import type { Manifest } from '../lib/core/manifest.ts';

/**
 * @param kept versions that stay
 * @returns bytes of the budget that would be left beside them and `next`; negative when it cannot fit
 */
export function roomAfter(
  kept: readonly Manifest[],
  next: Manifest,
  shardIndex: number,
  budgetBytes: number,
): number {
  const bytes = new Map<string, number>();
  for (const { tables } of [...kept, next]) {
    for (const { shards } of tables) {
      for (const layer of shards[shardIndex] ?? []) bytes.set(layer.contentId, layer.bytes);
    }
  }
  return [...bytes.values()].reduce((room, layerBytes) => room - layerBytes, budgetBytes);
}
