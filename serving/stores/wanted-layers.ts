/**
 * The layers that must stay where rows are kept: those of versions in use, and those of the versions that the bundles'
 * channels want, target and previous, although nobody may have prepared them yet.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { Repository } from '../../lib/repository/repository.ts';

export type WantedVersions = Pick<Repository, 'channels' | 'channel' | 'manifest'>;

/**
 * @returns contentIds
 * @throws CubeError when the channels cannot be read: then nobody knows what may go
 */
export async function wantedLayers(
  repository: WantedVersions,
  bundles: readonly string[],
  inUse: readonly Manifest[],
): Promise<Set<string>> {
  const layers = new Set<string>();
  for (const manifest of inUse) addLayers(manifest, layers);
  for (const bundle of bundles) {
    const versions = new Set<string>();
    for (const channel of await repository.channels(bundle)) {
      const { pointer, previous } = await repository.channel(bundle, channel);
      for (const entry of [pointer, previous]) {
        if (entry !== undefined) versions.add(entry.version);
      }
    }
    for (const version of versions) {
      const manifest = await manifestIfThere(repository, bundle, version);
      if (manifest !== undefined) addLayers(manifest, layers);
    }
  }
  return layers;
}

export function addLayers(manifest: Manifest, layers: Set<string>): void {
  for (const table of manifest.tables) {
    for (const { contentId } of table.shards.flat()) layers.add(contentId);
  }
}

/** A channel may name a version that was removed since. */
async function manifestIfThere(
  repository: Pick<Repository, 'manifest'>,
  bundle: string,
  version: string,
): Promise<Manifest | undefined> {
  try {
    return await repository.manifest(bundle, version);
  } catch (error) {
    if (CubeError.from(error).code === 'NOT_FOUND') return undefined;
    throw error;
  }
}
