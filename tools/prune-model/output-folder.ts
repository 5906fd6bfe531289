/**
 * The output folder, whole or not at all: everything is written to a folder beside it, which takes its place at the
 * end. Anything but success leaves the output as it was.
 */
import { basename, dirname, join, resolve, sep } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { encodeNpyHeader } from '../../lib/core/npy.ts';
import {
  fileExists,
  isFolder,
  listFolder,
  makeFolder,
  movePath,
  RandomWriter,
  readText,
  removePath,
  removeStaleFolders,
  replaceFile,
} from '../../lib/platform/files.ts';
import type { Table } from './table.ts';

export const MODEL_FILE = 'model.onnx';
export const SLOTS_FILE = 'slots.json';
export const REPORT_FILE = 'report.json';
const TABLES_FOLDER = 'tables';
/** Of a table in memory at once. */
const PIECE_BYTES = 8 << 20;

const OWN_NAMES = new Set([
  MODEL_FILE,
  `${MODEL_FILE}.data`,
  SLOTS_FILE,
  REPORT_FILE,
  TABLES_FOLDER,
]);

function keysPath(folder: string, table: string): string {
  return join(folder, TABLES_FOLDER, `${table}.keys.npy`);
}

export function tablePath(folder: string, table: string): string {
  return join(folder, TABLES_FOLDER, `${table}.npy`);
}

/**
 * Checks that the output may be written; nothing is touched yet.
 * @throws CubeError CONFLICT when it exists and may not be replaced
 */
export function checkOutput(output: string, options: { force: boolean; model: string }): void {
  const path = resolve(output);
  if (`${resolve(options.model)}${sep}`.startsWith(`${path}${sep}`)) {
    throw new CubeError(
      'CONFLICT',
      `the model ${options.model} is inside the output ${output}; choose another --output`,
    );
  }
  if (fileExists(path) && !isFolder(path)) {
    throw new CubeError('CONFLICT', `${output} is a file; --output names a folder`);
  }
  const names = listFolder(path);
  if (names.length === 0) return;
  const written = filesOfReport(path);
  const foreign = names.find((name) => !OWN_NAMES.has(name) && !written.has(name));
  if (foreign !== undefined) {
    throw new CubeError(
      'CONFLICT',
      `${output} holds ${foreign}, which prune-model did not make; choose another --output`,
    );
  }
  if (!options.force) {
    throw new CubeError('CONFLICT', `${output} is not empty; --force replaces what is there`);
  }
}

/** What the report of an earlier run says that it wrote beside what every run writes; folders by their first name. */
function filesOfReport(folder: string): Set<string> {
  const path = join(folder, REPORT_FILE);
  if (!fileExists(path)) return new Set();
  try {
    const files = JsonReader.parse(readText(path), path).optional('files', (f) =>
      f.items({ max: 1_000_000 }).map((name) => name.string()),
    );
    return new Set(files?.map((name) => name.split('/')[0]!));
  } catch (error) {
    if (error instanceof CubeError) return new Set();
    throw error;
  }
}

/** No run pauses for so long between two files. */
const LEFTOVER_IDLE_MS = 3_600_000;

/** Removes what killed runs left beside an output. */
function removeLeftovers(target: string): void {
  const name = basename(target).replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  removeStaleFolders(dirname(target), new RegExp(`^\\.${name}\\.\\d+\\.new$`), LEFTOVER_IDLE_MS);
}

/** Bytes to copy to a position of a file. */
export interface FilePart {
  readonly length: number;
  readonly position: number;
  readInto(target: Uint8Array, position: number): void;
}

/** A folder beside the output, where the files are written and proved before they take its place. */
export class StagedOutput {
  readonly folder: string;
  readonly #target: string;

  constructor(output: string) {
    this.#target = resolve(output);
    this.folder = this.#beside('new');
    removeLeftovers(this.#target);
    removePath(this.folder);
    makeFolder(join(this.folder, TABLES_FOLDER));
  }

  writeFile(name: string, bytes: Uint8Array): void {
    replaceFile(join(this.folder, name), bytes);
  }

  /** Writes a file of parts at positions, each copied in pieces. */
  writePieces(name: string, parts: readonly FilePart[]): void {
    const writer = new RandomWriter(join(this.folder, name));
    try {
      const longest = parts.reduce((most, { length }) => Math.max(most, length), 0);
      const piece = new Uint8Array(Math.min(PIECE_BYTES, longest));
      for (const { length, position, readInto } of parts) {
        for (let at = 0; at < length; at += piece.length) {
          const bytes = piece.subarray(0, Math.min(piece.length, length - at));
          readInto(bytes, at);
          writer.writeAt(bytes, position + at);
        }
      }
    } catch (error) {
      writer.abort();
      throw error;
    }
    writer.commit();
  }

  writeJson(name: string, value: unknown): void {
    replaceFile(join(this.folder, name), `${JSON.stringify(value, null, 2)}\n`);
  }

  /** Writes rows in pieces, and their keys. @param onBytes told of each piece */
  writeTable({ name, rows, dim, ...table }: Table, onBytes: (count: number) => void): void {
    if (table.readKeys !== undefined) this.#writeKeys(name, rows, table.readKeys);
    const header = encodeNpyHeader('f4', [rows, dim]);
    const writer = new RandomWriter(tablePath(this.folder, name));
    try {
      writer.writeAt(header, 0);
      const pieceRows = Math.max(1, Math.min(rows, Math.floor(PIECE_BYTES / (4 * dim))));
      const piece = new Float32Array(pieceRows * dim);
      for (let row = 0; row < rows; row += pieceRows) {
        const target = piece.subarray(0, Math.min(pieceRows, rows - row) * dim);
        table.readRows(row, target);
        const bytes = new Uint8Array(target.buffer, 0, target.byteLength);
        writer.writeAt(bytes, header.length + row * dim * 4);
        onBytes(bytes.length);
      }
    } catch (error) {
      writer.abort();
      throw error;
    }
    writer.commit();
  }

  #writeKeys(name: string, rows: number, readKeys: NonNullable<Table['readKeys']>): void {
    const header = encodeNpyHeader('u8', [rows]);
    const pieceRows = PIECE_BYTES / 8;
    const writer = new RandomWriter(keysPath(this.folder, name));
    try {
      writer.writeAt(header, 0);
      const piece = new BigUint64Array(Math.min(rows, pieceRows));
      for (let row = 0; row < rows; row += pieceRows) {
        const target = piece.subarray(0, Math.min(pieceRows, rows - row));
        readKeys(row, target);
        writer.writeAt(
          new Uint8Array(target.buffer, 0, target.byteLength),
          header.length + 8 * row,
        );
      }
    } catch (error) {
      writer.abort();
      throw error;
    }
    writer.commit();
  }

  /** Takes the output's place; what was there is removed last. */
  commit(): void {
    if (!fileExists(this.#target)) {
      movePath(this.folder, this.#target);
      return;
    }
    const old = this.#beside('old');
    removePath(old);
    movePath(this.#target, old);
    try {
      movePath(this.folder, this.#target);
    } catch (error) {
      movePath(old, this.#target);
      throw error;
    }
    removePath(old);
  }

  abort(): void {
    removePath(this.folder);
  }

  #beside(what: string): string {
    const name = `.${basename(this.#target)}.${process.pid}.${what}`;
    return join(dirname(this.#target), name);
  }
}
