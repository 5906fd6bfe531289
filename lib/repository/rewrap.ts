/**
 * Writes, checks and copies objects with rewrapped keys (version-keys.ts): the part that servers
 * and serving, which only read them, need not load.
 */
import { CubeError } from '../core/errors.ts';
import type { Manifest } from '../core/manifest.ts';
import { NAME_PATTERN } from '../core/names.ts';
import {
  decodeSealedHeader,
  SEALED_HEADER_BYTES,
  type SealedHeader,
} from '../core/sealed-format.ts';
import type { EncryptionKey, KeyRing, RewrappedKey } from '../platform/encryption-keys.ts';
import type { Backend } from './backend.ts';
import { layerPath, versionFilePath, versionFolder, versionsFolder } from './layout.ts';
import {
  formatVersionKeys,
  isVersionKeys,
  loadVersionKeys,
  parseKeyId,
  parseVersionKeys,
  VERSION_KEYS_BYTES_MAX,
  type VersionName,
  versionKeysName,
} from './version-keys.ts';

/** Without the object the new key opens nothing, so the old key is still needed. */
const WRAP_AGAIN = 'remove this file and run cube-builder rewrap again with the old key';

/**
 * Checks an object with rewrapped keys: that it is whole, and that its key, if the ring has it,
 * opens every entry.
 * @throws CubeError CORRUPT naming it and what to do
 */
export function requireVersionKeys(bytes: Uint8Array, path: string, ring: KeyRing): RewrappedKey[] {
  const keyId = parseKeyId(path.slice(path.lastIndexOf('/') + 1));
  const key = ring.find(keyId);
  try {
    const keys = parseVersionKeys(bytes, path, keyId);
    if (key === undefined || keys.every(({ wrappedKey }) => openEntry(key, wrappedKey)))
      return keys;
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw code === 'CORRUPT' ? new CubeError(code, `${message}; ${WRAP_AGAIN}`) : error;
  }
  throw new CubeError(
    'CORRUPT',
    `${path} is damaged: key ${keyId} does not open it; ${WRAP_AGAIN}`,
  );
}

function openEntry(key: EncryptionKey, wrappedKey: Uint8Array): boolean {
  const dataKey = key.unwrap(wrappedKey);
  dataKey?.fill(0);
  return dataKey !== undefined;
}

/**
 * The objects with rewrapped keys of a version, by name.
 * @param keyIds names to probe where the store cannot list
 */
export async function readVersionKeyFiles(
  backend: Backend,
  { bundle, version }: VersionName,
  keyIds: readonly string[],
): Promise<Map<string, Uint8Array>> {
  const files = new Map<string, Uint8Array>();
  const names = backend.canList
    ? (await backend.list(versionFolder(bundle, version))).filter(isVersionKeys)
    : keyIds.map(versionKeysName);
  for (const name of names) {
    const path = versionFilePath(bundle, version, name);
    if (!backend.canList && (await backend.size(path)) === undefined) continue;
    files.set(name, await backend.read(path, VERSION_KEYS_BYTES_MAX));
  }
  return files;
}

/**
 * Puts the data keys of all files and layers of a version, wrapped by a new key. Nothing else is
 * written, so a killed run changes nothing.
 * @returns how many keys were wrapped; 0 if this was done before
 * @throws CubeError DENIED if the ring lacks the key of a file; CORRUPT if this was done before,
 *   but what was written does not open the version
 */
export async function rewrapVersion(
  backend: Backend,
  manifest: Manifest,
  ring: KeyRing,
  to: EncryptionKey,
): Promise<number> {
  const { bundle, version } = manifest;
  const path = versionFilePath(bundle, version, versionKeysName(to.keyId));
  if ((await backend.size(path)) !== undefined) {
    await requireAllKeys(backend, manifest, ring, to);
    return 0;
  }
  const keys = await listRewrappedKeys(backend, manifest, ring, to);
  if (keys.length === 0) return 0;
  const put = await backend.putIfAbsent(path, formatVersionKeys(to.keyId, keys));
  return put ? keys.length : 0;
}

/**
 * The object with rewrapped keys of a version whose layers and files are stored, by name: layers
 * that it shares with other versions may have been sealed with an older key.
 * @returns nothing if `to` opens all of them
 * @throws CubeError DENIED if the ring lacks the key of a layer, also in other versions' objects
 */
