/** A version as the REDIS store asks for it: the partitions of all its layers, numbered, and which of them a key is in. */
import { shardOf } from '../../lib/core/keys.ts';
import type { Manifest, TableRef } from '../../lib/core/manifest.ts';
import { partitionKey, partitionOf, partitionsOf } from './redis-layout.ts';

interface PlacedLayer {
  /** The number of its first partition. */
  readonly first: number;
  readonly partitions: number;
}

export class RedisVersion {
  readonly manifest: Manifest;
  /** By number: the key in Redis. */
  readonly partitionKeys: readonly string[];
  /** Layers of the deepest chain. */
  readonly depth: number;
  /** Table → shard → layers, newest first. */
  readonly #chains = new Map<string, readonly (readonly PlacedLayer[])[]>();

  constructor(manifest: Manifest) {
    this.manifest = manifest;
    const partitionKeys: string[] = [];
    let depth = 1;
    for (const table of manifest.tables) {
      const chains = table.shards.map((layers) =>
        layers.map((layer) => {
          const partitions = partitionsOf(table, layer);
          const first = partitionKeys.length;
          for (let p = 0; p < partitions; p++) {
            partitionKeys.push(partitionKey(manifest.bundle, layer.contentId, p));
          }
          return { first, partitions };
        }),
      );
      for (const chain of chains) {
        chain.reverse();
        depth = Math.max(depth, chain.length);
      }
      this.#chains.set(table.name, chains);
    }
    this.partitionKeys = partitionKeys;
    this.depth = depth;
  }

  /**
   * The partitions that a key may be in, newest layer first.
   * @param numbers out: `depth` of them
   * @returns how many layers the key's shard has
   */
  locate(table: TableRef, low: number, high: number, numbers: Uint32Array): number {
    const chains = this.#chains.get(table.name)!;
    const chain = chains[shardOf(low, high, chains.length)]!;
    for (let l = 0; l < chain.length; l++) {
      const { first, partitions } = chain[l]!;
      numbers[l] = first + partitionOf(low, high, partitions);
    }
    return chain.length;
  }
}
