/** Inputs of a table: files, or layers of a version. Both yield the same kind of batches. */
import type { LayerRef, TableDtype, TableRef } from '../../lib/core/manifest.ts';
import type { QuantizationSearch } from '../../lib/core/quantized-rows.ts';
import {
  computeRowBytes,
  decodeRows,
  encodeRows,
  type RowDtype,
} from '../../lib/core/row-codec.ts';
import { statPath } from '../../lib/platform/files.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { readDeletedKeys, readLayerRows } from '../../lib/store/layer-file.ts';
import type { KeyBatches } from './sources/key-file.ts';
import type { RowSource, SourceFile } from './sources/row-source.ts';

/** Rows of one size as words, or values of any length, followed by deleted keys. */
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
  /** Encoding of the rows: f32 from files, the stored dtype from layers. */
  readonly dtype: TableDtype;
  /** Words per row; 0 for values. */
  readonly rowWords: number;
  readonly rows: number | undefined;
  /** Bytes of rows and keys, if known. */
  readonly bytes: number | undefined;
  /** The files read; empty for standard input, which cannot be read again. */
  readonly files: readonly SourceFile[];
  batches(): AsyncIterable<InputBatch>;
}

/** Reads size and time of a file. */
export function statSourceFile(path: string): SourceFile {
  const { bytes = 0, mtimeMs = 0 } = statPath(path) ?? {};
  return { path, bytes, mtimeMs };
}

export function createSourceInput(source: RowSource): TableInput {
  const { name, dim, rows, bytes, files } = source;
  return {
    name,
    dim,
    dtype: dim === 0 ? 'bytes' : 'f32',
    rowWords: dim,
    rows,
    bytes,
    files,
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

/** Makes an input that only deletes keys; it is read after the rows. */
export function createDeletesInput(
  like: TableInput,
  file: SourceFile,
  keys: KeyBatches,
): TableInput {
  const nothing = new Uint32Array(0);
  return {
    ...like,
    rowWords: 0,
    rows: 0,
    bytes: file.bytes,
    files: [file],
    async *batches() {
      for await (const deletedKeys of keys()) yield { keys: nothing, deletedKeys };
    },
  };
}

/** Encodes rows as layers of a dtype store them, so that they can be compared with stored rows. */
export function convertToDtype(
  input: TableInput,
  dtype: RowDtype,
  search: QuantizationSearch,
): TableInput {
  if (input.dtype === dtype) return input;
  const { dim } = input;
  const floats = convertToFloats(input);
  return {
    ...floats,
    dtype,
    rowWords: computeRowBytes(dtype, dim) / 4,
    async *batches() {
      for await (const batch of floats.batches()) {
        const { keys, rows } = batch;
        if (rows === undefined) yield batch;
        else {
          const encoded = encodeRows(dtype, viewFloats(rows), dim, { search, keys });
          yield { ...batch, rows: viewWords(encoded.rows) };
        }
      }
    },
  };
}

/** Decodes stored rows to f32. */
export function convertToFloats(input: TableInput): TableInput {
  const { dtype, dim } = input;
  if (dtype === 'f32' || dtype === 'bytes') return input;
  return {
    ...input,
    dtype: 'f32',
    rowWords: input.rowWords === 0 ? 0 : dim,
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

function viewFloats({ buffer, byteOffset, length }: Uint32Array): Float32Array {
  return new Float32Array(buffer, byteOffset, length);
}

function viewWords({ buffer, byteOffset, byteLength }: Uint8Array): Uint32Array {
  return new Uint32Array(buffer, byteOffset, byteLength / 4);
}

/**
 * Makes an input from the layers of a published table. Each shard is read from the base up, so
 * the last record of a key is the one that a lookup finds.
 */
export function createLayersInput(
  repository: Repository,
  bundle: string,
  { name, dim, dtype, shards }: TableRef,
): TableInput {
  const layers = shards.flat();
  const rows = layers.reduce((sum, layer) => sum + layer.rows, 0);
  const rowBytes = computeRowBytes(dtype, dim);
  const getPath = ({ contentId }: LayerRef): string =>
    repository.layerWritePath(bundle, name, contentId);
  return {
    name,
    dim,
    dtype,
    rowWords: rowBytes / 4,
    rows,
    bytes: layers.reduce((sum, layer) => sum + layer.bytes, 0),
    // Layers are named by content, so path and time add nothing to the fingerprint.
    files: layers.map(({ contentId, bytes }) => ({ path: contentId, bytes, mtimeMs: 0 })),
    async *batches() {
      for (const layer of layers) yield* readLayerBatches(getPath(layer), layer);
    },
  };
}

function* readLayerBatches(path: string, layer: LayerRef): Generator<InputBatch> {
  for (const { keys, rows, ends } of readLayerRows(path)) {
    if (ends !== undefined) yield { keys, values: rows, ends };
    else yield { keys, rows: new Uint32Array(rows.buffer, rows.byteOffset, rows.length / 4) };
  }
  if (layer.kind === 'base') return;
  const none = { keys: new Uint32Array(0), rows: new Uint32Array(0) };
  for (const deletedKeys of readDeletedKeys(path)) yield { ...none, deletedKeys };
}
