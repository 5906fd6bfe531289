/**
 * The records of one range into memory. A range that is too large is split by more bits of the mixed key, in files; what
 * no bits can split is one key over and over, of which only the last record is kept.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { RandomReader, removePath } from '../../lib/platform/files.ts';
import { RecordStore } from './record-store.ts';
import { OLD_SIDE, type RecordRun, recordWords } from './records.ts';
import type { Scratch } from './scratch.ts';

const SPLIT_BITS = 6;
const MIXED_BITS = 32;
const PIECE_WORDS = 1 << 18;

export interface LoadedRange {
  readonly words: Uint32Array;
  readonly count: number;
  /** Leading bits of the mixed key that all records share. */
  readonly knownBits: number;
}

export interface LoadOptions {
  /** Words that may be loaded at a time. */
  readonly wordsMax: number;
  /** For the files of ranges that are split. */
  readonly folder: string;
  readonly distinct: boolean;
  readonly scratch: Scratch;
}

/** All records of a run as one array. */
export function loadRun({ words, pieces, path }: RecordRun, scratch: Scratch): Uint32Array {
  if (pieces?.length === 1) return pieces[0]!;
  const target = scratch.words('records', words);
  if (pieces !== undefined) {
    let at = 0;
    for (const piece of pieces) {
      target.set(piece, at);
      at += piece.length;
    }
  } else if (path !== undefined) {
    const reader = new RandomReader(path);
    try {
      reader.readInto(new Uint8Array(target.buffer, target.byteOffset, target.byteLength), 0);
    } finally {
      reader.close();
    }
  }
  return target;
}

/** The range in order of the mixed key, in as many parts as it takes. */
export function* loadRange(
  run: RecordRun,
  knownBits: number,
  options: LoadOptions,
): Generator<LoadedRange> {
  if (run.words === 0) return;
  if (run.words <= options.wordsMax) {
    yield { words: loadRun(run, options.scratch), count: run.count, knownBits };
    return;
  }
  if (knownBits >= MIXED_BITS) {
    yield { ...lastOfEach(run, options), knownBits };
    return;
  }
  const rangeBits = Math.min(SPLIT_BITS, MIXED_BITS - knownBits);
  const folder = join(options.folder, `bits-${knownBits}`);
  removePath(folder);
  const budgetBytes = 4 * options.wordsMax;
  const whole = { shardNum: 1, shards: [0] };
  const store = new RecordStore({ ...whole, rangeBits, knownBits, budgetBytes, folder });
  for (const piece of pieces(run)) {
    for (let at = 0; at < piece.length; ) {
      const length = recordWords(piece[at + 2]!);
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

/** Whole records, about a MiB at a time, or one that is larger. */
function* pieces({ words, pieces: inMemory, path }: RecordRun): Generator<Uint32Array> {
  if (inMemory !== undefined) yield* inMemory;
  if (path === undefined) return;
  const reader = new RandomReader(path);
  try {
    let want = PIECE_WORDS;
    for (let at = 0; at < words; ) {
      const piece = new Uint32Array(Math.min(want, words - at));
      reader.readInto(new Uint8Array(piece.buffer), 4 * at);
      const whole = wholeRecords(piece);
      want = whole === 0 ? 2 * want : PIECE_WORDS;
      if (whole > 0) yield piece.subarray(0, whole);
      at += whole;
    }
  } finally {
    reader.close();
  }
}

function wholeRecords(piece: Uint32Array): number {
  let end = 0;
  while (end + 2 < piece.length) {
    const next = end + recordWords(piece[end + 2]!);
    if (next > piece.length) break;
    end = next;
  }
  return end;
}

/** Of keys whose mixed key has one high half: a handful, unless somebody looked for them. */
function lastOfEach(
  run: RecordRun,
  { wordsMax, distinct, scratch }: LoadOptions,
): { words: Uint32Array; count: number } {
  const last = new Map<string, Uint32Array>();
  let words = 0;
  for (const piece of pieces(run)) {
    for (let at = 0; at < piece.length; ) {
      const tag = piece[at + 2]!;
      const name = `${piece[at + 1]} ${piece[at]} ${(tag & OLD_SIDE) === 0}`;
      const before = last.get(name)?.length ?? 0;
      const length = recordWords(tag);
      if (distinct && before > 0) refuse(`key ${keyAt(piece, at)} comes twice`);
      words += length - before;
      if (words > wordsMax)
        refuse(`too many keys like ${keyAt(piece, at)} collide; give more --memory`);
      last.set(name, piece.slice(at, at + length));
      at += length;
    }
  }
  const all = [...last.values()];
  return { words: loadRun({ count: all.length, words, pieces: all }, scratch), count: all.length };
}

function keyAt(words: Uint32Array, at: number): bigint {
  return (BigInt(words[at + 1]!) << 32n) | BigInt(words[at]!);
}

function refuse(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
