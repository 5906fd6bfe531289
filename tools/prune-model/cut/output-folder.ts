/**
 * Writes the output folder whole or not at all: all files are written to a sibling folder, which
 * replaces the output at the end. A failure leaves the output unchanged.
 */

import { basename, dirname, join, resolve, sep } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { encodeNpyHeader } from '../../../lib/core/npy.ts';
import {
  fileExists,
  isFolder,
  listFolder,
  makeFolder,
  movePath,
  RandomAccessWriter,
  readText,
  removePath,
  removeStaleFolders,
  replaceFile,
} from '../../../lib/platform/files.ts';
import type { Table } from './table.ts';

export const MODEL_FILE = 'model.onnx';
/** External data of the graph. */
export const DATA_FILE = 'model.onnx.data';
export const SLOTS_FILE = 'slots.json';
export const REPORT_FILE = 'report.json';
const TABLES_FOLDER = 'tables';
/** Bytes of a table that are in memory at once. */
const PIECE_BYTES = 8 << 20;

const OWN_NAMES = new Set([MODEL_FILE, DATA_FILE, SLOTS_FILE, REPORT_FILE, TABLES_FOLDER]);

export function getKeysPath(folder: string, table: string): string {
  return join(folder, TABLES_FOLDER, `${table}.keys.npy`);
}

export function getTablePath(folder: string, table: string): string {
  return join(folder, TABLES_FOLDER, `${table}.npy`);
}

/** @throws CubeError CONFLICT when the output exists and may not be replaced */
export function checkOutput(output: string, options: { force: boolean; model: string }): void {
  const path = resolve(output);
  if (`${resolve(options.model)}${sep}`.startsWith(`${path}${sep}`)) {
    throw new CubeError(
      'CONFLICT',
      `the model ${options.model} is inside the output folder ${output}; choose another --output`,
    );
  }
  if (fileExists(path) && !isFolder(path)) {
    throw new CubeError('CONFLICT', `${output} is a file, but --output must name a folder`);
  }
  const names = listFolder(path);
  if (names.length === 0) return;
  const written = readReportedFiles(path);
  const foreign = names.find((name) => !OWN_NAMES.has(name) && !written.has(name));
  if (foreign !== undefined) {
    throw new CubeError(
      'CONFLICT',
      `${output} contains ${foreign}, which prune-model did not write; choose another --output`,
    );
  }
  if (!options.force) {
    throw new CubeError('CONFLICT', `${output} is not empty; use --force to replace its content`);
  }
}

/** Top-level names of the files that the report of an earlier run lists. */
function readReportedFiles(folder: string): Set<string> {
  const path = join(folder, REPORT_FILE);
  if (!fileExists(path)) return new Set();
  try {
    const files = JsonReader.parse(readText(path), path).optional('files', (f) =>
      f.items({ max: 1_000_000 }).map((name) => name.string()),
    );
    return new Set(files?.flatMap((name) => name.split('/', 1)));
  } catch (error) {
    if (error instanceof CubeError) return new Set();
    throw error;
  }
}

/** Older sibling folders belong to killed runs: no run pauses this long between files. */
const LEFTOVER_IDLE_MS = 3_600_000;

/** Removes the sibling folders of killed runs. */
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

/**
 * A sibling folder of the output, in which the files are written and verified before they replace
 * it.
 */
export class StagedOutput {
  readonly folder: string;
  readonly #target: string;

  constructor(output: string) {
    this.#target = resolve(output);
    this.folder = this.#getSiblingPath('new');
    removeLeftovers(this.#target);
    removePath(this.folder);
    makeFolder(join(this.folder, TABLES_FOLDER));
  }

  writeFile(name: string, bytes: Uint8Array): void {
    replaceFile(join(this.folder, name), bytes);
  }

  /** Writes a file from parts, each copied in pieces. */
  writeParts(name: string, parts: readonly FilePart[]): void {
    const longest = parts.reduce((most, { length }) => Math.max(most, length), 0);
    const piece = new Uint8Array(Math.min(PIECE_BYTES, longest));
    writeFileAtomically(join(this.folder, name), (writer) => {
      for (const { length, position, readInto } of parts) {
        for (let done = 0; done < length; done += piece.length) {
          const bytes = piece.subarray(0, Math.min(piece.length, length - done));
          readInto(bytes, done);
          writer.writeAt(bytes, position + done);
        }
      }
    });
  }

  writeJson(name: string, value: unknown): void {
    replaceFile(join(this.folder, name), `${JSON.stringify(value, null, 2)}\n`);
  }

  /** Writes a table and its keys. @param onBytes called with the size of each piece */
  writeTable({ name, rows, dim, ...table }: Table, onBytes: (count: number) => void): void {
    const { readKeys } = table;
    if (readKeys !== undefined) {
      const keys = new BigUint64Array(Math.min(rows, PIECE_BYTES / 8));
      writeNpy(getKeysPath(this.folder, name), encodeNpyHeader('u8', [rows]), rows, (first) => {
        const piece = keys.subarray(0, Math.min(keys.length, rows - first));
        readKeys(first, piece);
        return { rows: piece.length, data: piece };
      });
    }
    const pieceRows = Math.max(1, Math.min(rows, Math.floor(PIECE_BYTES / (4 * dim))));
    const values = new Float32Array(pieceRows * dim);
    writeNpy(getTablePath(this.folder, name), encodeNpyHeader('f4', [rows, dim]), rows, (first) => {
      const count = Math.min(pieceRows, rows - first);
      const piece = values.subarray(0, count * dim);
      table.readRows(first, piece);
      onBytes(piece.byteLength);
      return { rows: count, data: piece };
    });
  }

  /** Moves the folder to the output path; the earlier output is removed last. */
  commit(): void {
    if (!fileExists(this.#target)) {
      movePath(this.folder, this.#target);
      return;
    }
    const old = this.#getSiblingPath('old');
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

  #getSiblingPath(suffix: string): string {
    const name = `.${basename(this.#target)}.${process.pid}.${suffix}`;
    return join(dirname(this.#target), name);
  }
}

function writeFileAtomically(path: string, write: (writer: RandomAccessWriter) => void): void {
  const writer = new RandomAccessWriter(path);
  try {
    write(writer);
  } catch (error) {
    writer.abort();
    throw error;
  }
  writer.commit();
}

/**
 * @param readPiece returns the next rows, beginning with row `first`, in a buffer that it may reuse
 */
function writeNpy(
  path: string,
  header: Uint8Array,
  rows: number,
  readPiece: (first: number) => { readonly rows: number; readonly data: ArrayBufferView },
): void {
  writeFileAtomically(path, (writer) => {
    writer.writeAt(header, 0);
    let position = header.length;
    for (let row = 0; row < rows; ) {
      const { rows: count, data } = readPiece(row);
      writer.writeAt(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), position);
      position += data.byteLength;
      row += count;
    }
  });
}
