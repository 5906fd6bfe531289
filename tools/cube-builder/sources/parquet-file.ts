/**
 * Parquet, one row group in memory at a time. The package that reads it trusts the file more than we do: sizes and counts
 * are held against each other before it allocates by them, and whatever it throws names the file and the row group.
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
import { RandomReader } from '../../../lib/platform/files.ts';
import type { BatchBuilder } from './batch-builder.ts';
import type { InputFile } from './input-file.ts';
import { signKey } from './key-signer.ts';
import { checkPages } from './parquet-pages.ts';
import { type ParquetColumns, parquetColumns } from './parquet-schema.ts';
import type { RecordFile } from './record-source.ts';
import type { InputSpec } from './row-source.ts';
import { parseKey } from './text-numbers.ts';

const FOOTER_BYTES_MAX = 256 << 20;
const GROUP_BYTES_MAX = 1 << 30;
/** Decoded values are 8 bytes each, whatever the file packs them into. */
const GROUP_VALUES_MAX = 1 << 27;

/** @throws CubeError when the footer is damaged or the columns do not make a table */
export async function parquetFile(file: InputFile, spec: InputSpec): Promise<RecordFile> {
  const { path } = file;
  const { metadata, schema } = await readFooter(path);
  const columns = parquetColumns(schema, spec, path);
  const rows = metadata.row_groups.reduce((sum, group) => sum + Number(group.num_rows), 0);
  if (rows !== Number(metadata.num_rows)) {
    throw damaged(path, `its row groups have ${rows} rows, the footer says ${metadata.num_rows}`);
  }
  return { files: [file], rows, read: (batch) => readGroups(path, metadata, columns, batch) };
}

async function readFooter(path: string): Promise<{ metadata: FileMetaData; schema: SchemaTree }> {
  const reader = new RandomReader(path);
  try {
    const tail = new DataView(new ArrayBuffer(8));
    if (reader.bytes < 12) throw damaged(path, 'too short for a Parquet file');
    reader.readInto(new Uint8Array(tail.buffer), reader.bytes - 8);
    if (tail.getUint32(0, true) > Math.min(FOOTER_BYTES_MAX, reader.bytes - 12)) {
      throw damaged(path, `a footer of ${tail.getUint32(0, true)} bytes`);
    }
    const metadata = await parquetMetadataAsync(bufferOf(reader), { geoparquet: false });
    return { metadata, schema: parquetSchema(metadata) };
  } catch (error) {
    throw named(error, path);
  } finally {
    reader.close();
  }
}

