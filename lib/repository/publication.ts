/**
 * Publishes a version: layers, then the version's files, its signature, then the manifest. The
 * version exists once the manifest does, so a killed publisher leaves nothing visible, and running
 * it again completes the publication. Everything is put if absent in a fixed order: of two
 * publishers of different content under one name exactly one succeeds.
 *
 * Before it checks which layers exist, a publisher writes an intent: the manifest that it is going
 * to put. Garbage collection keeps what intents reference (docs/adr/0019).
 */
import { randomUUID } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import {
  formatManifest,
  formatOlderManifest,
  type LayerRef,
  type Manifest,
  parseManifest,
  requireStoredForm,
  type VersionFile,
} from '../core/manifest.ts';
import {
  computeSealedBytes,
  decodeSealedHeader,
  encodeSealedHeader,
  isSealed,
  SEALED_HEADER_BYTES,
} from '../core/sealed-format.ts';
import type { Clock } from '../platform/clock.ts';
import { faultPoint } from '../platform/fault-point.ts';
import { readSealedHeader } from '../platform/sealed-file.ts';
import type { Backend } from './backend.ts';
import { forEachConcurrent } from './for-each-concurrent.ts';
import {
  collectionMarkPath,
  intentPath,
  intentsFolder,
  layerPath,
  manifestPath,
  VERSION_FILE_BYTES_MAX,
  versionFilePath,
  versionFolder,
} from './layout.ts';
import { signManifest } from './published-manifest.ts';
import type { RepositoryKeys } from './signed-entry.ts';
import { computeFileSha256, computeSha256 } from './verified-copy.ts';

/** Layers uploaded concurrently: enough to use the network, few enough to share it. */
const CONCURRENT_LAYERS = 4;
/** A collection takes seconds; one that takes longer was probably killed. */
const COLLECTION_WAIT_MS = 60_000;
const COLLECTION_POLL_MS = 200;

export interface LayerSource {
  readonly table: string;
  readonly contentId: string;
  /** A local file, which may already be at its path in the repository. */
  readonly path: string;
}

export interface Publication {
  readonly manifest: Manifest;
  readonly files: ReadonlyMap<string, Uint8Array>;
  /**
   * Objects with rewrapped keys of an encrypted version, by name: called when the repository has
   * all layers and files, before the manifest is put.
   */
  readonly readKeyFiles?: (() => Promise<ReadonlyMap<string, Uint8Array>>) | undefined;
  /** Layers that the repository already has may be left out. */
  readonly layers: readonly LayerSource[];
}

export interface PublishReport {
  /** False if the same version was already published. */
  readonly published: boolean;
  /** Missing layers and files of a version that was already published, which are there again. */
  readonly restored: number;
}

export interface PublishContext {
  readonly backend: Backend;
  readonly keys: RepositoryKeys;
  readonly clock: Clock;
  /** Called with the bytes of layers that were stored since the last call. */
  readonly onBytes?: ((bytes: number) => void) | undefined;
}

/**
 * Publishes a version. If it is already published, puts what is missing again, and checks what is
 * there, which is never replaced.
 * @throws CubeError CONFLICT if the version exists with other content; CORRUPT if a file or layer
 *   of it is damaged; INVALID_ARGUMENT or NOT_FOUND if a file or layer of the manifest is missing
 */
export async function publishVersion(
  context: PublishContext,
  publication: Publication,
): Promise<PublishReport> {
  const { backend, keys } = context;
  const { manifest, files } = publication;
  const { bundle, version } = manifest;
  const text = formatManifest(manifest);
  const bytes = new TextEncoder().encode(text);
  parseManifest(text, 'the manifest to publish');
  checkFiles(manifest, files);
  const before = await readSameManifest(backend, manifest, bytes);
  // A complete version is only checked, so its repository may be one that cannot be written.
  const isComplete = before !== undefined && !(await hasMissing(backend, manifest));
  if (!isComplete) await announceIntent(context, manifest, bytes);
  let restored = await putLayers(context, publication);
  faultPoint('publish.layers');
  for (const file of manifest.files) {
    restored += await putVersionFile(backend, manifest, file, { files, isPublished: !!before });
  }
  for (const [name, content] of (await publication.readKeyFiles?.()) ?? []) {
    restored += await putMissing(backend, versionFilePath(bundle, version, name), content);
  }
  if (keys.signing !== undefined)
    await signManifest(backend, manifest, before ?? bytes, keys.signing);
  faultPoint('publish.files');
  const published =
    !isComplete && (await backend.putIfAbsent(manifestPath(bundle, version), bytes));
  if (published) faultPoint('publish.manifest');
  else await readSameManifest(backend, manifest, bytes);
  await removeIntents(backend, bundle, bytes);
  return { published, restored: before === undefined ? 0 : restored };
}

