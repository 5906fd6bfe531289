/**
 * Reads Hadoop SequenceFiles of version 6: as Cube's tools write them (raw bytes, with an 8-byte
 * little-endian key in each record), and as Hadoop writes BytesWritable (each with its length
 * before it), uncompressed, with compressed values, or with compressed blocks of records. A damaged
 * or incomplete record is an error, never silently skipped.
 *
 *     "SEQ" 6 | vint + key class | vint + value class | u8 compressed | u8 block compressed
 *     if compressed: vint + codec class
 *     i32 metadata entries, each two vint + text | 16 bytes sync marker
 *     records:  u32 BE length of key and value | u32 BE length of key | key u64 LE | value
 *     sometimes between records:  u32 2^32 − 1 | the sync marker
 *     or blocks:  u32 2^32 − 1 | the sync marker | vint records | four times vint + compressed
 *     bytes: lengths of keys (vints), keys, lengths of values (vints), values
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { type BatchBuilder, VALUE_BYTES_MAX } from './batch-builder.ts';
import type { ByteReader } from './byte-reader.ts';
import { CODEC_NAMES, type Decompressor, findDecompressor } from './hadoop-codecs.ts';
import { type InputFile, openReader } from './input-file.ts';
import type { RecordFile } from './record-source.ts';

const BYTES_WRITABLE = 'org.apache.hadoop.io.BytesWritable';
const SYNC_BYTES = 16;
const SYNC_ESCAPE = 0xffff_ffff;
const HEAD_BYTES = 8;
const KEY_BYTES = 8;
/** A BytesWritable begins with its length as u32 BE. */
const PREFIX_BYTES = 4;
/** Each part of a compressed block. */
const BLOCK_BYTES_MAX = 512 << 20;
const BLOCK_RECORDS_MAX = 1 << 26;
const TEXT_BYTES_MAX = 1 << 20;
const METADATA_ENTRIES_MAX = 1024;

export function openSequenceFile(file: InputFile): RecordFile {
  return { files: [file], read: (batch) => readRecords(file, batch) };
}

async function* readRecords(file: InputFile, batch: BatchBuilder): AsyncGenerator<void> {
  const reader = openReader(file);
  try {
    const header = await readHeader(reader);
    if (header.isBlocks) {
      yield* readBlocks(reader, header, batch);
      return;
    }
    batch.describePosition = () => `${reader.path}: record at byte ${reader.offset}`;
    for (;;) {
      const needed = addCompleteRecords(reader, batch, header);
      if (batch.isFull) {
        yield;
      } else if (!(await reader.ensure(needed))) {
        if (reader.available === 0) return;
        const missing = needed - reader.available;
        reader.fail(`the file ends inside a record: ${missing} bytes are missing`);
      }
    }
  } finally {
    await reader.close();
  }
}

/** Adds all complete records of the window. @returns the bytes known to be needed for the next */
function addCompleteRecords(reader: ByteReader, batch: BatchBuilder, header: Header): number {
  const { view, end } = reader;
  while (!batch.isFull) {
    const at = reader.start;
    if (end - at < 4) return 4;
    const length = view.getUint32(at);
    if (length === SYNC_ESCAPE) {
      if (end - at < 4 + SYNC_BYTES) return 4 + SYNC_BYTES;
      checkSync(reader, header.sync);
      reader.start = at + 4 + SYNC_BYTES;
      continue;
    }
    if (end - at < HEAD_BYTES) return HEAD_BYTES;
    const keyBytes = view.getUint32(at + 4);
    checkHead(reader, length, keyBytes);
    if (end - at < HEAD_BYTES + length) return HEAD_BYTES + length;
    if (keyBytes === KEY_BYTES && header.decompress === undefined) {
      const low = view.getUint32(at + 8, true);
      const high = view.getUint32(at + 12, true);
      batch.addValue(low, high, view, at + HEAD_BYTES + KEY_BYTES, length - KEY_BYTES);
      reader.start = at + HEAD_BYTES + length;
      continue;
    }
    addRecord(reader, batch, header, {
      keyAt: at + HEAD_BYTES,
      keyBytes,
      valueBytes: length - keyBytes,
    });
    reader.start = at + HEAD_BYTES + length;
  }
  return 0;
}

