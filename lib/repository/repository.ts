/**
 * A repository: where versions of bundles live (docs/formats/repository.md). Publishes, lists, fetches and verifies
 * versions; moves channels. What is published never changes; a version without a manifest does not exist; channels
 * and quarantine only grow.
 */
import { CubeError } from '../core/errors.ts';
import type { LayerRef, Manifest } from '../core/manifest.ts';
import { checkName, NAME_PATTERN } from '../core/names.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import type { Backend } from './backend.ts';
import type { ChannelEntry, ChannelState } from './channel-log.ts';
import { type ActivateWish, Channels, type Mover } from './channels.ts';
import type { Keys } from './entries.ts';
import { collectGarbage, type GarbagePolicy, type GarbageReport } from './garbage.ts';
import {
  channelsFolder,
  layerPath,
  layersFolder,
  manifestPath,
  rolloutsFolder,
  versionFilePath,
  versionFolder,
  versionsFolder,
} from './layout.ts';
import { openBackend } from './open-backend.ts';
import { PolicyLog } from './policy-log.ts';
import {
  type Publication,
  type PublishReport,
  publishVersion,
  VERSION_FILE_BYTES_MAX,
} from './publication.ts';
import {
  MANIFEST_BYTES_MAX,
  readPublished,
  requireSigned,
  signManifest,
} from './published-manifest.ts';
import { RehearsalBackend } from './rehearsal-backend.ts';
import { RolloutLog } from './rollout-log.ts';
import { bytesSha256, type CopyOptions, copyVerified, verifyContent } from './verified-copy.ts';
import { removeDeadWork, WorkFolder } from './work-folder.ts';

/** No writer pauses for so long between two pieces. */
const LEFTOVER_IDLE_MS = 3_600_000;

export type { ChannelEntry, ChannelState } from './channel-log.ts';
export type { GarbageReport } from './garbage.ts';
export type { LayerSource, Publication, PublishReport } from './publication.ts';
export { VERSION_FILE_BYTES_MAX } from './publication.ts';
export type { WorkFolder } from './work-folder.ts';

/**
 * @param location a folder, `http(s)://…` (read-only) or `s3://bucket/prefix?endpoint=…&region=…`
 * @param options.create makes the folder when it is absent
 * @param options.keys signs what is written, takes only what is signed
 * @param options.rehearse checks everything, writes nothing
 */
export function openRepository(
  location: string,
  options: { create?: boolean; clock?: Clock; keys?: Keys; rehearse?: boolean } = {},
): Repository {
  const store = openBackend(location, options.create ?? false);
  const backend = options.rehearse ? new RehearsalBackend(store) : store;
  return new Repository(backend, options.clock ?? systemClock, options.keys);
}

export class Repository {
  readonly #backend: Backend;
  readonly #keys: Keys;
  readonly #clock: Clock;
  readonly #channels: Channels;

  constructor(backend: Backend, clock: Clock = systemClock, keys: Keys = {}) {
    this.#backend = backend;
    this.#clock = clock;
    this.#keys = keys;
    const requireVersion = (bundle: string, version: string) => this.manifest(bundle, version);
    this.#channels = new Channels({ backend, keys, clock, requireVersion });
  }

  get #context(): { backend: Backend; keys: Keys; clock: Clock } {
    return { backend: this.#backend, keys: this.#keys, clock: this.#clock };
  }

  get location(): string {
    return this.#backend.location;
  }

  /** False over HTTP: bundles, versions and channels are known there only by their names. */
  get canList(): boolean {
    return this.#backend.canList;
  }

  /** On this machine's disk. */
  get isLocal(): boolean {
    return this.#backend.localPath('') !== undefined;
  }

