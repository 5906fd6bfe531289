/**
 * JSON lines: `{"key": 7, "row": [0.5, -1]}`, `{"key": "7", "value": "<base64>"}` or `{"key": 7, "deleted": true}`.
 * A key is a decimal string or an integer below 2^53; a larger number would have been rounded, so it is refused.
 */
import type { BatchBuilder } from './batch-builder.ts';
import type { ByteReader } from './byte-reader.ts';
import { type InputFile, readerOf } from './input-file.ts';
import { signKey } from './key-signer.ts';
import type { RecordFile } from './record-source.ts';
import type { InputSpec } from './row-source.ts';
import { parseKey } from './text-numbers.ts';

/** A value of 64 MiB in base64, and room. */
const LINE_BYTES_MAX = 96 << 20;
const LF = 10;
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;
const NOT_FINITE = /(?<=[[,:]\s*)(NaN|-?Infinity)(?=\s*[\],}])/g;

export function jsonLines(file: InputFile, spec: InputSpec): RecordFile {
  return { files: [file], read: (batch) => readRecords(file, spec, batch) };
}

async function* readRecords(
  file: InputFile,
  spec: InputSpec,
  batch: BatchBuilder,
): AsyncGenerator<void> {
  const reader = readerOf(file);
  try {
    const parser = new Parser(reader, spec, batch);
    batch.place = () => parser.place;
    for (;;) {
      parser.addWholeLines();
      if (batch.full || parser.mustWait) yield;
      else if (reader.ended && reader.available === 0) return;
      else await more(reader);
    }
  } finally {
    await reader.close();
  }
}

async function more(reader: ByteReader): Promise<void> {
  if (reader.available > LINE_BYTES_MAX) reader.fail(`a line of more than ${LINE_BYTES_MAX} bytes`);
  await reader.ensure(Math.max(1, 2 * reader.available));
}

type Json = Readonly<Record<string, unknown>>;

class Parser {
  /** The next row's key is deleted in this batch: take the batch first. */
  mustWait = false;
  readonly #reader: ByteReader;
  readonly #batch: BatchBuilder;
  readonly #keyField: string;
  readonly #slot: number | undefined;
  readonly #rowFields: readonly string[];
  readonly #key = new Uint32Array(2);
  #line = 0;

  constructor(reader: ByteReader, spec: InputSpec, batch: BatchBuilder) {
    this.#reader = reader;
    this.#batch = batch;
    this.#keyField = spec.keyColumn ?? 'key';
    this.#slot = spec.signKey;
    this.#rowFields = spec.valueColumns ?? ['row', 'value'];
  }

  get place(): string {
    return `${this.#reader.path}: line ${this.#line + 1} at byte ${this.#reader.offset}`;
  }

  addWholeLines(): void {
    const reader = this.#reader;
    this.mustWait = false;
    while (!this.#batch.full && reader.available > 0) {
      const found = reader.bytes.indexOf(LF, reader.start);
      const isWhole = found !== -1 && found < reader.end;
      if (!isWhole && !reader.ended) return;
      const end = isWhole ? found : reader.end;
      const text = reader.bytes.toString('utf8', reader.start, end);
      if (text.trim() !== '' && !this.#addLine(text)) {
        this.mustWait = true;
        return;
      }
      this.#line += 1;
      reader.start = isWhole ? end + 1 : end;
    }
  }

  /** @returns false when the line must wait for the next batch */
  #addLine(text: string): boolean {
    const batch = this.#batch;
    const line = this.#parse(text);
    this.#readKey(line[this.#keyField]);
    const [low, high] = this.#key as unknown as [number, number];
    if (line['deleted'] !== undefined && line['deleted'] !== false) {
      if (line['deleted'] !== true) batch.fail('"deleted" is neither true nor false');
      batch.addDeleted(low, high);
      return true;
    }
    if (batch.mustWait(low, high)) return false;
    const value = this.#rowFields.map((name) => line[name]).find((field) => field !== undefined);
    if (Array.isArray(value)) this.#addRow(value, low, high);
    else if (typeof value === 'string') this.#addBytes(value, low, high);
    else batch.fail(`no "row" of numbers and no "value" in base64`);
    return true;
  }

  #parse(text: string): Json {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch (error) {
      // Python writes what JSON lacks: NaN and Infinity.
      const repaired = text.replaceAll(NOT_FINITE, '"$1"');
      if (repaired === text) this.#batch.fail(`not JSON: ${(error as Error).message}`);
      try {
        value = JSON.parse(repaired);
      } catch {
        this.#batch.fail(`not JSON: ${(error as Error).message}`);
      }
    }
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      this.#batch.fail('not a JSON object');
    }
    return value as Json;
  }

  #readKey(value: unknown): void {
    const words = this.#key;
    if (this.#slot !== undefined && (typeof value === 'string' || Number.isSafeInteger(value))) {
      signKey(this.#slot, String(value), words);
      return;
    }
    if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) {
      words[0] = value % 0x1_0000_0000;
      words[1] = Math.floor(value / 0x1_0000_0000);
      return;
    }
    if (typeof value === 'string' && /^\d{1,20}$/.test(value)) {
      const digits = Buffer.from(value, 'latin1');
      if (parseKey(digits, 0, digits.length, words)) return;
    }
    const shown = JSON.stringify(value)?.slice(0, 40) ?? 'nothing';
    this.#batch.fail(
      `"${this.#keyField}" is ${shown}; expected a decimal string of 0 … 2^64 − 1, or an integer below 2^53`,
    );
  }

  #addRow(row: readonly unknown[], low: number, high: number): void {
    const batch = this.#batch;
    if (batch.valueFormat !== 'f32') batch.fail(`a row of numbers, expected ${batch.valueFormat}`);
    const at = batch.addRow(low, high, row.length);
    const { rows } = batch;
    for (let j = 0; j < row.length; j++) {
      const value = row[j];
      rows[at + j] = typeof value === 'number' ? value : this.#notFinite(value, j);
    }
  }

  #notFinite(value: unknown, j: number): number {
    if (value === 'NaN' || value === 'Infinity' || value === '-Infinity') return Number(value);
    this.#batch.fail(
      `element ${j} of the row is ${JSON.stringify(value)?.slice(0, 40)}, no number`,
    );
  }

  #addBytes(text: string, low: number, high: number): void {
    if (text.length % 4 !== 0 || !BASE64.test(text)) this.#batch.fail('the value is not base64');
    const bytes = Buffer.from(text, 'base64');
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.#batch.addValue(low, high, view, 0, bytes.length);
  }
}

/** Whether a text begins as JSON lines do. */
export function looksLikeJsonLines(head: string): boolean {
  return /^\uFEFF?\s*\{/.test(head);
}
