/**
 * Reads a list of keys, such as that of `--deletes`: text with one key per line, or an array of
 * 64-bit integers. With `--sign-key`, lines of text are features; arrays always contain keys.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { type ArrayPart, isRowType } from './array-source.ts';
import type { ByteReader } from './byte-reader.ts';
import { detectFormat } from './format-detection.ts';
import { type InputFile, openFile, openReader } from './input-file.ts';
import { openNpyFile, openNpzFile } from './npy-file.ts';
import { BATCH_ROWS_MAX } from './row-source.ts';
import { parseKey, signKey } from './text-values.ts';

const LINE_BYTES_MAX = 64 << 10;
const LF = 10;
const CR = 13;

/** Yields 2n words (low, high) in file order; valid until the next batch is requested. */
export type KeyBatches = () => AsyncGenerator<Uint32Array>;

/**
 * @param slot if given, lines of text are features of the slot with this index
 * @throws CubeError with file and position; so do the batches
 */
export async function openKeys(path: string, slot?: number): Promise<KeyBatches> {
  const file = openFile(path);
  const format = await detectFormat(file);
  if (format === 'npy') return openArray(await openNpyFile(file));
  if (format === 'npz') {
    const arrays = await openNpzFile(path);
    const keys = arrays.length === 1 ? arrays[0] : arrays.find(({ name }) => name === 'keys');
    if (keys === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${path}: has several arrays, but none is named "keys"`,
      );
    }
    return openArray(keys.part);
  }
  // A feature may be any text, also text that looks like columns.
  const isText =
    format === undefined || format === 'csv' || (slot !== undefined && format === 'tsv');
  if (isText) return () => readLines(file, slot);
  throw new CubeError(
    'UNSUPPORTED',
    `${path}: a list of keys must be text, .npy or .npz; this looks like ${format}`,
  );
}

function openArray(part: ArrayPart): KeyBatches {
  const [, columns = 1] = part.shape;
  if (isRowType(part.type) || part.shape.length > 2 || columns !== 1) {
    throw new CubeError(
      'UNSUPPORTED',
      `${part.label}: ${part.type} of shape (${part.shape.join(', ')}); expected 64-bit integers`,
    );
  }
  return () => readArray(part);
}

async function* readArray(part: ArrayPart): AsyncGenerator<Uint32Array> {
  const [count = 0] = part.shape;
  const reader = await part.open();
  try {
    const words = new Uint32Array(2 * Math.min(BATCH_ROWS_MAX, count));
    for (let first = 0; first < count; first += BATCH_ROWS_MAX) {
      const batch = words.subarray(0, 2 * Math.min(BATCH_ROWS_MAX, count - first));
      await reader.readInto(new Uint8Array(batch.buffer, 0, batch.byteLength));
      yield batch;
    }
    await reader.expectEnd();
  } finally {
    await reader.close();
  }
}

async function* readLines(file: InputFile, slot: number | undefined): AsyncGenerator<Uint32Array> {
  const reader = openReader(file);
  const words = new Uint32Array(2 * BATCH_ROWS_MAX);
  const key = new Uint32Array(2);
  let length = 0;
  try {
    while (await reader.ensure(1)) {
      const found = reader.bytes.indexOf(LF, reader.start);
      const isWhole = found !== -1 && found < reader.end;
      if (!isWhole && !reader.hasEnded) {
        if (reader.available > LINE_BYTES_MAX)
          reader.fail(`a line of more than ${LINE_BYTES_MAX} bytes is too long for a key`);
        await reader.ensure(reader.available + 1);
        continue;
      }
      const end = isWhole ? found : reader.end;
      if (parseLine(reader, end, slot, key)) {
        words.set(key, length);
        length += 2;
      }
      reader.start = isWhole ? end + 1 : end;
      if (length < words.length) continue;
      yield words;
      length = 0;
    }
    if (length > 0) yield words.subarray(0, length);
  } finally {
    await reader.close();
  }
}

/** Parses the line from the reader's position to `end`. @returns false if it is empty */
function parseLine(
  reader: ByteReader,
  end: number,
  slot: number | undefined,
  key: Uint32Array,
): boolean {
  const { bytes, start } = reader;
  if (slot !== undefined) {
    const last = end > start && bytes[end - 1] === CR ? end - 1 : end;
    if (last > start) signKey(slot, bytes.toString('utf8', start, last), key);
    return last > start;
  }
  const text = bytes.toString('latin1', start, Math.min(end, start + 64)).trim();
  if (text === '') return false;
  if (!parseKey(bytes, start, end, key)) {
    reader.fail(`${JSON.stringify(text)} is not a key; expected an integer in 0 … 2^64 − 1`);
  }
  return true;
}
