/**
 * Publishing a version: layers, then the version's files, then the manifest. The manifest makes the version exist,
 * so a publisher killed at any point leaves nothing visible, and running it again completes it. Everything is put if
 * absent in one fixed order: of two publishers of different contents under one name exactly one gets through.
 */
import { CubeError } from '../core/errors.ts';
import {
  formatManifest,
  type LayerRef,
  type Manifest,
  parseManifest,
  type VersionFile,
} from '../core/manifest.ts';
import { systemClock } from '../platform/clock.ts';
import type { Backend } from './backend.ts';
import { layerPath, manifestPath, versionFilePath, versionFolder } from './layout.ts';
import { bytesSha256, fileSha256 } from './verified-copy.ts';

/** A manifest or a file of a version's folder (not a layer): read whole into memory. */
export const VERSION_FILE_BYTES_MAX: number = 2 ** 31;

export interface LayerSource {
  readonly table: string;
  readonly contentId: string;
  /** A local file; it may already lie in its place in the repository. */
  readonly path: string;
}

export interface Publication {
  readonly manifest: Manifest;
  readonly files: ReadonlyMap<string, Uint8Array>;
  /** Layers that the repository holds already need not be given. */
  readonly layers: readonly LayerSource[];
}

export interface PublishReport {
  /** False: the very same version was there already. */
  readonly published: boolean;
}

/**
 * @throws CubeError CONFLICT when the version exists with other content; INVALID_ARGUMENT or NOT_FOUND when the
 *   manifest names what was not given
 */
export async function publishVersion(
  backend: Backend,
  publication: Publication,
): Promise<PublishReport> {
  const { manifest, files } = publication;
  const text = formatManifest(manifest);
  const bytes = new TextEncoder().encode(text);
  parseManifest(text, 'the manifest to publish');
  checkFiles(manifest, files);
  if (await holdsManifest(backend, manifest, bytes)) return { published: false };
  await putLayers(backend, publication);
  for (const file of manifest.files) await putVersionFile(backend, manifest, file, files);
  if (await backend.putIfAbsent(manifestPath(manifest.bundle, manifest.version), bytes)) {
    return { published: true };
  }
  await holdsManifest(backend, manifest, bytes);
  return { published: false };
}

/** @returns whether this very manifest is published. @throws CubeError CONFLICT when another one is */
async function holdsManifest(
  backend: Backend,
  { bundle, version }: Manifest,
  bytes: Uint8Array,
): Promise<boolean> {
  const path = manifestPath(bundle, version);
  if ((await backend.size(path)) === undefined) return false;
  if (bytesSha256(await backend.read(path, VERSION_FILE_BYTES_MAX)) === bytesSha256(bytes)) {
    return true;
  }
  throw new CubeError(
    'CONFLICT',
    `version ${version} of ${bundle} is published in ${backend.location} with other content; ` +
      'a version never changes: publish under a new one',
  );
}

function checkFiles(manifest: Manifest, files: ReadonlyMap<string, Uint8Array>): void {
  for (const { path, bytes, sha256 } of manifest.files) {
    const content = files.get(path);
    if (content?.length !== bytes || bytesSha256(content) !== sha256) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `the manifest lists ${path} (${bytes} bytes, SHA-256 ${sha256}); ` +
          (content === undefined ? 'it was not given' : 'what was given is something else'),
      );
    }
  }
  const listed = new Set(manifest.files.map((file) => file.path));
  for (const path of files.keys()) {
    if (!listed.has(path)) {
      throw new CubeError('INVALID_ARGUMENT', `${path} was given, the manifest does not list it`);
    }
  }
}

async function putLayers(backend: Backend, { manifest, layers }: Publication): Promise<void> {
  const sources = new Map(layers.map((layer) => [`${layer.table}/${layer.contentId}`, layer.path]));
  for (const table of manifest.tables) {
    for (const layer of table.shards.flat()) {
      const path = layerPath(manifest.bundle, table.name, layer.contentId);
      const source = sources.get(`${table.name}/${layer.contentId}`);
      if (source !== undefined) {
        await requireContent(source, layer);
        await backend.putFileIfAbsent(path, source);
      }
      const size = await backend.size(path);
      if (size === layer.bytes) continue;
      if (size === undefined) {
        throw new CubeError(
          'NOT_FOUND',
          `the manifest names layer ${layer.contentId} of table ${table.name}; it was not given, ` +
            `and ${backend.location} does not hold it`,
        );
      }
      throw new CubeError(
        'CORRUPT',
        `${backend.location}/${path}: ${size} bytes, its content has ${layer.bytes}; ` +
          'remove this damaged file and publish again',
      );
    }
  }
}

/** A builder keeps a layer that it finds in place, so what is about to be published is read once more. */
async function requireContent(source: string, layer: LayerRef): Promise<void> {
  const sha256 = await fileSha256(source, systemClock);
  if (sha256 === layer.sha256) return;
  throw new CubeError(
    'CORRUPT',
    `${source}: SHA-256 ${sha256}, its content has ${layer.sha256}; ` +
      'remove this damaged file and build again',
  );
}

async function putVersionFile(
  backend: Backend,
  { bundle, version }: Manifest,
  file: VersionFile,
  files: ReadonlyMap<string, Uint8Array>,
): Promise<void> {
  const content = files.get(file.path) ?? new Uint8Array(0);
  const path = versionFilePath(bundle, version, file.path);
  if (await backend.putIfAbsent(path, content)) return;
  if ((await backend.size(path)) === file.bytes) {
    const present = await backend.read(path, VERSION_FILE_BYTES_MAX);
    if (bytesSha256(present) === file.sha256) return;
  }
  throw new CubeError(
    'CONFLICT',
    `${backend.location}/${path} is there with other content, from a publication that did not ` +
      'finish or is under way; publish under a new version, or, if nobody is publishing, remove ' +
      `${backend.location}/${versionFolder(bundle, version)} and try again`,
  );
}
