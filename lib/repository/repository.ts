/**
 * A repository of versions of bundles (docs/formats/repository.md): publishes, lists, fetches and
 * verifies versions, and moves channels. Published versions never change; a version without a
 * manifest does not exist; channels and the quarantine are append-only.
 */
import { CubeError } from '../core/errors.ts';
import { type LayerRef, type Manifest, requireStoredForm } from '../core/manifest.ts';
import { checkName, compareVersions, NAME_PATTERN } from '../core/names.ts';
import { isSealed } from '../core/sealed-format.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import { type EncryptionKey, type KeyRing, processKeys } from '../platform/encryption-keys.ts';
import { findFolderObstacle } from '../platform/files.ts';
import { openSealedBytes } from '../platform/sealed-file.ts';
import type { Backend } from './backend.ts';
import type { ChannelEntry, ChannelState } from './channel-log.ts';
import { type ActivateRequest, type Attribution, Channels } from './channels.ts';
import { DryRunBackend } from './dry-run-backend.ts';
import { ExperimentLog } from './experiment-log.ts';
import type { GarbageReport, RetentionPolicy } from './garbage-collection.ts';
import {
  channelFolder,
  channelsFolder,
  layerPath,
  layersFolder,
  manifestPath,
  outcomesFolder,
  rolloutsFolder,
  VERSION_FILE_BYTES_MAX,
  versionFilePath,
  versionFolder,
  versionsFolder,
} from './layout.ts';
import { openBackend } from './open-backend.ts';
import { type Outcome, recordOutcome } from './outcomes.ts';
import { PolicyLog } from './policy-log.ts';
import type { Publication, PublishReport } from './publication.ts';
import {
  MANIFEST_BYTES_MAX,
  parsePublishedManifest,
  requireSignedManifest,
  signManifest,
} from './published-manifest.ts';
import { RolloutLog } from './rollout-log.ts';
import type { RepositoryKeys } from './signed-entry.ts';
import {
  type CopyOptions,
  computeSha256InSlices,
  copyVerified,
  requireContent,
  verifyContent,
} from './verified-copy.ts';
import { loadVersionKeys } from './version-keys.ts';
import { removeAbandonedBuilds, WorkFolder } from './work-folder.ts';

/** Longer than any writer pauses between two chunks. */
const LEFTOVER_IDLE_MS = 3_600_000;

export type { ChannelEntry, ChannelState } from './channel-log.ts';
export type { GarbageReport, UnreadableManifest } from './garbage-collection.ts';
export type { LayerSource, Publication, PublishReport } from './publication.ts';
export type { WorkFolder } from './work-folder.ts';

let publication: typeof import('./publication.ts') | undefined;
let garbageCollection: typeof import('./garbage-collection.ts') | undefined;

/** Loads it at the first call: most processes publish nothing. */
export async function loadPublication(): Promise<typeof import('./publication.ts')> {
  publication ??= await import('./publication.ts');
  return publication;
}

/** Loads it at the first call: most processes collect no garbage. */
export async function loadGarbageCollection(): Promise<typeof import('./garbage-collection.ts')> {
  garbageCollection ??= await import('./garbage-collection.ts');
  return garbageCollection;
}

/**
 * @param location a folder, `http(s)://…` (read-only) or `s3://bucket/prefix?endpoint=…&region=…`
 * @param options.create creates a missing folder
 * @param options.keys sign what is written, and restrict what is read to what trusted keys signed
 * @param options.dryRun checks everything and writes nothing
 */
export function openRepository(
  location: string,
  options: { create?: boolean; clock?: Clock; keys?: RepositoryKeys; dryRun?: boolean } = {},
): Repository {
  const store = openBackend(location, options.create ?? false);
  const backend = options.dryRun ? new DryRunBackend(store) : store;
  return new Repository(backend, options.clock ?? systemClock, options.keys);
}

/**
 * The bundles that have at least a version, a layer or a channel.
 * @param list returns the names in a folder of the repository, none for a missing folder
 */
