/** `cube-agent publish`: copies a whole version from one repository into another, verified on the way. */
import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { type Command, nameOption } from '../../lib/platform/cli.ts';
import { removePath } from '../../lib/platform/files.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import { print } from '../../lib/platform/text-table.ts';
import type { LayerSource, Repository } from '../../lib/repository/repository.ts';
import { addSigningKeyOption, addTrustedKeysOption, openWithKeys } from './keys.ts';
import { said } from './options.ts';

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
  addSigningKeyOption(addTrustedKeysOption(program.command('publish')))
    .description('copy a built version from another repository')
    .requiredOption('--from <place>', 'the repository that holds the version')
    .requiredOption('--repository <place>', 'where to publish it: a folder or s3://bucket/prefix')
    .requiredOption('--bundle <name>', 'the model', nameOption('bundle'))
    .requiredOption('--version <name>', 'the version', nameOption('version'))
    .option('--dry-run', 'say what would be copied, and copy nothing')
    .option('--json', 'for programs')
    .addHelpText('after', EXAMPLES)
    .action(publish);
}

const EXAMPLES = `
Layers that are there already are not copied again; the version is visible when all of it is there.

Examples:
  cube-agent publish --from /mnt/training/models --repository /srv/models --bundle ctr-dnn --version 2
  cube-agent publish --from /srv/models --repository s3://bucket/models --bundle ctr-dnn --version 2 --dry-run`;

async function publish(options: PublishOptions): Promise<void> {
  const { from, repository, bundle, version, signingKey, trustedKeys, dryRun = false } = options;
  const source = openWithKeys({ repository: from, trustedKeys });
  const manifest = await source.manifest(bundle, version);
  const target = openWithKeys({ repository, signingKey, dryRun }, { create: !dryRun });
  if (source.location === target.location) {
    throw new CubeError('INVALID_ARGUMENT', '--from and --repository are the same repository');
  }
  const missing = await missingLayers(target, manifest);
  const report = { bundle, version, repository: target.location, dryRun, ...missing };
  const tell = (text: string, published: boolean): void =>
    print(options.json ? JSON.stringify({ ...report, published }) : said(text, options));
  if (dryRun) {
    tell(`${bundle} ${version}: ${missing.layers} layers (${missing.bytes} bytes) to copy`, false);
    return;
  }
  const published = await copy(source, target, manifest);
  const layers = manifest.tables.flatMap(({ shards }) => shards.flat()).length;
  const how = published ? 'published' : 'was there already:';
  tell(`${bundle} ${version} ${how} in ${target.location} (${layers} layers)`, published);
}

/** What the target does not have yet. */
async function missingLayers(
  target: Repository,
  { bundle, tables }: Manifest,
): Promise<{ layers: number; bytes: number }> {
  const missing = { layers: 0, bytes: 0 };
  for (const { name, shards } of tables) {
    for (const layer of shards.flat()) {
      if (await target.holdsLayer(bundle, name, layer)) continue;
      missing.layers += 1;
      missing.bytes += layer.bytes;
    }
  }
  return missing;
}

/** @returns false when it was there already */
async function copy(source: Repository, target: Repository, manifest: Manifest): Promise<boolean> {
  const { bundle, version } = manifest;
  await target.removeLeftovers(bundle);
  const files = new Map<string, Uint8Array>();
  for (const { path } of manifest.files) {
    files.set(path, await source.readVersionFile(bundle, version, path));
  }
  const bytes = manifest.tables.flatMap((t) => t.shards.flat()).reduce((n, l) => n + l.bytes, 0);
  const progress = startProgress(`copying ${bundle} ${version}`, bytes, 'bytes');
  let done = 0;
  const onBytes = (more: number): void => {
    done += more;
    progress.update(done);
  };
  try {
    const { layers, remove } = await localLayers(source, target, manifest, onBytes);
    const toTell = target.isLocal ? undefined : onBytes;
    const { published } = await target.publish({ manifest, files, layers }, toTell).finally(remove);
    return published;
  } finally {
    progress.stop();
  }
}

interface LocalLayers {
  readonly layers: readonly LayerSource[];
  /** Of what was made for this publication only. */
  remove(): void;
}

/**
 * The layers as files of this machine. Into a folder they go straight to their place, harmless before the manifest names
 * them; from a folder into a bucket they are sent from where they lie; from one remote place into another they are fetched
 * in between, those that the target holds already are not.
 */
async function localLayers(
  source: Repository,
  target: Repository,
  manifest: Manifest,
  onBytes: (bytes: number) => void,
): Promise<LocalLayers> {
  const { bundle } = manifest;
  const isThrough = !target.isLocal && !source.isLocal;
  const between = isThrough ? new TemporaryFolder('publish') : undefined;
  const layers: LayerSource[] = [];
  const remove = (): void => between?.remove();
  try {
    for (const table of manifest.tables) {
      for (const layer of table.shards.flat()) {
        const { contentId } = layer;
        const own = target.isLocal ? undefined : source.localLayer(bundle, table.name, layer);
        if (isThrough && (await target.holdsLayer(bundle, table.name, layer))) continue;
        const path =
          own ??
          (between === undefined
            ? target.layerTarget(bundle, table.name, contentId)
            : join(between.path, contentId));
        if (own === undefined)
          await fetchTo(path, (options) =>
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

/** Into a part file of its own, hidden as unfinished: two publishers must not write into one. */
async function fetchTo(
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
