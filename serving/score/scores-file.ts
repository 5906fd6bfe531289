/**
 * The file of scores. Lines are collected in `<path>.part`; `<path>.part.json` says what they were
 * computed from, so that a later run continues only the same work. The file at `path` is therefore
 * always complete.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import {
  fileExists,
  getFileBytes,
  RandomAccessReader,
  readText,
  removePath,
  replaceFile,
  requireReplaceable,
} from '../../lib/platform/files.ts';
import { FolderLock } from '../../lib/platform/folder-lock.ts';
import { PartialFile } from '../../lib/platform/partial-file.ts';
import { HEADER } from './block-scorer.ts';
import { BLOCK_ROWS, type InputStamp } from './row-blocks.ts';

const READ_BYTES = 1 << 20;
const LF = 10;

/** What a file of scores is computed from. */
export interface ScoreSource {
  readonly bundle: string;
  readonly version: string;
  readonly input: string;
  /** Undefined for standard input, which cannot be read again. */
  readonly stamp: InputStamp | undefined;
}

interface Kept {
  readonly rows: number;
  readonly bytes: number;
}

const NOTHING: Kept = { rows: 0, bytes: 0 };

/**
 * Finds what an interrupted run left. @returns the whole blocks of rows that need not be scored
 * @throws CubeError CONFLICT when it scored something else
 */
export function findKeptRows(path: string, source: ScoreSource, restart: boolean): Kept {
  const [partPath, journalPath] = listPaths(path);
  if (restart || source.stamp === undefined) return NOTHING;
  if (!fileExists(partPath) || !fileExists(journalPath)) return NOTHING;
  const kept = countWholeBlocks(partPath);
  const journal = readText(journalPath);
  if (kept.rows === 0 || journal === formatJournal(source)) return kept;
  throw new CubeError(
    'CONFLICT',
    `${partPath} holds ${kept.rows} rows of an interrupted run that ` +
      `${describeOtherWork(journal, source)} start over with --restart`,
  );
}

/** What the interrupted run did instead, and how it can be finished if its input is unchanged. */
function describeOtherWork(journal: string, now: ScoreSource): string {
  const [bundle, version, input] = readNames(journal);
  if (bundle === now.bundle && version === now.version && input === now.input) {
    return `read ${input} before it was changed:`;
  }
  return `scores ${input} with ${bundle} ${version}: finish it with these options, or`;
}

/** @throws CubeError when the journal is damaged */
function readNames(journal: string): string[] {
  const reader = JsonReader.parse(journal, 'the .part.json file of an interrupted run');
  return ['bundle', 'version', 'input'].map((name) => reader.field(name).string());
}

export class ScoresFile {
  readonly #path: string;
  readonly #lock: FolderLock;
  readonly #file: PartialFile;
  /** Rows of an earlier run. */
  readonly keptRows: number;

  /** @throws CubeError CONFLICT when another process writes the file, or it is of other work */
  constructor(path: string, source: ScoreSource, restart: boolean) {
    const [partPath, journalPath, lockPath] = listPaths(path);
    requireReplaceable(path);
    this.#path = path;
    this.#lock = new FolderLock(lockPath);
    try {
      const { rows, bytes } = findKeptRows(path, source, restart);
      this.keptRows = rows;
      if (rows === 0) {
        removePath(partPath);
        replaceFile(journalPath, formatJournal(source));
      }
      this.#file = new PartialFile(path);
      if (rows === 0) this.#file.append(Buffer.from(HEADER));
      else this.#file.truncate(bytes);
    } catch (error) {
      this.#release();
      throw error;
    }
  }

  append(lines: string): void {
    this.#file.append(Buffer.from(lines));
    faultPoint('score.block');
  }

  commit(): void {
    const [, journalPath] = listPaths(this.#path);
    this.#file.commit();
    removePath(journalPath);
    this.#release();
  }

  /** Keeps the lines for a later run. */
  close(): void {
    this.#file.close();
    this.#release();
  }

  #release(): void {
    this.#lock.release();
    removePath(this.#lock.folder);
  }
}

function listPaths(path: string): [part: string, journal: string, lock: string] {
  return [`${path}.part`, `${path}.part.json`, `${path}.part.lock`];
}

function formatJournal(source: ScoreSource): string {
  return `${JSON.stringify(source)}\n`;
}

/** A kill may leave a part of a line, and a block may have been written in pieces. */
function countWholeBlocks(path: string): Kept {
  const reader = new RandomAccessReader(path);
  try {
    const bytes = getFileBytes(path);
    const buffer = new Uint8Array(READ_BYTES);
    let kept = NOTHING;
    /** The header is line 0. */
    let rows = -1;
    for (let position = 0; position < bytes; position += READ_BYTES) {
      const chunk = buffer.subarray(0, Math.min(READ_BYTES, bytes - position));
      reader.readInto(chunk, position);
      for (let at = chunk.indexOf(LF); at >= 0; at = chunk.indexOf(LF, at + 1)) {
        rows++;
        if (rows % BLOCK_ROWS === 0) kept = { rows, bytes: position + at + 1 };
      }
    }
    return kept;
  } finally {
    reader.close();
  }
}
