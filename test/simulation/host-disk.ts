/** The disk of a host in memory: it outlives its agent and its server, and is damaged or lost only when somebody does that. */
import { createHash } from 'node:crypto';
import { type AgentMemory, HostData } from '../../cube-agent/host/host-data.ts';
import { type DiskState, layerName } from '../../cube-agent/host/plan.ts';
import { type LayerRef, type Manifest, parseManifest } from '../../lib/core/manifest.ts';

export const BUNDLE = 'ctr';

export class HostFiles {
  /** By "table/contentId". */
  readonly layers: Map<string, Uint8Array> = new Map();
  readonly parts: Set<string> = new Set();
  readonly manifests: Map<string, Manifest> = new Map();
  readonly notes: Map<string, AgentMemory> = new Map();

  clear(): void {
    for (const files of [this.layers, this.parts, this.manifests, this.notes]) files.clear();
  }
}

export function sha256Of(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** What an agent takes for its host's folder. */
export class HostDisk extends HostData {
  readonly #files: HostFiles;
  readonly #onRemoved: (layer: string) => void;

  constructor(files: HostFiles, onRemoved: (layer: string) => void) {
    super('/nowhere', BUNDLE);
    this.#files = files;
    this.#onRemoved = onRemoved;
  }

  override layerPath(table: string, contentId: string): string {
    return layerName(table, contentId);
  }

  override partBytes(table: string, contentId: string): number {
    return this.#files.parts.has(layerName(table, contentId)) ? 1 : 0;
  }

  override removeLeftovers(): void {}

  override scan(): DiskState {
    const { layers, parts, manifests } = this.#files;
    return {
      versions: new Set(manifests.keys()),
      layers: new Set(layers.keys()),
      parts: new Set(parts),
    };
  }

  override forgetManifest(): void {}

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
    this.#files.parts.delete(layer);
  }

  override async removeDamaged(manifest: Manifest, shardIndex: number): Promise<string[]> {
    const removed: string[] = [];
    for (const table of manifest.tables) {
      for (const { contentId, sha256 } of table.shards[shardIndex] ?? []) {
        const name = layerName(table.name, contentId);
        const bytes = this.#files.layers.get(name);
        if (bytes === undefined || sha256Of(bytes) === sha256) continue;
        this.#files.layers.delete(name);
        removed.push(name);
      }
    }
    return removed;
  }

  override recall(channel: string): AgentMemory | undefined {
    return this.#files.notes.get(channel);
  }

  override remember(channel: string, memory: AgentMemory): void {
    this.#files.notes.set(channel, memory);
  }
}

/** What a layer says: whose rows it holds. */
export interface LayerContent {
  readonly tag: string;
  readonly shard: number;
  /** contentId of the layer that a delta is for. */
  readonly parent: string | undefined;
}

export function makeLayer(content: LayerContent): { ref: LayerRef; bytes: Uint8Array } {
  const bytes = new TextEncoder().encode(JSON.stringify(content));
  const sha256 = sha256Of(bytes);
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
