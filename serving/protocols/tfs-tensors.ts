/**
 * Parses the tensors of a TensorFlow Serving request, in row form (`instances` and `examples`: an
 * object of inputs per row) or in column form (`inputs`: all rows of each input). A model with one
 * input accepts values without a name. Rows of a pooled slot may have different numbers of values.
 * A feature that a row leaves out is missing.
 */
import { isUtf8 } from 'node:buffer';
import { CubeError } from '../../lib/core/errors.ts';
import { checkRowCount } from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { SlicedWork } from '../../lib/core/json-slices.ts';
import { REQUEST_VALUES_MAX } from '../../lib/core/limits.ts';
import { shortenInput } from '../../lib/core/shown-input.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { getModelMetadata } from './infer.ts';
import { InputTensor } from './input-tensor.ts';
import { ROWS_PER_REQUEST_MAX } from './request-limits.ts';
import { CATEGORICAL, DENSE, KEYS, listInputNames } from './tensor-rows.ts';

type JsonObject = Readonly<Record<string, unknown>>;

/** Rows of a slice: some 0.5 ms. */
const SLICE_ROWS = 512;

export interface TfsTensors {
  readonly inputs: readonly InputTensor[];
  /** The request has `instances`, so the response is by row too. */
  readonly isByRow: boolean;
}

/** Parses the tensors in slices. @throws CubeError INVALID_ARGUMENT naming the field, TOO_LARGE */
export function* parseTfsTensors(
  body: JsonReader,
  model: string,
  bundle: LoadedBundle,
): SlicedWork<TfsTensors> {
  const instances = body.field('instances');
  const inputs = body.field('inputs');
  if (instances.isMissing === inputs.isMissing) {
    body.fail('either "instances" (a list of rows) or "inputs" (all rows of each input)');
  }
  const columns = instances.isMissing
    ? parseInputColumns(inputs, model, bundle)
    : parseInstanceColumns(instances, model, bundle);
  yield;
  const tensors = yield* toInputTensors(columns, bundle);
  return { inputs: tensors, isByRow: !instances.isMissing };
}

function* toInputTensors(
  columns: ReadonlyMap<string, readonly unknown[]>,
  bundle: LoadedBundle,
): SlicedWork<readonly InputTensor[]> {
  const tensors: InputTensor[] = [];
  for (const [name, rows] of columns) {
    tensors.push(yield* toInputTensor(name, rows, bundle));
    yield;
  }
  return tensors;
}

/**
 * Parses the body of :classify and :regress in slices: `examples`, and in `context` the features
 * that all examples share. @throws CubeError INVALID_ARGUMENT naming the field, TOO_LARGE
 */
export function* parseTfsExamples(
  body: JsonReader,
  bundle: LoadedBundle,
): SlicedWork<readonly InputTensor[]> {
  const examples = body.field('examples');
  const rows = readRowList(examples);
  rows.forEach((row, i) => {
    if (!isObject(row)) examples.item(i).fail('an object of features');
  });
  const columns = toColumns(rows as readonly JsonObject[], bundle);
  const names = new Set(listInputNames(bundle));
  for (const [name, field] of body.optional('context', (context) => context.entries()) ?? []) {
    // Each becomes a value of every row, so unknown ones are refused before.
    if (!names.has(name)) field.fail('a name of an input of the model');
    if (columns.has(name)) field.fail('a feature that no example has');
    columns.set(name, new Array(rows.length).fill(field.value));
  }
  return yield* toInputTensors(columns, bundle);
}

function parseInputColumns(
  inputs: JsonReader,
  model: string,
  bundle: LoadedBundle,
): ReadonlyMap<string, readonly unknown[]> {
  if (Array.isArray(inputs.value)) {
    return new Map([[findOnlyInput(inputs, model, bundle), readRowList(inputs)]]);
  }
  return new Map(
    inputs.entries().map(([name, field]) => {
      return [name, isBagList(name, bundle) ? field.list() : readRowList(field)];
    }),
  );
}

/** Whether the input is one list with the ids of all rows' bags. */
function isBagList(name: string, { ids, bags }: LoadedBundle): boolean {
  return ids !== undefined && bags.has(name);
}

function readRowList(field: JsonReader): readonly unknown[] {
  const { value } = field;
  if (!Array.isArray(value) || value.length === 0) field.fail('a list of at least one row');
  checkRowCount(value.length, ROWS_PER_REQUEST_MAX);
  return value;
}

function parseInstanceColumns(
  instances: JsonReader,
  model: string,
  bundle: LoadedBundle,
): ReadonlyMap<string, readonly unknown[]> {
  const rows = readRowList(instances);
  const isNamed = rows.every(isObject);
  if (!isNamed) return new Map([[findOnlyInput(instances, model, bundle), rows]]);
  return toColumns(rows, bundle);
}

/** The values of each input; those that a row leaves out are missing values. */
function toColumns(rows: readonly JsonObject[], bundle: LoadedBundle): Map<string, unknown[]> {
  const columns = new Map<string, unknown[]>();
  const missing = new Map<string, unknown>();
  const getMissing = (name: string): unknown => {
    if (!missing.has(name)) missing.set(name, findMissingValue(name, bundle));
    const shown = shortenInput(name);
    return missing.get(name) ?? fail(`input ${shown}: every row must have it, or none`);
  };
  rows.forEach((row, i) => {
    for (const name of Object.keys(row)) {
      if (columns.has(name)) continue;
      columns.set(name, i === 0 ? [] : new Array(i).fill(getMissing(name)));
    }
    for (const [name, values] of columns) {
      values.push(Object.hasOwn(row, name) ? row[name] : getMissing(name));
    }
  });
  return columns;
}

