/** `cube-agent publish`: copies a whole version from one repository into another, verified on the way. */
import { randomUUID } from 'node:crypto';
import { CubeError } from '../lib/core/errors.ts';
import type { Manifest } from '../lib/core/manifest.ts';
import { type Command, nameOption } from '../lib/platform/cli.ts';
import { removePath } from '../lib/platform/files.ts';
import { type Progress, startProgress } from '../lib/platform/progress.ts';
import { print } from '../lib/platform/text-table.ts';
import { type LayerSource, openRepository, type Repository } from '../lib/repository/repository.ts';

interface PublishOptions {
  readonly from: string;
  readonly repository: string;
  readonly bundle: string;
  readonly version: string;
}

export function addPublishCommand(program: Command): void {
  program
    .command('publish')
    .description('copy a built version from another repository')
    .requiredOption('--from <folder>', 'the repository that holds the version')
    .requiredOption('--repository <folder>', 'where to publish it')
    .requiredOption('--bundle <name>', 'the model', nameOption('bundle'))
    .requiredOption('--version <name>', 'the version', nameOption('version'))
    .action(publish);
}

async function publish({ from, repository, bundle, version }: PublishOptions): Promise<void> {
  const source = openRepository(from);
  const manifest = await source.manifest(bundle, version);
  const target = openRepository(repository, { create: true });
  if (source.location === target.location) {
    throw new CubeError('INVALID_ARGUMENT', '--from and --repository are the same repository');
  }
  await target.removeLeftovers(bundle);
  const files = new Map<string, Uint8Array>();
  for (const { path } of manifest.files) {
    files.set(path, await source.readVersionFile(bundle, version, path));
  }
  const bytes = manifest.tables.flatMap((t) => t.shards.flat()).reduce((n, l) => n + l.bytes, 0);
  const progress = startProgress(`copying ${bundle} ${version}`, bytes, 'bytes');
  try {
    const layers = await copyLayers(source, target, manifest, progress);
    const { published } = await target.publish({ manifest, files, layers });
    progress.stop();
    const said = published ? 'published' : 'was there already:';
    print(`${bundle} ${version} ${said} in ${target.location} (${layers.length} layers)`);
  } finally {
    progress.stop();
  }
}

/** Layers go straight to their place: before the manifest names them they are harmless. */
async function copyLayers(
  source: Repository,
  target: Repository,
  manifest: Manifest,
  progress: Progress,
): Promise<LayerSource[]> {
  const { bundle } = manifest;
  const copied: LayerSource[] = [];
  let done = 0;
  const onBytes = (bytes: number): void => {
    done += bytes;
    progress.update(done);
  };
  for (const table of manifest.tables) {
    for (const layer of table.shards.flat()) {
      const { contentId } = layer;
      const path = target.layerTarget(bundle, table.name, contentId);
      // A part file of its own, hidden as unfinished: two publishers must not write into one.
      const partPath = path.replace(/[^/\\]+$/, `.$&.${randomUUID()}.tmp`);
      try {
        await source.fetchLayer(bundle, table.name, layer, path, { partPath, onBytes });
      } catch (error) {
        removePath(partPath);
        throw error;
      }
      copied.push({ table: table.name, contentId, path });
    }
  }
  return copied;
}
