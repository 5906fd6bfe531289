/**
 * The layers that a store must keep: those of the versions in use, and those of the current and the
 * previous version of every channel, which may not have been prepared yet.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { Repository } from '../../lib/repository/repository.ts';

export type ChannelReader = Pick<Repository, 'listChannels' | 'readChannel' | 'readManifest'>;

/**
 * @returns contentIds
 * @throws CubeError when the channels cannot be read: nothing may be removed then
 */
export async function findLayersInUse(
  repository: ChannelReader,
  bundles: readonly string[],
  inUse: readonly Manifest[],
): Promise<Set<string>> {
  const layers = new Set<string>();
  for (const manifest of inUse) collectLayers(manifest, layers);
  for (const bundle of bundles) {
    const versions = new Set<string>();
    for (const channel of await repository.listChannels(bundle)) {
      const { pointer, previous } = await repository.readChannel(bundle, channel);
      for (const entry of [pointer, previous]) {
        if (entry !== undefined) versions.add(entry.version);
      }
    }
    for (const version of versions) {
      const manifest = await findManifest(repository, bundle, version);
      if (manifest !== undefined) collectLayers(manifest, layers);
    }
  }
  return layers;
}

/** Adds the contentIds of the version's layers. */
export function collectLayers(manifest: Manifest, layers: Set<string>): void {
  for (const table of manifest.tables) {
    for (const { contentId } of table.shards.flat()) layers.add(contentId);
  }
}

/** A channel may name a version that was removed since. */
async function findManifest(
  repository: Pick<Repository, 'readManifest'>,
  bundle: string,
  version: string,
): Promise<Manifest | undefined> {
  try {
    return await repository.readManifest(bundle, version);
  } catch (error) {
    if (CubeError.from(error).code === 'NOT_FOUND') return undefined;
    throw error;
  }
}
