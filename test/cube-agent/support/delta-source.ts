/** Publishes versions as a chain of deltas. Every row encodes its version. */
import { join } from 'node:path';
import type { LayerRef, Manifest } from '../../../lib/core/manifest.ts';
import { openRepository, type Repository } from '../../../lib/repository/repository.ts';
import { createRow, type TestTable, writeTable } from '../../store/support/layers.ts';

const DIM = 4;
const KEYS = 200;

export class DeltaSource {
  readonly repository: Repository;
  readonly #folder: string;
  readonly #shardNum: number;
  /** By shard. */
  #chains: LayerRef[][] = [];

  constructor(folder: string, shardNum: number) {
    this.repository = openRepository(join(folder, 'repository'), { create: true });
    this.#folder = join(folder, 'built');
    this.#shardNum = shardNum;
  }

  /** @param chainMax layers of a chain; a longer chain starts with a new base */
  async publish(version: number, chainMax: number): Promise<Manifest> {
    const depth = this.#chains[0]?.length ?? 0;
    const chains = depth === 0 || depth >= chainMax ? this.#none() : this.#chains;
    this.#chains = chains.map((chain, shard) => [...chain, this.#write(shard, version, chain)]);
    return this.publishChains(version, this.#chains);
  }

  get chains(): readonly (readonly LayerRef[])[] {
    return this.#chains;
  }

  /** Publishes any chains, even invalid ones. */
  async publishChains(
    version: number,
    chains: readonly (readonly LayerRef[])[],
  ): Promise<Manifest> {
    const manifest: Manifest = {
      bundle: 'ctr',
      version: String(version),
      files: [],
      slots: [],
      hash: { scheme: 'raw', seed: 0n, modulo: 0n },
      tables: [
        {
          name: 't',
          dim: DIM,
          dtype: 'f32',
          rows: KEYS * this.#shardNum,
          defaultRow: [],
          shardNum: this.#shardNum,
          shards: chains,
        },
      ],
    };
    const layers = chains.flat().map(({ contentId }) => ({
      table: 't',
      contentId,
      path: join(this.#folder, 't', `${contentId}.cube`),
    }));
    await this.repository.publish({ manifest, files: new Map(), layers });
    return manifest;
  }

  #none(): LayerRef[][] {
    return Array.from({ length: this.#shardNum }, () => []);
  }

  #write(shardIndex: number, version: number, chain: readonly LayerRef[]): LayerRef {
    const parent = chain.at(-1)?.contentId;
    const table: TestTable = {
      name: 't',
      dim: DIM,
      shardIndex,
      shardNum: this.#shardNum,
      keys: listShardKeys(shardIndex, this.#shardNum),
    };
    const options = { salt: version, ...(parent && { parentContentId: parent }) };
    const { contentId, bytes, sha256, rows } = writeTable(this.#folder, table, options);
    return { contentId, kind: parent === undefined ? 'base' : 'delta', bytes, sha256, rows };
  }
}

function listShardKeys(shard: number, shardNum: number): bigint[] {
  return Array.from({ length: KEYS }, (_, i) => BigInt(i * shardNum + shard));
}

/** Keys of all shards. */
export function listKeys(shardNum: number): bigint[] {
  return Array.from({ length: shardNum }, (_, shard) => listShardKeys(shard, shardNum)).flat();
}

export function computeRows(version: number, keys: readonly bigint[]): Float32Array {
  const rows = new Float32Array(keys.length * DIM);
  keys.forEach((key, i) => {
    rows.set(createRow(key, DIM, version), i * DIM);
  });
  return rows;
}
