/** Opens layer files, sealed or not, with the keys of this process. */
import type { SealedHeader } from '../core/sealed-format.ts';
import { processKeys } from '../platform/encryption-keys.ts';
import { type ByteReader, openMaybeSealed } from '../platform/sealed-file.ts';

/**
 * The clear bytes of a layer file; the caller closes it.
 * @throws CubeError NOT_FOUND; DENIED without the key of a sealed file; CORRUPT
 */
export function openLayerFile(path: string): ByteReader {
  const dataKey = (header: SealedHeader): Uint8Array => processKeys.openDataKey(header, path);
  return openMaybeSealed(path, dataKey);
}
