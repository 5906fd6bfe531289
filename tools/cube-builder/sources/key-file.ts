/** A list of keys (of `--deletes`, for one): text with one decimal key a line, or an array of 64-bit integers. */
import { CubeError } from '../../../lib/core/errors.ts';
import { type ArrayPart, isRowType } from './array-source.ts';
import { detectFormat } from './format-detection.ts';
import { type InputFile, openFile, readerOf } from './input-file.ts';
import { npyFile } from './npy-file.ts';
import { npzArrays } from './npz-file.ts';
import { BATCH_ROWS_MAX } from './row-source.ts';
import { parseKey } from './text-numbers.ts';

/** 1 GiB of keys in memory. */
const KEYS_MAX = 1 << 27;
const LINE_BYTES_MAX = 64 << 10;
const LF = 10;

/** @returns 2n words (low, high), in the file's order @throws CubeError naming the file and the place */
export async function readKeys(path: string): Promise<Uint32Array> {
  const file = openFile(path);
  const format = await detectFormat(file);
  if (format === 'npy') return readArray(await npyFile(file));
  if (format === 'npz') {
    const arrays = await npzArrays(path);
    const keys = arrays.length === 1 ? arrays[0] : arrays.find(({ name }) => name === 'keys');
    if (keys === undefined) {
      throw new CubeError('INVALID_ARGUMENT', `${path}: several arrays, none of them named "keys"`);
    }
    return readArray(keys.part);
  }
  if (format === 'csv' || format === undefined) return readLines(file);
  throw new CubeError(
    'UNSUPPORTED',
    `${path}: a list of keys is text, .npy or .npz; this looks like ${format}`,
  );
}

async function readArray(part: ArrayPart): Promise<Uint32Array> {
  const [count = 0, columns = 1] = part.shape;
  if (isRowType(part.type) || part.shape.length > 2 || columns !== 1) {
    throw new CubeError(
      'UNSUPPORTED',
      `${part.label}: ${part.type} of shape (${part.shape.join(', ')}); expected 64-bit integers`,
    );
  }
  if (count > KEYS_MAX) throw tooMany(part.label);
  const reader = await part.open();
  try {
    const list = new KeyList(part.label);
    for (let first = 0; first < count; first += BATCH_ROWS_MAX) {
      const words = new Uint32Array(2 * Math.min(BATCH_ROWS_MAX, count - first));
      await reader.readInto(new Uint8Array(words.buffer));
      list.add(words);
    }
    await reader.expectEnd();
    return list.words();
  } finally {
    await reader.close();
  }
}

async function readLines(file: InputFile): Promise<Uint32Array> {
  const reader = readerOf(file);
  const list = new KeyList(file.path);
  const key = new Uint32Array(2);
  try {
    while (await reader.ensure(1)) {
      const found = reader.bytes.indexOf(LF, reader.start);
      const isWhole = found !== -1 && found < reader.end;
      if (!isWhole && !reader.ended) {
        if (reader.available > LINE_BYTES_MAX) reader.fail('a line too long for a key');
        await reader.ensure(reader.available + 1);
        continue;
      }
      const end = isWhole ? found : reader.end;
      const text = reader.bytes
        .toString('latin1', reader.start, Math.min(end, reader.start + 64))
        .trim();
      if (text !== '') {
        if (!parseKey(reader.bytes, reader.start, end, key)) {
          reader.fail(`${JSON.stringify(text)} is no key; expected a decimal of 0 … 2^64 − 1`);
        }
        list.add(key);
      }
      reader.start = isWhole ? end + 1 : end;
    }
    return list.words();
  } finally {
    await reader.close();
  }
}

/** Words that grow by doubling. */
class KeyList {
  readonly #path: string;
  #words = new Uint32Array(1024);
  #length = 0;

  constructor(path: string) {
    this.#path = path;
  }

  add(words: Uint32Array): void {
    const needed = this.#length + words.length;
    if (needed > 2 * KEYS_MAX) throw tooMany(this.#path);
    if (needed > this.#words.length) {
      const grown = new Uint32Array(Math.max(2 * this.#words.length, needed));
      grown.set(this.#words);
      this.#words = grown;
    }
    this.#words.set(words, this.#length);
    this.#length = needed;
  }

  words(): Uint32Array {
    return this.#words.slice(0, this.#length);
  }
}

function tooMany(path: string): CubeError {
  return new CubeError('TOO_LARGE', `${path}: more than ${KEYS_MAX} keys`);
}
