/** Rows of the tables of a program: in pieces for the output, and by key for the verification. */

import { requireDefined } from '../../../lib/core/errors.ts';
import { notVerifiedError } from '../cut/refusals.ts';
import type { Table, TableNames } from '../cut/table.ts';
import { RandomNumbers } from '../cut/verification.ts';
import type { PaddleTable } from './lookup-finder.ts';
import { type Parameter, readFloats } from './parameters.ts';

/** The table as the output has it; without rows when a parameter server holds it. */
export function toTable(
  source: PaddleTable,
  names: TableNames,
  remainingReaders: readonly string[],
): Table {
  const { name, dim, parameter, padding } = source;
  const table = { name: names.claim(name), source: name, dim, remainingReaders };
  if (parameter === undefined) {
    return { ...table, rows: 0, isExternal: true, readRows: () => undefined };
  }
  const readRows = (first: number, target: Float32Array): void => {
    readFloats(parameter, first * dim, target);
    if (padding === undefined) return;
    const keys =
      parameter.keysOffset === undefined
        ? undefined
        : readKeys(parameter, first, target.length / dim);
    for (let row = 0; row < target.length / dim; row++) {
      const key = keys === undefined ? first + row : Number(keys[row]);
      if (key === padding) target.fill(0, row * dim, (row + 1) * dim);
    }
  };
  const keyed =
    parameter.keysOffset === undefined
      ? {}
      : {
          readKeys: (first: number, target: BigUint64Array): void =>
            target.set(readKeys(parameter, first, target.length)),
        };
  return { ...table, rows: getRowCount(parameter), ...keyed, readRows };
}

function getRowCount({ dims }: Parameter): number {
  return requireDefined(dims[0], 'the rows of a table');
}

function readKeys(parameter: Parameter, first: number, count: number): BigUint64Array {
  const keys = new BigUint64Array(count);
  const bytes = new Uint8Array(keys.buffer);
  const keysOffset = requireDefined(parameter.keysOffset, "the offset of a table's keys");
  parameter.reader.readInto(bytes, keysOffset + 8 * first);
  return keys;
}

/** Keys drawn for each table. */
const KEYS_DRAWN = 512;
/** Upper limit of keys drawn for tables on a parameter server. */
const EXTERNAL_KEY_LIMIT = 2 ** 31;

/** The keys of one table that a verification uses, and their rows in the full program. */
export class SampledTableRows {
  readonly source: PaddleTable;
  /** Keys of the first and last row come first. */
  readonly keys: readonly number[];
  readonly #positions = new Map<number, number>();

  constructor(source: PaddleTable, random: RandomNumbers) {
    this.source = source;
    const { parameter, padding } = source;
    const rows = parameter === undefined ? EXTERNAL_KEY_LIMIT : getRowCount(parameter);
    const positions = new Set([0, rows - 1]);
    for (let i = 0; i < KEYS_DRAWN; i++) positions.add(Math.floor(random.next() * rows));
    for (const position of positions) {
      const key =
        parameter?.keysOffset === undefined
          ? position
          : Number(readKeys(parameter, position, 1)[0]);
      // A larger key could not be fed exactly.
      if (Number.isSafeInteger(key)) this.#positions.set(key, position);
    }
    if (padding !== undefined && padding < rows && parameter?.keysOffset === undefined) {
      this.#positions.set(padding, padding);
    }
    this.keys = [...this.#positions.keys()];
    if (this.keys.length === 0) throw notVerifiedError(`no key of ${source.name} is below 2^53`);
  }

  /** The position of a key's row in the table. */
  findPosition(key: number): number | undefined {
    const { parameter } = this.source;
    if (parameter !== undefined && parameter.keysOffset === undefined) {
      return key >= 0 && key < getRowCount(parameter) ? key : undefined;
    }
    return this.#positions.get(key);
  }

  /**
   * Copies the row that the full program looks up. @returns false when the table has no such key
   */
  fillRow(key: number, target: Float32Array): boolean {
    const { parameter, padding, dim } = this.source;
    const position = this.findPosition(key);
    if (position === undefined) return false;
    if (key === padding) target.fill(0);
    else if (parameter === undefined) fillExternalRow(key, target);
    else readFloats(parameter, position * dim, target);
    return true;
  }
}

/** Makes up a row of a table on a parameter server; the same row for the same key. */
export function fillExternalRow(key: number, target: Float32Array): void {
  const random = new RandomNumbers(key ^ 0x5bd1e995);
  for (let i = 0; i < target.length; i++) target[i] = random.normal();
}
