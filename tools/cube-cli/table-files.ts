/** The layer files of one table of a version, or a single layer file, opened on demand by shard. */
import { CubeError } from '../../lib/core/errors.ts';
import { computeShard } from '../../lib/core/keys.ts';
import {
  getTable,
  type Manifest,
  type TableDtype,
  type TableRef,
} from '../../lib/core/manifest.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { ChainSearch } from '../../lib/store/chain-search.ts';
import { requireLayerForm } from '../../lib/store/layer-open.ts';
import { checkLayerHeader, listRequiredLayers } from '../../lib/store/load-files.ts';

export interface LayerFile {
  readonly path: string;
  readonly contentId: string;
  readonly bytes: number;
}

/** Maximum open chains; each open file takes 1 MiB of memory. */
const CHAINS_OPEN_MAX = 8;

export class TableFiles {
  readonly name: string;
  readonly dim: number;
  readonly dtype: TableDtype;
  readonly shardNum: number;
  /** Layers by shard, base first; empty for a shard without files. */
  readonly shards: readonly (readonly LayerFile[])[];
  readonly #check: (chain: ChainSearch, shard: number) => void;
  /** Open chains by shard, least recently used first. */
  readonly #open = new Map<number, ChainSearch>();

  /** @param check called with each chain that is opened; throws when it is not the expected one */
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

  /** @param root folder of the repository. @throws CubeError NOT_FOUND for an unknown table */
  static forVersion(root: string, manifest: Manifest, name: string): TableFiles {
    const table = getTable(manifest, name);
    const shards = table.shards.map((layers) =>
      layers.map(({ contentId, bytes }) => ({
        path: `${root}/${layerPath(manifest.bundle, name, contentId)}`,
        contentId,
        bytes,
      })),
    );
    return new TableFiles(table, shards, (chain, shard) => {
      for (const { path } of shards[shard] ?? []) requireLayerForm(manifest, path);
      const required = listRequiredLayers(manifest, shard).filter((layer) => layer.table === table);
      chain.headers.forEach((header, i) => {
        checkLayerHeader(header, required[i]!, shard);
      });
    });
  }

  /**
   * Returns the open files of a shard, valid until the next call.
   * @throws CubeError with the path of a file that is missing or damaged
   */
  openChain(shard: number): ChainSearch {
    const opened = this.#open.get(shard);
    if (opened !== undefined) {
      this.#open.delete(shard);
      this.#open.set(shard, opened);
      return opened;
    }
    for (const [oldest, chain] of this.#open) {
      if (this.#open.size < CHAINS_OPEN_MAX) break;
      chain.close();
      this.#open.delete(oldest);
    }
    const files = this.shards[shard] ?? [];
    if (files.length === 0) {
      throw new CubeError('NOT_FOUND', `table ${this.name} has no layer of shard ${shard}`);
    }
    const chain = new ChainSearch(files.map(({ path }) => path));
    this.#open.set(shard, chain);
    this.#check(chain, shard);
    return chain;
  }

  /** Groups the indices of keys by shard. */
  groupByShard(keys: Uint32Array): Map<number, number[]> {
    const groups = new Map<number, number[]>();
    for (let i = 0; i < keys.length / 2; i++) {
      const shard = computeShard(keys[2 * i]!, keys[2 * i + 1]!, this.shardNum);
      const group = groups.get(shard);
      if (group === undefined) groups.set(shard, [i]);
      else group.push(i);
    }
    return groups;
  }

  close(): void {
    for (const chain of this.#open.values()) chain.close();
    this.#open.clear();
  }
}

/** Returns the keys at the given indices. */
export function pickKeys(keys: Uint32Array, indices: readonly number[]): Uint32Array {
  const picked = new Uint32Array(2 * indices.length);
  indices.forEach((index, i) => {
    picked[2 * i] = keys[2 * index]!;
    picked[2 * i + 1] = keys[2 * index + 1]!;
  });
  return picked;
}
