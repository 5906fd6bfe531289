/** What a table is read from, whichever way: input files, or the layers of a version. One shape of batch for both. */
import type { LayerRef, TableDtype, TableRef } from '../../lib/core/manifest.ts';
import type { QuantizationSearch } from '../../lib/core/quantized-rows.ts';
import { decodeRows, encodeRows, type RowDtype, rowBytesOf } from '../../lib/core/row-codec.ts';
import { statPath } from '../../lib/platform/files.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { readDeletedKeys, readLayerRows } from '../../lib/store/layer-file.ts';
import type { KeyBatches } from './sources/key-file.ts';
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
  /** What its rows are: f32 from files, of a layer as it stores them. */
  readonly dtype: TableDtype;
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
    ...{ name, dim, dtype: dim === 0 ? 'bytes' : 'f32', rowWords: dim, rows, bytes, files },
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
export function inputOfDeletes(like: TableInput, file: SourceFile, keys: KeyBatches): TableInput {
  const nothing = new Uint32Array(0);
  return {
    ...like,
    ...{ rowWords: 0, rows: 0, bytes: file.bytes, files: [file] },
    async *batches() {
      for await (const deletedKeys of keys()) yield { keys: nothing, deletedKeys };
    },
  };
}

/** The rows as a layer of a dtype stores them, so that they can be compared with those of one. */
export function storedAs(
  input: TableInput,
  dtype: RowDtype,
  search: QuantizationSearch,
): TableInput {
  if (input.dtype === dtype) return input;
  const { dim } = input;
  const floats = asFloats(input);
  return {
    ...{ ...floats, dtype, rowWords: rowBytesOf(dtype, dim) / 4 },
    async *batches() {
      for await (const batch of floats.batches()) {
        const { keys, rows } = batch;
        if (rows === undefined) yield batch;
        else {
          const encoded = encodeRows(dtype, floatsOf(rows), dim, { search, keys });
          yield { ...batch, rows: wordsOf(encoded.rows) };
        }
      }
    },
  };
}

/** The rows as f32, whatever they are stored as. */
export function asFloats(input: TableInput): TableInput {
  const { dtype, dim } = input;
  if (dtype === 'f32' || dtype === 'bytes') return input;
  return {
    ...{ ...input, dtype: 'f32', rowWords: input.rowWords === 0 ? 0 : dim },
    async *batches() {
      for await (const batch of input.batches()) {
        const { keys, rows } = batch;
        if (rows === undefined) yield batch;
        else {
          const bytes = new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength);
          const decoded = decodeRows(dtype, bytes, dim, keys.length / 2);
          yield { ...batch, rows: new Uint32Array(decoded.buffer) };
        }
      }
    },
  };
}

function floatsOf({ buffer, byteOffset, length }: Uint32Array): Float32Array {
  return new Float32Array(buffer, byteOffset, length);
}

function wordsOf({ buffer, byteOffset, byteLength }: Uint8Array): Uint32Array {
  return new Uint32Array(buffer, byteOffset, byteLength / 4);
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
    ...{ name, dim, dtype, rowWords: rowBytes / 4, rows },
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