export async function createVersionKeyFiles(
  backend: Backend,
  manifest: Manifest,
  ring: KeyRing,
  to: EncryptionKey,
): Promise<Map<string, Uint8Array>> {
  const keys = await listRewrappedKeys(backend, manifest, ring, to);
  if (keys.length === 0) return new Map();
  return new Map([[versionKeysName(to.keyId), formatVersionKeys(to.keyId, keys)]]);
}

/**
 * Checks that the object with the keys that `to` wrapped opens each file and layer of the version,
 * with the same data key as the older key, where the ring has that.
 * @throws CubeError CORRUPT
 */
async function requireAllKeys(
  backend: Backend,
  manifest: Manifest,
  ring: KeyRing,
  to: EncryptionKey,
): Promise<void> {
  const { bundle, version } = manifest;
  const path = versionFilePath(bundle, version, versionKeysName(to.keyId));
  const name = `${backend.location}/${path}`;
  const stored = requireVersionKeys(await backend.read(path, VERSION_KEYS_BYTES_MAX), name, ring);
  const toName = (contentId: string, keyId: string): string => `${contentId} ${keyId}`;
  const wrapped = new Map(
    stored.map((key) => [toName(key.contentId, key.sealedBy), key.wrappedKey]),
  );
  for (const sealed of await listSealedByOthers(backend, manifest, to)) {
    const { contentId, keyId, wrappedKey } = sealed.header;
    const entry = wrapped.get(toName(contentId, keyId));
    const dataKey = entry === undefined ? undefined : to.unwrap(entry);
    const older = ring.find(keyId)?.unwrap(wrappedKey) ?? dataKey;
    const isSame =
      dataKey !== undefined && older !== undefined && Buffer.compare(dataKey, older) === 0;
    dataKey?.fill(0);
    older?.fill(0);
    if (isSame) continue;
    throw new CubeError('CORRUPT', `${name} does not open ${sealed.name}; ${WRAP_AGAIN}`);
  }
}

/** A file or layer with the header that was read. */
interface SealedObject {
  readonly header: SealedHeader;
  readonly name: string;
}

/** The files and layers of a version that were sealed by other keys than `to`. */
async function listSealedByOthers(
  backend: Backend,
  { bundle, version, files, tables }: Manifest,
  to: EncryptionKey,
): Promise<SealedObject[]> {
  const objects = new Map<string, number>();
  for (const file of files) objects.set(versionFilePath(bundle, version, file.path), file.bytes);
  for (const { name, shards } of tables) {
    for (const layer of shards.flat()) {
      objects.set(layerPath(bundle, name, layer.contentId), layer.bytes);
    }
  }
  const sealed: SealedObject[] = [];
  for (const [path, bytes] of objects) {
    const page = await backend.readRange(path, 0, Math.min(bytes, SEALED_HEADER_BYTES));
    const name = `${backend.location}/${path}`;
    const header = decodeSealedHeader(page, name, bytes);
    if (header.keyId !== to.keyId) sealed.push({ header, name });
  }
  return sealed;
}

/** The data keys of a version that `to` does not open yet, wrapped by it. */
async function listRewrappedKeys(
  backend: Backend,
  manifest: Manifest,
  ring: KeyRing,
  to: EncryptionKey,
): Promise<RewrappedKey[]> {
  const keys: RewrappedKey[] = [];
  const openDataKey = createKeyOpener(backend, manifest.bundle, ring);
  for (const { header, name } of await listSealedByOthers(backend, manifest, to)) {
    const dataKey = await openDataKey(header, name);
    const { contentId, keyId: sealedBy } = header;
    keys.push({ contentId, sealedBy, wrappedKey: to.wrap(dataKey) });
    dataKey.fill(0);
  }
  return keys;
}

/** Opens data keys, if need be with the rewrapped keys of all versions of the bundle. */
function createKeyOpener(
  backend: Backend,
  bundle: string,
  ring: KeyRing,
): (header: SealedHeader, name: string) => Promise<Uint8Array> {
  let hasLoaded = false;
  return async (header, name) => {
    try {
      return ring.openDataKey(header, name);
    } catch (error) {
      if (hasLoaded || CubeError.from(error).code !== 'DENIED') throw error;
    }
    hasLoaded = true;
    for (const version of await backend.list(versionsFolder(bundle))) {
      if (NAME_PATTERN.test(version)) await loadVersionKeys(backend, { bundle, version }, ring);
    }
    return ring.openDataKey(header, name);
  };
}