  /** Bundles that have at least a layer, a version or a channel. */
  async bundles(): Promise<string[]> {
    const found: string[] = [];
    for (const name of await this.#backend.list('')) {
      if (!NAME_PATTERN.test(name)) continue;
      for (const folder of [versionsFolder(name), layersFolder(name), channelsFolder(name)]) {
        if ((await this.#list(folder)).length === 0) continue;
        found.push(name);
        break;
      }
    }
    return found;
  }

  /** Published versions, those with a manifest; sorted as numbers where they are numbers. */
  async versions(bundle: string): Promise<string[]> {
    const found: string[] = [];
    for (const name of await this.#list(versionsFolder(bundle))) {
      if (!NAME_PATTERN.test(name)) continue;
      if ((await this.#backend.size(manifestPath(bundle, name))) !== undefined) found.push(name);
    }
    return found.sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));
  }

  /** @throws CubeError NOT_FOUND naming what is missing; CORRUPT when the manifest cannot be read */
  async manifest(bundle: string, version: string): Promise<Manifest> {
    const text = await this.manifestText(bundle, version);
    return readPublished(text, this.location, bundle, version);
  }

  /**
   * The manifest as published, byte for byte, for a host's own copy.
   * @throws CubeError NOT_FOUND; DENIED when keys are trusted and none of them has signed it
   */
  async manifestText(bundle: string, version: string): Promise<string> {
    const path = manifestPath(bundle, version);
    if ((await this.#backend.size(path)) === undefined) {
      throw await this.#versionAbsent(bundle, version);
    }
    const bytes = await this.#backend.read(path, MANIFEST_BYTES_MAX);
    const { trusted } = this.#keys;
    if (trusted !== undefined) {
      await requireSigned(this.#backend, { bundle, version }, bytes, trusted);
    }
    return new TextDecoder().decode(bytes);
  }

  /**
   * Signs a version that is published.
   * @returns false when this key has signed it already
   * @throws CubeError INVALID_ARGUMENT without a signing key
   */
  async sign(bundle: string, version: string): Promise<boolean> {
    const { signing } = this.#keys;
    if (signing === undefined) throw new CubeError('INVALID_ARGUMENT', 'no key to sign with');
    // Whoever trusts keys sees nothing of a version that none of them has signed yet.
    await new Repository(this.#backend, this.#clock).manifest(bundle, version);
    const bytes = await this.#backend.read(manifestPath(bundle, version), MANIFEST_BYTES_MAX);
    return signManifest(this.#backend, { bundle, version }, bytes, signing);
  }

  /** A file of the version's folder, verified against the manifest's size and SHA-256. */
  async readVersionFile(bundle: string, version: string, file: string): Promise<Uint8Array> {
    const manifest = await this.manifest(bundle, version);
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
    if (bytes.length !== expected.bytes || bytesSha256(bytes) !== expected.sha256) {
      throw new CubeError(
        'CORRUPT',
        `${this.location}/${path}: ${bytes.length} bytes that are not those of the manifest ` +
          `(${expected.bytes} bytes, SHA-256 ${expected.sha256}); publish the version again`,
      );
    }
    return bytes;
  }

  /** Limits of the gate for all versions of a bundle. */
  policy(bundle: string): PolicyLog {
    return new PolicyLog({ ...this.#context, bundle });
  }

  /** Layers, files, manifest. The same content again is fine; other content under the same version is CONFLICT. */
  publish(publication: Publication, onBytes?: (bytes: number) => void): Promise<PublishReport> {
    return publishVersion({ ...this.#context, onBytes }, publication);
  }

  /**
   * Where a builder writes a layer so that publishing it copies nothing: its final place, harmless before the
   * manifest names it.
   */
  layerTarget(bundle: string, table: string, contentId: string): string {
    const local = this.#backend.localPath(layerPath(bundle, table, contentId));
    if (local !== undefined) return local;
    throw new CubeError('UNSUPPORTED', `${this.location} is not on this machine's disk`);
  }

  /** The file of a layer that lies on this machine's disk already; undefined when it must be fetched. */
  localLayer(bundle: string, table: string, { contentId }: LayerRef): string | undefined {
    return this.#backend.localPath(layerPath(bundle, table, contentId));
  }

  /** Where a version of a bundle is built before it exists. */
  workFolder(bundle: string, version: string): WorkFolder {
    return new WorkFolder(this.#localFolder(bundle), version);
  }

  /**
   * Removes what killed publishers left of a bundle: unfinished writes that nobody has gone on with for an hour, builds that
   * nobody has gone on with for a week.
   */
  async removeLeftovers(bundle: string): Promise<void> {
    const local = this.#backend.localPath(checkName(bundle, 'bundle'));
    if (local !== undefined) removeDeadWork(local);
    await this.#backend.removeUnfinished(bundle, LEFTOVER_IDLE_MS);
  }

  async holdsLayer(bundle: string, table: string, layer: LayerRef): Promise<boolean> {
    return (await this.#backend.size(layerPath(bundle, table, layer.contentId))) === layer.bytes;
  }

  /** Copies one layer to a local file: resumed, rate limited, verified; whole or not at all. */
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

  /** Reads a layer through and keeps nothing of it. @throws CubeError CORRUPT when it is not what the manifest says; NOT_FOUND */
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

  channels(bundle: string): Promise<string[]> {
    return this.#channels.names(bundle);
  }

  channel(bundle: string, channel: string): Promise<ChannelState> {
    return this.#channels.state(bundle, channel);
  }

  /**
   * Points the channel to a published version. Pointing to where it points already adds nothing.
   * @throws CubeError NOT_FOUND; CONFLICT for a quarantined version, a pinned channel or a lost race
   */
  activate(bundle: string, channel: string, wish: ActivateWish): Promise<ChannelEntry> {
    return this.#channels.activate(bundle, channel, wish);
  }

  /**
   * Points to the previous version and quarantines the pointer's, in one entry.
   * @param from the version or the seq to leave, so that of several at once one moves
   * @throws CubeError CONFLICT without a previous version, for a pinned channel or a lost race; NOT_FOUND when the previous
   *   version was removed
   */
  rollback(
    bundle: string,
    channel: string,
    by: string,
    reason: string,
    from?: string | number,
  ): Promise<ChannelEntry> {
    const fence = from === undefined ? {} : { from };
    return this.#channels.rollback(bundle, channel, { by, reason, ...fence });
  }

  /** Keeps everybody on the pointer's version: `activate` and `rollback` are CONFLICT until `unpin`. */
  pin(bundle: string, channel: string, mover: Mover): Promise<ChannelEntry> {
    return this.#channels.pin(bundle, channel, mover);
  }

  unpin(bundle: string, channel: string, mover: Mover): Promise<ChannelEntry> {
    return this.#channels.unpin(bundle, channel, mover);
  }

  /**
   * For good: a version that was found bad once never comes back under its name.
   * @returns false when it was quarantined already
   * @throws CubeError CONFLICT while a channel points there
   */
  quarantine(bundle: string, version: string, mover: Mover): Promise<boolean> {
    return this.#channels.quarantine(bundle, version, mover);
  }

  /** @throws CubeError UNSUPPORTED where the store cannot list; a channel's state says its own */
  quarantined(bundle: string): Promise<Set<string>> {
    return this.#channels.quarantined(bundle);
  }

  /**
   * Removes versions that nobody needs, and what no version left reaches.
   * @throws CubeError UNSUPPORTED over HTTP; CONFLICT while another collection runs; CORRUPT when a manifest cannot be read
   */
  async collectGarbage(
    bundle: string,
    policy: GarbagePolicy,
    wish: { by: string; dryRun: boolean },
  ): Promise<GarbageReport> {
    const report = await collectGarbage(this.#context, checkName(bundle, 'bundle'), policy, wish);
    if (!wish.dryRun) await this.removeLeftovers(bundle);
    return report;
  }

  rollout(bundle: string, version: string): RolloutLog {
    return new RolloutLog({ ...this.#context, bundle, version });
  }

  /** Versions whose rollout has an entry. */
  async rollouts(bundle: string): Promise<string[]> {
    return (await this.#list(rolloutsFolder(bundle))).filter((name) => NAME_PATTERN.test(name));
  }

  #localFolder(bundle: string): string {
    const local = this.#backend.localPath(checkName(bundle, 'bundle'));
    if (local !== undefined) return local;
    throw new CubeError('UNSUPPORTED', `${this.location} is not on this machine's disk`);
  }

  #list(folder: string): Promise<string[]> {
    return this.#backend.list(folder);
  }

  async #versionAbsent(bundle: string, version: string): Promise<CubeError> {
    if (!this.#backend.canList) {
      const message = `${this.location} has no version ${version} of ${bundle}`;
      return new CubeError('NOT_FOUND', message);
    }
    const bundles = await this.bundles();
    if (!bundles.includes(checkName(bundle, 'bundle'))) {
      const known = bundles.length === 0 ? 'no bundle at all' : bundles.join(', ');
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
          'its publishing did not finish, so it does not exist; publish it again',
      );
    }
    const versions = await this.versions(bundle);
    const known = versions.length === 0 ? 'none' : versions.join(', ');
    return new CubeError(
      'NOT_FOUND',
      `${this.location} has no version ${version} of ${bundle} (it has: ${known})`,
    );
  }
}
