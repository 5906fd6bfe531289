/** Checks one version: its manifest, the files of its folder, and its layers. */

import {
  getShardNum,
  type Manifest,
  requireStoredForm,
  type TableRef,
} from '../../lib/core/manifest.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { processKeys } from '../../lib/platform/encryption-keys.ts';
import { isSealedFile } from '../../lib/platform/sealed-file.ts';
import {
  isManifestSignature,
  layerPath,
  manifestPath,
  versionFilePath,
  versionFolder,
} from '../../lib/repository/layout.ts';
import {
  MANIFEST_BYTES_MAX,
  parsePublishedManifest,
} from '../../lib/repository/published-manifest.ts';
import { requireVersionKeys } from '../../lib/repository/rewrap.ts';
import { computeFileSha256, requireContent } from '../../lib/repository/verified-copy.ts';
import {
  isVersionKeys,
  loadVersionKeys,
  VERSION_KEYS_BYTES_MAX,
} from '../../lib/repository/version-keys.ts';
import { listRequiredLayers, type RequiredLayer } from '../../lib/store/load-files.ts';
import type { ChannelScope } from './channel-check.ts';
import type { LayerChecks } from './layer-checks.ts';
import { asMissing, toLocation } from './source.ts';

export interface VersionScope extends ChannelScope {
  readonly layers: LayerChecks;
  /** A host's data folder: it has no files of versions, and layers of its own shards only. */
  readonly isHost: boolean;
  /** The shards that must be there; undefined: all, or on a host those that have a layer. */
  readonly shards: readonly number[] | undefined;
}

/** @returns undefined, with the problem reported, when it cannot be read */
export async function readManifest(
  { source, bundle, report, checks }: VersionScope,
  version: string,
): Promise<Manifest | undefined> {
  const path = manifestPath(bundle, version);
  try {
    const bytes = await source.read(path, MANIFEST_BYTES_MAX);
    report.addBytes(bytes.length);
    const text = new TextDecoder().decode(bytes);
    const manifest = parsePublishedManifest(text, source.location, bundle, version);
    if (manifest.encryption !== undefined) await loadVersionKeys(source, manifest, processKeys);
    return manifest;
  } catch (error) {
    checks.reportManifestError(version, toLocation(source, path), error, 'error');
    return undefined;
  }
}

export async function checkVersion(scope: VersionScope, manifest: Manifest): Promise<void> {
  const { source, report, bundle, isHost, shards } = scope;
  report.checked.versions += 1;
  for (const table of manifest.tables) checkRowCount(scope, manifest, table);
  if (!isHost) await checkFiles(scope, manifest);
  if (manifest.tables.length === 0) return;
  let shardsChecked = 0;
  for (let shard = 0; shard < getShardNum(manifest); shard++) {
    if (shards !== undefined && !shards.includes(shard)) continue;
    const required = listRequiredLayers(manifest, shard);
    if (isHost && shards === undefined && !(await hasAnyLayer(scope, required))) continue;
    shardsChecked += 1;
    for (const layer of required) await scope.layers.check(manifest, layer, shard);
  }
  if (shardsChecked > 0) return;
  const where = toLocation(source, manifestPath(bundle, manifest.version));
  const last = getShardNum(manifest) - 1;
  if (shards?.every((shard) => shard > last)) {
    const text = `version ${manifest.version} has only shards 0 to ${last}`;
    report.addProblem(where, text, { todo: 'pass some of them with --shards' });
    return;
  }
  report.addProblem(where, 'no layer of any of its shards is here', {
    todo: 'fetch the version again',
  });
}

function checkRowCount(
  { source, bundle, report }: VersionScope,
  { version }: Manifest,
  { name, rows, shards }: TableRef,
): void {
  const layerRows = shards.flat().reduce((sum, layer) => sum + layer.rows, 0);
  if (layerRows === rows) return;
  report.addProblem(
    toLocation(source, manifestPath(bundle, version)),
    `table ${name} has ${rows} rows, but its layers have ${layerRows} rows`,
    { todo: 'publish the version again under a new name' },
  );
}

async function hasAnyLayer(
  { source, bundle }: VersionScope,
  required: readonly RequiredLayer[],
): Promise<boolean> {
  for (const { table, layer } of required) {
    if (await source.exists(layerPath(bundle, table.name, layer.contentId))) return true;
  }
  return false;
}

async function checkFiles(scope: VersionScope, manifest: Manifest): Promise<void> {
  const { source, bundle, report, checks } = scope;
  const { version, files } = manifest;
  for (const expected of files) {
    const path = versionFilePath(bundle, version, expected.path);
    const where = toLocation(source, path);
    try {
      const file = await source.open(path, expected.bytes);
      const isSameSize = file.bytes === expected.bytes;
      const sha256 = isSameSize ? await computeFileSha256(file.path, systemClock) : undefined;
      const isSealed = isSealedFile(file.path);
      file.release();
      report.checked.files += 1;
      report.addBytes(file.bytes);
      requireContent(where, { bytes: file.bytes, sha256 }, expected);
      requireStoredForm(manifest, isSealed, where);
    } catch (error) {
      checks.reportFileError(version, where, asMissing(error, where));
    }
  }
  await checkUnlistedFiles(scope, manifest);
}

/** Checks rewrapped keys, and reports other files that the manifest does not list. */
async function checkUnlistedFiles(
  scope: VersionScope,
  { version, files }: Manifest,
): Promise<void> {
  const { source, bundle, report } = scope;
  const folder = versionFolder(bundle, version);
  const listed = new Set(['manifest.json', ...files.map(({ path }) => path)]);
  for (const name of (await source.list(folder)) ?? []) {
    const path = `${folder}/${name}`;
    if (isVersionKeys(name)) await checkKeys(scope, path);
    else if (!listed.has(name) && !isManifestSignature(name))
      report.addNote(toLocation(source, path), 'is not listed in the manifest');
  }
}

async function checkKeys({ source, report }: VersionScope, path: string): Promise<void> {
  const where = toLocation(source, path);
  try {
    const bytes = await source.read(path, VERSION_KEYS_BYTES_MAX);
    requireVersionKeys(bytes, where, processKeys);
    report.checked.files += 1;
    report.addBytes(bytes.length);
  } catch (error) {
    report.addError(where, error);
  }
}
