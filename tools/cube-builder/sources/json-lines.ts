/**
 * Reads JSON lines: `{"key": 7, "row": [0.5, -1]}`, `{"key": "7", "value": "<base64>"}` or
 * `{"key": 7, "deleted": true}`. A key is a decimal string or an integer below 2^53; JSON parsing
 * rounds larger numbers, so they are refused.
 */
import type { BatchBuilder } from './batch-builder.ts';
import type { ByteReader } from './byte-reader.ts';
import { type InputFile, openReader } from './input-file.ts';
import type { RecordFile } from './record-source.ts';
import type { InputSpec } from './row-source.ts';
import { parseKey, signKey } from './text-values.ts';

/** Enough for a value of 64 MiB in base64. */
const LINE_BYTES_MAX = 96 << 20;
const LF = 10;
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;
const NOT_FINITE = /(?<=[[,:]\s*)(NaN|-?Infinity)(?=\s*[\],}])/g;

export function openJsonLines(file: InputFile, spec: InputSpec): RecordFile {
  return { files: [file], read: (batch) => readRecords(file, spec, batch) };
}

async function* readRecords(
  file: InputFile,
  spec: InputSpec,
  batch: BatchBuilder,
): AsyncGenerator<void> {
  const reader = openReader(file);
  try {
    const parser = new LineParser(reader, spec, batch);
    batch.describePosition = () => parser.position;
    for (;;) {
      parser.addCompleteLines();
      if (batch.isFull || parser.needsEmptyBatch) yield;
      else if (reader.hasEnded && reader.available === 0) return;
      else await readMore(reader);
    }
  } finally {
    await reader.close();
  }
}

async function readMore(reader: ByteReader): Promise<void> {
  if (reader.available > LINE_BYTES_MAX) reader.fail(`a line of more than ${LINE_BYTES_MAX} bytes`);
  await reader.ensure(Math.max(1, 2 * reader.available));
}

type Json = Readonly<Record<string, unknown>>;

class LineParser {
  /** The key of the next row is deleted in this batch, so the row belongs in the next batch. */
  needsEmptyBatch = false;
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

  get position(): string {
    return `${this.#reader.path}: line ${this.#line + 1} at byte ${this.#reader.offset}`;
  }

  addCompleteLines(): void {
    const reader = this.#reader;
    this.needsEmptyBatch = false;
    while (!this.#batch.isFull && reader.available > 0) {
      const found = reader.bytes.indexOf(LF, reader.start);
      const isWhole = found !== -1 && found < reader.end;
      if (!isWhole && !reader.hasEnded) return;
      const end = isWhole ? found : reader.end;
      const text = reader.bytes.toString('utf8', reader.start, end);
      if (text.trim() !== '' && !this.#addLine(text)) {
        this.needsEmptyBatch = true;
        return;
      }
      this.#line += 1;
      reader.start = isWhole ? end + 1 : end;
    }
  }

  /** @returns false if the line belongs in the next batch */
  #addLine(text: string): boolean {
    const batch = this.#batch;
    const line = this.#parse(text);
    this.#readKey(line[this.#keyField]);
    const [low, high] = this.#key as unknown as [number, number];
    if (line['deleted'] !== undefined && line['deleted'] !== false) {
      if (line['deleted'] !== true) batch.fail('"deleted" must be true or false');
      batch.addDeleted(low, high);
      return true;
    }
    if (batch.isDeletedInBatch(low, high)) return false;
    const value = this.#rowFields.map((name) => line[name]).find((field) => field !== undefined);
    if (Array.isArray(value)) this.#addRow(value, low, high);
    else if (typeof value === 'string') this.#addBytes(value, low, high);
    else batch.fail('expected a "row" of numbers or a "value" in base64');
    return true;
  }

  #parse(text: string): Json {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch (error) {
      // Python writes NaN and Infinity, which JSON does not allow.
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
      `"${this.#keyField}" is ${shown}; expected a decimal string in 0 … 2^64 − 1, ` +
        'or an integer below 2^53',
    );
  }

  #addRow(row: readonly unknown[], low: number, high: number): void {
    const batch = this.#batch;
    if (batch.valueFormat !== 'f32') batch.fail(`a row of numbers; expected ${batch.valueFormat}`);
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
      `element ${j} of the row is ${JSON.stringify(value)?.slice(0, 40)}, not a number`,
    );
  }

  #addBytes(text: string, low: number, high: number): void {
    if (text.length % 4 !== 0 || !BASE64.test(text)) this.#batch.fail('the value is not base64');
    const bytes = Buffer.from(text, 'base64');
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.#batch.addValue(low, high, view, 0, bytes.length);
  }
}

/** Whether a text begins like JSON lines. */
export function looksLikeJsonLines(head: string): boolean {
  return /^\uFEFF?\s*\{/.test(head);
}
