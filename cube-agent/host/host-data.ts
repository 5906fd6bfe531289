/**
 * The host's copy of one bundle: `layers/` and `versions/` in the layout of the repository, with
 * only the layers of this host's shards. A manifest is written after its layers. The agent also
 * saves its state here, so that a host can start while the repository is unavailable and
 * `cube-agent status` can report problems.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { type LayerRef, type Manifest, parseManifest } from '../../lib/core/manifest.ts';
import { checkName, NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import {
  closeDescriptor,
  fileExists,
  getFileBytes,
  listFolder,
  putFileIfAbsent,
  readText,
  removeButKeepOpen,
  removePath,
  removeStaleTemporaries,
  replaceFile,
  statPath,
} from '../../lib/platform/files.ts';
import { FolderLock } from '../../lib/platform/folder-lock.ts';
import {
  layerPath,
  layersFolder,
  manifestPath,
  tableFolder,
  versionFilePath,
  versionFolder,
  versionsFolder,
} from '../../lib/repository/layout.ts';
import { computeFileSha256 } from '../../lib/repository/verified-copy.ts';
import { type Problem, parseProblem } from '../fleet/problem.ts';
import { type DiskState, parseLayerName, toLayerName } from './plan.ts';

const LAYER_FILE = /^([0-9a-f]{32})\.cube(\.part)?$/;

/** Manifests and saved state are written at once: an older temporary file has no writer. */
const LEFTOVER_IDLE_MS = 10_000;

const LOCK_FOLDER = '.claim';

/** A version of a channel's history. Its rows are at least as old as its first pointer. */
export interface PastVersion {
  readonly version: string;
  /** Time of the first pointer, ISO 8601. */
  readonly at: string;
}

/** What an agent knows of one channel, as saved on disk. */
export interface SavedState {
  readonly pointer: string | undefined;
  readonly previous: string | undefined;
  readonly past: readonly PastVersion[];
  readonly quarantined: readonly string[];
  readonly problems: readonly Problem[];
}

export class HostData {
  readonly #folder: string;
  readonly #bundle: string;
  readonly #manifests = new Map<string, Manifest>();
  readonly #closeFile: (descriptor: number) => void;

  /** @param closeFile closes a removed layer, which frees its space: may take seconds */
  constructor(
    folder: string,
    bundle: string,
    closeFile: (descriptor: number) => void = closeDescriptor,
  ) {
    this.#folder = folder;
    this.#bundle = checkName(bundle, 'bundle');
    this.#closeFile = closeFile;
  }

