/**
 * CSV and TSV: a key column, and either a column of numbers for each element of the row or one column that holds them
 * all ("[0.1 0.2]", "0.1,0.2"). Text goes straight into numbers; only names are made strings.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import type { BatchBuilder } from './batch-builder.ts';
import type { ByteReader } from './byte-reader.ts';
import { BAD_QUOTE, INCOMPLETE, RecordScanner } from './delimited-text.ts';
import { type InputFile, readerOf } from './input-file.ts';
import { signKey } from './key-signer.ts';
import type { RecordFile } from './record-source.ts';
import type { InputSpec } from './row-source.ts';
import { NOT_A_NUMBER, parseFloatBytes, parseFloatList, parseKey } from './text-numbers.ts';

const RECORD_BYTES_MAX = 64 << 20;
const SHOWN_CHARS = 40;
const BOM = [0xef, 0xbb, 0xbf];

export function delimitedFile(file: InputFile, format: 'csv' | 'tsv', spec: InputSpec): RecordFile {
  if ((spec.valueFormat ?? 'f32') !== 'f32') {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${file.path}: ${format} holds numbers, so there is no value format ${spec.valueFormat}`,
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
  const reader = readerOf(file);
  try {
    await reader.ensure(BOM.length);
    if (BOM.every((byte, i) => reader.bytes[reader.start + i] === byte)) reader.start += BOM.length;
    const parser = new Parser(reader, new RecordScanner(delimiter), spec);
    batch.place = () => parser.place;
    for (;;) {
      parser.addWholeRecords(batch);
      if (batch.full) yield;
      else if (reader.ended && reader.available === 0) return;
      else await more(reader);
    }
  } finally {
    await reader.close();
  }
}

/** Twice as much as there is: a record in many pieces is not scanned as often as it has pieces. */
async function more(reader: ByteReader): Promise<void> {
  if (reader.available > RECORD_BYTES_MAX) {
    reader.fail(`a record of more than ${RECORD_BYTES_MAX} bytes; is a quote not closed?`);
  }
  await reader.ensure(Math.max(1, 2 * reader.available));
}

interface Columns {
  /** Fields of every record. */
  readonly count: number;
  readonly key: number;
  readonly values: readonly number[];
}

class Parser {
  readonly #reader: ByteReader;
  readonly #scanner: RecordScanner;
  readonly #spec: InputSpec;
  readonly #key = new Uint32Array(2);
  readonly #list: number[] = [];
  #columns: Columns | undefined;
  #record = 0;

  constructor(reader: ByteReader, scanner: RecordScanner, spec: InputSpec) {
    this.#reader = reader;
    this.#scanner = scanner;
    this.#spec = spec;
  }

  get place(): string {
    return `${this.#reader.path}: record ${this.#record} at byte ${this.#reader.offset}`;
  }

