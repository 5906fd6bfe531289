/**
 * Publishing a version: layers, then the version's files, its signature, then the manifest. The manifest makes the version
 * exist, so a publisher killed at any point leaves nothing visible, and running it again completes it. Everything is put if
 * absent in one fixed order: of two publishers of different contents under one name exactly one gets through.
 *
 * Before it looks which layers are there, a publisher tells garbage collection what it will name (docs/adr/0019).
 */
import { randomUUID } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import {
  formatManifest,
  type LayerRef,
  type Manifest,
  parseManifest,
  type VersionFile,
} from '../core/manifest.ts';
import type { Clock } from '../platform/clock.ts';
import { faultPoint } from '../platform/fault-point.ts';
import type { Backend } from './backend.ts';
import type { Keys } from './entries.ts';
import {
  collectingPath,
  intentPath,
  intentsFolder,
  layerPath,
  manifestPath,
  versionFilePath,
  versionFolder,
} from './layout.ts';
import { forEachAtOnce } from './parallel.ts';
import { signManifest } from './published-manifest.ts';
import { bytesSha256, fileSha256 } from './verified-copy.ts';

/** A manifest or a file of a version's folder (not a layer): read whole into memory. */
export const VERSION_FILE_BYTES_MAX: number = 2 ** 31;
/** Layers uploaded at once: enough to fill a network, few enough to share it. */
const LAYERS_AT_ONCE = 4;
/** A collection looks at its bundle for seconds; one that takes longer was killed. */
const COLLECTION_WAIT_MS = 60_000;
const COLLECTION_POLL_MS = 200;

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

export interface PublishContext {
  readonly backend: Backend;
  readonly keys: Keys;
  readonly clock: Clock;
  /** Bytes of layers that are in place since the last call. */
  readonly onBytes?: ((bytes: number) => void) | undefined;
}

/**
 * @throws CubeError CONFLICT when the version exists with other content; INVALID_ARGUMENT or NOT_FOUND when the
 *   manifest names what was not given
 */
export async function publishVersion(
  context: PublishContext,
  publication: Publication,
): Promise<PublishReport> {
  const { backend, keys } = context;
  const { manifest, files } = publication;
  const text = formatManifest(manifest);
  const bytes = new TextEncoder().encode(text);
  parseManifest(text, 'the manifest to publish');
  checkFiles(manifest, files);
  const sign = async (): Promise<void> => {
    if (keys.signing !== undefined) await signManifest(backend, manifest, bytes, keys.signing);
  };
  if (await holdsManifest(backend, manifest, bytes)) {
    await sign();
    await forgetIntents(backend, manifest.bundle, bytes);
    return { published: false };
  }
  await announce(context, manifest, bytes);
  await putLayers(context, publication);
  faultPoint('publish.layers');
  for (const file of manifest.files) await putVersionFile(backend, manifest, file, files);
  await sign();
  faultPoint('publish.files');
  const published = await backend.putIfAbsent(
    manifestPath(manifest.bundle, manifest.version),
    bytes,
  );
  if (published) faultPoint('publish.manifest');
  else await holdsManifest(backend, manifest, bytes);
  await forgetIntents(backend, manifest.bundle, bytes);
  return { published };
}

/**
 * Tells what will be named, then waits for a garbage collection that began before and may not have heard: so one of the two
 * always knows of the other.
 */
async function announce(
  { backend, clock }: PublishContext,
  { bundle }: Manifest,
  bytes: Uint8Array,
): Promise<void> {
  const intent = intentPath(bundle, randomUUID());
  await backend.putIfAbsent(intent, bytes);
  const collecting = collectingPath(bundle);
  const startMs = clock.nowMs();
  while ((await backend.size(collecting)) !== undefined) {
    if (clock.nowMs() - startMs > COLLECTION_WAIT_MS) {
      throw new CubeError(
        'CONFLICT',
        `a garbage collection of ${bundle} has not ended for a minute (${backend.location}/${collecting} ` +
          'says whose it is); when it was killed, run cube-agent gc again, then publish again',
      );
    }
    await clock.sleep(COLLECTION_POLL_MS);
  }
}

/**
 * Removes what publishers of this very manifest have told, killed ones too: it is published now. Where nothing may be removed,
 * garbage collection does it.
 */
async function forgetIntents(
  backend: Backend,
  bundle: string,
  manifest: Uint8Array,
): Promise<void> {
  const { eraser } = backend;
  if (eraser === undefined) return;
  const folder = intentsFolder(bundle);
  for (const name of await backend.list(folder)) {
    const path = `${folder}/${name}`;
    const told = await backend.read(path, manifest.length).catch(() => undefined);
    if (told === undefined || bytesSha256(told) !== bytesSha256(manifest)) continue;
    await eraser.remove(path).catch(() => undefined);
  }
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

async function putLayers(context: PublishContext, publication: Publication): Promise<void> {
  const { manifest, layers } = publication;
  const sources = new Map(layers.map((layer) => [`${layer.table}/${layer.contentId}`, layer.path]));
  const wanted = manifest.tables.flatMap((table) =>
    table.shards.flat().map((layer) => ({ table: table.name, layer })),
  );
  await forEachAtOnce(wanted, LAYERS_AT_ONCE, async ({ table, layer }) => {
    const source = sources.get(`${table}/${layer.contentId}`);
    await putLayer(context, manifest.bundle, table, layer, source);
  });
}

/** A layer that another store holds whole is not sent again: an interrupted publication goes on where it stopped. */
async function putLayer(
  { backend, clock, onBytes }: PublishContext,
  bundle: string,
  table: string,
  layer: LayerRef,
  source: string | undefined,
): Promise<void> {
  const path = layerPath(bundle, table, layer.contentId);
  const isLocal = backend.localPath(path) !== undefined;
  if (source !== undefined && (isLocal || (await backend.size(path)) === undefined)) {
    await requireContent(source, layer, clock);
    await backend.putFileIfAbsent(path, source, onBytes);
  } else {
    onBytes?.(layer.bytes);
  }
  const size = await backend.size(path);
  if (size === layer.bytes) return;
  if (size === undefined) {
    throw new CubeError(
      'NOT_FOUND',
      `the manifest names layer ${layer.contentId} of table ${table}; it was not given, ` +
        `and ${backend.location} does not hold it`,
    );
  }
  throw new CubeError(
    'CORRUPT',
    `${backend.location}/${path}: ${size} bytes, its content has ${layer.bytes}; ` +
      'remove this damaged file and publish again',
  );
}

/** A builder keeps a layer that it finds in place, so what is about to be published is read once more. */
async function requireContent(source: string, layer: LayerRef, clock: Clock): Promise<void> {
  const sha256 = await fileSha256(source, clock);
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