export async function listBundles(list: (folder: string) => Promise<string[]>): Promise<string[]> {
  const bundles: string[] = [];
  for (const name of await list('')) {
    if (!NAME_PATTERN.test(name)) continue;
    for (const folder of [versionsFolder(name), layersFolder(name), channelsFolder(name)]) {
      if ((await list(folder)).length === 0) continue;
      bundles.push(name);
      break;
    }
  }
  return bundles;
}

export class Repository {
  readonly #backend: Backend;
  readonly #keys: RepositoryKeys;
  readonly #clock: Clock;
  readonly #channels: Channels;

  constructor(backend: Backend, clock: Clock = systemClock, keys: RepositoryKeys = {}) {
    this.#backend = backend;
    this.#clock = clock;
    this.#keys = keys;
    const requireVersion = (bundle: string, version: string) => this.readManifest(bundle, version);
    this.#channels = new Channels({ backend, keys, clock, requireVersion });
  }

  get #context(): { backend: Backend; keys: RepositoryKeys; clock: Clock } {
    return { backend: this.#backend, keys: this.#keys, clock: this.#clock };
  }

  get location(): string {
    return this.#backend.location;
  }

  /** False over HTTP, where bundles, versions and channels must be named. */
  get canList(): boolean {
    return this.#backend.canList;
  }

  /** Whether it is on this machine's disk. */
  get isLocal(): boolean {
    return this.#backend.localPath('') !== undefined;
  }

  /**
   * Why the bundle cannot be changed from this machine, as far as its folders and their file system
   * tell without a write; undefined when nothing is known, as of a remote store.
   */
  findWriteObstacle(bundle: string, channel: string): CubeError | undefined {
    const folders = [
      checkName(bundle, 'bundle'),
      versionsFolder(bundle),
      layersFolder(bundle),
      channelsFolder(bundle),
      channelFolder(bundle, channel),
      rolloutsFolder(bundle),
      outcomesFolder(bundle),
    ];
    for (const folder of folders) {
      const local = this.#backend.localPath(folder);
      const obstacle = local === undefined ? undefined : findFolderObstacle(local);
      if (obstacle !== undefined) return obstacle;
    }
    return undefined;
  }

