/** The disk of a host in memory. It outlives agent and server; only injected faults damage it. */
import { createHash } from 'node:crypto';
import { HostData, type SavedState } from '../../cube-agent/host/host-data.ts';
import { type DiskState, toLayerName } from '../../cube-agent/host/plan.ts';
import { type LayerRef, type Manifest, parseManifest } from '../../lib/core/manifest.ts';

export const BUNDLE = 'ctr';

export class HostFiles {
  /** By "table/contentId". */
  readonly layers: Map<string, Uint8Array> = new Map();
  readonly partialLayers: Set<string> = new Set();
  readonly manifests: Map<string, Manifest> = new Map();
  readonly savedStates: Map<string, SavedState> = new Map();

  clear(): void {
    for (const files of [this.layers, this.partialLayers, this.manifests, this.savedStates])
      files.clear();
  }
}

export function computeSha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** Stands in for the data folder of a host. */
export class HostDisk extends HostData {
  readonly #files: HostFiles;
  readonly #onRemoved: (layer: string) => void;

  constructor(files: HostFiles, onRemoved: (layer: string) => void) {
    super('/nowhere', BUNDLE);
    this.#files = files;
    this.#onRemoved = onRemoved;
  }

  override layerPath(table: string, contentId: string): string {
    return toLayerName(table, contentId);
  }

  override partBytes(table: string, contentId: string): number {
    return this.#files.partialLayers.has(toLayerName(table, contentId)) ? 1 : 0;
  }

  override removeLeftovers(): void {}

  override scan(): DiskState {
    const { layers, partialLayers, manifests } = this.#files;
    return {
      versions: new Set(manifests.keys()),
      layers: new Set(layers.keys()),
      partialLayers: new Set(partialLayers),
    };
  }

  override dropCachedManifest(): void {}

  override manifest(version: string): Manifest | undefined {
    return this.#files.manifests.get(version);
  }

  override stage(version: string, text: string): void {
    this.#files.manifests.set(version, parseManifest(text, version));
  }

  override removeVersion(version: string): void {
    this.#files.manifests.delete(version);
  }

  override removeLayer(layer: string): void {
    this.#onRemoved(layer);
    this.#files.layers.delete(layer);
    this.#files.partialLayers.delete(layer);
  }

  override async removeDamaged(manifest: Manifest, shardIndex: number): Promise<string[]> {
    const removed: string[] = [];
    for (const table of manifest.tables) {
      for (const { contentId, sha256 } of table.shards[shardIndex] ?? []) {
        const name = toLayerName(table.name, contentId);
        const bytes = this.#files.layers.get(name);
        if (bytes === undefined || computeSha256(bytes) === sha256) continue;
        this.#files.layers.delete(name);
        removed.push(name);
      }
    }
    return removed;
  }

  override readSavedState(channel: string): SavedState | undefined {
    return this.#files.savedStates.get(channel);
  }

  override saveState(channel: string, memory: SavedState): void {
    this.#files.savedStates.set(channel, memory);
  }
}

/** The content of a simulated layer. */
export interface LayerContent {
  readonly tag: string;
  readonly shard: number;
  /** contentId of a delta's parent layer. */
  readonly parent: string | undefined;
}

export function makeLayer(content: LayerContent): { ref: LayerRef; bytes: Uint8Array } {
  const bytes = new TextEncoder().encode(JSON.stringify(content));
  const sha256 = computeSha256(bytes);
  const kind = content.parent === undefined ? 'base' : 'delta';
  const ref = {
    contentId: sha256.slice(0, 32),
    kind,
    bytes: bytes.length,
    sha256,
    rows: 1,
  } as const;
  return { ref, bytes };
}

export function readLayer(bytes: Uint8Array): LayerContent {
  return JSON.parse(new TextDecoder().decode(bytes)) as LayerContent;
}
