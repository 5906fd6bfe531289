/** A repository in a temporary folder, with versions made from the oracle's Maps by the project's own writer. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setKey } from '../../../lib/core/keys.ts';
import type { LayerRef, Manifest, TableRef } from '../../../lib/core/manifest.ts';
import { openRepository, type Repository } from '../../../lib/repository/repository.ts';
import { writeLayer } from '../../../lib/store/layer-file.ts';
import type { OracleTable, OracleVersion } from '../../client/oracle.ts';

export class TestRepository {
  /** Removed by `remove`; the repository is in `repo`, the rest is the test's. */
  readonly folder: string;
  readonly repository: Repository;

  private constructor(folder: string) {
    this.folder = folder;
    this.repository = openRepository(join(folder, 'repo'), { create: true });
  }

  static async make(): Promise<TestRepository> {
    return new TestRepository(await mkdtemp(join(tmpdir(), 'hypercube-stores-')));
  }

  async publish(version: OracleVersion): Promise<Manifest> {
    const tables = version.tables.map((table) => this.#table(version, table));
    const manifest: Manifest = {
      bundle: version.bundle,
      version: version.version,
      files: [],
      hash: { scheme: 'raw', seed: 0n, modulo: 0n },
      slots: [],
      tables,
    };
    // The layers were written in place.
    await this.repository.publish({ manifest, files: new Map(), layers: [] });
    return manifest;
  }

  async remove(): Promise<void> {
    await rm(this.folder, { recursive: true, force: true });
  }

  #table({ bundle, shardNum }: OracleVersion, table: OracleTable): TableRef {
    const { name, dim, rows, defaultRow } = table;
    const shards = Array.from({ length: shardNum }, (_, shard) => [
      this.#layer(bundle, table, shard, shardNum),
    ]);
    return { name, dim, dtype: 'f32', rows: rows.size, defaultRow, shardNum, shards };
  }

  #layer(bundle: string, table: OracleTable, shardIndex: number, shardNum: number): LayerRef {
    const { name, dim } = table;
    const mine = [...table.rows].filter(([key]) => Number(key % BigInt(shardNum)) === shardIndex);
    const keys = new Uint32Array(2 * mine.length);
    const rows = new Float32Array(dim * mine.length);
    mine.forEach(([key, row], i) => {
      setKey(keys, i, key);
      rows.set(row, i * dim);
    });
    const target = (contentId: string) => this.repository.layerTarget(bundle, name, contentId);
    const layer = {
      ...{ table: name, dtype: 'f32' as const, dim, shardIndex, shardNum, keys },
      rows: new Uint8Array(rows.buffer),
    };
    const written = writeLayer(layer, target);
    const { contentId, bytes, sha256 } = written;
    return { contentId, kind: 'base', bytes, sha256, rows: written.rows };
  }
}
