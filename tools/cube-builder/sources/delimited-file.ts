/**
 * Reads CSV and TSV: a key column, and either one column per element of the row or one column with
 * a list of all elements ("[0.1 0.2]", "0.1,0.2"). Numbers are parsed from bytes without strings.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import type { BatchBuilder } from './batch-builder.ts';
import type { ByteReader } from './byte-reader.ts';
import { BAD_QUOTE, INCOMPLETE, RecordScanner } from './delimited-text.ts';
import { type InputFile, openReader } from './input-file.ts';
import type { RecordFile } from './record-source.ts';
import type { InputSpec } from './row-source.ts';
import { NOT_A_NUMBER, parseFloatBytes, parseFloatList, parseKey, signKey } from './text-values.ts';

const RECORD_BYTES_MAX = 64 << 20;
const SHOWN_CHARS = 40;
const BOM = [0xef, 0xbb, 0xbf];

export function openDelimitedFile(
  file: InputFile,
  format: 'csv' | 'tsv',
  spec: InputSpec,
): RecordFile {
  if ((spec.valueFormat ?? 'f32') !== 'f32') {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${file.path}: ${format} has numbers, so --value-format ${spec.valueFormat} is not possible`,
    );
  }
  const delimiter = format === 'csv' ? 44 : 9;
  return { files: [file], read: (batch) => readRecords(file, delimiter, spec, batch) };
}

async function* readRecords(
  file: InputFile,
  delimiter: number,
  spec: InputSpec,
  batch: BatchBuilder,
): AsyncGenerator<void> {
  const reader = openReader(file);
  try {
    await reader.ensure(BOM.length);
    if (BOM.every((byte, i) => reader.bytes[reader.start + i] === byte)) reader.start += BOM.length;
    const parser = new RecordParser(reader, new RecordScanner(delimiter), spec);
    batch.describePosition = () => parser.position;
    for (;;) {
      parser.addCompleteRecords(batch);
      if (batch.isFull) yield;
      else if (reader.hasEnded && reader.available === 0) return;
      else await readMore(reader);
    }
  } finally {
    await reader.close();
  }
}

/** Doubles the window, so that a long record is scanned few times. */
async function readMore(reader: ByteReader): Promise<void> {
  if (reader.available > RECORD_BYTES_MAX) {
    reader.fail(`a record of more than ${RECORD_BYTES_MAX} bytes; a closing quote may be missing`);
  }
  await reader.ensure(Math.max(1, 2 * reader.available));
}

interface RecordColumns {
  /** Number of fields of each record. */
  readonly count: number;
  readonly key: number;
  readonly values: readonly number[];
}

class RecordParser {
  readonly #reader: ByteReader;
  readonly #scanner: RecordScanner;
  readonly #spec: InputSpec;
  readonly #key = new Uint32Array(2);
  readonly #list: number[] = [];
  #columns: RecordColumns | undefined;
  #record = 0;

  constructor(reader: ByteReader, scanner: RecordScanner, spec: InputSpec) {
    this.#reader = reader;
    this.#scanner = scanner;
    this.#spec = spec;
  }

  get position(): string {
    return `${this.#reader.path}: record ${this.#record} at byte ${this.#reader.offset}`;
  }

