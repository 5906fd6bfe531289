/**
 * Reads Parquet with one row group in memory at a time. The parquet package trusts the file, so
 * sizes and counts are checked before it allocates memory for them. Its errors get the file and the
 * row group added.
 */
import { brotliDecompressSync, gunzipSync } from 'node:zlib';
import { decompress as unzstd } from 'fzstd';
import {
  type AsyncBuffer,
  type DecodedArray,
  type FileMetaData,
  parquetMetadataAsync,
  parquetRead,
  parquetSchema,
  type RowGroup,
  type SchemaTree,
} from 'hyparquet';
import { CubeError } from '../../../lib/core/errors.ts';
import { RandomAccessReader } from '../../../lib/platform/files.ts';
import { decodeLz4Block } from '../../../lib/rpc/block-decoding.ts';
import type { BatchBuilder } from './batch-builder.ts';
import { decodeParquetLz4 } from './hadoop-codecs.ts';
import type { InputFile } from './input-file.ts';
import { checkPages } from './parquet-pages.ts';
import { chooseParquetColumns, type ParquetColumns } from './parquet-schema.ts';
import type { RecordFile } from './record-source.ts';
import type { InputSpec } from './row-source.ts';
import { parseKey, signKey } from './text-values.ts';

const FOOTER_BYTES_MAX = 256 << 20;
const GROUP_BYTES_MAX = 1 << 30;
/** Decoded values take 8 bytes each, however small they are in the file. */
const GROUP_VALUES_MAX = 1 << 27;

/** @throws CubeError if the footer is damaged or the columns do not form a table */
export async function openParquetFile(file: InputFile, spec: InputSpec): Promise<RecordFile> {
  const { path } = file;
  const { metadata, schema } = await readFooter(path);
  const columns = chooseParquetColumns(schema, spec, path);
  const rows = metadata.row_groups.reduce((sum, group) => sum + Number(group.num_rows), 0);
  if (rows !== Number(metadata.num_rows)) {
    throw damaged(
      path,
      `the row groups have ${rows} rows, but the footer says ${metadata.num_rows}`,
    );
  }
  return { files: [file], rows, read: (batch) => readGroups(path, metadata, columns, batch) };
}

async function readFooter(path: string): Promise<{ metadata: FileMetaData; schema: SchemaTree }> {
  const reader = new RandomAccessReader(path);
  try {
    const tail = new DataView(new ArrayBuffer(8));
    if (reader.bytes < 12) throw damaged(path, 'too short for a Parquet file');
    reader.readInto(new Uint8Array(tail.buffer), reader.bytes - 8);
    if (tail.getUint32(0, true) > Math.min(FOOTER_BYTES_MAX, reader.bytes - 12)) {
      throw damaged(path, `the footer size ${tail.getUint32(0, true)} is wrong`);
    }
    const metadata = await parquetMetadataAsync(createAsyncBuffer(reader), { geoparquet: false });
    return { metadata, schema: parquetSchema(metadata) };
  } catch (error) {
    throw addLocation(error, path);
  } finally {
    reader.close();
  }
}

function createAsyncBuffer(reader: RandomAccessReader): AsyncBuffer {
  return {
    byteLength: reader.bytes,
    slice: (start, end = reader.bytes) => {
      if (!(start >= 0 && start <= end && end <= reader.bytes)) {
        throw damaged(
          reader.path,
          `bytes ${start} … ${end} are outside the file of ${reader.bytes}`,
        );
      }
      const bytes = new Uint8Array(end - start);
      reader.readInto(bytes, start);
      return bytes.buffer;
    },
  };
}

async function* readGroups(
  path: string,
  metadata: FileMetaData,
  columns: ParquetColumns,
  batch: BatchBuilder,
): AsyncGenerator<void> {
  const reader = new RandomAccessReader(path);
  try {
    let first = 0;
    for (const [i, group] of metadata.row_groups.entries()) {
      const position = `${path}: row group ${i}`;
      const rows = Number(group.num_rows);
      let decoded: DecodedGroup;
      try {
        checkGroup(group, columns, reader);
        decoded = await decodeGroup(reader, metadata, columns, { first, rows });
      } catch (error) {
        throw addLocation(error, position);
      }
      let row = 0;
      batch.describePosition = () => `${position}: row ${row}`;
      for (; row < rows; row++) {
        addRow(decoded, row, batch);
        if (batch.isFull) yield;
      }
      first += rows;
    }
  } finally {
    reader.close();
  }
}

