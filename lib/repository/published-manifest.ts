/**
 * Reads and signs manifests in a repository or a host's data folder. Everything else of a version
 * is referenced by SHA-256 from its manifest, so the manifest's signature covers the whole version.
 */
import { CubeError } from '../core/errors.ts';
import { type Manifest, parseManifest } from '../core/manifest.ts';
import { SHA256_PATTERN } from '../core/names.ts';
import type { Backend } from './backend.ts';
import { manifestPath, manifestSignaturePath } from './layout.ts';
import type { SigningKey, TrustedKeys } from './signatures.ts';
import { describeTrustedKeys, putEntry, readEntry, rethrowAsCorrupt } from './signed-entry.ts';
import { computeSha256 } from './verified-copy.ts';

export const MANIFEST_BYTES_MAX: number = 64 << 20;

/**
 * @param location of the repository, for errors
 * @throws CubeError CORRUPT if it cannot be parsed, or is of another bundle or version
 */
export function parsePublishedManifest(
  text: string,
  location: string,
  bundle: string,
  version: string,
): Manifest {
  const source = `${location}/${manifestPath(bundle, version)}`;
  const manifest = rethrowAsCorrupt(() => parseManifest(text, source));
  if (manifest.bundle === bundle && manifest.version === version) return manifest;
  throw new CubeError(
    'CORRUPT',
    `${source} is the manifest of ${manifest.bundle} ${manifest.version}, copied to a wrong path`,
  );
}

/**
 * Writes a signature of a manifest that is published, or about to be.
 * @returns false if this key has already signed it
 * @throws CubeError CONFLICT if this key has signed other content of this version
 */
export async function signManifest(
  backend: Backend,
  { bundle, version }: Pick<Manifest, 'bundle' | 'version'>,
  bytes: Uint8Array,
  signing: SigningKey,
): Promise<boolean> {
  const path = manifestSignaturePath(bundle, version, signing.keyId);
  const sha256 = computeSha256(bytes);
  if (await putEntry(backend, path, { manifest: sha256 }, signing)) return true;
  if ((await readSignedSha256(backend, path)) === sha256) return false;
  throw new CubeError(
    'CONFLICT',
    `${backend.location}/${path} signs other content, of an unfinished publication; ` +
      'publish under a new version name, or remove it and retry',
  );
}

/** @throws CubeError DENIED unless a trusted key signed exactly these bytes for this version */
export async function requireSignedManifest(
  backend: Backend,
  { bundle, version }: Pick<Manifest, 'bundle' | 'version'>,
  bytes: Uint8Array,
  trusted: TrustedKeys,
): Promise<void> {
  const sha256 = computeSha256(bytes);
  let reason = 'is not signed';
  for (const keyId of trusted.keyIds) {
    const path = manifestSignaturePath(bundle, version, keyId);
    if ((await backend.size(path)) === undefined) continue;
    try {
      if ((await readSignedSha256(backend, path, trusted)) === sha256) return;
      reason = `has other content than key ${keyId} signed`;
    } catch (error) {
      // Another key may have signed it too.
      reason = `has no valid signature (${CubeError.from(error).message})`;
    }
  }
  throw new CubeError(
    'DENIED',
    `the manifest of version ${version} of ${bundle} in ${backend.location} ${reason}; ` +
      describeTrustedKeys(trusted),
  );
}

async function readSignedSha256(
  backend: Backend,
  path: string,
  trusted?: TrustedKeys,
): Promise<string> {
  const json = await readEntry(backend, path, trusted);
  return rethrowAsCorrupt(() => json.field('manifest').string(SHA256_PATTERN, '64 hex digits'));
}
