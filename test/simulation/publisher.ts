/** Creates versions: whole ones, deltas, new graphs over old rows; good, bad and invalid ones. */
import { CubeError } from '../../lib/core/errors.ts';
import { getShardNum, type LayerRef, type Manifest } from '../../lib/core/manifest.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { BUNDLE, computeSha256, makeLayer } from './host-disk.ts';
import type { MemoryStore, ProcessStore } from './memory-store.ts';
import type { Random } from './random.ts';
import type { Health } from './sim-controller.ts';
import type { SimProcess } from './world.ts';

const TABLE = 'rows';
/** The graph of every version: nobody reads it here. */
const GRAPH = new Uint8Array([1]);
const CHAIN_MAX = 3;
const RETRY_MS = 500;

interface CreatedVersion {
  readonly manifest: Manifest;
  /** The tag in its rows. */
  readonly tag: string;
  readonly health: Health;
}

export type VersionKind = 'whole' | 'delta' | 'graph' | 'delta without its parent';

export class Publisher {
  /** All created versions, whether or not their publication completed. */
  readonly versions: Map<string, CreatedVersion> = new Map();
  readonly #shardNums: readonly number[];
  readonly #damaged = new Set<string>();
  #made = 0;

  /** @param shardNums shard counts to choose from */
  constructor(shardNums: readonly number[]) {
    this.#shardNums = shardNums;
  }

  findShardNum(version: string): number {
    const made = this.versions.get(version);
    return made === undefined ? this.#shardNums[0]! : (getShardNum(made.manifest) ?? 0);
  }

  /** @returns the version and its new layers */
  make(
    flavor: VersionKind,
    health: Health,
    random: Random,
  ): { version: string; layers: Uint8Array[] } {
    this.#made += 1;
    const version = String(this.#made);
    const parents = [...this.versions.values()].filter(
      (made) => made.manifest.tables[0]!.shards[0]!.length < CHAIN_MAX,
    );
    const parent = flavor === 'whole' || parents.length === 0 ? undefined : random.pick(parents);
    const layers: Uint8Array[] = [];
    const tag = flavor === 'graph' && parent !== undefined ? parent.tag : version;
    const shardNum =
      parent === undefined
        ? random.pick(this.#shardNums)
        : this.findShardNum(parent.manifest.version);
    const shards = Array.from({ length: shardNum }, (_, shard): LayerRef[] => {
      let before = [...(parent?.manifest.tables[0]?.shards[shard] ?? [])];
      if (flavor === 'graph' && parent !== undefined) return before;
      if (flavor === 'delta without its parent') {
        before = [makeLayer({ tag: `lost ${version}`, shard, parent: undefined }).ref];
      }
      const { ref, bytes } = makeLayer({ tag, shard, parent: before.at(-1)?.contentId });
      layers.push(bytes);
      return [...before, ref];
    });
    const sizes = { dim: 1, dtype: 'f32' as const, rows: shards.length, defaultRow: [] };
    const tables = [{ name: TABLE, ...sizes, shardNum, shards }];
    const hash = { scheme: 'raw' as const, seed: 0n, modulo: 0n };
    const files = [{ path: 'model.onnx', bytes: GRAPH.length, sha256: computeSha256(GRAPH) }];
    const manifest = { bundle: BUNDLE, version, files, hash, slots: [], tables };
    const isDamaged = parent?.health === 'damaged' || health === 'damaged';
    this.versions.set(version, { manifest, tag, health: isDamaged ? 'damaged' : health });
    return { version, layers };
  }

  /** Retries until the version is published or refused. */
  async publish(
    { version, layers }: { version: string; layers: readonly Uint8Array[] },
    process: SimProcess,
    store: ProcessStore,
    repository: Repository,
  ): Promise<void> {
    const { manifest } = this.versions.get(version)!;
    for (;;) {
      try {
        for (const [shard, bytes] of layers.entries()) {
          const { contentId } = manifest.tables[0]!.shards[shard]!.at(-1)!;
          await store.putIfAbsent(layerPath(BUNDLE, TABLE, contentId), bytes);
        }
        await repository.publish({ manifest, files: new Map([['model.onnx', GRAPH]]), layers: [] });
        return;
      } catch (error) {
        const { code, message } = CubeError.from(error);
        if (code === 'INTERNAL') throw error;
        process.world.record(process.name, `cannot publish ${version}: ${code} ${message}`);
        if (code === 'NOT_FOUND' || code === 'CONFLICT') return;
      }
      await process.clock.sleep(RETRY_MS);
    }
  }

  /** Damages a layer of the version's first shard in the repository. */
  damage(version: string, store: MemoryStore): void {
    const layer = this.versions.get(version)?.manifest.tables[0]?.shards[0]?.at(-1);
    const object = layer && store.objects.get(layerPath(BUNDLE, TABLE, layer.contentId));
    if (layer === undefined || object === undefined) return;
    object.bytes = object.bytes.map((byte) => byte ^ 1);
    this.#damaged.add(layer.contentId);
  }

  /** Whether a layer of the version is damaged in the repository. */
  isDamaged(version: string): boolean {
    const { tables = [] } = this.versions.get(version)?.manifest ?? {};
    const layers = tables.flatMap(({ shards }) => shards.flat());
    return layers.some(({ contentId }) => this.#damaged.has(contentId));
  }
}
