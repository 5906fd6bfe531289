/**
 * A repository: where versions of bundles live (docs/formats/repository.md). Publishes, lists, fetches and verifies
 * versions; moves channels. What is published never changes; a version without a manifest does not exist; channels
 * and quarantine only grow.
 */
import { resolve } from 'node:path';
import { CubeError } from '../core/errors.ts';
import type { LayerRef, Manifest } from '../core/manifest.ts';
import { checkName, NAME_PATTERN } from '../core/names.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import { makeFolder } from '../platform/files.ts';
import type { Backend } from './backend.ts';
import {
  type ChannelEntry,
  ChannelLog,
  type ChannelState,
  channelState,
  entryBytes,
} from './channel-log.ts';
import { FolderBackend, requireFolder } from './folder-backend.ts';
import {
  channelFolder,
  channelsFolder,
  layerPath,
  layersFolder,
  manifestPath,
  quarantineFolder,
  quarantinePath,
  versionFilePath,
  versionFolder,
  versionsFolder,
} from './layout.ts';
import {
  type Publication,
  type PublishReport,
  publishVersion,
  VERSION_FILE_BYTES_MAX,
} from './publication.ts';
import { MANIFEST_BYTES_MAX, readPublished } from './published-manifest.ts';
import { bytesSha256, type CopyOptions, copyVerified } from './verified-copy.ts';
import { removeDeadWork, WorkFolder } from './work-folder.ts';

/** No writer pauses for so long between two pieces. */
const LEFTOVER_IDLE_MS = 3_600_000;

export type { ChannelEntry, ChannelState } from './channel-log.ts';
export type { LayerSource, Publication, PublishReport } from './publication.ts';
export { VERSION_FILE_BYTES_MAX } from './publication.ts';
export type { WorkFolder } from './work-folder.ts';

/**
 * @param location a folder
 * @param options.create makes the folder when it is absent
 */
export function openRepository(
  location: string,
  options: { create?: boolean; clock?: Clock } = {},
): Repository {
  const scheme = /^([a-z][a-z0-9+]+):\/\//.exec(location)?.[1];
  if (scheme !== undefined) {
    throw new CubeError(
      'UNSUPPORTED',
      `${location}: this build opens repositories in folders, not over ${scheme}; give a folder`,
    );
  }
  const folder = resolve(location);
  if (options.create) makeFolder(folder);
  requireFolder(folder);
  return new Repository(new FolderBackend(folder), options.clock ?? systemClock);
}

export class Repository {
  readonly #backend: Backend;
  readonly #clock: Clock;
  readonly #logs = new Map<string, ChannelLog>();

  constructor(backend: Backend, clock: Clock = systemClock) {
    this.#backend = backend;
    this.#clock = clock;
  }

  get location(): string {
    return this.#backend.location;
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

  /** The manifest as published, byte for byte, for a host's own copy. */
  async manifestText(bundle: string, version: string): Promise<string> {
    const path = manifestPath(bundle, version);
    if ((await this.#backend.size(path)) === undefined) {
      throw await this.#versionAbsent(bundle, version);
    }
    return new TextDecoder().decode(await this.#backend.read(path, MANIFEST_BYTES_MAX));
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

  /** Layers, files, manifest. The same content again is fine; other content under the same version is CONFLICT. */
  async publish(publication: Publication): Promise<PublishReport> {
    return publishVersion(this.#backend, publication);
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
    for (const above of [layersFolder(bundle), versionsFolder(bundle), channelsFolder(bundle)]) {
      for (const name of await this.#list(above)) {
        await this.#backend.removeUnfinished(`${above}/${name}`, LEFTOVER_IDLE_MS);
      }
    }
    await this.#backend.removeUnfinished(quarantineFolder(bundle), LEFTOVER_IDLE_MS);
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

  async channels(bundle: string): Promise<string[]> {
    return (await this.#list(channelsFolder(bundle))).filter((name) => NAME_PATTERN.test(name));
  }

  async channel(bundle: string, channel: string): Promise<ChannelState> {
    const history = await this.#log(bundle, channel).history();
    return channelState(history, await this.quarantined(bundle));
  }

  /**
   * Points the channel to a published version. Pointing to where it points already adds nothing.
   * @throws CubeError NOT_FOUND, CONFLICT for a quarantined version or a lost race
   */
  async activate(
    bundle: string,
    channel: string,
    wish: { version: string; by: string; reason: string },
  ): Promise<ChannelEntry> {
    await this.manifest(bundle, wish.version);
    // The log before the quarantine: a rollback quarantines and then writes, so whoever misses its quarantine here
    // finds the next entry taken.
    const pointer = (await this.#log(bundle, channel).history()).at(-1);
    if ((await this.quarantined(bundle)).has(wish.version)) {
      throw new CubeError(
        'CONFLICT',
        `version ${wish.version} of ${bundle} is quarantined ` +
          `(${this.location}/${quarantinePath(bundle, wish.version)} says why); publish a new one`,
      );
    }
    if (pointer?.version === wish.version) return pointer;
    return this.#append(bundle, channel, pointer, wish);
  }

  /**
   * Quarantines the pointer's version, then points to the previous one. In this order: when it is interrupted in
   * between, running it again finishes the same rollback instead of starting a second one.
   * @throws CubeError CONFLICT without a previous version or for a lost race, NOT_FOUND when it was removed
   */
  async rollback(
    bundle: string,
    channel: string,
    by: string,
    reason: string,
  ): Promise<ChannelEntry> {
    const { pointer, previous } = await this.channel(bundle, channel);
    if (pointer === undefined || previous === undefined) {
      const why =
        pointer === undefined
          ? 'it points nowhere yet'
          : `no entry before the pointer (${pointer.version}) names another good version`;
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} of ${bundle} has no previous version to roll back to: ${why}`,
      );
    }
    await this.manifest(bundle, previous.version);
    const deed = { at: this.#clock.isoTime(), by, reason };
    await this.#backend.putIfAbsent(quarantinePath(bundle, pointer.version), entryBytes(deed));
    return this.#append(bundle, channel, pointer, { version: previous.version, by, reason });
  }

  async quarantined(bundle: string): Promise<Set<string>> {
    const names = await this.#list(quarantineFolder(bundle));
    const versions = names
      .filter((name) => name.endsWith('.json'))
      .map((name) => name.slice(0, -'.json'.length));
    return new Set(versions.filter((version) => NAME_PATTERN.test(version)));
  }

  #localFolder(bundle: string): string {
    const local = this.#backend.localPath(checkName(bundle, 'bundle'));
    if (local !== undefined) return local;
    throw new CubeError('UNSUPPORTED', `${this.location} is not on this machine's disk`);
  }

  #append(
    bundle: string,
    channel: string,
    pointer: ChannelEntry | undefined,
    wish: { version: string; by: string; reason: string },
  ): Promise<ChannelEntry> {
    const { version, by, reason } = wish;
    const seq = (pointer?.seq ?? 0) + 1;
    const at = this.#clock.isoTime();
    return this.#log(bundle, channel).append({ seq, version, at, by, reason });
  }

  #log(bundle: string, channel: string): ChannelLog {
    const key = channelFolder(bundle, channel);
    const log = this.#logs.get(key) ?? new ChannelLog(this.#backend, bundle, channel);
    this.#logs.set(key, log);
    return log;
  }

  #list(folder: string): Promise<string[]> {
    return this.#backend.list(folder);
  }

  async #versionAbsent(bundle: string, version: string): Promise<CubeError> {
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
