/** `cube-agent publish`: copies a version from one repository to another and verifies it. */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { Command } from '../../lib/platform/cli.ts';
import { removePath } from '../../lib/platform/files.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import type { LayerSource, PublishReport, Repository } from '../../lib/repository/repository.ts';
import {
  addBundleOption,
  addDryRunOption,
  addJsonOption,
  addSigningKeyOption,
  addTrustedKeysOption,
  addVersionOption,
  openRepositoryWithKeys,
  withDryRunNote,
} from './options.ts';

interface PublishOptions {
  readonly from: string;
  readonly repository: string;
  readonly bundle: string;
  readonly version: string;
  readonly signingKey?: string;
  readonly trustedKeys?: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

export function addPublishCommand(program: Command): void {
  const command = addSigningKeyOption(addTrustedKeysOption(program.command('publish')))
    .description('Copy a version from another repository')
    .requiredOption('--from <location>', 'Repository that has the version')
    .requiredOption(
      '--repository <location>',
      'Repository to copy to: a folder or s3://bucket/prefix',
    );
  addJsonOption(addDryRunOption(addVersionOption(addBundleOption(command), 'Version to copy')))
    .addHelpText('after', EXAMPLES)
    .action(publish);
}

const EXAMPLES = `
Layers that the target repository has are not copied again. The version becomes visible when it is
complete. If it is already published, missing files of it are restored, and damaged ones reported.

Examples:
  cube-agent publish --from /mnt/training/models --repository /srv/models \\
    --bundle ctr-dnn --version 2
  cube-agent publish --from /srv/models --repository s3://bucket/models \\
    --bundle ctr-dnn --version 2 --dry-run`;

async function publish(options: PublishOptions): Promise<void> {
  const { from, repository, bundle, version, signingKey, trustedKeys, dryRun = false } = options;
  const source = openRepositoryWithKeys({ repository: from, trustedKeys });
  const manifest = await source.readManifest(bundle, version);
  const target = openRepositoryWithKeys({ repository, signingKey, dryRun }, { create: !dryRun });
  if (source.location === target.location) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      '--from and --repository are the same repository; pass two different ones',
    );
  }
  const missing = await countMissingLayers(target, manifest);
  const report = { bundle, version, repository: target.location, dryRun, ...missing };
  const tell = (text: string, outcome: PublishReport): void =>
    printLine(
      options.json ? JSON.stringify({ ...report, ...outcome }) : withDryRunNote(text, options),
    );
  if (dryRun) {
    tell(`${bundle} ${version}: ${missing.layers} layers (${missing.bytes} bytes) to copy`, {
      published: false,
      restored: 0,
    });
    return;
  }
  const outcome = await copyVersion(source, target, manifest);
  const layers = manifest.tables.flatMap(({ shards }) => shards.flat()).length;
  // The layers of a folder are there before the version is published.
  const restored =
    outcome.published || !target.isLocal ? outcome.restored : outcome.restored + missing.layers;
  const how = outcome.published ? 'published' : 'was already published';
  const note = restored === 0 ? '' : `; missing files restored: ${restored}`;
  tell(`${bundle} ${version} ${how} in ${target.location} (${layers} layers)${note}`, {
    ...outcome,
    restored,
  });
}

/** The layers that the target does not have. */
async function countMissingLayers(
  target: Repository,
  { bundle, tables }: Manifest,
): Promise<{ layers: number; bytes: number }> {
  const missing = { layers: 0, bytes: 0 };
  for (const { name, shards } of tables) {
    for (const layer of shards.flat()) {
      if (await target.hasLayer(bundle, name, layer)) continue;
      missing.layers += 1;
      missing.bytes += layer.bytes;
    }
  }
  return missing;
}

async function copyVersion(
  source: Repository,
  target: Repository,
  manifest: Manifest,
): Promise<PublishReport> {
  const { bundle, version } = manifest;
  await target.removeLeftovers(bundle);
  const files = new Map<string, Uint8Array>();
  for (const { path } of manifest.files) {
    files.set(path, await source.readStoredFile(bundle, version, path));
  }
  const readKeyFiles =
    manifest.encryption === undefined
      ? undefined
      : () => source.readVersionKeyFiles(bundle, version);
  const bytes = manifest.tables.flatMap((t) => t.shards.flat()).reduce((n, l) => n + l.bytes, 0);
  const progress = startProgress(`copying ${bundle} ${version}`, bytes, 'bytes');
  let done = 0;
  const onBytes = (more: number): void => {
    done += more;
    progress.update(done);
  };
  try {
    const { layers, remove } = await provideLocalLayers(source, target, manifest, onBytes);
    const onPublished = target.isLocal ? undefined : onBytes;
    return await target
      .publish({ manifest, files, readKeyFiles, layers }, onPublished)
      .finally(remove);
  } finally {
    progress.stop();
  }
}

interface LocalLayers {
  readonly layers: readonly LayerSource[];
  /** Removes temporary copies. */
  remove(): void;
}

/**
 * Provides the layers as files of this machine. For a target folder they are fetched to their final
 * paths, unused until the manifest references them. From a folder to a bucket they are sent from
 * their paths. Between two remote repositories they are fetched to a temporary folder, except for
 * those that the target has.
 */
async function provideLocalLayers(
  source: Repository,
  target: Repository,
  manifest: Manifest,
  onBytes: (bytes: number) => void,
): Promise<LocalLayers> {
  const { bundle } = manifest;
  const isBothRemote = !target.isLocal && !source.isLocal;
  const temporary = isBothRemote ? new TemporaryFolder('publish') : undefined;
  const layers: LayerSource[] = [];
  const remove = (): void => temporary?.remove();
  try {
    for (const table of manifest.tables) {
      for (const layer of table.shards.flat()) {
        const { contentId } = layer;
        const own = target.isLocal ? undefined : source.localLayerPath(bundle, table.name, layer);
        if (isBothRemote && (await target.hasLayer(bundle, table.name, layer))) continue;
        const path =
          own ??
          (temporary === undefined
            ? target.layerWritePath(bundle, table.name, contentId)
            : join(temporary.path, contentId));
        if (own === undefined)
          await fetchToOwnPart(path, (options) =>
            source.fetchLayer(bundle, table.name, layer, path, {
              ...options,
              ...(target.isLocal ? { onBytes } : {}),
            }),
          );
        layers.push({ table: table.name, contentId, path });
      }
    }
  } catch (error) {
    remove();
    throw error;
  }
  return { layers, remove };
}

/** Fetches to a hidden part file of its own: two publishers must not write to one file. */
async function fetchToOwnPart(
  path: string,
  fetch: (options: { partPath: string }) => Promise<void>,
): Promise<void> {
  const partPath = path.replace(/[^/\\]+$/, `.$&.${randomUUID()}.tmp`);
  try {
    await fetch({ partPath });
  } catch (error) {
    removePath(partPath);
    throw error;
  }
}
