/** A repository in a temporary folder, with versions written from the Maps of an oracle. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setKey } from '../../../../lib/core/keys.ts';
import type { LayerRef, Manifest, TableRef } from '../../../../lib/core/manifest.ts';
import { encodeRows, type RowDtype } from '../../../../lib/core/row-codec.ts';
import { openRepository, type Repository } from '../../../../lib/repository/repository.ts';
import { writeLayer } from '../../../../lib/store/layer-file.ts';
import type { OracleTable, OracleVersion } from '../../../client/support/oracle.ts';
import { type ChainStep, isChained } from './chained-table.ts';

export class TestRepository {
  /** Removed by `remove`. The repository is in `repo`; tests may use the rest. */
  readonly folder: string;
  readonly repository: Repository;

  private constructor(folder: string) {
    this.folder = folder;
    this.repository = openRepository(join(folder, 'repo'), { create: true });
  }

  static async create(): Promise<TestRepository> {
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
    const dtype = isChained(table) ? table.dtype : 'f32';
    const chain = isChained(table) ? table.chain : [{ rows, deleted: [] }];
    const shards = Array.from({ length: shardNum }, (_, shard) => {
      const layers: LayerRef[] = [];
      for (const step of chain) {
        const parent = layers.at(-1)?.contentId;
        const options = { name, dim, dtype, shard, shardNum, step, ...(parent && { parent }) };
        layers.push(this.#layer(bundle, options));
      }
      return layers;
    });
    return { name, dim, dtype, rows: rows.size, defaultRow, shardNum, shards };
  }

  #layer(bundle: string, options: LayerOptions): LayerRef {
    const { name, dim, dtype, shard, shardNum, step, parent } = options;
    const isMine = (key: bigint): boolean => Number(key % BigInt(shardNum)) === shard;
    const mine = [...step.rows].filter(([key]) => isMine(key));
    const rows = new Float32Array(dim * mine.length);
    mine.forEach(([, row], i) => {
      rows.set(row, i * dim);
    });
    const layer = {
      table: name,
      dtype,
      dim,
      shardIndex: shard,
      shardNum,
      keys: toWords(mine.map(([key]) => key)),
      rows: encodeRows(dtype, rows, dim).rows,
      ...(parent && { parentContentId: parent, deleted: toWords(step.deleted.filter(isMine)) }),
    };
    const target = (contentId: string) => this.repository.layerWritePath(bundle, name, contentId);
    const { contentId, bytes, sha256, rows: count } = writeLayer(layer, target);
    return { contentId, kind: parent ? 'delta' : 'base', bytes, sha256, rows: count };
  }
}

interface LayerOptions {
  readonly name: string;
  readonly dim: number;
  readonly dtype: RowDtype;
  readonly shard: number;
  readonly shardNum: number;
  readonly step: ChainStep;
  readonly parent?: string;
}

function toWords(keys: readonly bigint[]): Uint32Array {
  const words = new Uint32Array(2 * keys.length);
  keys.forEach((key, i) => {
    setKey(words, i, key);
  });
  return words;
}
