/**
 * The tensors of a TensorFlow Serving request, in row form (`instances`: an object for each row, by the names of the inputs) or in
 * column form (`inputs`: all rows of each input). A model of one input takes its values without a name. Of a pooled slot rows may
 * have different numbers of values.
 */
import { isUtf8 } from 'node:buffer';
import { CubeError } from '../../lib/core/errors.ts';
import { checkRowCount } from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { REQUEST_VALUES_MAX } from '../../lib/core/limits.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import { ROWS_PER_REQUEST_MAX } from '../serving-limits.ts';
import { modelMetadata } from './infer.ts';
import { KEYS } from './tensor-rows.ts';
import { InputTensor } from './tensors.ts';

export interface TfsTensors {
  readonly inputs: readonly InputTensor[];
  /** `instances`: the answer is by row too. */
  readonly isByRow: boolean;
}

/** @throws CubeError INVALID_ARGUMENT naming the place, TOO_LARGE */
export function readTfsTensors(body: JsonReader, model: string, bundle: LoadedBundle): TfsTensors {
  const instances = body.field('instances');
  const inputs = body.field('inputs');
  if (instances.missing === inputs.missing) {
    body.fail('either "instances" (a list of rows) or "inputs" (all rows of each input)');
  }
  const columns = instances.missing
    ? inputColumns(inputs, model, bundle)
    : instanceColumns(instances, model, bundle);
  const tensors = [...columns].map(([name, rows]) => tensorOf(name, rows, bundle));
  return { inputs: tensors, isByRow: !instances.missing };
}

function inputColumns(
  inputs: JsonReader,
  model: string,
  bundle: LoadedBundle,
): ReadonlyMap<string, readonly unknown[]> {
  if (Array.isArray(inputs.value)) {
    return new Map([[onlyInput(inputs, model, bundle), listOf(inputs)]]);
  }
  return new Map(
    inputs.entries().map(([name, field]) => {
      return [name, isBagList(name, bundle) ? field.list() : listOf(field)];
    }),
  );
}

/** Ids of the bags of all rows: as many as there are. */
function isBagList(name: string, { ids, bags }: LoadedBundle): boolean {
  return ids !== undefined && bags.has(name);
}

function listOf(field: JsonReader): readonly unknown[] {
  const { value } = field;
  if (!Array.isArray(value) || value.length === 0) field.fail('a list of at least one row');
  checkRowCount(value.length, ROWS_PER_REQUEST_MAX);
  return value;
}

function instanceColumns(
  instances: JsonReader,
  model: string,
  bundle: LoadedBundle,
): ReadonlyMap<string, readonly unknown[]> {
  const rows = listOf(instances);
  const isNamed = rows.every(isObject);
  if (!isNamed) return new Map([[onlyInput(instances, model, bundle), rows]]);
  const names = Object.keys(rows[0]!);
  rows.forEach((row, i) => {
    const own = Object.keys(row);
    const odd = own.find((name) => !names.includes(name)) ?? names.find((name) => !(name in row));
    if (odd !== undefined) {
      fail(`instances[${i}]: every row needs the same inputs; ${odd} is not in all of them`);
    }
  });
  return new Map(names.map((name) => [name, rows.map((row) => row[name])]));
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && !isBase64(value);
}

/** How TensorFlow Serving's JSON has bytes that are no text. */
function isBase64(value: unknown): value is { b64: string } {
  if (typeof value !== 'object' || value === null) return false;
  return typeof (value as { b64?: unknown }).b64 === 'string' && Object.keys(value).length === 1;
}

function onlyInput(field: JsonReader, model: string, bundle: LoadedBundle): string {
  const { inputs } = modelMetadata(model, bundle);
  if (inputs.length === 1) return inputs[0]!.name;
  const names = inputs.map(({ name }) => name).join(', ');
  return field.fail(`values by name: ${model} has the inputs ${names}`);
}

/** @param rows a value each, or a list of them */
function tensorOf(name: string, rows: readonly unknown[], bundle: LoadedBundle): InputTensor {
  const columns = Math.max(1, ...rows.map((row) => (Array.isArray(row) ? row.length : 1)));
  if (rows.length * columns > REQUEST_VALUES_MAX) {
    fail(
      `input ${name}: ${rows.length} rows of ${columns} values, the limit is ${REQUEST_VALUES_MAX} values`,
    );
  }
  const isBag = bundle.features.slots.some((slot) => slot.name === name && slot.pooling);
  const values = rows.flatMap((row, i) => {
    const list: readonly unknown[] = Array.isArray(row) ? row : [row];
    if (list.length === columns) return list;
    if (!isBag) fail(`input ${name}, row ${i}: expected ${columns} values, got ${list.length}`);
    return [...list, ...new Array<string>(columns - list.length).fill('')];
  });
  const isList = rows.some(Array.isArray);
  const shape = isList ? [rows.length, columns] : [rows.length];
  const datatype = datatypeOf(name, values, bundle);
  const plain = datatype === 'BYTES' ? values.map((value, i) => textOf(name, value, i)) : values;
  return InputTensor.ofJson({ name, datatype, shape }, JsonReader.of(plain, `input ${name}`));
}

function datatypeOf(name: string, values: readonly unknown[], bundle: LoadedBundle): string {
  const { features, ids, plan } = bundle;
  if (ids !== undefined) {
    const graph = modelMetadata('', bundle).inputs.find((input) => input.name === name);
    return graph?.datatype ?? 'FP64';
  }
  if (name === KEYS)
    return values.some((value) => String(value).startsWith('-')) ? 'INT64' : 'UINT64';
  const isDense = features.dense?.features.some((feature) => feature.name === name);
  return isDense || (plan.denseNum > 0 && name === 'dense') ? 'FP64' : 'BYTES';
}

/** A feature as a string: ids may come as integers, but not as ones that JSON has rounded already. */
function textOf(name: string, value: unknown, i: number): unknown {
  if (typeof value === 'number' && Number.isSafeInteger(value)) return String(value);
  if (!isBase64(value)) return value;
  const bytes = Buffer.from(value.b64, 'base64');
  if (bytes.toString('base64').replaceAll('=', '') !== value.b64.replaceAll('=', '')) {
    fail(`input ${name}, value ${i}: b64 is not base64`);
  }
  if (!isUtf8(bytes)) fail(`input ${name}, value ${i}: b64 of bytes that are not UTF-8 text`);
  return bytes.toString();
}

function fail(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