/** Adds a record of the window that is not raw bytes alone. */
function addRecord(
  reader: ByteReader,
  batch: BatchBuilder,
  { decompress }: Header,
  { keyAt, keyBytes, valueBytes }: { keyAt: number; keyBytes: number; valueBytes: number },
): void {
  const valueAt = keyAt + keyBytes;
  const key = new DataView(reader.view.buffer, reader.view.byteOffset + keyAt, keyBytes);
  const stored = reader.bytes.subarray(valueAt, valueAt + valueBytes);
  const bytes = decompress === undefined ? stored : unpack(reader, decompress, stored);
  addKeyAndValue(reader, batch, key, createView(bytes));
}

/** @param key raw, or a BytesWritable; the value is then one too */
function addKeyAndValue(
  reader: ByteReader,
  batch: BatchBuilder,
  key: DataView,
  value: DataView,
): void {
  const prefix = key.byteLength - KEY_BYTES;
  if (prefix > 0) {
    if (key.getUint32(0) !== KEY_BYTES) {
      reader.fail(`a key of ${key.getUint32(0)} bytes; expected ${KEY_BYTES}`);
    }
    if (value.byteLength < PREFIX_BYTES || value.getUint32(0) !== value.byteLength - PREFIX_BYTES) {
      reader.fail('a value without its length: the key is a BytesWritable, the value is not');
    }
  }
  const low = key.getUint32(prefix, true);
  const high = key.getUint32(prefix + 4, true);
  batch.addValue(low, high, value, prefix, value.byteLength - prefix);
}

function checkHead(reader: ByteReader, length: number, keyBytes: number): void {
  if (keyBytes !== KEY_BYTES && keyBytes !== PREFIX_BYTES + KEY_BYTES) {
    reader.fail(`a record whose key has ${keyBytes} bytes; expected ${KEY_BYTES}`);
  }
  if (length < keyBytes || length - keyBytes >= VALUE_BYTES_MAX) {
    reader.fail(
      `a record of ${length} bytes; expected ${keyBytes} to ${keyBytes + VALUE_BYTES_MAX - 1}`,
    );
  }
}

/** Reads compressed blocks; `header.decompress` is defined. */
async function* readBlocks(
  reader: ByteReader,
  { sync, decompress }: Header,
  batch: BatchBuilder,
): AsyncGenerator<void> {
  while (await reader.ensure(1)) {
    const start = reader.offset;
    let record = 0;
    batch.describePosition = () => `${reader.path}: record ${record} of the block at byte ${start}`;
    if (!(await reader.ensure(4 + SYNC_BYTES))) reader.fail('the file ends inside a block');
    if (reader.view.getUint32(reader.start) !== SYNC_ESCAPE) {
      reader.fail('a block that does not begin with a sync marker');
    }
    checkSync(reader, sync);
    reader.start += 4 + SYNC_BYTES;
    const count = await readVint(reader);
    if (count < 0 || count > BLOCK_RECORDS_MAX) reader.fail(`a block of ${count} records`);
    const parts: BlockPart[] = [];
    for (let i = 0; i < 4; i++) {
      const packed = await take(reader, await readLength(reader, BLOCK_BYTES_MAX));
      parts.push(new BlockPart(reader, decompress ? unpack(reader, decompress, packed) : packed));
    }
    const [keyLengths, keys, valueLengths, values] = parts as [
      BlockPart,
      BlockPart,
      BlockPart,
      BlockPart,
    ];
    for (; record < count; record++) {
      const keyBytes = keyLengths.vint();
      const valueBytes = valueLengths.vint();
      checkHead(reader, keyBytes + valueBytes, keyBytes);
      addKeyAndValue(reader, batch, keys.view(keyBytes), values.view(valueBytes));
      if (batch.isFull) yield;
    }
    for (const part of parts) part.expectEnd();
  }
}

/** A decompressed part of a block, read from its beginning to its end. */
class BlockPart {
  readonly #reader: ByteReader;
  readonly #view: DataView;
  #at = 0;

  constructor(reader: ByteReader, bytes: Uint8Array) {
    this.#reader = reader;
    this.#view = createView(bytes);
  }

  vint(): number {
    const first = this.#view.getInt8(this.#take(1));
    const rest = this.view(countVintBytes(first));
    return decodeVint(first, new Uint8Array(rest.buffer, rest.byteOffset, rest.byteLength));
  }

