/** The layer files of one table of a version, or one layer file by itself, opened shard by shard when they are needed. */
import { CubeError } from '../../lib/core/errors.ts';
import { shardOf } from '../../lib/core/keys.ts';
import { type Manifest, type TableDtype, type TableRef, tableOf } from '../../lib/core/manifest.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { ChainSearch } from '../../lib/store/chain-search.ts';
import { checkHeader, wantedLayers } from '../../lib/store/wanted-layers.ts';

export interface LayerFile {
  readonly path: string;
  readonly contentId: string;
  readonly bytes: number;
}

/** Open at a time: each file takes a MiB. */
const CHAINS_OPEN_MAX = 8;

export class TableFiles {
  readonly name: string;
  readonly dim: number;
  readonly dtype: TableDtype;
  readonly shardNum: number;
  /** By shard, base first; no layer of a shard that is not here. */
  readonly shards: readonly (readonly LayerFile[])[];
  readonly #check: (chain: ChainSearch, shard: number) => void;
  /** The least recently used first. */
  readonly #open = new Map<number, ChainSearch>();

  /** @param check of a chain that was opened */
  constructor(
    table: Pick<TableRef, 'name' | 'dim' | 'dtype' | 'shardNum'>,
    shards: readonly (readonly LayerFile[])[],
    check: (chain: ChainSearch, shard: number) => void = () => undefined,
  ) {
    this.name = table.name;
    this.dim = table.dim;
    this.dtype = table.dtype;
    this.shardNum = table.shardNum;
    this.shards = shards;
    this.#check = check;
  }

  /** @param root of the repository. @throws CubeError NOT_FOUND for an unknown table */
  static ofVersion(root: string, manifest: Manifest, name: string): TableFiles {
    const table = tableOf(manifest, name);
    const shards = table.shards.map((layers) =>
      layers.map(({ contentId, bytes }) => ({
        ...{ path: `${root}/${layerPath(manifest.bundle, name, contentId)}`, contentId, bytes },
      })),
    );
    return new TableFiles(table, shards, (chain, shard) => {
      const wanted = wantedLayers(manifest, shard).filter((layer) => layer.table === table);
      chain.headers.forEach((header, i) => {
        checkHeader(header, wanted[i]!, shard);
      });
    });
  }

  /** The open files of a shard; good until the next call. @throws CubeError naming a file that is missing or damaged */
  chain(shard: number): ChainSearch {
    const known = this.#open.get(shard);
    if (known !== undefined) {
      this.#open.delete(shard);
      this.#open.set(shard, known);
      return known;
    }
    for (const [oldest, chain] of this.#open) {
      if (this.#open.size < CHAINS_OPEN_MAX) break;
      chain.close();
      this.#open.delete(oldest);
    }
    const files = this.shards[shard] ?? [];
    if (files.length === 0) {
      throw new CubeError('NOT_FOUND', `table ${this.name}: no layer of shard ${shard} is here`);
    }
    const chain = new ChainSearch(files.map(({ path }) => path));
    this.#open.set(shard, chain);
    this.#check(chain, shard);
    return chain;
  }

  /** Indices of keys by the shard they belong to. */
  split(keys: Uint32Array): Map<number, number[]> {
    const split = new Map<number, number[]>();
    for (let i = 0; i < keys.length / 2; i++) {
      const shard = shardOf(keys[2 * i]!, keys[2 * i + 1]!, this.shardNum);
      const known = split.get(shard);
      if (known === undefined) split.set(shard, [i]);
      else known.push(i);
    }
    return split;
  }

  close(): void {
    for (const chain of this.#open.values()) chain.close();
    this.#open.clear();
  }
}

/** Keys i of a batch. */
export function pickKeys(keys: Uint32Array, indices: readonly number[]): Uint32Array {
  const picked = new Uint32Array(2 * indices.length);
  indices.forEach((index, at) => {
    picked[2 * at] = keys[2 * index]!;
    picked[2 * at + 1] = keys[2 * index + 1]!;
  });
  return picked;
}
