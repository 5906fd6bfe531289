/** A manifest as it lies in a repository or a host's data folder: readable, and of the place where it lies. */
import { CubeError } from '../core/errors.ts';
import { type Manifest, parseManifest } from '../core/manifest.ts';
import { corruptWhenUnreadable } from './channel-log.ts';
import { manifestPath } from './layout.ts';

export const MANIFEST_BYTES_MAX: number = 64 << 20;

/**
 * @param location of the repository, for errors
 * @throws CubeError CORRUPT when it cannot be read, or is of another bundle or version
 */
export function readPublished(
  text: string,
  location: string,
  bundle: string,
  version: string,
): Manifest {
  const source = `${location}/${manifestPath(bundle, version)}`;
  const manifest = corruptWhenUnreadable(() => parseManifest(text, source));
  if (manifest.bundle === bundle && manifest.version === version) return manifest;
  throw new CubeError(
    'CORRUPT',
    `${source} is of ${manifest.bundle} ${manifest.version}: it was copied to a wrong place`,
  );
}