  addWholeRecords(batch: BatchBuilder): void {
    const reader = this.#reader;
    const scanner = this.#scanner;
    while (!batch.full && reader.available > 0) {
      const next = scanner.scan(reader.bytes, reader.start, reader.end, reader.ended);
      if (next === INCOMPLETE) return;
      if (next === BAD_QUOTE) this.#fail('a quoted field that does not end before a delimiter');
      if (scanner.count > 1 || scanner.ends[0] !== scanner.starts[0]) {
        this.#record += 1;
        if (this.#columns === undefined) this.#columns = this.#start(batch);
        else this.#add(this.#columns, batch);
      }
      reader.start = next;
    }
  }

  /** The first record: names, or numbers already. */
  #start(batch: BatchBuilder): Columns {
    const names = Array.from({ length: this.#scanner.count }, (_, i) => this.#text(i));
    const hasHeader = this.#spec.header ?? isHeader(names, this.#spec);
    const columns = chooseColumns(hasHeader ? names : undefined, names.length, this.#spec, (what) =>
      this.#fail(what),
    );
    if (!hasHeader) this.#add(columns, batch);
    return columns;
  }

  #add({ count, key, values }: Columns, batch: BatchBuilder): void {
    const scanner = this.#scanner;
    const { starts, ends } = scanner;
    const { bytes } = this.#reader;
    if (scanner.count !== count) {
      this.#fail(`${scanner.count} fields, where ${count} came before`);
    }
    const words = this.#key;
    const { signKey: slot } = this.#spec;
    if (slot !== undefined) signKey(slot, this.#wholeText(key), words);
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
        this.#fail(`field ${column} is no number: ${this.#shown(column)}`);
      rows[at + j] = value;
    }
  }

  #addList(column: number, batch: BatchBuilder): void {
    const { starts, ends } = this.#scanner;
    const list = this.#list;
    const count = parseFloatList(this.#reader.bytes, starts[column]!, ends[column]!, list);
    if (count <= 0) {
      const what = count === 0 ? 'holds no number' : `element ${-1 - count} is no number`;
      this.#fail(`field ${column}: ${what}: ${this.#shown(column)}`);
    }
    const at = batch.addRow(this.#key[0]!, this.#key[1]!, count);
    for (let j = 0; j < count; j++) batch.rows[at + j] = list[j]!;
  }

  #text(field: number): string {
    return this.#wholeText(field).trim();
  }

  /** With the spaces at its ends, which are part of a feature. */
  #wholeText(field: number): string {
    const { starts, ends, escaped } = this.#scanner;
    const text = this.#reader.bytes.toString('utf8', starts[field], ends[field]);
    return escaped[field] === 1 ? text.replaceAll('""', '"') : text;
  }

  #shown(field: number): string {
    const text = this.#text(field);
    return JSON.stringify(text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS)}…` : text);
  }

  #failKey(field: number): never {
    this.#fail(
      `field ${field} is no key: ${this.#shown(field)}; expected a decimal of 0 … 2^64 − 1`,
    );
  }

  #fail(what: string): never {
    throw new CubeError('CORRUPT', `${this.place}: ${what}`);
  }
}

const NUMBER = /^\d+$/;
const NAME = /^(?!(?:nan|inf|infinity)$)[\p{L}_#]/iu;

/** Whether the first record has names: columns are asked for by name, or there is a name where the key would be. */
function isHeader(
  fields: readonly string[],
  { keyColumn, valueColumns = [], signKey: slot }: InputSpec,
): boolean {
  const asked = keyColumn === undefined ? valueColumns : [keyColumn, ...valueColumns];
  if (asked.some((column) => !NUMBER.test(column)) || fields.includes('key')) return true;
  const keyAt = Number(keyColumn ?? 0);
  // Where keys are text, only the other fields tell.
  if (slot !== undefined) return fields.some((field, i) => i !== keyAt && NAME.test(field));
  const key = fields[keyAt] ?? '';
  // Tools that write a table's index leave its name out.
  return NAME.test(key) || (key === '' && fields.some((field) => NAME.test(field)));
}

/** The column of the key and those of the row. */
export function chooseColumns(
  names: readonly string[] | undefined,
  count: number,
  { keyColumn, valueColumns }: InputSpec,
  fail: (what: string) => never,
): Columns {
  const find = (column: string): number => {
    const named = names?.indexOf(column) ?? -1;
    if (named !== -1) return named;
    const number = /^\d{1,9}$/.test(column) ? Number(column) : count;
    if (number < count) return number;
    const known = names === undefined ? `0 … ${count - 1}` : names.slice(0, 20).join(', ');
    return fail(`no column ${JSON.stringify(column)}; there are ${known}`);
  };
  const key = keyColumn === undefined ? Math.max(0, names?.indexOf('key') ?? 0) : find(keyColumn);
  const others = Array.from({ length: count }, (_, i) => i).filter((i) => i !== key);
  const values = valueColumns?.map(find) ?? others;
  if (values.length === 0) fail('no column is left for the row');
  return { count, key, values };
}