function bufferOf(reader: RandomReader): AsyncBuffer {
  return {
    byteLength: reader.bytes,
    slice: (start, end = reader.bytes) => {
      if (!(start >= 0 && start <= end && end <= reader.bytes)) {
        throw damaged(reader.path, `bytes ${start} … ${end} of a file of ${reader.bytes}`);
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
  const reader = new RandomReader(path);
  try {
    let first = 0;
    for (const [i, group] of metadata.row_groups.entries()) {
      const place = `${path}: row group ${i}`;
      const rows = Number(group.num_rows);
      let decoded: Decoded;
      try {
        checkGroup(group, columns, reader);
        decoded = await decodeGroup(reader, metadata, columns, { first, rows });
      } catch (error) {
        throw named(error, place);
      }
      let row = 0;
      batch.place = () => `${place}: row ${row}`;
      for (; row < rows; row++) {
        addRow(decoded, row, batch);
        if (batch.full) yield;
      }
      first += rows;
    }
  } finally {
    reader.close();
  }
}

/** The columns read must fit in memory, and their pages must be what the footer says. */
function checkGroup(group: RowGroup, columns: ParquetColumns, reader: RandomReader): void {
  const names = new Set([columns.key, ...columns.values]);
  let bytes = 0;
  let values = 0;
  for (const { meta_data: meta, file_path: other } of group.columns) {
    if (meta === undefined) throw damaged(reader.path, 'a column without metadata (encrypted?)');
    if (!names.has(meta.path_in_schema[0] ?? '')) continue;
    if (other !== undefined) throw damaged(reader.path, `a column in another file, ${other}`);
    bytes += Number(meta.total_uncompressed_size);
    values += Number(meta.num_values);
    const flat = meta.path_in_schema.length === 1;
    checkPages(reader, meta, flat ? Number(group.num_rows) : undefined);
  }
  if (bytes > GROUP_BYTES_MAX || values > GROUP_VALUES_MAX || group.num_rows > values) {
    throw new CubeError(
      'TOO_LARGE',
      `${bytes} bytes and ${values} values in ${group.num_rows} rows, at most ${GROUP_BYTES_MAX} ` +
        `and ${GROUP_VALUES_MAX} are read at once; write smaller row groups`,
    );
  }
}

interface Decoded {
  /** 2n words. */
  readonly keys: Uint32Array;
  readonly kind: ParquetColumns['kind'];
  /** number: a column each; else one column of lists or byte arrays. */
  readonly columns: readonly DecodedArray[];
}

const COMPRESSORS = {
  GZIP: (input: Uint8Array, length: number): Uint8Array =>
    gunzipSync(input, { maxOutputLength: Math.max(1, length) }),
  BROTLI: (input: Uint8Array, length: number): Uint8Array =>
    brotliDecompressSync(input, { maxOutputLength: Math.max(1, length) }),
  ZSTD: (input: Uint8Array, length: number): Uint8Array => unzstd(input, new Uint8Array(length)),
};

async function decodeGroup(
  reader: RandomReader,
  metadata: FileMetaData,
  columns: ParquetColumns,
  { first, rows }: { first: number; rows: number },
): Promise<Decoded> {
  const chunks = new Map<string, DecodedArray[]>();
  await parquetRead({
    file: bufferOf(reader),
    metadata,
    columns: [columns.key, ...columns.values],
    rowStart: first,
    rowEnd: first + rows,
    utf8: false,
    geoparquet: false,
    compressors: COMPRESSORS,
    onChunk: ({ columnName, columnData }) => {
      const known = chunks.get(columnName);
      if (known === undefined) chunks.set(columnName, [columnData]);
      else known.push(columnData);
    },
  });
  const column = (name: string): DecodedArray => {
    const parts = chunks.get(name) ?? [];
    const values = parts.length === 1 ? (parts[0] as DecodedArray) : joined(parts);
    if (values.length === rows) return values;
    throw damaged(`column ${name}`, `${values.length} values for ${rows} rows`);
  };
  return {
    keys: keysOf(column(columns.key), columns.key, columns.slot),
    kind: columns.kind,
    columns: columns.values.map(column),
  };
}

/** Pages of a column as one; those of a typed array stay one. */
function joined(parts: readonly DecodedArray[]): DecodedArray {
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

function keysOf(values: DecodedArray, name: string, slot: number | undefined): Uint32Array {
  if (slot !== undefined) return signedKeys(values, name, slot);
  if (values instanceof BigInt64Array || values instanceof BigUint64Array) {
    return new Uint32Array(values.slice().buffer);
  }
  const keys = new Uint32Array(2 * values.length);
  for (let i = 0; i < values.length; i++) {
    const value: unknown = values[i];
    if (!setKey(keys.subarray(2 * i, 2 * i + 2), value)) {
      throw damaged(`column ${name}, row ${i}`, `${String(value)} is no key`);
    }
  }
  return keys;
}

function signedKeys(values: DecodedArray, name: string, slot: number): Uint32Array {
  const keys = new Uint32Array(2 * values.length);
  for (let i = 0; i < values.length; i++) {
    const value: unknown = values[i];
    if (value === null || value === undefined) throw damaged(`column ${name}, row ${i}`, 'no key');
    const text = value instanceof Uint8Array ? Buffer.from(value).toString('utf8') : String(value);
    signKey(slot, text, keys.subarray(2 * i, 2 * i + 2));
  }
  return keys;
}

/** Signed 64-bit keys are their unsigned bit pattern; narrower ones must not be negative. */
function setKey(words: Uint32Array, value: unknown): boolean {
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

function addRow({ keys, kind, columns }: Decoded, row: number, batch: BatchBuilder): void {
  const low = keys[2 * row]!;
  const high = keys[2 * row + 1]!;
  if (kind === 'number') {
    const at = batch.addRow(low, high, columns.length);
    for (let j = 0; j < columns.length; j++) {
      batch.rows[at + j] = numberOf(columns[j]![row], batch);
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
  for (let j = 0; j < list.length; j++) batch.rows[at + j] = numberOf(list[j], batch);
}

function numberOf(value: unknown, batch: BatchBuilder): number {
  if (typeof value === 'number') return value;
  if (typeof value === 'bigint') return Number(value);
  return batch.fail(`${value === null || value === undefined ? 'null' : typeof value} in the row`);
}

function damaged(place: string, what: string): CubeError {
  return new CubeError('CORRUPT', `${place}: ${what}`);
}

/** What the package throws, as an error of the file; ours keep their code. */
function named(error: unknown, place: string): CubeError {
  const { message } = error as Error;
  if (!(error instanceof CubeError)) {
    return new CubeError('CORRUPT', `${place}: ${message}`, { cause: error });
  }
  return message.startsWith(place) ? error : new CubeError(error.code, `${place}: ${message}`);
}
