/** Opens layer files, sealed or not, with the keys of this process. */
import { type Manifest, requireStoredForm } from '../core/manifest.ts';
import type { SealedHeader } from '../core/sealed-format.ts';
import { processKeys } from '../platform/encryption-keys.ts';
import { type ByteReader, isSealedFile, openMaybeSealed } from '../platform/sealed-file.ts';

/**
 * The clear bytes of a layer file; the caller closes it.
 * @throws CubeError NOT_FOUND; DENIED without the key of a sealed file; CORRUPT
 */
export function openLayerFile(path: string): ByteReader {
  const dataKey = (header: SealedHeader): Uint8Array => processKeys.openDataKey(header, path);
  return openMaybeSealed(path, dataKey);
}

/**
 * For readers that open layers of a version by path, before they do.
 * @throws CubeError CORRUPT unless the file is sealed exactly when the version is encrypted
 */
export function requireLayerForm(manifest: Manifest, path: string): void {
  requireStoredForm(manifest, isSealedFile(path), path);
}
