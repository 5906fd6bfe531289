/**
 * Reads rows, one per line, in blocks of a fixed number of lines. The blocks depend only on the
 * input, so that an interrupted run and the one that continues it form the same batches.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { statPath } from '../../lib/platform/files.ts';
import { nameInput, readPieces } from '../../lib/platform/text-lines.ts';
import { readLineBatches } from '../protocols/line-batches.ts';

/** A multiple of the engine's largest batch. */
export const BLOCK_ROWS = 512;
const LINE_BYTES_MAX = 256 << 10;
const LIMITS = { lineBytes: LINE_BYTES_MAX, batchLines: BLOCK_ROWS, batchBytes: 1 << 20 };
/** The first bytes of a Parquet file. */
const PARQUET = 'PAR1';

export type RowForm = 'tsv' | 'jsonl';

export interface RowBlock {
  /** Counted from 1. */
  readonly firstLine: number;
  readonly lines: readonly string[];
  readonly form: RowForm;
}

/** Identifies the content of an input file, without reading it. */
export interface InputStamp {
  readonly bytes: number;
  readonly modifiedMs: number;
}

export class RowInput {
  /** For errors. */
  readonly name: string;
  /** Undefined for standard input. */
  readonly stamp: InputStamp | undefined;
  readonly #path: string;
  #readBytes = 0;

  /** @param path "-" is standard input @throws CubeError NOT_FOUND */
  constructor(path: string) {
    this.#path = path;
    this.name = nameInput(path);
    if (path === '-') return;
    const stat = statPath(path);
    if (stat === undefined) throw new CubeError('NOT_FOUND', `--input ${path}: no such file`);
    if (stat.isFolder) {
      throw new CubeError('INVALID_ARGUMENT', `--input ${path} is a folder; give a file of rows`);
    }
    this.stamp = { bytes: stat.bytes, modifiedMs: stat.mtimeMs };
  }

  get readBytes(): number {
    return this.#readBytes;
  }

  /**
   * @param skipRows a multiple of BLOCK_ROWS
   * @throws CubeError INVALID_ARGUMENT or TOO_LARGE naming the line
   */
  async *readBlocks(skipRows: number): AsyncGenerator<RowBlock, void, undefined> {
    let form: RowForm | undefined;
    let waiting: (string | CubeError)[] = [];
    let nextLine = 1;
    for await (const { lines } of readLineBatches(this.#readChunks(), LIMITS)) {
      form ??= this.#findForm(lines[0]);
      waiting.push(...lines);
      while (waiting.length >= BLOCK_ROWS) {
        const block = waiting.slice(0, BLOCK_ROWS);
        waiting = waiting.slice(BLOCK_ROWS);
        if (nextLine > skipRows) yield this.#makeBlock(nextLine, block, form);
        nextLine += BLOCK_ROWS;
      }
    }
    if (form === undefined) throw new CubeError('INVALID_ARGUMENT', `${this.name} has no rows`);
    if (waiting.length > 0) yield this.#makeBlock(nextLine, waiting, form);
  }

  #makeBlock(firstLine: number, lines: readonly (string | CubeError)[], form: RowForm): RowBlock {
    const texts = lines.map((line, i) => {
      if (typeof line === 'string') return line;
      throw new CubeError(line.code, `${this.name}, line ${firstLine + i}: ${line.message}`);
    });
    return { firstLine, lines: texts, form };
  }

  async *#readChunks(): AsyncGenerator<Uint8Array, void, undefined> {
    let isFirst = true;
    for await (const chunk of readPieces(this.#path)) {
      if (isFirst) this.#checkForm(chunk);
      isFirst = false;
      this.#readBytes += chunk.length;
      yield chunk;
    }
  }

  #checkForm(chunk: Uint8Array): void {
    if (new TextDecoder('latin1').decode(chunk.subarray(0, PARQUET.length)) !== PARQUET) return;
    throw new CubeError(
      'UNSUPPORTED',
      `${this.name} is a Parquet file, which score does not read: convert it to tab-separated ` +
        'lines or JSON lines',
    );
  }

  #findForm(first: string | CubeError | undefined): RowForm {
    return typeof first === 'string' && first.startsWith('{') ? 'jsonl' : 'tsv';
  }
}