  addCompleteRecords(batch: BatchBuilder): void {
    const reader = this.#reader;
    const scanner = this.#scanner;
    while (!batch.isFull && reader.available > 0) {
      const next = scanner.scan(reader.bytes, reader.start, reader.end, reader.hasEnded);
      if (next === INCOMPLETE) return;
      if (next === BAD_QUOTE)
        this.#fail('the closing quote of a field is missing or not followed by a delimiter');
      if (scanner.count > 1 || scanner.ends[0] !== scanner.starts[0]) {
        this.#record += 1;
        if (this.#columns === undefined) this.#columns = this.#readColumns(batch);
        else this.#add(this.#columns, batch);
      }
      reader.start = next;
    }
  }

  /** Chooses the columns from the first record, which has column names or numbers. */
  #readColumns(batch: BatchBuilder): RecordColumns {
    const names = Array.from({ length: this.#scanner.count }, (_, i) => this.#readTrimmedText(i));
    const hasHeader = this.#spec.header ?? isHeader(names, this.#spec);
    const columns = chooseColumns(hasHeader ? names : undefined, names.length, this.#spec, (what) =>
      this.#fail(what),
    );
    if (!hasHeader) this.#add(columns, batch);
    return columns;
  }

  #add({ count, key, values }: RecordColumns, batch: BatchBuilder): void {
    const scanner = this.#scanner;
    const { starts, ends } = scanner;
    const { bytes } = this.#reader;
    if (scanner.count !== count) {
      this.#fail(`${scanner.count} fields, but the first record has ${count}`);
    }
    const words = this.#key;
    const { signKey: slot } = this.#spec;
    if (slot !== undefined) signKey(slot, this.#readText(key), words);
    else if (!parseKey(bytes, starts[key]!, ends[key]!, words)) this.#failKey(key);
    if (values.length === 1) {
      this.#addList(values[0]!, batch);
      return;
    }
    const at = batch.addRow(words[0]!, words[1]!, values.length);
    const { rows } = batch;
    for (let j = 0; j < values.length; j++) {
      const column = values[j]!;
      const value = parseFloatBytes(bytes, starts[column]!, ends[column]!);
      if (value === NOT_A_NUMBER)
        this.#fail(`field ${column} is not a number: ${this.#quote(column)}`);
      rows[at + j] = value;
    }
  }

  #addList(column: number, batch: BatchBuilder): void {
    const { starts, ends } = this.#scanner;
    const list = this.#list;
    const count = parseFloatList(this.#reader.bytes, starts[column]!, ends[column]!, list);
    if (count <= 0) {
      const what = count === 0 ? 'has no number' : `element ${-1 - count} is not a number`;
      this.#fail(`field ${column}: ${what}: ${this.#quote(column)}`);
    }
    const at = batch.addRow(this.#key[0]!, this.#key[1]!, count);
    for (let j = 0; j < count; j++) batch.rows[at + j] = list[j]!;
  }

  #readTrimmedText(field: number): string {
    return this.#readText(field).trim();
  }

  /** Keeps leading and trailing spaces, which are part of a feature. */
  #readText(field: number): string {
    const { starts, ends, escaped } = this.#scanner;
    const text = this.#reader.bytes.toString('utf8', starts[field], ends[field]);
    return escaped[field] === 1 ? text.replaceAll('""', '"') : text;
  }

  #quote(field: number): string {
    const text = this.#readTrimmedText(field);
    return JSON.stringify(text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS)}…` : text);
  }

  #failKey(field: number): never {
    this.#fail(
      `field ${field} is not a key: ${this.#quote(field)}; expected an integer in 0 … 2^64 − 1`,
    );
  }

  #fail(what: string): never {
    throw new CubeError('CORRUPT', `${this.position}: ${what}`);
  }
}

const NUMBER = /^\d+$/;
const NAME = /^(?!(?:nan|inf|infinity)$)[\p{L}_#]/iu;

/** Whether the first record is a header: options name columns, or the key field is a name. */
function isHeader(
  fields: readonly string[],
  { keyColumn, valueColumns = [], signKey: slot }: InputSpec,
): boolean {
  const requested = keyColumn === undefined ? valueColumns : [keyColumn, ...valueColumns];
  if (requested.some((column) => !NUMBER.test(column)) || fields.includes('key')) return true;
  const keyAt = Number(keyColumn ?? 0);
  // If keys are text, only the other fields can show that this is a header.
  if (slot !== undefined) return fields.some((field, i) => i !== keyAt && NAME.test(field));
  const key = fields[keyAt] ?? '';
  // Tools that write a table's index leave the name of its column empty.
  return NAME.test(key) || (key === '' && fields.some((field) => NAME.test(field)));
}

/** Chooses the column of the key and those of the row. */
export function chooseColumns(
  names: readonly string[] | undefined,
  count: number,
  { keyColumn, valueColumns }: InputSpec,
  fail: (what: string) => never,
): RecordColumns {
  const find = (column: string): number => {
    const named = names?.indexOf(column) ?? -1;
    if (named !== -1) return named;
    const number = /^\d{1,9}$/.test(column) ? Number(column) : count;
    if (number < count) return number;
    const available = names === undefined ? `0 … ${count - 1}` : names.slice(0, 20).join(', ');
    return fail(`no column ${JSON.stringify(column)}; the columns are ${available}`);
  };
  const key = keyColumn === undefined ? Math.max(0, names?.indexOf('key') ?? 0) : find(keyColumn);
  const others = Array.from({ length: count }, (_, i) => i).filter((i) => i !== key);
  const values = valueColumns?.map(find) ?? others;
  if (values.length === 0) fail('no column for the row besides the key');
  return { count, key, values };
}