/** Checks that the selected columns fit in memory and that their pages match the footer. */
function checkGroup(group: RowGroup, columns: ParquetColumns, reader: RandomAccessReader): void {
  const names = new Set([columns.key, ...columns.values]);
  let bytes = 0;
  let values = 0;
  for (const { meta_data: meta, file_path: other } of group.columns) {
    if (meta === undefined) throw damaged(reader.path, 'a column without metadata (encrypted?)');
    if (!names.has(meta.path_in_schema[0] ?? '')) continue;
    if (other !== undefined) throw damaged(reader.path, `a column is in another file, ${other}`);
    bytes += Number(meta.total_uncompressed_size);
    values += Number(meta.num_values);
    const flat = meta.path_in_schema.length === 1;
    checkPages(reader, meta, flat ? Number(group.num_rows) : undefined);
  }
  if (bytes > GROUP_BYTES_MAX || values > GROUP_VALUES_MAX || group.num_rows > values) {
    throw new CubeError(
      'TOO_LARGE',
      `${bytes} bytes and ${values} values in ${group.num_rows} rows exceed ${GROUP_BYTES_MAX} ` +
        `bytes or ${GROUP_VALUES_MAX} values; write smaller row groups`,
    );
  }
}

interface DecodedGroup {
  /** 2n words. */
  readonly keys: Uint32Array;
  readonly kind: ParquetColumns['kind'];
  /** One column per element for kind `number`; else one column of lists or byte arrays. */
  readonly columns: readonly DecodedArray[];
}

const COMPRESSORS = {
  GZIP: (input: Uint8Array, length: number): Uint8Array =>
    gunzipSync(input, { maxOutputLength: Math.max(1, length) }),
  BROTLI: (input: Uint8Array, length: number): Uint8Array =>
    brotliDecompressSync(input, { maxOutputLength: Math.max(1, length) }),
  ZSTD: (input: Uint8Array, length: number): Uint8Array => unzstd(input, new Uint8Array(length)),
  LZ4: decodeParquetLz4,
  LZ4_RAW: decodeLz4Block,
};

async function decodeGroup(
  reader: RandomAccessReader,
  metadata: FileMetaData,
  columns: ParquetColumns,
  { first, rows }: { first: number; rows: number },
): Promise<DecodedGroup> {
  const chunks = new Map<string, DecodedArray[]>();
  await parquetRead({
    file: createAsyncBuffer(reader),
    metadata,
    columns: [columns.key, ...columns.values],
    rowStart: first,
    rowEnd: first + rows,
    utf8: false,
    geoparquet: false,
    compressors: COMPRESSORS,
    onChunk: ({ columnName, columnData }) => {
      const earlier = chunks.get(columnName);
      if (earlier === undefined) chunks.set(columnName, [columnData]);
      else earlier.push(columnData);
    },
  });
  const column = (name: string): DecodedArray => {
    const parts = chunks.get(name) ?? [];
    const values = parts.length === 1 ? (parts[0] as DecodedArray) : joinPages(parts);
    if (values.length === rows) return values;
    throw damaged(`column ${name}`, `${values.length} values for ${rows} rows`);
  };
  return {
    keys: toKeys(column(columns.key), columns.key, columns.slot),
    kind: columns.kind,
    columns: columns.values.map(column),
  };
}