  view(length: number): DataView {
    const { buffer, byteOffset } = this.#view;
    return new DataView(buffer, byteOffset + this.#take(length), length);
  }

  expectEnd(): void {
    if (this.#at < this.#view.byteLength) this.#reader.fail('a block with bytes after its records');
  }

  #take(length: number): number {
    const at = this.#at;
    if (length < 0 || at + length > this.#view.byteLength) {
      this.#reader.fail('a block that ends inside a record');
    }
    this.#at += length;
    return at;
  }
}

function createView(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function unpack(reader: ByteReader, decompress: Decompressor, packed: Uint8Array): Uint8Array {
  try {
    return decompress(packed, BLOCK_BYTES_MAX);
  } catch (error) {
    return reader.fail(`compressed data cannot be read: ${(error as Error).message}`);
  }
}

function checkSync(reader: ByteReader, sync: Uint8Array): void {
  const { bytes, start } = reader;
  for (let i = 0; i < SYNC_BYTES; i++) {
    if (bytes[start + 4 + i] !== sync[i]) reader.fail("a sync marker that is not the header's");
  }
}

interface Header {
  readonly sync: Uint8Array;
  /** Of values, or of the parts of blocks; undefined: nothing is compressed. */
  readonly decompress: Decompressor | undefined;
  readonly isBlocks: boolean;
}

async function readHeader(reader: ByteReader): Promise<Header> {
  const magic = await take(reader, 4);
  if (magic.toString('latin1', 0, 3) !== 'SEQ') reader.fail('not a SequenceFile: no "SEQ"', 0);
  if (magic[3] !== 6) {
    throw unsupported(reader, `SequenceFile version ${magic[3]} is not supported; write version 6`);
  }
  for (const what of ['key', 'value']) {
    const name = await readText(reader);
    if (name !== BYTES_WRITABLE) {
      throw unsupported(
        reader,
        `${what} class ${JSON.stringify(name)} is not supported; expected ${BYTES_WRITABLE}`,
      );
    }
  }
  const flags = await take(reader, 2);
  if (flags[0]! > 1 || flags[1]! > 1) reader.fail('a damaged header: flags that are not 0 or 1');
  const decompress = flags[0] === 1 ? await readCodec(reader) : undefined;
  if (flags[1] === 1 && decompress === undefined) {
    reader.fail('a damaged header: compressed blocks without a codec');
  }
  const entries = (await take(reader, 4)).readInt32BE(0);
  if (entries < 0 || entries > METADATA_ENTRIES_MAX) {
    reader.fail(`a damaged header: ${entries} entries of metadata`);
  }
  for (let i = 0; i < 2 * entries; i++) await readText(reader);
  return { sync: await take(reader, SYNC_BYTES), decompress, isBlocks: flags[1] === 1 };
}

async function readCodec(reader: ByteReader): Promise<Decompressor> {
  const codec = await readText(reader);
  const decompress = findDecompressor(codec);
  if (decompress !== undefined) return decompress;
  throw unsupported(
    reader,
    `compression ${JSON.stringify(codec)} is not supported; write the SequenceFile uncompressed ` +
      `or with ${CODEC_NAMES.join(', ')}`,
  );
}

function unsupported(reader: ByteReader, what: string): CubeError {
  return new CubeError('UNSUPPORTED', `${reader.path}: ${what}`);
}

/** Reads and copies the next bytes. */
async function take(reader: ByteReader, count: number): Promise<Buffer> {
  if (!(await reader.ensure(count))) reader.fail('the file ends inside its header or a block');
  const bytes = Buffer.from(reader.bytes.subarray(reader.start, reader.start + count));
  reader.start += count;
  return bytes;
}

/** Reads a length as a vint and that many bytes of text. */
async function readText(reader: ByteReader): Promise<string> {
  return (await take(reader, await readLength(reader, TEXT_BYTES_MAX))).toString('utf8');
}

async function readLength(reader: ByteReader, max: number): Promise<number> {
  const length = await readVint(reader);
  if (length >= 0 && length <= max) return length;
  return reader.fail(`a damaged length: ${length} bytes; expected 0 to ${max}`);
}

async function readVint(reader: ByteReader): Promise<number> {
  const first = (await take(reader, 1)).readInt8(0);
  return decodeVint(first, await take(reader, countVintBytes(first)));
}

/** Hadoop's vint: one byte from -112 to 127, or a byte with sign and count of those that follow. */
function countVintBytes(first: number): number {
  if (first >= -112) return 0;
  return first < -120 ? -120 - first : -112 - first;
}

function decodeVint(first: number, rest: Uint8Array): number {
  if (first >= -112) return first;
  const value = rest.reduce((sum, byte) => sum * 256 + byte, 0);
  return first < -120 ? -1 - value : value;
}