/** @returns whether a layer or file of the manifest is missing */
async function hasMissing(backend: Backend, manifest: Manifest): Promise<boolean> {
  const { bundle, version, files, tables } = manifest;
  const paths = [
    ...files.map(({ path }) => versionFilePath(bundle, version, path)),
    ...tables.flatMap(({ name, shards }) =>
      shards.flat().map(({ contentId }) => layerPath(bundle, name, contentId)),
    ),
  ];
  let missing = 0;
  await forEachConcurrent(paths, CONCURRENT_LAYERS, async (path) => {
    if ((await backend.size(path)) === undefined) missing += 1;
  });
  return missing > 0;
}

/** @returns how many objects were put: 1, or 0 if it exists */
async function putMissing(backend: Backend, path: string, content: Uint8Array): Promise<number> {
  if ((await backend.size(path)) !== undefined) return 0;
  return (await backend.putIfAbsent(path, content)) ? 1 : 0;
}

/**
 * Writes the intent, then waits for a garbage collection that started earlier and may not have read
 * it. So one of the two always knows of the other.
 */
async function announceIntent(
  { backend, clock }: PublishContext,
  { bundle }: Manifest,
  bytes: Uint8Array,
): Promise<void> {
  const intent = intentPath(bundle, randomUUID());
  await backend.putIfAbsent(intent, bytes);
  const collecting = collectionMarkPath(bundle);
  const startMs = clock.nowMs();
  while ((await backend.size(collecting)) !== undefined) {
    if (clock.nowMs() - startMs > COLLECTION_WAIT_MS) {
      throw new CubeError(
        'CONFLICT',
        `a garbage collection of ${bundle} has been running for more than a minute ` +
          `(its owner: ${backend.location}/${collecting}); if it was killed, run cube-agent gc ` +
          'again, then publish again',
      );
    }
    await clock.sleep(COLLECTION_POLL_MS);
  }
}

/**
 * Removes the intents of this manifest, also those of killed publishers: it is published now. If
 * the backend cannot remove objects, garbage collection does it.
 */
async function removeIntents(
  backend: Backend,
  bundle: string,
  manifest: Uint8Array,
): Promise<void> {
  const { deleter } = backend;
  if (deleter === undefined) return;
  const folder = intentsFolder(bundle);
  for (const name of await backend.list(folder)) {
    const path = `${folder}/${name}`;
    const intent = await backend.read(path, manifest.length).catch(() => undefined);
    if (intent === undefined || computeSha256(intent) !== computeSha256(manifest)) continue;
    await deleter.remove(path).catch(() => undefined);
  }
}

/**
 * @returns the published manifest, which an older release may have written without a checksum;
 *   undefined if the version is not published
 * @throws CubeError CONFLICT if it is published with another manifest
 */
async function readSameManifest(
  backend: Backend,
  manifest: Manifest,
  bytes: Uint8Array,
): Promise<Uint8Array | undefined> {
  const { bundle, version } = manifest;
  const path = manifestPath(bundle, version);
  if ((await backend.size(path)) === undefined) return undefined;
  const published = await backend.read(path, VERSION_FILE_BYTES_MAX);
  const older = new TextEncoder().encode(formatOlderManifest(manifest));
  if ([bytes, older].some((known) => Buffer.compare(known, published) === 0)) return published;
  throw new CubeError(
    'CONFLICT',
    `version ${version} of ${bundle} is published in ${backend.location} with other content; ` +
      'versions never change, so publish under a new name',
  );
}

function checkFiles(manifest: Manifest, files: ReadonlyMap<string, Uint8Array>): void {
  for (const { path, bytes, sha256 } of manifest.files) {
    const content = files.get(path);
    if (content?.length !== bytes || computeSha256(content) !== sha256) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `the manifest lists ${path} (${bytes} bytes, SHA-256 ${sha256}), but ` +
          (content === undefined ? 'the file is missing' : 'the file has other content'),
      );
    }
    requireStoredForm(manifest, isSealed(content), path);
  }
  const listed = new Set(manifest.files.map((file) => file.path));
  for (const path of files.keys()) {
    if (!listed.has(path)) {
      throw new CubeError('INVALID_ARGUMENT', `the manifest does not list the file ${path}`);
    }
  }
}

