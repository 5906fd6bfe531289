/**
 * A data folder as an agent leaves it for a server: layers and manifests of small generated
 * versions.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setKey } from '../../../lib/core/keys.ts';
import { formatManifest, type LayerRef, type Manifest } from '../../../lib/core/manifest.ts';
import { replaceFile } from '../../../lib/platform/files.ts';
import { layerPath, manifestPath } from '../../../lib/repository/layout.ts';
import { writeLayer } from '../../../lib/store/layer-file.ts';

export interface TableSpec {
  readonly name: string;
  readonly dim: number;
  readonly keys: readonly bigint[];
  /** Element j of the row of a key. */
  readonly value: (key: bigint, j: number) => number;
  readonly defaultRow?: readonly number[];
}

export interface VersionContent {
  readonly bundle: string;
  readonly version: string;
  readonly shardNum: number;
  readonly tables: readonly TableSpec[];
}

export class DataFolder {
  readonly path: string = mkdtempSync(join(tmpdir(), 'hypercube-server-'));

  remove(): void {
    rmSync(this.path, { recursive: true, force: true });
  }

  layerFile(bundle: string, table: string, contentId: string): string {
    return join(this.path, layerPath(bundle, table, contentId));
  }

  manifestFile(bundle: string, version: string): string {
    return join(this.path, manifestPath(bundle, version));
  }

  write({ bundle, version, shardNum, tables }: VersionContent): Manifest {
    const manifest: Manifest = {
      bundle,
      version,
      files: [],
      hash: { scheme: 'raw', seed: 0n, modulo: 0n },
      slots: [],
      tables: tables.map((table) => ({
        name: table.name,
        dim: table.dim,
        dtype: 'f32',
        rows: table.keys.length,
        defaultRow: table.defaultRow ?? [],
        shardNum,
        shards: Array.from({ length: shardNum }, (_, shardIndex) => [
          this.#writeShard(bundle, table, shardIndex, shardNum),
        ]),
      })),
    };
    replaceFile(this.manifestFile(bundle, version), formatManifest(manifest));
    return manifest;
  }

  #writeShard(bundle: string, table: TableSpec, shardIndex: number, shardNum: number): LayerRef {
    const own = table.keys.filter((key) => Number(key % BigInt(shardNum)) === shardIndex);
    const keys = new Uint32Array(2 * own.length);
    const rows = new Float32Array(own.length * table.dim);
    own.forEach((key, i) => {
      setKey(keys, i, key);
      for (let j = 0; j < table.dim; j++) rows[i * table.dim + j] = table.value(key, j);
    });
    const layer = {
      table: table.name,
      dtype: 'f32' as const,
      dim: table.dim,
      shardIndex,
      shardNum,
      keys,
      rows: new Uint8Array(rows.buffer),
    };
    const { contentId, bytes, sha256 } = writeLayer(layer, (id) =>
      this.layerFile(bundle, table.name, id),
    );
    return { contentId, kind: 'base', bytes, sha256, rows: own.length };
  }
}
