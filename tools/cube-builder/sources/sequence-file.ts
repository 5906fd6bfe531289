/**
 * Hadoop's SequenceFile, version 6, as Cube's tools write it: uncompressed, raw bytes, an 8-byte little-endian key in
 * each record. Strict: a record that is not whole and right ends the build with its place, never the file.
 *
 *     "SEQ" 6 | vint + key class | vint + value class | u8 compressed | u8 block compressed
 *     i32 entries of metadata, each two vint + text | 16 bytes sync marker
 *     records:  u32 BE length of key and value | u32 BE length of key = 8 | key u64 LE | value
 *     between records, now and then:  u32 2^32 − 1 | the sync marker
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { type BatchBuilder, VALUE_BYTES_MAX } from './batch-builder.ts';
import type { ByteReader } from './byte-reader.ts';
import { type InputFile, readerOf } from './input-file.ts';
import type { RecordFile } from './record-source.ts';

const BYTES_WRITABLE = 'org.apache.hadoop.io.BytesWritable';
const SYNC_BYTES = 16;
const SYNC_ESCAPE = 0xffff_ffff;
const HEAD_BYTES = 8;
const KEY_BYTES = 8;
const TEXT_BYTES_MAX = 1 << 20;
const METADATA_ENTRIES_MAX = 1024;

export function sequenceFile(file: InputFile): RecordFile {
  return { files: [file], read: (batch) => readRecords(file, batch) };
}

async function* readRecords(file: InputFile, batch: BatchBuilder): AsyncGenerator<void> {
  const reader = readerOf(file);
  try {
    const sync = await readHeader(reader);
    batch.place = () => `${reader.path}: record at byte ${reader.offset}`;
    for (;;) {
      const needed = addWholeRecords(reader, batch, sync);
      if (batch.full) {
        yield;
      } else if (!(await reader.ensure(needed))) {
        if (reader.available === 0) return;
        const what = `${needed - reader.available} bytes of it are missing`;
        reader.fail(`the file ends inside a record: ${what}`);
      }
    }
  } finally {
    await reader.close();
  }
}

/** Adds the records that are whole in the window. @returns bytes that the next one needs, as far as is known */
function addWholeRecords(reader: ByteReader, batch: BatchBuilder, sync: Uint8Array): number {
  const { view, end } = reader;
  while (!batch.full) {
    const at = reader.start;
    if (end - at < 4) return 4;
    const length = view.getUint32(at);
    if (length === SYNC_ESCAPE) {
      if (end - at < 4 + SYNC_BYTES) return 4 + SYNC_BYTES;
      checkSync(reader, sync);
      reader.start = at + 4 + SYNC_BYTES;
      continue;
    }
    if (end - at < HEAD_BYTES) return HEAD_BYTES;
    checkHead(reader, length, view.getUint32(at + 4));
    if (end - at < HEAD_BYTES + length) return HEAD_BYTES + length;
    const low = view.getUint32(at + 8, true);
    const high = view.getUint32(at + 12, true);
    batch.addValue(low, high, view, at + HEAD_BYTES + KEY_BYTES, length - KEY_BYTES);
    reader.start = at + HEAD_BYTES + length;
  }
  return 0;
}

function checkHead(reader: ByteReader, length: number, keyLength: number): void {
  if (keyLength !== KEY_BYTES) {
    reader.fail(`a record whose key has ${keyLength} bytes; Cube's keys have 8`);
  }
  if (length < KEY_BYTES || length - KEY_BYTES >= VALUE_BYTES_MAX) {
    reader.fail(
      `a record of ${length} bytes; 8 to ${KEY_BYTES + VALUE_BYTES_MAX - 1} are possible`,
    );
  }
}

function checkSync(reader: ByteReader, sync: Uint8Array): void {
  const { bytes, start } = reader;
  for (let i = 0; i < SYNC_BYTES; i++) {
    if (bytes[start + 4 + i] !== sync[i]) reader.fail("a sync marker that is not the header's");
  }
}

async function readHeader(reader: ByteReader): Promise<Uint8Array> {
  const magic = await take(reader, 4);
  if (magic.toString('latin1', 0, 3) !== 'SEQ') reader.fail('not a SequenceFile: no "SEQ"', 0);
  if (magic[3] !== 6) {
    throw unsupported(reader, `SequenceFile version ${magic[3]}, only version 6 is read`);
  }
  for (const what of ['key', 'value']) {
    const name = await readText(reader);
    if (name !== BYTES_WRITABLE) {
      throw unsupported(
        reader,
        `${what} class ${JSON.stringify(name)}, expected ${BYTES_WRITABLE}`,
      );
    }
  }
  const flags = await take(reader, 2);
  if (flags[0]! > 1 || flags[1]! > 1) reader.fail('a damaged header: flags that are not 0 or 1');
  if (flags[0] === 1 || flags[1] === 1) {
    const codec = flags[0] === 1 ? await readText(reader) : 'block compression';
    throw unsupported(reader, `a compressed SequenceFile (${codec}); write it uncompressed`);
  }
  const entries = (await take(reader, 4)).readInt32BE(0);
  if (entries < 0 || entries > METADATA_ENTRIES_MAX) {
    reader.fail(`a damaged header: ${entries} entries of metadata`);
  }
  for (let i = 0; i < 2 * entries; i++) await readText(reader);
  return take(reader, SYNC_BYTES);
}

function unsupported(reader: ByteReader, what: string): CubeError {
  return new CubeError('UNSUPPORTED', `${reader.path}: ${what}`);
}

/** A copy of the next bytes. */
async function take(reader: ByteReader, count: number): Promise<Buffer> {
  if (!(await reader.ensure(count))) reader.fail('the file ends inside its header');
  const bytes = Buffer.from(reader.bytes.subarray(reader.start, reader.start + count));
  reader.start += count;
  return bytes;
}

/** A length as a vint, then that many bytes of text. */
async function readText(reader: ByteReader): Promise<string> {
  const first = (await take(reader, 1)).readInt8(0);
  let length = first;
  if (first < -112) {
    if (first < -120) reader.fail('a damaged header: a text of negative length');
    const rest = await take(reader, -112 - first);
    length = rest.reduce((value, byte) => value * 256 + byte, 0);
  }
  if (length < 0 || length > TEXT_BYTES_MAX) {
    reader.fail(`a damaged header: a text of ${length} bytes`);
  }
  return (await take(reader, length)).toString('utf8');
}