/** What a row without this input means; undefined when the input is required. */
function findMissingValue(name: string, { features, ids, plan }: LoadedBundle): unknown {
  if (ids !== undefined) return undefined;
  const slot = features.slots.find((candidate) => candidate.name === name);
  if (slot !== undefined) return slot.pooling === undefined ? '' : [];
  if (features.dense?.features.some((feature) => feature.name === name)) return Number.NaN;
  if (name === DENSE) return new Array(plan.denseNum).fill(null);
  return name === CATEGORICAL ? new Array(plan.slotNum).fill('') : undefined;
}

export function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !isBase64(value);
}

/** Bytes that are not text, as TensorFlow Serving encodes them in JSON. */
export function isBase64(value: unknown): value is { b64: string } {
  if (typeof value !== 'object' || value === null) return false;
  return typeof (value as { b64?: unknown }).b64 === 'string' && Object.keys(value).length === 1;
}

/** Names a row that has another width than the model declares, or than the widest row. */
function failWidth(
  name: string,
  rows: readonly unknown[],
  bundle: LoadedBundle,
  widest: number,
): never {
  const declared = getModelMetadata('', bundle).inputs.find((input) => input.name === name);
  const expected = declared?.shape.at(-1) ?? widest;
  const widths = rows.map((row) => (Array.isArray(row) ? row.length : 1));
  const at = widths.findIndex((width) => width !== expected);
  fail(`input ${shortenInput(name)}, row ${at}: expected ${expected} values, got ${widths[at]}`);
}

function findOnlyInput(field: JsonReader, model: string, bundle: LoadedBundle): string {
  const { inputs } = getModelMetadata(model, bundle);
  const [only, ...others] = inputs;
  if (only !== undefined && others.length === 0) return only.name;
  const names = inputs.map(({ name }) => name).join(', ');
  return field.fail(`values by input name: the inputs of ${model} are ${names}`);
}

/** @param rows one value or a list of values per row */
function* toInputTensor(
  name: string,
  rows: readonly unknown[],
  bundle: LoadedBundle,
): SlicedWork<InputTensor> {
  let columns = 1;
  for (const row of rows) if (Array.isArray(row)) columns = Math.max(columns, row.length);
  if (rows.length * columns > REQUEST_VALUES_MAX) {
    fail(
      `input ${shortenInput(name)}: ${rows.length} rows of ${columns} values, the limit is ` +
        `${REQUEST_VALUES_MAX} values`,
    );
  }
  const isBag = bundle.features.slots.some((slot) => slot.name === name && slot.pooling);
  const values: unknown[] = [];
  for (const [i, row] of rows.entries()) {
    const list: readonly unknown[] = Array.isArray(row) ? row : [row];
    if (list.length !== columns && !isBag) failWidth(name, rows, bundle, columns);
    for (const value of list) {
      if (Array.isArray(value)) fail(`input ${shortenInput(name)}, row ${i}: a list in a list`);
      values.push(value);
    }
    for (let missing = columns - list.length; missing > 0; missing--) values.push('');
    if (i % SLICE_ROWS === SLICE_ROWS - 1) yield;
  }
  const isList = rows.some(Array.isArray);
  const shape = isList ? [rows.length, columns] : [rows.length];
  const datatype = chooseDatatype(name, values, bundle);
  yield;
  const texts =
    datatype === 'BYTES' ? values.map((value, i) => toFeatureText(name, value, i)) : values;
  yield;
  return InputTensor.fromJson(
    { name, datatype, shape },
    JsonReader.of(texts, `input ${shortenInput(name)}`),
  );
}

function chooseDatatype(name: string, values: readonly unknown[], bundle: LoadedBundle): string {
  const { features, ids, plan } = bundle;
  if (ids !== undefined) {
    const graph = getModelMetadata('', bundle).inputs.find((input) => input.name === name);
    return graph?.datatype ?? 'FP64';
  }
  if (name === KEYS)
    return values.some((value) => String(value).startsWith('-')) ? 'INT64' : 'UINT64';
  const isDense = features.dense?.features.some((feature) => feature.name === name);
  return isDense || (plan.denseNum > 0 && name === 'dense') ? 'FP64' : 'BYTES';
}

/**
 * A feature as a string. Integers are accepted as ids unless they exceed 2^53, where JSON rounds
 * them.
 */
export function toFeatureText(name: string, value: unknown, i: number): unknown {
  if (typeof value === 'number' && Number.isSafeInteger(value)) return String(value);
  if (!isBase64(value)) return value;
  const bytes = Buffer.from(value.b64, 'base64');
  if (bytes.toString('base64').replaceAll('=', '') !== value.b64.replaceAll('=', '')) {
    fail(`input ${shortenInput(name)}, value ${i}: its b64 is not valid base64`);
  }
  if (!isUtf8(bytes))
    fail(`input ${shortenInput(name)}, value ${i}: its b64 bytes are not UTF-8 text`);
  return bytes.toString();
}

function fail(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
