/** What a table is read from, whichever way: input files, or the layers of a version. One shape of batch for both. */
import type { LayerRef, TableRef } from '../../lib/core/manifest.ts';
import { rowBytesOf } from '../../lib/core/row-codec.ts';
import { statPath } from '../../lib/platform/files.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { readDeletedKeys, readLayerRows } from '../../lib/store/layer-file.ts';
import type { RowSource, SourceFile } from './sources/row-source.ts';

/** Rows of one size as words, or values of any length; then deleted keys. */
export interface InputBatch {
  /** 2n words. */
  readonly keys: Uint32Array;
  readonly rows?: Uint32Array;
  readonly values?: Uint8Array;
  readonly ends?: Uint32Array;
  readonly deletedKeys?: Uint32Array | undefined;
}

export interface TableInput {
  readonly name: string;
  /** 0: values of any length. */
  readonly dim: number;
  /** f32 rows, to be encoded; or rows as a layer stores them. */
  readonly rowsAre: 'f32' | 'stored';
  /** Of `rows`; 0 for values. */
  readonly rowWords: number;
  readonly rows: number | undefined;
  /** Of rows and keys, where known. */
  readonly bytes: number | undefined;
  /** Empty for standard input, which cannot be read again. */
  readonly files: readonly SourceFile[];
  batches(): AsyncIterable<InputBatch>;
}

/** A file as it is found now. */
export function fileSource(path: string): SourceFile {
  const { bytes = 0, mtimeMs = 0 } = statPath(path) ?? {};
  return { path, bytes, mtimeMs };
}

export function inputOfSource(source: RowSource): TableInput {
  const { name, dim, rows, bytes, files } = source;
  return {
    ...{ name, dim, rowsAre: 'f32', rowWords: dim, rows, bytes, files },
    async *batches() {
      for await (const batch of source.batches()) {
        const { keys, deletedKeys } = batch;
        if ('values' in batch) {
          yield { keys, values: batch.values, ends: batch.ends, deletedKeys };
        } else {
          const { buffer, byteOffset, length } = batch.rows;
          yield { keys, rows: new Uint32Array(buffer, byteOffset, length), deletedKeys };
        }
      }
    },
  };
}

/** Keys deleted after everything else. */
export function inputOfDeletes(
  like: TableInput,
  keys: Uint32Array,
  files: readonly SourceFile[],
): TableInput {
  const none = like.rowWords === 0 ? { values: new Uint8Array(0), ends: new Uint32Array(0) } : {};
  return {
    ...like,
    ...{ rows: 0, bytes: keys.byteLength, files },
    async *batches() {
      const nothing = new Uint32Array(0);
      yield {
        keys: nothing,
        ...none,
        ...(like.rowWords > 0 && { rows: nothing }),
        deletedKeys: keys,
      };
    },
  };
}

/** The layers of a published table, each shard's from the base up: the last record of a key is what a lookup finds. */
export function inputOfLayers(
  repository: Repository,
  bundle: string,
  { name, dim, dtype, shards }: TableRef,
): TableInput {
  const layers = shards.flat();
  const rows = layers.reduce((sum, layer) => sum + layer.rows, 0);
  const rowBytes = rowBytesOf(dtype, dim);
  const pathOf = ({ contentId }: LayerRef): string =>
    repository.layerTarget(bundle, name, contentId);
  return {
    ...{ name, dim, rowsAre: 'stored', rowWords: rowBytes / 4, rows },
    bytes: layers.reduce((sum, layer) => sum + layer.bytes, 0),
    // A layer is named by its content: neither place nor time tells more.
    files: layers.map(({ contentId, bytes }) => ({ path: contentId, bytes, mtimeMs: 0 })),
    async *batches() {
      for (const layer of layers) yield* layerBatches(pathOf(layer), layer);
    },
  };
}

function* layerBatches(path: string, layer: LayerRef): Generator<InputBatch> {
  for (const { keys, rows, ends } of readLayerRows(path)) {
    if (ends !== undefined) yield { keys, values: rows, ends };
    else yield { keys, rows: new Uint32Array(rows.buffer, rows.byteOffset, rows.length / 4) };
  }
  if (layer.kind === 'base') return;
  const none = { keys: new Uint32Array(0), rows: new Uint32Array(0) };
  for (const deletedKeys of readDeletedKeys(path)) yield { ...none, deletedKeys };
}
