/** Checks a repository, a bundle, a version, or a host's data folder. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { CONTENT_ID_PATTERN, NAME_PATTERN } from '../../lib/core/names.ts';
import { formatBytes } from '../../lib/platform/terminal-output.ts';
import {
  layersFolder,
  manifestPath,
  versionFolder,
  versionsFolder,
} from '../../lib/repository/layout.ts';
import { listBundles } from '../../lib/repository/repository.ts';
import {
  RepositoryChecks,
  type RepositoryRemedies,
} from '../../lib/repository/repository-checks.ts';
import { checkChannel, checkQuarantine, listChannels } from './channel-check.ts';
import type { CheckReport } from './check-report.ts';
import { checkLayerByName, LayerChecks } from './layer-checks.ts';
import { type CheckSource, toLocation } from './source.ts';
import { checkVersion, readManifest, type VersionScope } from './version-check.ts';

const RESTORE = 'put it back from another copy';
/** A damaged file of the right size is kept by publishing and fetching until it is deleted. */
const DELETE = 'delete it if it exists, then ';
const REMEDIES: RepositoryRemedies = {
  restoreAccess: 'check that the server answers, then run cube-check again',
  restoreEntry: `${RESTORE}, or remove it if it is the newest`,
  activate: () => '',
  rollBack: () => 'roll back, or activate another version',
  publishAgain: () => 'publish it again, or activate another version',
  sign: () => 'sign it with a trusted key',
  restoreManifest: () => `${RESTORE}, or publish the version under a new name`,
  restoreFile: () => `${RESTORE}, or ${DELETE}publish the version again`,
  restoreLayer: () => `${DELETE}fetch it again or publish the version again`,
};

export interface RepositoryCheckOptions {
  readonly source: CheckSource;
  /** Undefined: all bundles. */
  readonly bundle: string | undefined;
  /** Undefined: all versions of a folder; below a URL those that the channel needs. */
  readonly version: string | undefined;
  /** The channel to check below a URL, where channels cannot be listed. */
  readonly channel: string;
  readonly deep: boolean;
  /** Shards that must be there; undefined: those that the folder has. */
  readonly shards: readonly number[] | undefined;
  /** A host's data folder; undefined: if the folder has notes of an agent. */
  readonly isHost: boolean | undefined;
  /** Called for each bundle, before its layers are read, with the number of bytes to read. */
  readonly onTotal: (bytes: number) => void;
}

export async function checkRepository(
  options: RepositoryCheckOptions,
  report: CheckReport,
): Promise<void> {
  const { source, bundle: only } = options;
  const bundles = only === undefined ? await listAllBundles(source) : [only];
  for (const bundle of bundles) await checkBundle(options, bundle, report);
  const { versions, channels, files } = report.checked;
  if (versions + channels + files > 0 || report.problems.length > 0) return;
  if (only !== undefined && source.canList) {
    const known = (await listAllBundles(source)).filter((bundle) => bundle !== only);
    const what = `has no bundle ${only} (it has: ${known.join(', ') || 'none'})`;
    report.addProblem(source.location, what, { code: 'NOT_FOUND' });
    return;
  }
  report.addProblem(source.location, 'has no version of any bundle', {
    todo: "pass a layer file, a version's folder or a repository",
    code: 'NOT_FOUND',
  });
}

async function listAllBundles(source: CheckSource): Promise<string[]> {
  if (!source.canList) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${source.location}: a URL cannot be listed; ` +
        'add --bundle (and --channel), or pass the URL of a manifest.json',
    );
  }
  return listBundles(async (folder) => (await source.list(folder)) ?? []);
}

async function checkBundle(
  options: RepositoryCheckOptions,
  bundle: string,
  report: CheckReport,
): Promise<void> {
  const { source, deep, shards } = options;
  const agentNotes = (await source.list(`${bundle}/agent`)) ?? [];
  const isHost = options.isHost ?? agentNotes.length > 0;
  const checks = new RepositoryChecks(REMEDIES, (finding) => report.add(finding));
  const layers = new LayerChecks({ source, bundle, deep, report, checks });
  const scope: VersionScope = { source, bundle, report, checks, layers, shards, isHost };
  const names = await listVersions(options, scope);
  const manifests: Manifest[] = [];
  for (const name of names) {
    const manifest = await readManifest(scope, name);
    if (manifest !== undefined) manifests.push(manifest);
  }
  options.onTotal(computeTotalBytes(manifests));
  for (const manifest of manifests) await checkVersion(scope, manifest);
  if (options.version !== undefined) return;
  await checkQuarantine(scope, new Set(names));
  await checkUnreferencedLayers(scope, deep, manifests.length === names.length);
}

/** Bytes of all layers and files, each counted once. */
function computeTotalBytes(manifests: readonly Manifest[]): number {
  const sizes = new Map<string, number>();
  for (const { version, tables, files } of manifests) {
    for (const { path, bytes } of files) sizes.set(`${version}/${path}`, bytes);
    for (const table of tables) {
      for (const layer of table.shards.flat()) {
        sizes.set(`${table.name}/${layer.contentId}/`, layer.bytes);
      }
    }
  }
  return [...sizes.values()].reduce((sum, bytes) => sum + bytes, 0);
}

/** Checks the channels. @returns the versions to check, without those that have no manifest */
async function listVersions(
  { version, channel }: RepositoryCheckOptions,
  scope: VersionScope,
): Promise<string[]> {
  const { source, bundle, report } = scope;
  if (version !== undefined) return [version];
  const listed = await source.list(versionsFolder(bundle));
  if (listed === undefined) return checkChannel(scope, channel);
  for (const name of await listChannels(scope)) await checkChannel(scope, name);
  const names: string[] = [];
  for (const name of listed) {
    if (!NAME_PATTERN.test(name)) continue;
    if (await source.exists(manifestPath(bundle, name))) {
      names.push(name);
      continue;
    }
    report.addNote(
      toLocation(source, versionFolder(bundle, name)),
      'has no manifest: its publication did not finish, or the manifest is lost',
    );
  }
  return names;
}

/**
 * Reports layers that no version has: left by unfinished builds or by deleted versions.
 * @param areAllRead false when a manifest could not be read: the layers may be its own, so they are
 *   checked by their names
 */
async function checkUnreferencedLayers(
  { source, bundle, report, layers }: VersionScope,
  deep: boolean,
  areAllRead: boolean,
): Promise<void> {
  for (const table of (await source.list(layersFolder(bundle))) ?? []) {
    if (!NAME_PATTERN.test(table)) continue;
    const folder = `${layersFolder(bundle)}/${table}`;
    for (const name of (await source.list(folder)) ?? []) {
      const contentId = name.replace(/\.cube$/, '');
      const where = toLocation(source, `${folder}/${name}`);
      if (!name.endsWith('.cube') || !CONTENT_ID_PATTERN.test(contentId)) {
        report.addNote(where, 'is not a layer');
        continue;
      }
      if (layers.isReferenced(table, contentId)) continue;
      const bytes = (await source.size(`${folder}/${name}`)) ?? 0;
      if (!areAllRead) {
        const file = await source.open(`${folder}/${name}`, bytes);
        checkLayerByName(file.path, deep, report, { contentId, where });
        file.release();
      }
      const versions = areAllRead ? 'no version here' : 'no version with a readable manifest';
      report.addNote(where, `${versions} has this layer (${formatBytes(bytes)})`);
    }
  }
}
