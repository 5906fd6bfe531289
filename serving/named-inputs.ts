/**
 * Requests to a model that was pruned without features.json: tensors by the names of the unpruned graph's inputs, ids of integers
 * (or of floats, where the graph had them so), and the dense input as the graph takes it.
 */
import { CubeError } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import { setKey } from '../lib/core/keys.ts';
import type { IdsSpec } from '../lib/core/slots.ts';
import type { LoadedBundle } from './bundle.ts';
import type { KeyedRows } from './computed-keys.ts';

const INTEGERS = ['INT64', 'INT32', 'UINT64'];
const FLOATS = ['FP32', 'FP64'];

/** A tensor that the model takes. */
interface Wanted {
  readonly name: string;
  readonly datatypes: readonly string[];
  /** Elements in a row. */
  readonly columns: number;
}

/** One that a request gives. */
interface Given extends Wanted {
  readonly rowCount: number;
  /** The value of an element, for messages and conversion. */
  at(i: number): JsonReader;
  readonly isUnsigned: boolean;
}

function wantedOf({ ids, plan }: LoadedBundle): Wanted[] {
  const wanted = ids!.map(
    ({ input, dtype, columns }): Wanted => ({
      name: input,
      datatypes: isFloat(dtype) ? FLOATS : INTEGERS,
      columns,
    }),
  );
  const { denseInput, denseNum } = plan;
  if (denseInput !== undefined && !wanted.some(({ name }) => name === denseInput)) {
    wanted.push({ name: denseInput, datatypes: FLOATS, columns: denseNum });
  }
  return wanted;
}

export function namedInputs(bundle: LoadedBundle): object[] {
  return wantedOf(bundle).map(({ name, datatypes: [datatype], columns }) => ({
    ...{ name, datatype, shape: [-1, columns] },
  }));
}

/** @throws CubeError INVALID_ARGUMENT naming the field, TOO_LARGE over `rowsMax` */
export function readNamedRows(body: JsonReader, bundle: LoadedBundle, rowsMax: number): KeyedRows {
  const wanted = wantedOf(bundle);
  const given = new Map<string, Given>();
  const field = body.field('inputs');
  for (const json of field.items({ min: 1, max: wanted.length })) {
    const name = json.field('name').oneOf(wanted.map((input) => input.name));
    if (given.has(name)) json.field('name').fail('each input once');
    given.set(name, readTensor(json, wanted.find((input) => input.name === name)!, rowsMax));
  }
  const [first] = given.values();
  for (const { name } of wanted) {
    const tensor = given.get(name) ?? field.fail(`an input ${name} too`);
    if (tensor.rowCount !== first!.rowCount) {
      field.fail(`as many rows in ${name} as in ${first!.name} (${first!.rowCount})`);
    }
  }
  const { rowCount } = first!;
  const keys = new Uint32Array(2 * rowCount * bundle.plan.slotNum);
  let start = 0;
  for (const ids of bundle.ids!) {
    fillKeys(given.get(ids.input)!, ids, { keys, start, width: bundle.plan.slotNum });
    start += ids.columns;
  }
  const { denseInput } = bundle.plan;
  const dense = denseInput === undefined ? new Float32Array(0) : floatsOf(given.get(denseInput)!);
  return { rowCount, keys, dense };
}

function readTensor(json: JsonReader, wanted: Wanted, rowsMax: number): Given {
  const { name, columns, datatypes } = wanted;
  const datatype = json.field('datatype').oneOf(datatypes);
  const [rowCount = 0, ...rest] = json
    .field('shape')
    .items({ min: 1, max: 16 })
    .map((dim, i) => dim.integer(i === 0 ? 1 : 0));
  if (rest.reduce((product, size) => product * size, 1) !== columns) {
    json.field('shape').fail(`[rows, ${columns}]`);
  }
  if (rowCount > rowsMax) {
    throw new CubeError(
      'TOO_LARGE',
      `${rowCount} rows in one request, the limit is ${rowsMax}: send them in several requests`,
    );
  }
  const { value } = json.field('data');
  const values = Array.isArray(value) ? value.flat(16) : json.field('data').fail('an array');
  if (values.length !== rowCount * columns) {
    json.field('data').fail(`${rowCount * columns} values (${rowCount} rows of ${columns})`);
  }
  const at = (i: number): JsonReader => JsonReader.of(values[i], `body: input ${name}, value ${i}`);
  return { ...wanted, rowCount, at, isUnsigned: datatype === 'UINT64' };
}

function fillKeys(
  { rowCount, columns, at, isUnsigned }: Given,
  { dtype }: IdsSpec,
  { keys, start, width }: { keys: Uint32Array; start: number; width: number },
): void {
  for (let i = 0; i < rowCount * columns; i++) {
    const place = Math.floor(i / columns) * width + start + (i % columns);
    let id: bigint;
    if (isFloat(dtype)) id = integerOf(at(i), dtype);
    else id = isUnsigned ? at(i).u64() : at(i).i64();
    setKey(keys, place, BigInt.asUintN(64, id));
  }
}

/** Towards zero, as the graph's Cast does. */
function integerOf(json: JsonReader, dtype: string): bigint {
  const value = dtype === 'float32' ? Math.fround(json.number()) : json.number();
  if (Math.abs(value) >= 2 ** 63) json.fail('a number of at most 63 bits');
  return BigInt(Math.trunc(value));
}

function floatsOf({ rowCount, columns, at }: Given): Float32Array {
  return Float32Array.from({ length: rowCount * columns }, (_, i) => at(i).number());
}

function isFloat(dtype: string): boolean {
  return dtype.startsWith('float');
}