  layerPath(table: string, contentId: string): string {
    return join(this.#folder, layerPath(this.#bundle, table, contentId));
  }

  /** Bytes of a partial layer; 0 when there is none. */
  partBytes(table: string, contentId: string): number {
    return statPath(`${this.layerPath(table, contentId)}.part`)?.bytes ?? 0;
  }

  /** When a layer arrived on this host; undefined when it is missing. */
  layerArrivedMs(table: string, contentId: string): number | undefined {
    return statPath(this.layerPath(table, contentId))?.mtimeMs;
  }

  /**
   * Makes this process the only agent of the bundle on this host. Does nothing when the disk cannot
   * be written, since a full disk must not keep an agent from starting.
   * @throws CubeError CONFLICT when another live agent manages the bundle here
   */
  lock(): FolderLock | undefined {
    try {
      return new FolderLock(join(this.#folder, this.#bundle, 'agent', LOCK_FOLDER));
    } catch (error) {
      if (CubeError.from(error).code === 'CONFLICT') throw error;
      return undefined;
    }
  }

  /** Removes unfinished writes of killed agents, and versions without a readable manifest. */
  removeLeftovers(): void {
    for (const version of this.#list(versionsFolder(this.#bundle))) {
      if (this.manifest(version) === undefined) this.removeVersion(version);
      else this.#removeUnfinished(versionFolder(this.#bundle, version));
    }
    this.#removeUnfinished(join(this.#bundle, 'agent'));
  }

  scan(): DiskState {
    const layers = new Set<string>();
    const parts = new Set<string>();
    for (const table of this.#list(layersFolder(this.#bundle))) {
      for (const file of listFolder(join(this.#folder, tableFolder(this.#bundle, table)))) {
        const [, contentId, part] = LAYER_FILE.exec(file) ?? [];
        if (contentId === undefined) continue;
        (part === undefined ? layers : parts).add(toLayerName(table, contentId));
      }
    }
    const versions = this.#list(versionsFolder(this.#bundle)).filter(
      (version) => this.manifest(version) !== undefined,
    );
    return { versions: new Set(versions), layers, partialLayers: parts };
  }

  /** Makes the next `manifest()` read the file again. */
  dropCachedManifest(version: string): void {
    this.#manifests.delete(version);
  }

  /** Undefined when the copy is missing or unreadable: it is then written again. */
  manifest(version: string): Manifest | undefined {
    const path = join(this.#folder, manifestPath(this.#bundle, version));
    if (!fileExists(path)) {
      this.#manifests.delete(version);
      return undefined;
    }
    const known = this.#manifests.get(version);
    if (known !== undefined) return known;
    try {
      const manifest = parseManifest(readText(path), path);
      if (manifest.version !== version || manifest.bundle !== this.#bundle) return undefined;
      this.#manifests.set(version, manifest);
      return manifest;
    } catch {
      return undefined;
    }
  }

  /** @param text the manifest as published */
  stage(version: string, text: string): void {
    this.#manifests.delete(version);
    replaceFile(join(this.#folder, manifestPath(this.#bundle, version)), text);
  }

  /** Adds objects with rewrapped keys of an encrypted version; existing ones never change. */
  addKeyFiles(version: string, files: ReadonlyMap<string, Uint8Array>): void {
    for (const [name, bytes] of files) {
      putFileIfAbsent(join(this.#folder, versionFilePath(this.#bundle, version, name)), bytes);
    }
  }

  removeVersion(version: string): void {
    this.#manifests.delete(version);
    removePath(join(this.#folder, versionFolder(this.#bundle, version)));
  }

  /** @param layer "table/contentId" */
  removeLayer(layer: string): void {
    const { table, contentId } = parseLayerName(layer);
    const path = this.layerPath(table, contentId);
    for (const file of [path, `${path}.part`]) {
      const descriptor = removeButKeepOpen(file);
      if (descriptor !== undefined) this.#closeFile(descriptor);
    }
  }

  /**
   * Checks the layers of a shard after a server could not read one, and removes the damaged ones so
   * that they are fetched again.
   * @returns the names of the removed layers
   */
  async removeDamaged(manifest: Manifest, shardIndex: number, clock: Clock): Promise<string[]> {
    const removed: string[] = [];
    for (const table of manifest.tables) {
      for (const layer of table.shards[shardIndex] ?? []) {
        const name = toLayerName(table.name, layer.contentId);
        const path = this.layerPath(table.name, layer.contentId);
        if (!fileExists(path) || (await isIntact(path, layer, clock))) continue;
        this.removeLayer(name);
        removed.push(name);
      }
    }
    return removed;
  }

  /** Undefined when no agent has saved state for the channel, or it is unreadable. */
  readSavedState(channel: string): SavedState | undefined {
    const path = this.#statePath(channel);
    if (!fileExists(path)) return undefined;
    try {
      return parseSavedState(JsonReader.parse(readText(path), path));
    } catch {
      return undefined;
    }
  }

  saveState(channel: string, state: SavedState): void {
    replaceFile(this.#statePath(channel), `${JSON.stringify(state, null, 2)}\n`);
  }

  #statePath(channel: string): string {
    return join(this.#folder, this.#bundle, 'agent', `${checkName(channel, 'channel')}.json`);
  }

  #removeUnfinished(folder: string): void {
    removeStaleTemporaries(join(this.#folder, folder), LEFTOVER_IDLE_MS);
  }

  #list(folder: string): string[] {
    return listFolder(join(this.#folder, folder)).filter((name) => NAME_PATTERN.test(name));
  }
}

/** False also for a file that cannot be read. */
async function isIntact(path: string, layer: LayerRef, clock: Clock): Promise<boolean> {
  try {
    return (
      getFileBytes(path) === layer.bytes && (await computeFileSha256(path, clock)) === layer.sha256
    );
  } catch {
    return false;
  }
}

function parseSavedState(json: JsonReader): SavedState {
  const version = (field: JsonReader): string => field.string(NAME_PATTERN, NAME_RULE);
  return {
    pointer: json.optional('pointer', version),
    previous: json.optional('previous', version),
    past:
      json.optional('past', (past) =>
        past.items().map((item) => ({
          version: version(item.field('version')),
          at: item.field('at').string(),
        })),
      ) ?? [],
    quarantined: json.field('quarantined').items().map(version),
    problems: json.field('problems').items().map(parseProblem),
  };
}
