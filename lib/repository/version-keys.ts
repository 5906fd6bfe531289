/**
 * Data keys of a version that were wrapped again: `versions/<version>/keys.<keyId>.json`, one
 * object for each key-encryption key, put if absent. With it a process that has only that key opens
 * files that were sealed with an older one.
 */
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import type { Manifest } from '../core/manifest.ts';
import { CONTENT_ID_PATTERN } from '../core/names.ts';
import { toHex } from '../core/sealed-format.ts';
import type { KeyRing, RewrappedKey } from '../platform/encryption-keys.ts';
import type { Backend } from './backend.ts';
import { versionFilePath } from './layout.ts';
import { rethrowAsCorrupt } from './signed-entry.ts';
import { computeSha256 } from './verified-copy.ts';

const FORMAT = 1;
const VERSION_KEYS_FILE = /^keys\.([0-9a-f]{16})\.json$/;
const KEY_ID = /^[0-9a-f]{16}$/;
const WRAPPED_KEY = /^[0-9a-f]{80}$/;
export const VERSION_KEYS_BYTES_MAX: number = 64 << 20;

export type VersionName = Pick<Manifest, 'bundle' | 'version'>;

/** @param fileName in a version's folder */
export function isVersionKeys(fileName: string): boolean {
  return VERSION_KEYS_FILE.test(fileName);
}

/** @returns the key of an object; empty for other files */
export function parseKeyId(fileName: string): string {
  return VERSION_KEYS_FILE.exec(fileName)?.[1] ?? '';
}

export function versionKeysName(keyId: string): string {
  return `keys.${keyId}.json`;
}

export function formatVersionKeys(keyId: string, keys: readonly RewrappedKey[]): Uint8Array {
  const fields = {
    format: FORMAT,
    keyId,
    keys: keys.map(({ contentId, sealedBy, wrappedKey }) => ({
      contentId,
      sealedBy,
      wrappedKey: toHex(wrappedKey),
    })),
  };
  const sha256 = computeSha256(new TextEncoder().encode(JSON.stringify(fields)));
  return new TextEncoder().encode(`${JSON.stringify({ ...fields, sha256 })}\n`);
}

/** @throws CubeError CORRUPT */
export function parseVersionKeys(bytes: Uint8Array, name: string, keyId: string): RewrappedKey[] {
  return rethrowAsCorrupt(() => {
    const json = JsonReader.parse(new TextDecoder().decode(bytes), name);
    json.field('format').integer(FORMAT, FORMAT);
    if (json.field('keyId').string(KEY_ID, '16 hex digits') !== keyId) {
      json.field('keyId').fail(`${keyId}, as in its name`);
    }
    const keys = json
      .field('keys')
      .items({ max: 1_000_000 })
      .map((item) => ({
        contentId: item.field('contentId').string(CONTENT_ID_PATTERN, '32 hex digits'),
        sealedBy: item.field('sealedBy').string(KEY_ID, '16 hex digits'),
        wrappedKey: Buffer.from(
          item.field('wrappedKey').string(WRAPPED_KEY, '80 hex digits'),
          'hex',
        ),
      }));
    const expected = parseSha256(formatVersionKeys(keyId, keys));
    if (json.field('sha256').string() !== expected) {
      throw new CubeError('CORRUPT', `${name} is damaged: its fields do not match its SHA-256`);
    }
    return keys;
  }, '');
}

function parseSha256(text: Uint8Array): string {
  return (JSON.parse(new TextDecoder().decode(text)) as { sha256: string }).sha256;
}

/** A repository, a data folder, or what cube-check reads. */
type KeySource = Pick<Backend, 'location' | 'read'> &
  (Pick<Backend, 'size'> | { readonly exists: (path: string) => Promise<boolean> });

async function exists(source: KeySource, path: string): Promise<boolean> {
  return 'exists' in source ? source.exists(path) : (await source.size(path)) !== undefined;
}

/**
 * Gives a key ring the rewrapped keys of a version that its own keys open.
 * @returns how many objects were read, without damaged ones
 */
export async function loadVersionKeys(
  source: KeySource,
  { bundle, version }: VersionName,
  ring: KeyRing,
): Promise<number> {
  let found = 0;
  for (const keyId of ring.keyIds) {
    const path = versionFilePath(bundle, version, versionKeysName(keyId));
    if (!(await exists(source, path))) continue;
    const bytes = await source.read(path, VERSION_KEYS_BYTES_MAX);
    try {
      ring.addRewrapped(keyId, parseVersionKeys(bytes, `${source.location}/${path}`, keyId));
      found += 1;
    } catch (error) {
      // A damaged object must not stop a version that opens without it; else its key is missing.
      if (CubeError.from(error).code !== 'CORRUPT') throw error;
    }
  }
  return found;
}
