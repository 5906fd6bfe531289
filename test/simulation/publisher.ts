/** Makes versions: whole ones, deltas on earlier ones, new graphs over old rows; good ones and bad ones; and what must be refused. */
import { CubeError } from '../../lib/core/errors.ts';
import { type LayerRef, type Manifest, shardNumOf } from '../../lib/core/manifest.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { BUNDLE, makeLayer } from './host-disk.ts';
import type { MemoryStore, ProcessStore } from './memory-store.ts';
import type { Random } from './random.ts';
import type { Health } from './sim-controller.ts';
import type { SimProcess } from './world.ts';

const TABLE = 'rows';
const CHAIN_MAX = 3;
const RETRY_MS = 500;

interface MadeVersion {
  readonly manifest: Manifest;
  /** What its rows say. */
  readonly tag: string;
  readonly health: Health;
}

export type Flavor = 'whole' | 'delta' | 'graph' | 'delta without its parent';

export class Publisher {
  /** Made, whether or not publishing them came to its end. */
  readonly versions: Map<string, MadeVersion> = new Map();
  readonly #shardNums: readonly number[];
  readonly #damaged = new Set<string>();
  #made = 0;

  /** @param shardNums numbers of shards that whole versions have, one or another */
  constructor(shardNums: readonly number[]) {
    this.#shardNums = shardNums;
  }

  shardNumOf(version: string): number {
    const made = this.versions.get(version);
    return made === undefined ? this.#shardNums[0]! : (shardNumOf(made.manifest) ?? 0);
  }

  /** @returns the version, and its layers that are new */
  make(flavor: Flavor, health: Health, random: Random): { version: string; layers: Uint8Array[] } {
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
        : this.shardNumOf(parent.manifest.version);
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
    const manifest = { bundle: BUNDLE, version, files: [], hash, slots: [], tables };
    const isDamaged = parent?.health === 'damaged' || health === 'damaged';
    this.versions.set(version, { manifest, tag, health: isDamaged ? 'damaged' : health });
    return { version, layers };
  }

  /** Tries until it is there, or must not be. */
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
        await repository.publish({ manifest, files: new Map(), layers: [] });
        return;
      } catch (error) {
        const { code, message } = CubeError.from(error);
        if (code === 'INTERNAL') throw error;
        process.world.note(process.name, `cannot publish ${version}: ${code} ${message}`);
        if (code === 'NOT_FOUND' || code === 'CONFLICT') return;
      }
      await process.clock.sleep(RETRY_MS);
    }
  }

  /** Where it lies a layer of the version's first shard is not what it was. */
  damage(version: string, store: MemoryStore): void {
    const layer = this.versions.get(version)?.manifest.tables[0]?.shards[0]?.at(-1);
    const object = layer && store.objects.get(layerPath(BUNDLE, TABLE, layer.contentId));
    if (layer === undefined || object === undefined) return;
    object.bytes = object.bytes.map((byte) => byte ^ 1);
    this.#damaged.add(layer.contentId);
  }

  /** Where it lies, itself or with a version that has the same layer. */
  isDamaged(version: string): boolean {
    const { tables = [] } = this.versions.get(version)?.manifest ?? {};
    const layers = tables.flatMap(({ shards }) => shards.flat());
    return layers.some(({ contentId }) => this.#damaged.has(contentId));
  }
}
