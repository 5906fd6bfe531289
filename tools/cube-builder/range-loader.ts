/**
 * Loads the records of one range into memory. A range that is too large is split into files by
 * more bits of the mixed key. A range that no bits can split repeats a few keys; only the last
 * record of each key is kept.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { RandomAccessReader, removePath } from '../../lib/platform/files.ts';
import { formatDuplicateKey } from './record-selection.ts';
import { RecordStore } from './record-store.ts';
import { getRecordWords, OLD_INPUT_FLAG, type RecordRun, type ReusableArrays } from './records.ts';

const SPLIT_BITS = 6;
const MIXED_BITS = 32;
const PIECE_WORDS = 1 << 18;

export interface LoadedRange {
  readonly words: Uint32Array;
  readonly count: number;
  /** Leading bits of the mixed key that all records share. */
  readonly knownBits: number;
}

export interface RangeLoadOptions {
  /** Maximum words to load at a time. */
  readonly wordsMax: number;
  /** Folder for the files of split ranges. */
  readonly folder: string;
  readonly rejectDuplicates: boolean;
  readonly arrays: ReusableArrays;
}

/** Returns all records of a run as one array. */
export function loadRun({ words, pieces, path }: RecordRun, arrays: ReusableArrays): Uint32Array {
  if (pieces?.length === 1) return pieces[0]!;
  const target = arrays.get('records', words);
  if (pieces !== undefined) {
    let at = 0;
    for (const piece of pieces) {
      target.set(piece, at);
      at += piece.length;
    }
  } else if (path !== undefined) {
    const reader = new RandomAccessReader(path);
    try {
      reader.readInto(new Uint8Array(target.buffer, target.byteOffset, target.byteLength), 0);
    } finally {
      reader.close();
    }
  }
  return target;
}

/** Yields a range in order of the mixed key, in as many parts as memory requires. */
export function* loadRange(
  run: RecordRun,
  knownBits: number,
  options: RangeLoadOptions,
): Generator<LoadedRange> {
  if (run.words === 0) return;
  if (run.words <= options.wordsMax) {
    yield { words: loadRun(run, options.arrays), count: run.count, knownBits };
    return;
  }
  if (knownBits >= MIXED_BITS) {
    yield { ...loadLastRecords(run, options), knownBits };
    return;
  }
  const rangeBits = Math.min(SPLIT_BITS, MIXED_BITS - knownBits);
  const folder = join(options.folder, `bits-${knownBits}`);
  removePath(folder);
  const budgetBytes = 4 * options.wordsMax;
  const store = new RecordStore({
    shardNum: 1,
    shards: [0],
    rangeBits,
    knownBits,
    budgetBytes,
    folder,
  });
  for (const piece of readPieces(run)) {
    for (let at = 0; at < piece.length; ) {
      const length = getRecordWords(piece[at + 2]!);
      store.addRecord(piece, at, length);
      at += length;
    }
  }
  for (const part of store.finish('in files')[0]!) {
    yield* loadRange(part, knownBits + rangeBits, options);
    if (part.path !== undefined) removePath(part.path);
  }
  removePath(folder);
}

/** Yields complete records, about one MiB at a time, or a single larger record. */
function* readPieces({ words, pieces: inMemory, path }: RecordRun): Generator<Uint32Array> {
  if (inMemory !== undefined) yield* inMemory;
  if (path === undefined) return;
  const reader = new RandomAccessReader(path);
  try {
    let pieceWords = PIECE_WORDS;
    for (let at = 0; at < words; ) {
      const piece = new Uint32Array(Math.min(pieceWords, words - at));
      reader.readInto(new Uint8Array(piece.buffer), 4 * at);
      const complete = countCompleteWords(piece);
      pieceWords = complete === 0 ? 2 * pieceWords : PIECE_WORDS;
      if (complete > 0) yield piece.subarray(0, complete);
      at += complete;
    }
  } finally {
    reader.close();
  }
}

function countCompleteWords(piece: Uint32Array): number {
  let end = 0;
  while (end + 2 < piece.length) {
    const next = end + getRecordWords(piece[end + 2]!);
    if (next > piece.length) break;
    end = next;
  }
  return end;
}

/** Loads the last record of each key. Few keys share a high half, except crafted ones. */
function loadLastRecords(
  run: RecordRun,
  { wordsMax, rejectDuplicates, arrays }: RangeLoadOptions,
): { words: Uint32Array; count: number } {
  const last = new Map<string, Uint32Array>();
  let words = 0;
  for (const piece of readPieces(run)) {
    for (let at = 0; at < piece.length; ) {
      const tag = piece[at + 2]!;
      const name = `${piece[at + 1]} ${piece[at]} ${(tag & OLD_INPUT_FLAG) === 0}`;
      const before = last.get(name)?.length ?? 0;
      const length = getRecordWords(tag);
      if (rejectDuplicates && before > 0) failInvalid(formatDuplicateKey(readKey(piece, at)));
      words += length - before;
      if (words > wordsMax)
        failInvalid(`too many keys collide with key ${readKey(piece, at)}; increase --memory`);
      last.set(name, piece.slice(at, at + length));
      at += length;
    }
  }
  const all = [...last.values()];
  return { words: loadRun({ count: all.length, words, pieces: all }, arrays), count: all.length };
}

function readKey(words: Uint32Array, at: number): bigint {
  return (BigInt(words[at + 1]!) << 32n) | BigInt(words[at]!);
}

function failInvalid(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
