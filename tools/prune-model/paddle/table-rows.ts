/** Rows of the tables of a program: read for the output in pieces, and one by one, by key, for the proof. */
import { RandomNumbers } from '../proof.ts';
import type { Table, TableNames } from '../table.ts';
import type { TableSource } from './lookups.ts';
import { type Parameter, readFloats } from './parameters.ts';
import { unproved } from './tensor.ts';

/** Rows of the source as the output has them; none when a server holds it. */
export function toTable(source: TableSource, names: TableNames, keptFor: readonly string[]): Table {
  const { name, dim, parameter, padding } = source;
  const table = { name: names.claim(name), source: name, dim, keptFor };
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
  return { ...table, rows: parameter.dims[0]!, ...keyed, readRows };
}

function readKeys(parameter: Parameter, first: number, count: number): BigUint64Array {
  const keys = new BigUint64Array(count);
  const bytes = new Uint8Array(keys.buffer);
  parameter.reader.readInto(bytes, parameter.keysOffset! + 8 * first);
  return keys;
}

/** Keys drawn of a table whose rows have any. */
const KEYS_DRAWN = 512;
/** Keys of tables that servers hold: anything. */
const EXTERNAL_KEY_LIMIT = 2 ** 31;

/** The keys that a proof uses of one table, and their rows in the full program. */
export class SampledRows {
  readonly source: TableSource;
  /** First and last row, then the padding, then others. */
  readonly keys: readonly number[];
  readonly #positions = new Map<number, number>();

  constructor(source: TableSource, random: RandomNumbers) {
    this.source = source;
    const { parameter, padding } = source;
    const rows = parameter === undefined ? EXTERNAL_KEY_LIMIT : parameter.dims[0]!;
    const places = new Set([0, rows - 1]);
    for (let i = 0; i < KEYS_DRAWN; i++) places.add(Math.floor(random.next() * rows));
    for (const place of places) {
      const key =
        parameter?.keysOffset === undefined ? place : Number(readKeys(parameter, place, 1)[0]);
      // A key beyond what a number holds could not be fed exactly.
      if (Number.isSafeInteger(key)) this.#positions.set(key, place);
    }
    if (padding !== undefined && padding < rows && parameter?.keysOffset === undefined) {
      this.#positions.set(padding, padding);
    }
    this.keys = [...this.#positions.keys()];
    if (this.keys.length === 0) throw unproved(`no key of ${source.name} is below 2^53`);
  }

  /** Where the row of a key is in the table. */
  positionOf(key: number): number | undefined {
    const { parameter } = this.source;
    if (parameter !== undefined && parameter.keysOffset === undefined) {
      return key >= 0 && key < parameter.dims[0]! ? key : undefined;
    }
    return this.#positions.get(key);
  }

  /** The row as the full program would look it up. */
  fill(key: number, target: Float32Array): boolean {
    const { parameter, padding, dim } = this.source;
    const position = this.positionOf(key);
    if (position === undefined) return false;
    if (key === padding) target.fill(0);
    else if (parameter === undefined) fillExternal(key, target);
    else readFloats(parameter, position * dim, target);
    return true;
  }
}

/** A made-up row of a table that is not here: the same for the same key. */
export function fillExternal(key: number, target: Float32Array): void {
  const random = new RandomNumbers(key ^ 0x5bd1e995);
  for (let i = 0; i < target.length; i++) target[i] = random.normal();
}