/** @returns how many layers were put */
async function putLayers(context: PublishContext, publication: Publication): Promise<number> {
  const { manifest, layers } = publication;
  const sources = new Map(layers.map((layer) => [`${layer.table}/${layer.contentId}`, layer.path]));
  const required = manifest.tables.flatMap((table) =>
    table.shards.flat().map((layer) => ({ table: table.name, layer })),
  );
  let put = 0;
  await forEachConcurrent(required, CONCURRENT_LAYERS, async ({ table, layer }) => {
    const source = sources.get(`${table}/${layer.contentId}`);
    if (await putLayer(context, manifest, table, layer, source)) put += 1;
  });
  return put;
}

/**
 * Skips a layer that a remote store has, so an interrupted publication continues where it stopped.
 * @returns false if it was there
 */
async function putLayer(
  { backend, clock, onBytes }: PublishContext,
  manifest: Manifest,
  table: string,
  layer: LayerRef,
  source: string | undefined,
): Promise<boolean> {
  const path = layerPath(manifest.bundle, table, layer.contentId);
  const local = backend.localPath(path);
  const isPresent = (await backend.size(path)) !== undefined;
  let isPut = false;
  if (source !== undefined && (local !== undefined || !isPresent)) {
    await requireLayerContent(isPresent ? (local ?? source) : source, layer, clock);
    isPut = await backend.putFileIfAbsent(path, source, onBytes);
  } else {
    onBytes?.(layer.bytes);
  }
  const size = await backend.size(path);
  if (size === layer.bytes) {
    const start = await backend.readRange(path, 0, Math.min(size, SEALED_HEADER_BYTES));
    requireStoredForm(manifest, isSealed(start), `${backend.location}/${path}`);
    if (source !== undefined && local === undefined)
      requireSameSeal(`${backend.location}/${path}`, start, source);
    return isPut;
  }
  if (size === undefined) {
    throw new CubeError(
      'NOT_FOUND',
      `layer ${layer.contentId} of table ${table} is in the manifest, but it was not provided ` +
        `and ${backend.location} does not have it; build it again`,
    );
  }
  throw new CubeError(
    'CORRUPT',
    `${backend.location}/${path} has ${size} bytes instead of ${layer.bytes}; ` +
      'remove this damaged file and publish again',
  );
}

/**
 * A sealed layer that was there before may have been sealed with another key; its size is the same.
 * @throws CubeError CONFLICT
 */
function requireSameSeal(path: string, stored: Uint8Array, source: string): void {
  const own = readSealedHeader(source);
  if (own === undefined) return;
  if (Buffer.compare(stored, encodeSealedHeader(own)) === 0) return;
  const { keyId } = decodeSealedHeader(stored, path, computeSealedBytes(own.clearBytes));
  throw new CubeError(
    'CONFLICT',
    `${path} has the same layer, encrypted with key ${keyId} instead of ` +
      `${own.keyId}; build with key ${keyId} as the first key, or publish under another bundle`,
  );
}

/** Builders reuse existing layer files, so each file is verified before it is published. */
async function requireLayerContent(source: string, layer: LayerRef, clock: Clock): Promise<void> {
  const sha256 = await computeFileSha256(source, clock);
  if (sha256 === layer.sha256) return;
  throw new CubeError(
    'CORRUPT',
    `${source} has SHA-256 ${sha256} instead of ${layer.sha256}; ` +
      'remove this damaged file, then build or publish again',
  );
}

/** @returns how many files were put: 1, or 0 if it is there */
async function putVersionFile(
  backend: Backend,
  { bundle, version }: Manifest,
  file: VersionFile,
  { files, isPublished }: { files: Publication['files']; isPublished: boolean },
): Promise<number> {
  const content = files.get(file.path) ?? new Uint8Array(0);
  const path = versionFilePath(bundle, version, file.path);
  if ((await putMissing(backend, path, content)) === 1) return 1;
  if ((await backend.size(path)) === file.bytes) {
    const present = await backend.read(path, VERSION_FILE_BYTES_MAX);
    if (computeSha256(present) === file.sha256) return 0;
  }
  if (isPublished) {
    throw new CubeError(
      'CORRUPT',
      `${backend.location}/${path} is damaged: it has other content than the manifest says; ` +
        'remove this file and publish again',
    );
  }
  throw new CubeError(
    'CONFLICT',
    `${backend.location}/${path} exists with other content, from an unfinished or concurrent ` +
      'publication; publish under a new version name, or, if no publication is running, remove ' +
      `${backend.location}/${versionFolder(bundle, version)} and retry`,
  );
}
