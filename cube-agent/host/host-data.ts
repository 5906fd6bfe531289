/**
 * The host's own copy: `layers/` and `versions/` of one bundle in the shape of the repository, with only the layers
 * of this host's shards, manifest last. Beside them the agent keeps what it last knew, so that a host comes up
 * again while its repository is away, and so that `cube-agent status` can say what goes wrong.
 */
import { join } from 'node:path';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { type LayerRef, type Manifest, parseManifest } from '../../lib/core/manifest.ts';
import { checkName, NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
import { Claim } from '../../lib/platform/claim.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import {
  fileBytes,
  fileExists,
  listFolder,
  readText,
  removePath,
  removeStaleTemporaries,
  replaceFile,
  statPath,
} from '../../lib/platform/files.ts';
import {
  layerPath,
  layersFolder,
  manifestPath,
  tableFolder,
  versionFolder,
  versionsFolder,
} from '../../lib/repository/layout.ts';
import { fileSha256 } from '../../lib/repository/verified-copy.ts';
import { type DiskState, layerName } from './plan.ts';

const LAYER_FILE = /^([0-9a-f]{32})\.cube(\.part)?$/;

/** A manifest or notes are written in one go: what is older is nobody's. */
const LEFTOVER_IDLE_MS = 10_000;

const CLAIM_FOLDER = '.claim';

/** Something that went wrong and has not gone right since. */
export interface Problem {
  /** What was being done: "fetch 2 t/0123…", "server 127.0.0.1:8000". */
  readonly what: string;
  readonly code: ErrorCode;
  readonly message: string;
  readonly since: string;
  readonly attempts: number;
}

/** A version that a channel points to, or did, and when it first did: the newest age that its rows can have. */
export interface PastVersion {
  readonly version: string;
  readonly at: string;
}

export interface AgentMemory {
  /** The channel as last read. */
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

  constructor(folder: string, bundle: string) {
    this.#folder = folder;
    this.#bundle = checkName(bundle, 'bundle');
  }

  layerPath(table: string, contentId: string): string {
    return join(this.#folder, layerPath(this.#bundle, table, contentId));
  }

  /** Bytes of a layer that an interrupted fetch left. */
  partBytes(table: string, contentId: string): number {
    return statPath(`${this.layerPath(table, contentId)}.part`)?.bytes ?? 0;
  }

  /** When a layer came to this host; undefined when it is not here. */
  layerArrivedMs(table: string, contentId: string): number | undefined {
    return statPath(this.layerPath(table, contentId))?.mtimeMs;
  }

  /**
   * Makes this process the only agent of the bundle on this host; nothing when the disk does not let anybody write, since
   * a full disk must not keep an agent from starting.
   * @throws CubeError CONFLICT when another living agent works here
   */
  claim(): Claim | undefined {
    try {
      return new Claim(join(this.#folder, this.#bundle, 'agent', CLAIM_FOLDER));
    } catch (error) {
      if (CubeError.from(error).code === 'CONFLICT') throw error;
      return undefined;
    }
  }

  /** What earlier agents left when they were killed: unfinished writes, and versions without a readable manifest. */
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
        (part === undefined ? layers : parts).add(layerName(table, contentId));
      }
    }
    const versions = this.#list(versionsFolder(this.#bundle)).filter(
      (version) => this.manifest(version) !== undefined,
    );
    return { versions: new Set(versions), layers, parts };
  }

  /** Reads the version's manifest from the disk again when it is next asked for. */
  forgetManifest(version: string): void {
    this.#manifests.delete(version);
  }

  /** Undefined when it is absent or unreadable: it is then written again. */
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

  removeVersion(version: string): void {
    this.#manifests.delete(version);
    removePath(join(this.#folder, versionFolder(this.#bundle, version)));
  }

  /** @param layer "table/contentId" */
  removeLayer(layer: string): void {
    const [table = '', contentId = ''] = layer.split('/');
    const path = this.layerPath(table, contentId);
    removePath(path);
    removePath(`${path}.part`);
  }

  /**
   * Reads a shard's layers back after a server found one unreadable, and removes those that are damaged, so that
   * they are fetched again. @returns what was removed
   */
  async removeDamaged(manifest: Manifest, shardIndex: number, clock: Clock): Promise<string[]> {
    const removed: string[] = [];
    for (const table of manifest.tables) {
      for (const layer of table.shards[shardIndex] ?? []) {
        const name = layerName(table.name, layer.contentId);
        const path = this.layerPath(table.name, layer.contentId);
        if (!fileExists(path) || (await isWhole(path, layer, clock))) continue;
        this.removeLayer(name);
        removed.push(name);
      }
    }
    return removed;
  }

  /** What an agent of this channel last knew here; undefined when none has run, or its notes are unreadable. */
  recall(channel: string): AgentMemory | undefined {
    const path = this.#memoryPath(channel);
    if (!fileExists(path)) return undefined;
    try {
      return readMemory(JsonReader.parse(readText(path), path));
    } catch {
      return undefined;
    }
  }

  remember(channel: string, memory: AgentMemory): void {
    replaceFile(this.#memoryPath(channel), `${JSON.stringify(memory, null, 2)}\n`);
  }

  #memoryPath(channel: string): string {
    return join(this.#folder, this.#bundle, 'agent', `${checkName(channel, 'channel')}.json`);
  }

  #removeUnfinished(folder: string): void {
    removeStaleTemporaries(join(this.#folder, folder), LEFTOVER_IDLE_MS);
  }

  #list(folder: string): string[] {
    return listFolder(join(this.#folder, folder)).filter((name) => NAME_PATTERN.test(name));
  }
}

/** A file that the disk cannot read is not whole. */
async function isWhole(path: string, layer: LayerRef, clock: Clock): Promise<boolean> {
  try {
    return fileBytes(path) === layer.bytes && (await fileSha256(path, clock)) === layer.sha256;
  } catch {
    return false;
  }
}

function readMemory(json: JsonReader): AgentMemory {
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
    problems: json
      .field('problems')
      .items()
      .map((item) => ({
        what: item.field('what').string(),
        code: item.field('code').string() as ErrorCode,
        message: item.field('message').string(),
        since: item.field('since').string(),
        attempts: item.field('attempts').integer(1),
      })),
  };
}
