/** A repository, a bundle of it, one version, or a host's data folder: everything in it, or what is asked for. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { CONTENT_ID_PATTERN, NAME_PATTERN } from '../../lib/core/names.ts';
import { bytesText } from '../../lib/platform/text-table.ts';
import {
  channelsFolder,
  layersFolder,
  manifestPath,
  versionFolder,
  versionsFolder,
} from '../../lib/repository/layout.ts';
import { channelNames, checkChannel, checkQuarantine } from './channel-check.ts';
import type { Findings } from './findings.ts';
import { checkNamedFile, LayerChecks } from './layer-checks.ts';
import { placeOf, type Source } from './source.ts';
import { checkVersion, readManifest, type VersionScope } from './version-check.ts';

export interface RepositoryWish {
  readonly source: Source;
  /** One bundle of it; undefined: all. */
  readonly bundle: string | undefined;
  /** One version alone; undefined: all of a folder, or those that the channel wants of a URL. */
  readonly version: string | undefined;
  /** Of a URL, whose channels nobody can list. */
  readonly channel: string;
  readonly deep: boolean;
  /** Shards that must be there; undefined: as the folder has them. */
  readonly shards: readonly number[] | undefined;
  /** Undefined: a bundle whose folder has notes of an agent is a host's. */
  readonly isHost: boolean | undefined;
  /** Told before the layers are read how many bytes they have. */
  readonly onTotal: (bytes: number) => void;
}

export async function checkRepository(wish: RepositoryWish, findings: Findings): Promise<void> {
  const bundles = wish.bundle === undefined ? await bundlesOf(wish.source) : [wish.bundle];
  for (const bundle of bundles) await checkBundle(wish, bundle, findings);
  const { versions, channels, files } = findings.checked;
  if (versions + channels + files > 0 || findings.problems.length > 0) return;
  const { location } = wish.source;
  findings.problem(
    location,
    `${location} holds no version of any bundle; give a layer file, a version's folder or a repository`,
    'NOT_FOUND',
  );
}

async function bundlesOf(source: Source): Promise<string[]> {
  const names = await source.list('');
  if (names === undefined) {
    const text = `${source.location}: a URL cannot be listed; say --bundle (and --channel), or give the URL of a manifest.json`;
    throw new CubeError('INVALID_ARGUMENT', text);
  }
  const bundles: string[] = [];
  for (const name of names) {
    if (!NAME_PATTERN.test(name)) continue;
    for (const folder of [versionsFolder(name), layersFolder(name), channelsFolder(name)]) {
      if (((await source.list(folder)) ?? []).length === 0) continue;
      bundles.push(name);
      break;
    }
  }
  return bundles;
}

async function checkBundle(
  wish: RepositoryWish,
  bundle: string,
  findings: Findings,
): Promise<void> {
  const { source, deep, shards } = wish;
  const notes = await source.list(`${bundle}/agent`);
  const isHost = wish.isHost ?? (notes ?? []).length > 0;
  const layers = new LayerChecks(source, bundle, deep, findings);
  const scope: VersionScope = { source, bundle, findings, layers, shards, isHost };
  const names = await versionNames(wish, scope);
  const manifests: Manifest[] = [];
  for (const name of names) {
    const manifest = await readManifest(scope, name);
    if (manifest !== undefined) manifests.push(manifest);
  }
  wish.onTotal(totalBytes(manifests));
  for (const manifest of manifests) await checkVersion(scope, manifest);
  if (wish.version !== undefined) return;
  await checkQuarantine(scope, new Set(names));
  await checkUnnamed(scope, deep, manifests.length === names.length);
}

/** Bytes of all layers and files, each once. */
function totalBytes(manifests: readonly Manifest[]): number {
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

/** The versions to check, those that have no manifest left out; channels are checked on the way. */
async function versionNames(wish: RepositoryWish, scope: VersionScope): Promise<string[]> {
  const { source, bundle } = scope;
  if (wish.version !== undefined) return [wish.version];
  const listed = await source.list(versionsFolder(bundle));
  if (listed === undefined) return checkChannel(scope, wish.channel);
  for (const channel of await channelNames(scope)) await checkChannel(scope, channel);
  const names: string[] = [];
  for (const name of listed) {
    if (!NAME_PATTERN.test(name)) continue;
    if (await source.exists(manifestPath(bundle, name))) names.push(name);
    else {
      const place = placeOf(source, versionFolder(bundle, name));
      scope.findings.note(
        place,
        'has no manifest: its publication did not finish, or the manifest is lost',
      );
    }
  }
  return names;
}

/**
 * Layers that no version names: left by builds that did not finish, or by versions that are gone. Where a manifest cannot be
 * read they may be its layers, and are checked by themselves.
 */
async function checkUnnamed(scope: VersionScope, deep: boolean, allRead: boolean): Promise<void> {
  const { source, bundle, findings, layers } = scope;
  for (const table of (await source.list(layersFolder(bundle))) ?? []) {
    if (!NAME_PATTERN.test(table)) continue;
    const folder = `${layersFolder(bundle)}/${table}`;
    for (const name of (await source.list(folder)) ?? []) {
      const contentId = name.replace(/\.cube$/, '');
      const place = placeOf(source, `${folder}/${name}`);
      if (!name.endsWith('.cube') || !CONTENT_ID_PATTERN.test(contentId)) {
        findings.note(place, 'is no layer');
        continue;
      }
      if (layers.isNamed(table, contentId)) continue;
      const { path, bytes } = await source.open(`${folder}/${name}`, 0);
      if (!allRead) checkNamedFile(path, deep, findings);
      const whose = allRead ? 'no version here names' : 'no manifest that can be read names';
      findings.note(place, `a layer that ${whose} (${bytesText(bytes)})`);
    }
  }
}
