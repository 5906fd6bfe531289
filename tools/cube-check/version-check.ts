/** One version: its manifest, the files of its folder, its layers, and that they are put together as the manifest says. */
import { CubeError } from '../../lib/core/errors.ts';
import { type Manifest, shardNumOf, type TableRef } from '../../lib/core/manifest.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import {
  isManifestSignature,
  layerPath,
  manifestPath,
  versionFilePath,
  versionFolder,
} from '../../lib/repository/layout.ts';
import { MANIFEST_BYTES_MAX, readPublished } from '../../lib/repository/published-manifest.ts';
import { fileSha256 } from '../../lib/repository/verified-copy.ts';
import { type WantedLayer, wantedLayers } from '../../lib/store/wanted-layers.ts';
import type { Findings } from './findings.ts';
import type { LayerChecks } from './layer-checks.ts';
import { placeOf, type Source } from './source.ts';

export interface VersionScope {
  readonly source: Source;
  readonly bundle: string;
  readonly findings: Findings;
  readonly layers: LayerChecks;
  /** A host's data folder: it has no files of versions, and layers of its own shards only. */
  readonly isHost: boolean;
  /** The shards that must be there. Undefined: all; of a host: those it has layers of. */
  readonly shards: readonly number[] | undefined;
}

/** @returns undefined, with the problem told, when it cannot be read */
export async function readManifest(
  { source, bundle, findings }: VersionScope,
  version: string,
): Promise<Manifest | undefined> {
  const path = manifestPath(bundle, version);
  try {
    const bytes = await source.read(path, MANIFEST_BYTES_MAX);
    findings.addBytes(bytes.length);
    return readPublished(new TextDecoder().decode(bytes), source.location, bundle, version);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const remedy = '; put it back from another copy, or publish the version under a new name';
    findings.problem(placeOf(source, path), message + (code === 'CORRUPT' ? remedy : ''), code);
    return undefined;
  }
}

export async function checkVersion(scope: VersionScope, manifest: Manifest): Promise<void> {
  const { findings } = scope;
  findings.checked.versions += 1;
  for (const table of manifest.tables) checkRowCount(scope, manifest, table);
  if (!scope.isHost) await checkFiles(scope, manifest);
  if (manifest.tables.length === 0) return;
  let here = 0;
  for (let shard = 0; shard < shardNumOf(manifest); shard++) {
    if (scope.shards !== undefined && !scope.shards.includes(shard)) continue;
    const wanted = wantedLayers(manifest, shard);
    if (scope.isHost && scope.shards === undefined && !(await holdsAny(scope, wanted))) continue;
    here += 1;
    for (const layer of wanted) await scope.layers.check(manifest, layer, shard);
  }
  if (here > 0) return;
  const place = placeOf(scope.source, manifestPath(scope.bundle, manifest.version));
  findings.problem(place, `${place}: no layer of any of its shards is here; fetch it again`);
}

function checkRowCount({ source, bundle, findings }: VersionScope, m: Manifest, t: TableRef): void {
  const rows = t.shards.flat().reduce((sum, layer) => sum + layer.rows, 0);
  if (rows === t.rows) return;
  const place = placeOf(source, manifestPath(bundle, m.version));
  findings.problem(
    place,
    `${place}: table ${t.name} has ${t.rows} rows, its layers have ${rows}; publish the version under a new name`,
  );
}

async function holdsAny(
  { source, bundle }: VersionScope,
  wanted: readonly WantedLayer[],
): Promise<boolean> {
  for (const { table, layer } of wanted) {
    if (await source.exists(layerPath(bundle, table.name, layer.contentId))) return true;
  }
  return false;
}

async function checkFiles(scope: VersionScope, manifest: Manifest): Promise<void> {
  const { source, bundle, findings } = scope;
  for (const { path: name, bytes, sha256 } of manifest.files) {
    const path = versionFilePath(bundle, manifest.version, name);
    const place = placeOf(source, path);
    try {
      const file = await source.open(path, bytes);
      const found = file.bytes === bytes ? await fileSha256(file.path, systemClock) : undefined;
      file.release();
      findings.checked.files += 1;
      findings.addBytes(file.bytes);
      const what =
        found === undefined
          ? `${file.bytes} bytes, the manifest says ${bytes}`
          : `SHA-256 ${found}, the manifest says ${sha256}`;
      if (found !== sha256) {
        findings.problem(place, `${place}: ${what}; put it back from another copy`);
      }
    } catch (error) {
      const { code, message } = CubeError.from(error);
      const absent = `${place} is missing; put it back from another copy`;
      findings.problem(place, code === 'NOT_FOUND' ? absent : message, code);
    }
  }
  await noteOthers(scope, manifest);
}

/** Files that the manifest does not list, and that do not sign it: nobody reads them. */
async function noteOthers({ source, bundle, findings }: VersionScope, m: Manifest): Promise<void> {
  const folder = versionFolder(bundle, m.version);
  const listed = new Set(['manifest.json', ...m.files.map(({ path }) => path)]);
  for (const name of (await source.list(folder)) ?? []) {
    if (listed.has(name) || isManifestSignature(name)) continue;
    findings.note(placeOf(source, `${folder}/${name}`), 'the manifest does not list it');
  }
}
