/** Publishes small versions with bases, deltas and any dtype, for tests of tools. */
import { join } from 'node:path';
import { packKeys } from '../../lib/client/pack-keys.ts';
import type { LayerInput } from '../../lib/core/layer-input.ts';
import type { LayerRef, Manifest, TableDtype } from '../../lib/core/manifest.ts';
import { encodeRows } from '../../lib/core/row-codec.ts';
import type { HashSpec, Slot } from '../../lib/core/slots.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { writeLayer } from '../../lib/store/layer-file.ts';
import { sha256 } from '../repository/support/fixtures.ts';

/** The elements of each key's row; with dtype bytes, the bytes of its value. */
export type Rows = ReadonlyMap<bigint, readonly number[]>;

export interface LayerContent {
  readonly rows: Rows;
  readonly deleted?: readonly bigint[];
}

export interface TableSpec {
  readonly name: string;
  readonly dtype?: TableDtype;
  readonly dim: number;
  /** The base, then deltas. */
  readonly layers: readonly LayerContent[];
  readonly indexed?: boolean;
}

export interface VersionContent {
  readonly bundle?: string;
  readonly version: string;
  readonly shardNum: number;
  readonly tables: readonly TableSpec[];
  readonly graph?: string;
  readonly hash?: HashSpec;
  readonly slots?: readonly Slot[];
}

const RAW: HashSpec = { scheme: 'raw', seed: 0n, modulo: 0n };

/** Builds the input of one shard's layer; `keys` may belong to other shards, as tests need. */
export function toLayerInput(
  { name, dtype = 'f32', dim, indexed }: TableSpec,
  { rows }: LayerContent,
  shard: { keys: readonly bigint[]; deleted: readonly bigint[]; index: number; num: number },
  parentContentId: string,
): LayerInput {
  const common = {
    table: name,
    shardIndex: shard.index,
    shardNum: shard.num,
    parentContentId,
    keys: packKeys(shard.keys),
    deleted: packKeys(shard.deleted),
    ...(indexed === true && { layout: 'indexed' as const }),
  };
  const elements = shard.keys.flatMap((key) => [...rows.get(key)!]);
  if (dtype !== 'bytes') {
    return {
      ...common,
      dtype,
      dim,
      rows: encodeRows(dtype, Float32Array.from(elements), dim).rows,
    };
  }
  let end = 0;
  const ends = Uint32Array.from(shard.keys, (key) => {
    end += rows.get(key)!.length;
    return end;
  });
  return { ...common, dtype, values: Uint8Array.from(elements), ends };
}

function writeShard(root: string, bundle: string, table: TableSpec, index: number, num: number) {
  const refs: LayerRef[] = [];
  for (const layer of table.layers) {
    const own = (key: bigint): boolean => Number(key % BigInt(num)) === index;
    const keys = [...layer.rows.keys()].filter(own);
    const deleted = (layer.deleted ?? []).filter(own);
    const input = toLayerInput(
      table,
      layer,
      { keys, deleted, index, num },
      refs.at(-1)?.contentId ?? '',
    );
    const written = writeLayer(input, (id) => join(root, layerPath(bundle, table.name, id)));
    const { contentId, bytes, sha256: sha, rows } = written;
    refs.push({ contentId, kind: refs.length === 0 ? 'base' : 'delta', bytes, sha256: sha, rows });
  }
  return refs;
}

/** Publishes a version and returns its manifest. */
export async function publish(root: string, content: VersionContent): Promise<Manifest> {
  const { bundle = 'b', version, shardNum, tables, graph = 'a graph', hash = RAW } = content;
  const files = new Map([['model.onnx', new TextEncoder().encode(graph)]]);
  const manifest: Manifest = {
    bundle,
    version,
    hash,
    slots: content.slots ?? [],
    files: [...files].map(([path, bytes]) => ({
      path,
      bytes: bytes.length,
      sha256: sha256(bytes),
    })),
    tables: tables.map((table) => {
      const shards = Array.from({ length: shardNum }, (_, index) =>
        writeShard(root, bundle, table, index, shardNum),
      );
      const { name, dim, dtype = 'f32' } = table;
      const rows = shards.flat().reduce((sum, layer) => sum + layer.rows, 0);
      return { name, dim, dtype, rows, defaultRow: [], shardNum, shards };
    }),
  };
  const repository = openRepository(root, { create: true });
  await repository.publish({ manifest, files, layers: [] });
  return manifest;
}

export async function activate(root: string, version: string, bundle = 'b'): Promise<void> {
  const request = { version, by: 'test', reason: 'test' };
  await openRepository(root).activate(bundle, 'stable', request);
}

/** Makes a row for each key; its elements depend on key, position and salt. */
export function makeRows(keys: readonly bigint[], dim: number, salt = 0): Map<bigint, number[]> {
  return new Map(
    keys.map((key) => [
      key,
      Array.from({ length: dim }, (_, j) => Number(key % 97n) + j / 4 + salt),
    ]),
  );
}

/** Makes distinct keys spread over 64 bits. */
export function makeKeys(count: number, from = 0): bigint[] {
  return Array.from({ length: count }, (_, i) =>
    BigInt.asUintN(64, BigInt(from + i + 1) * 0x9e37_79b9_7f4a_7c15n),
  );
}
