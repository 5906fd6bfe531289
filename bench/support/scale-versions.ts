/**
 * Versions for the curves of `npm run bench -- scale`: any number of rows, shards, tables and
 * deltas, written straight into the data folder of cube-servers.
 */
import { join } from 'node:path';
import { computeShard } from '../../lib/core/keys.ts';
import type { LayerRef, Manifest } from '../../lib/core/manifest.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { writeLayer } from '../../lib/store/layer-file.ts';
import { BUNDLE, DIM, writeKey, writeManifest } from './cube-server-process.ts';

/** A delta replaces this share of the rows. */
const DELTA_SHARE = 0.01;
const ROW_BYTES = 4 * DIM;

export interface VersionShape {
  /** Rows of all tables together. */
  readonly rows: number;
  readonly shards: number;
  readonly tables: number;
  /** Deltas on the base of each table. */
  readonly deltas: number;
}

export interface BuiltVersion {
  readonly manifest: Manifest;
  /** Time to place, hash and write the rows; the time to invent them is left out. */
  readonly buildSeconds: number;
}

export function computeTableRows({ rows, tables }: VersionShape): number {
  return Math.max(1, Math.floor(rows / tables));
}

/** Writes all layers and the manifest of a version. Another `salt` makes other rows. */
export function buildVersion(
  folder: string,
  shape: VersionShape,
  version: string,
  salt: number,
): BuiltVersion {
  let buildSeconds = 0;
  const tableRows = computeTableRows(shape);
  const deltaRows = Math.ceil(DELTA_SHARE * tableRows);
  const tables = Array.from({ length: shape.tables }, (_, at) => {
    const name = `table${at}`;
    const shards = Array.from({ length: shape.shards }, (__, shard) => {
      const layers: LayerRef[] = [];
      for (let delta = 0; delta <= shape.deltas; delta++) {
        const isBase = delta === 0;
        const rows = drawRows({
          first: isBase ? 0 : ((delta - 1) * deltaRows) % tableRows,
          count: isBase ? tableRows : deltaRows,
          shard,
          shardNum: shape.shards,
          salt: salt + delta,
        });
        const startMs = performance.now();
        layers.push(writeRows(folder, name, rows, layers.at(-1)?.contentId));
        buildSeconds += (performance.now() - startMs) / 1000;
      }
      return layers;
    });
    return {
      name,
      dim: DIM,
      dtype: 'f32' as const,
      rows: tableRows,
      defaultRow: [],
      shardNum: shape.shards,
      shards,
    };
  });
  return { manifest: writeManifest(folder, version, tables), buildSeconds };
}

interface ShardRows {
  readonly shard: number;
  readonly shardNum: number;
  readonly keys: Uint32Array;
  readonly rows: Uint8Array;
}

/** The rows of one shard among `count` keys from `first`. */
function drawRows(wanted: {
  first: number;
  count: number;
  shard: number;
  shardNum: number;
  salt: number;
}): ShardRows {
  const { first, count, shard, shardNum, salt } = wanted;
  const words = new Uint32Array(2 * count);
  let length = 0;
  for (let i = first; i < first + count; i++) {
    writeKey(words, length, i);
    const [low = 0, high = 0] = [words[length], words[length + 1]];
    if (computeShard(low, high, shardNum) === shard) length += 2;
  }
  const keys = length === words.length ? words : words.slice(0, length);
  const rows = new Uint8Array((length / 2) * ROW_BYTES);
  const values = new Float32Array(rows.buffer);
  for (let i = 0; i < values.length; i++) values[i] = (i + salt) % 1000;
  return { shard, shardNum, keys, rows };
}

function writeRows(
  folder: string,
  table: string,
  { shard, shardNum, keys, rows }: ShardRows,
  parent: string | undefined,
): LayerRef {
  const layer = {
    table,
    dtype: 'f32' as const,
    dim: DIM,
    shardIndex: shard,
    shardNum,
    keys,
    rows,
    ...(parent === undefined ? {} : { parentContentId: parent }),
  };
  const written = writeLayer(layer, (id) => join(folder, layerPath(BUNDLE, table, id)));
  const { contentId, bytes, sha256 } = written;
  const kind = parent === undefined ? 'base' : 'delta';
  return { contentId, kind, bytes, sha256, rows: keys.length / 2 };
}
