/** Reads rows from files: those of a version in a repository, or one layer file. */
import { CubeError } from '../../lib/core/errors.ts';

import type { LayerHeader } from '../../lib/core/layer-format.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { getFoundRow } from '../../lib/store/chain-search.ts';
import { openLayerFile } from '../../lib/store/layer-open.ts';
import { readHeader } from '../../lib/store/layer-reader.ts';
import type { FoundKey, FoundKeys, RowSource, SourceTable } from './row-source.ts';
import { pickKeys, TableFiles } from './table-files.ts';

/** Reads the header of a layer file. @throws CubeError when it is missing or damaged */
export function readLayerHeader(path: string): LayerHeader {
  const reader = openLayerFile(path);
  try {
    return readHeader(reader);
  } finally {
    reader.close();
  }
}

/** Opens a layer file as a table with files for only one shard. */
export function openLayerTable(path: string): TableFiles {
  const header = readLayerHeader(path);
  const { contentId, shardIndex, fileBytes: bytes } = header;
  const shards = Array.from({ length: shardIndex + 1 }, (_, shard) =>
    shard === shardIndex ? [{ path, contentId, bytes }] : [],
  );
  return new TableFiles({ ...header, name: header.table }, shards);
}

export class FileSource implements RowSource {
  readonly manifest: Manifest | undefined;
  readonly tables: readonly TableFiles[];

  constructor(tables: readonly TableFiles[], manifest: Manifest | undefined) {
    this.tables = tables;
    this.manifest = manifest;
  }

  /** @param root folder of the repository */
  static openVersion(root: string, manifest: Manifest): FileSource {
    const tables = manifest.tables.map(({ name }) => TableFiles.forVersion(root, manifest, name));
    return new FileSource(tables, manifest);
  }

  async lookup({ name }: SourceTable, keys: Uint32Array): Promise<FoundKeys> {
    const table = this.tables.find((candidate) => candidate.name === name);
    if (table === undefined) throw new CubeError('NOT_FOUND', `there is no table ${name}`);
    const found = new Array<FoundKey>(keys.length / 2);
    for (const [shard, indices] of table.groupByShard(keys)) {
      this.#lookupShard(table, shard, pickKeys(keys, indices), (i, key) => {
        found[indices[i]!] = key;
      });
    }
    const version = this.manifest?.version ?? '';
    return { keys: found, rowDtype: table.dtype, version, warning: undefined };
  }

  close(): void {
    for (const table of this.tables) table.close();
  }

  #lookupShard(
    table: TableFiles,
    shard: number,
    keys: Uint32Array,
    take: (i: number, key: FoundKey) => void,
  ): void {
    const files = table.shards[shard] ?? [];
    if (files.length === 0 && this.manifest === undefined) {
      for (let i = 0; i < keys.length / 2; i++) take(i, { outcome: 'other-shard', shard });
      return;
    }
    const chain = table.openChain(shard);
    const searched = chain.find(keys);
    const rows = chain.read(searched);
    for (let i = 0; i < searched.count; i++) {
      const decidedBy = Math.max(searched.layers[i]!, searched.deletedBy[i]!);
      if (decidedBy === 0) take(i, { outcome: 'unseen', shard });
      else {
        const layer = files[decidedBy - 1]!.contentId;
        if (searched.layers[i] === 0) take(i, { outcome: 'deleted', shard, layer });
        else take(i, { outcome: 'hit', shard, layer, row: getFoundRow(rows, i) });
      }
    }
  }
}
