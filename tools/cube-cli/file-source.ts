/** Rows out of files: those of a version in a repository, or of one layer file. */

import type { LayerHeader } from '../../lib/core/layer-format.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { RandomReader } from '../../lib/platform/files.ts';
import { foundRow } from '../../lib/store/chain-search.ts';
import { readHeader } from '../../lib/store/layer-reader.ts';
import type { FoundKey, FoundKeys, RowSource, SourceTable } from './row-source.ts';
import { pickKeys, TableFiles } from './table-files.ts';

/** The header of a layer file. */
export function headerOf(path: string): LayerHeader {
  const reader = new RandomReader(path);
  try {
    return readHeader(reader);
  } finally {
    reader.close();
  }
}

/** A layer file as a table of which one shard is here. */
export function tableOfLayer(path: string): TableFiles {
  const header = headerOf(path);
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

  /** @param root of the repository */
  static ofVersion(root: string, manifest: Manifest): FileSource {
    const tables = manifest.tables.map(({ name }) => TableFiles.ofVersion(root, manifest, name));
    return new FileSource(tables, manifest);
  }

  async lookup({ name }: SourceTable, keys: Uint32Array): Promise<FoundKeys> {
    const table = this.tables.find((candidate) => candidate.name === name)!;
    const found = new Array<FoundKey>(keys.length / 2);
    for (const [shard, indices] of table.split(keys)) {
      this.#lookupShard(table, shard, pickKeys(keys, indices), (i, key) => {
        found[indices[i]!] = key;
      });
    }
    const version = this.manifest?.version ?? '';
    return { keys: found, rowsAs: table.dtype, version, trouble: undefined };
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
    const chain = table.chain(shard);
    const searched = chain.find(keys);
    const rows = chain.read(searched);
    for (let i = 0; i < searched.count; i++) {
      const decided = Math.max(searched.layers[i]!, searched.deletedBy[i]!);
      if (decided === 0) take(i, { outcome: 'unseen', shard });
      else {
        const layer = files[decided - 1]!.contentId;
        if (searched.layers[i] === 0) take(i, { outcome: 'deleted', shard, layer });
        else take(i, { outcome: 'hit', shard, layer, row: foundRow(rows, i) });
      }
    }
  }
}
