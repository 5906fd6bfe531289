/**
 * A manifest as it lies in a repository or a host's data folder: readable, of the place where it lies, and signed where
 * signatures are asked for. Everything else of a version is reached from it by SHA-256, so its signature is that of all.
 */
import { CubeError } from '../core/errors.ts';
import { type Manifest, parseManifest } from '../core/manifest.ts';
import { SHA256_PATTERN } from '../core/names.ts';
import type { Backend } from './backend.ts';
import { corruptWhenUnreadable, putEntry, readEntry, whoIsTrusted } from './entries.ts';
import { manifestPath, manifestSignaturePath } from './layout.ts';
import type { SigningKey, TrustedKeys } from './signatures.ts';
import { bytesSha256 } from './verified-copy.ts';

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

/**
 * Puts a signature beside a manifest that is published, or is about to be.
 * @returns false when this key has signed it already
 * @throws CubeError CONFLICT when this key has signed other content under this version
 */
export async function signManifest(
  backend: Backend,
  { bundle, version }: Pick<Manifest, 'bundle' | 'version'>,
  bytes: Uint8Array,
  signing: SigningKey,
): Promise<boolean> {
  const path = manifestSignaturePath(bundle, version, signing.keyId);
  const sha256 = bytesSha256(bytes);
  if (await putEntry(backend, path, { manifest: sha256 }, signing)) return true;
  if ((await signedSha256(backend, path)) === sha256) return false;
  throw new CubeError(
    'CONFLICT',
    `${backend.location}/${path} signs other content, of a publication that did not finish; ` +
      'publish under a new version, or remove it and try again',
  );
}

/** @throws CubeError DENIED unless a trusted key has signed exactly these bytes for this place */
export async function requireSigned(
  backend: Backend,
  { bundle, version }: Pick<Manifest, 'bundle' | 'version'>,
  bytes: Uint8Array,
  trusted: TrustedKeys,
): Promise<void> {
  const sha256 = bytesSha256(bytes);
  let why = 'is not signed';
  for (const keyId of trusted.keyIds) {
    const path = manifestSignaturePath(bundle, version, keyId);
    if ((await backend.size(path)) === undefined) continue;
    try {
      if ((await signedSha256(backend, path, trusted)) === sha256) return;
      why = `is not what key ${keyId} has signed`;
    } catch (error) {
      // Another key may have signed as well.
      why = `has no good signature (${CubeError.from(error).message})`;
    }
  }
  throw new CubeError(
    'DENIED',
    `the manifest of version ${version} of ${bundle} in ${backend.location} ${why}; ${whoIsTrusted(trusted)}`,
  );
}

async function signedSha256(
  backend: Backend,
  path: string,
  trusted?: TrustedKeys,
): Promise<string> {
  const json = await readEntry(backend, path, trusted);
  return corruptWhenUnreadable(() =>
    json.field('manifest').string(SHA256_PATTERN, '64 hex digits'),
  );
}