/** Joins the pages of a column; float arrays stay a float array. */
function joinPages(parts: readonly DecodedArray[]): DecodedArray {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const [head] = parts;
  const isTyped =
    head instanceof Float32Array && parts.every((part) => part instanceof Float32Array);
  if (isTyped) {
    const floats = new Float32Array(length);
    let at = 0;
    for (const part of parts) {
      floats.set(part as Float32Array, at);
      at += part.length;
    }
    return floats;
  }
  const values: unknown[] = new Array(length);
  let at = 0;
  for (const part of parts) for (let i = 0; i < part.length; i++) values[at++] = part[i];
  return values;
}

function toKeys(values: DecodedArray, name: string, slot: number | undefined): Uint32Array {
  if (slot !== undefined) return signKeys(values, name, slot);
  if (values instanceof BigInt64Array || values instanceof BigUint64Array) {
    return new Uint32Array(values.slice().buffer);
  }
  const keys = new Uint32Array(2 * values.length);
  for (let i = 0; i < values.length; i++) {
    const value: unknown = values[i];
    if (!readKey(keys.subarray(2 * i, 2 * i + 2), value)) {
      throw damaged(`column ${name}, row ${i}`, `${String(value)} is not a key`);
    }
  }
  return keys;
}

function signKeys(values: DecodedArray, name: string, slot: number): Uint32Array {
  const keys = new Uint32Array(2 * values.length);
  for (let i = 0; i < values.length; i++) {
    const value: unknown = values[i];
    if (value === null || value === undefined)
      throw damaged(`column ${name}, row ${i}`, 'the key is null');
    const text = value instanceof Uint8Array ? Buffer.from(value).toString('utf8') : String(value);
    signKey(slot, text, keys.subarray(2 * i, 2 * i + 2));
  }
  return keys;
}

/** Signed 64-bit keys count as unsigned with the same bits; narrower keys must not be negative. */
function readKey(words: Uint32Array, value: unknown): boolean {
  if (typeof value === 'bigint') {
    words[0] = Number(value & 0xffff_ffffn);
    words[1] = Number((value >> 32n) & 0xffff_ffffn);
    return true;
  }
  if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) {
    words[0] = value % 0x1_0000_0000;
    words[1] = Math.floor(value / 0x1_0000_0000);
    return true;
  }
  if (typeof value !== 'string' && !(value instanceof Uint8Array)) return false;
  const digits = Buffer.from(value as string);
  return digits.length <= 20 && parseKey(digits, 0, digits.length, words);
}

function addRow({ keys, kind, columns }: DecodedGroup, row: number, batch: BatchBuilder): void {
  const low = keys[2 * row]!;
  const high = keys[2 * row + 1]!;
  if (kind === 'number') {
    const at = batch.addRow(low, high, columns.length);
    for (let j = 0; j < columns.length; j++) {
      batch.rows[at + j] = toNumber(columns[j]![row], batch);
    }
    return;
  }
  const value: unknown = columns[0]![row];
  if (kind === 'bytes') {
    if (!(value instanceof Uint8Array)) batch.fail('the value is null');
    const view = new DataView(value.buffer, value.byteOffset, value.length);
    batch.addValue(low, high, view, 0, value.length);
    return;
  }
  if (!Array.isArray(value) && !ArrayBuffer.isView(value)) batch.fail('the list is null');
  const list = value as ArrayLike<unknown>;
  const at = batch.addRow(low, high, list.length);
  for (let j = 0; j < list.length; j++) batch.rows[at + j] = toNumber(list[j], batch);
}

function toNumber(value: unknown, batch: BatchBuilder): number {
  if (typeof value === 'number') return value;
  if (typeof value === 'bigint') return Number(value);
  return batch.fail(`${value === null || value === undefined ? 'null' : typeof value} in the row`);
}

function damaged(source: string, problem: string): CubeError {
  return new CubeError('CORRUPT', `${source}: ${problem}`);
}

/** Adds the position to an error. CubeErrors keep their code; other errors become CORRUPT. */
function addLocation(error: unknown, position: string): CubeError {
  const { message } = error as Error;
  if (!(error instanceof CubeError)) {
    return new CubeError('CORRUPT', `${position}: ${message}`, { cause: error });
  }
  return message.startsWith(position)
    ? error
    : new CubeError(error.code, `${position}: ${message}`);
}