  listBundles(): Promise<string[]> {
    return listBundles((folder) => this.#list(folder));
  }

  /** Published versions, which have a manifest; numbers are sorted as numbers. */
  async listVersions(bundle: string): Promise<string[]> {
    const found: string[] = [];
    for (const name of await this.#list(versionsFolder(bundle))) {
      if (!NAME_PATTERN.test(name)) continue;
      if ((await this.#backend.size(manifestPath(bundle, name))) !== undefined) found.push(name);
    }
    return found.sort(compareVersions);
  }

  /** @throws CubeError NOT_FOUND naming what is missing; CORRUPT; DENIED */
  async readManifest(bundle: string, version: string): Promise<Manifest> {
    const text = await this.readManifestText(bundle, version);
    const manifest = parsePublishedManifest(text, this.location, bundle, version);
    if (manifest.encryption !== undefined) {
      await loadVersionKeys(this.#backend, manifest, processKeys);
    }
    return manifest;
  }

  /**
   * The manifest byte for byte as published, for a host's own copy.
   * @throws CubeError NOT_FOUND; DENIED if no trusted key has signed it
   */
  async readManifestText(bundle: string, version: string): Promise<string> {
    const path = manifestPath(bundle, version);
    if ((await this.#backend.size(path)) === undefined) {
      throw await this.#versionAbsent(bundle, version);
    }
    const bytes = await this.#backend.read(path, MANIFEST_BYTES_MAX);
    const { trusted } = this.#keys;
    if (trusted !== undefined) {
      await requireSignedManifest(this.#backend, { bundle, version }, bytes, trusted);
    }
    return new TextDecoder().decode(bytes);
  }

  /**
   * Signs a published version.
   * @returns false if this key has already signed it
   * @throws CubeError INVALID_ARGUMENT without a signing key
   */
  async sign(bundle: string, version: string): Promise<boolean> {
    const { signing } = this.#keys;
    if (signing === undefined)
      throw new CubeError('INVALID_ARGUMENT', 'there is no signing key; pass --signing-key');
    // Read without trusted keys, which would hide a version that none of them has signed yet.
    await new Repository(this.#backend, this.#clock).readManifest(bundle, version);
    const bytes = await this.#backend.read(manifestPath(bundle, version), MANIFEST_BYTES_MAX);
    return signManifest(this.#backend, { bundle, version }, bytes, signing);
  }

  /**
   * The clear content of a file of the version's folder.
   * @throws CubeError DENIED without the key of an encrypted version; CORRUPT
   */
  async readVersionFile(bundle: string, version: string, file: string): Promise<Uint8Array> {
    return this.readManifestFile(await this.readManifest(bundle, version), file);
  }

  /**
   * The same for a manifest that has been read: a version has many files, and its manifest may be
   * large.
   */
  async readManifestFile(manifest: Manifest, file: string): Promise<Uint8Array> {
    const { bundle, version } = manifest;
    const stored = await this.#readStored(manifest, file);
    if (manifest.encryption === undefined) return stored;
    const path = `${this.location}/${versionFilePath(bundle, version, file)}`;
    return openSealedBytes(stored, path, processKeys);
  }

  /**
   * A file of the version's folder as it is stored, verified against the size and SHA-256 in the
   * manifest, and sealed exactly if the version is encrypted.
   */
  async readStoredFile(bundle: string, version: string, file: string): Promise<Uint8Array> {
    return this.#readStored(await this.readManifest(bundle, version), file);
  }

  async #readStored(manifest: Manifest, file: string): Promise<Uint8Array> {
    const { bundle, version } = manifest;
    const expected = manifest.files.find((candidate) => candidate.path === file);
    if (expected === undefined) {
      const known = manifest.files.map((candidate) => candidate.path).join(', ');
      throw new CubeError(
        'NOT_FOUND',
        `version ${version} of ${bundle} has no file ${JSON.stringify(file)} (it has: ${known})`,
      );
    }
    const path = versionFilePath(bundle, version, file);
    const bytes = await this.#backend.read(path, VERSION_FILE_BYTES_MAX);
    const found = { bytes: bytes.length, sha256: await computeSha256InSlices(bytes) };
    const where = `${this.location}/${path}`;
    requireContent(where, found, expected, '; delete this file, then publish the version again');
    requireStoredForm(manifest, isSealed(bytes), where);
    return bytes;
  }

  /**
   * Wraps the data keys of an encrypted version with another key.
   * @returns how many keys were wrapped; 0 if that was done before
   * @throws CubeError DENIED if the ring lacks the key of a file
   */
  async rewrap(manifest: Manifest, ring: KeyRing, to: EncryptionKey): Promise<number> {
    const { rewrapVersion } = await import('./rewrap.ts');
    return rewrapVersion(this.#backend, manifest, ring, to);
  }

  /** The object with rewrapped keys of a version that is being published, by name. */
  async createVersionKeyFiles(
    manifest: Manifest,
    ring: KeyRing,
    to: EncryptionKey,
  ): Promise<Map<string, Uint8Array>> {
    const { createVersionKeyFiles } = await import('./rewrap.ts');
    return createVersionKeyFiles(this.#backend, manifest, ring, to);
  }

  /** Objects with rewrapped keys of a version, by name, for a copy of the version. */
  async readVersionKeyFiles(bundle: string, version: string): Promise<Map<string, Uint8Array>> {
    const { readVersionKeyFiles } = await import('./rewrap.ts');
    return readVersionKeyFiles(this.#backend, { bundle, version }, processKeys.keyIds);
  }

  /** The gate's limits for all versions of a bundle. */
  policyLog(bundle: string): PolicyLog {
    return new PolicyLog({ ...this.#context, bundle });
  }

  /** The experiments that run on a bundle. */
  experimentLog(bundle: string): ExperimentLog {
    return new ExperimentLog({ ...this.#context, bundle });
  }

  /**
   * Publishes layers, files and the manifest. Publishing the same content again changes nothing.
   * @throws CubeError CONFLICT if the version exists with other content
   */
  async publish(
    publication: Publication,
    onBytes?: (bytes: number) => void,
  ): Promise<PublishReport> {
    const { publishVersion } = await loadPublication();
    return publishVersion({ ...this.#context, onBytes }, publication);
  }

  /**
   * The final path of a layer, where a builder writes it so that publishing copies nothing. It is
   * unused until a manifest references it.
   */
  layerWritePath(bundle: string, table: string, contentId: string): string {
    const local = this.#backend.localPath(layerPath(bundle, table, contentId));
    if (local !== undefined) return local;
    throw this.#notLocalError();
  }

  /** Reads a part of a layer, which is not verified. @throws CubeError NOT_FOUND; UNAVAILABLE */
  readLayerPart(
    bundle: string,
    table: string,
    { contentId }: LayerRef,
    part: { readonly start: number; readonly bytes: number },
  ): Promise<Uint8Array> {
    return this.#backend.readRange(layerPath(bundle, table, contentId), part.start, part.bytes);
  }

  /** The path of a layer on this machine's disk; undefined if it must be fetched. */
  localLayerPath(bundle: string, table: string, { contentId }: LayerRef): string | undefined {
    return this.#backend.localPath(layerPath(bundle, table, contentId));
  }

  /** The folder in which a version is built before it is published. */
  workFolder(bundle: string, version: string): WorkFolder {
    return new WorkFolder(this.#localFolder(bundle), version);
  }

  /**
   * Removes what killed publishers and builders left of a bundle: unfinished writes without
   * progress for an hour, and builds without progress for a week.
   */
  async removeLeftovers(bundle: string): Promise<void> {
    const local = this.#backend.localPath(checkName(bundle, 'bundle'));
    if (local !== undefined) removeAbandonedBuilds(local);
    await this.#backend.removeUnfinishedWrites(bundle, LEFTOVER_IDLE_MS);
  }

  async hasLayer(bundle: string, table: string, layer: LayerRef): Promise<boolean> {
    return (await this.#backend.size(layerPath(bundle, table, layer.contentId))) === layer.bytes;
  }

  /** Copies a layer to a local file; see copyVerified. */
  async fetchLayer(
    bundle: string,
    table: string,
    layer: LayerRef,
    target: string,
    options: CopyOptions = {},
  ): Promise<void> {
    const path = layerPath(bundle, table, layer.contentId);
    const clock = this.#clock;
    await copyVerified({ backend: this.#backend, path }, layer, target, { ...options, clock });
  }

  /** Reads a whole layer and keeps nothing. @throws CubeError NOT_FOUND; CORRUPT */
  async verifyLayer(
    bundle: string,
    table: string,
    layer: LayerRef,
    options: Pick<CopyOptions, 'signal' | 'onBytes'> = {},
  ): Promise<void> {
    const path = layerPath(bundle, table, layer.contentId);
    const clock = this.#clock;
    await verifyContent({ backend: this.#backend, path }, layer, { ...options, clock });
  }

  listChannels(bundle: string): Promise<string[]> {
    return this.#channels.list(bundle);
  }

  readChannel(bundle: string, channel: string): Promise<ChannelState> {
    return this.#channels.readState(bundle, channel);
  }

  /**
   * Points a channel to a published version. Adds no entry if it points there already.
   * @throws CubeError NOT_FOUND; CONFLICT for a quarantined version, a pinned channel or a lost
   *   race
   */
  activate(bundle: string, channel: string, request: ActivateRequest): Promise<ChannelEntry> {
    return this.#channels.activate(bundle, channel, request);
  }

  /**
   * Points a channel to its previous version and quarantines the current one, in one entry.
   * @param from the version or the seq to leave: of concurrent rollbacks only one moves the channel
   * @param quarantine false: the version that is left may serve again
   * @throws CubeError CONFLICT without a previous version, for a pinned channel or a lost race;
   *   NOT_FOUND if the previous version was removed
   */
  rollback(
    bundle: string,
    channel: string,
    by: string,
    reason: string,
    from?: string | number,
    quarantine = true,
  ): Promise<ChannelEntry> {
    const expected = from === undefined ? {} : { from };
    return this.#channels.rollback(bundle, channel, { by, reason, quarantine, ...expected });
  }

  /** Keeps a channel at its version: `activate` and `rollback` throw CONFLICT until `unpin`. */
  pin(bundle: string, channel: string, attribution: Attribution): Promise<ChannelEntry> {
    return this.#channels.pin(bundle, channel, attribution);
  }

  unpin(bundle: string, channel: string, attribution: Attribution): Promise<ChannelEntry> {
    return this.#channels.unpin(bundle, channel, attribution);
  }

  /**
   * Forbids a version until its quarantine is lifted.
   * @returns false if it was already quarantined
   * @throws CubeError CONFLICT while a channel points there
   */
  quarantine(bundle: string, version: string, attribution: Attribution): Promise<boolean> {
    return this.#channels.quarantine(bundle, version, attribution);
  }

  /**
   * Allows a quarantined version again, with an entry in the history of a channel.
   * @param attribution.channel has the entry, unless other channels quarantined the version
   * @returns false if it was not quarantined
   */
  liftQuarantine(
    bundle: string,
    version: string,
    attribution: Attribution & { readonly channel: string },
  ): Promise<boolean> {
    return this.#channels.lift(bundle, version, attribution);
  }

  /**
   * Records that a version has served or failed to load, for rollbacks.
   * @returns false if that was recorded before
   * @throws CubeError UNSUPPORTED if the repository is read-only
   */
  recordOutcome(
    bundle: string,
    version: string,
    outcome: Outcome,
    attribution: Attribution,
  ): Promise<boolean> {
    return recordOutcome(this.#context, { bundle, version }, outcome, attribution);
  }

  /** @throws CubeError UNSUPPORTED if the store cannot list; `readChannel` works there */
  listQuarantined(bundle: string): Promise<Set<string>> {
    return this.#channels.listQuarantined(bundle);
  }

  /**
   * Removes unneeded versions and unreferenced objects.
   * @throws CubeError UNSUPPORTED over HTTP; CONFLICT while another collection runs; CORRUPT if a
   *   channel cannot be read
   */
  async collectGarbage(
    bundle: string,
    policy: RetentionPolicy,
    options: { by: string; dryRun: boolean },
  ): Promise<GarbageReport> {
    const { collectGarbage } = await loadGarbageCollection();
    const report = await collectGarbage(
      this.#context,
      checkName(bundle, 'bundle'),
      policy,
      options,
    );
    if (!options.dryRun) await this.removeLeftovers(bundle);
    return report;
  }

  rolloutLog(bundle: string, version: string): RolloutLog {
    return new RolloutLog({ ...this.#context, bundle, version });
  }

  /** Versions that have a rollout log. */
  async listRollouts(bundle: string): Promise<string[]> {
    return (await this.#list(rolloutsFolder(bundle))).filter((name) => NAME_PATTERN.test(name));
  }

  #localFolder(bundle: string): string {
    const local = this.#backend.localPath(checkName(bundle, 'bundle'));
    if (local !== undefined) return local;
    throw this.#notLocalError();
  }

  #notLocalError(): CubeError {
    return new CubeError(
      'UNSUPPORTED',
      `${this.location} is not a folder on this machine; copy the version to a folder with ` +
        `cube-agent publish --from ${this.location}`,
    );
  }

  #list(folder: string): Promise<string[]> {
    return this.#backend.list(folder);
  }

  async #versionAbsent(bundle: string, version: string): Promise<CubeError> {
    if (!this.#backend.canList) {
      const message = `${this.location} has no version ${version} of ${bundle}`;
      return new CubeError('NOT_FOUND', message);
    }
    const bundles = await this.listBundles();
    if (!bundles.includes(checkName(bundle, 'bundle'))) {
      const known = bundles.length === 0 ? 'no bundles' : bundles.join(', ');
      return new CubeError(
        'NOT_FOUND',
        `${this.location} has no bundle ${bundle} (it has: ${known})`,
      );
    }
    const files = await this.#list(versionFolder(bundle, version));
    if (files.length > 0) {
      return new CubeError(
        'NOT_FOUND',
        `version ${version} of ${bundle} has no manifest in ${this.location}: ` +
          'its publication did not finish; publish it again',
      );
    }
    const versions = await this.listVersions(bundle);
    const known = versions.length === 0 ? 'none' : versions.join(', ');
    return new CubeError(
      'NOT_FOUND',
      `${this.location} has no version ${version} of ${bundle} (it has: ${known})`,
    );
  }
}
