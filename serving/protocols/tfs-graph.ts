/**
 * `:predict` of TensorFlow Serving for plain models: nested JSON lists to tensors of any rank and
 * type, in row form (`instances`) or column form (`inputs`), and back.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { TensorSpec } from '../../lib/core/graph-signature.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { formatJsonElements } from '../../lib/core/json-elements.ts';
import type { SlicedWork } from '../../lib/core/json-slices.ts';
import { REQUEST_VALUES_MAX } from '../../lib/core/limits.ts';
import { shortenInput } from '../../lib/core/shown-input.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import type { ParsedGraphRequest } from './handle-prediction.ts';
import { toParsedGraphRequest } from './infer.ts';
import { InputTensor } from './input-tensor.ts';
import { isBase64, isObject, toFeatureText } from './tfs-tensors.ts';

const DIMS_MAX = 16;

/**
 * @returns a request whose response is JSON text: NaN and 64-bit integers have no other form
 * @throws CubeError INVALID_ARGUMENT naming the field
 */
export function* parseTfsGraphRequest(
  body: JsonReader,
  model: string,
  graph: TensorModel,
): SlicedWork<ParsedGraphRequest<string>> {
  const instances = body.field('instances');
  const inputs = body.field('inputs');
  if (instances.isMissing === inputs.isMissing) {
    body.fail('either "instances" (a list of rows) or "inputs" (all rows of each input)');
  }
  const isByRow = !instances.isMissing;
  const values = isByRow ? readRows(instances, graph) : readColumns(inputs, graph);
  const tensors: InputTensor[] = [];
  for (const [name, value] of values) {
    tensors.push(toInputTensor(name, value, graph));
    yield;
  }
  const request = { id: '', parameters: new Map(), inputs: tensors, outputs: [] };
  return toParsedGraphRequest(request, { model, graph }, ({ outputs }) =>
    isByRow ? formatRows(outputs) : formatColumns(outputs),
  );
}

function readRows(field: JsonReader, graph: TensorModel): ReadonlyMap<string, unknown> {
  if (!graph.isBatched) {
    field.fail('"inputs" instead, because the model has no batch dimension and so no rows');
  }
  const { value: rows } = field;
  if (!Array.isArray(rows) || rows.length === 0) field.fail('a list of at least one row');
  if (!rows.every(isObject)) return new Map([[findOnlyInput(field, graph), rows]]);
  const names = graph.signature.inputs.map(({ name }) => name);
  rows.forEach((row, i) => {
    const unknown = Object.keys(row).find((name) => !names.includes(name));
    if (unknown !== undefined) field.item(i).fail(`only the inputs ${names.join(', ')}`);
    const missing = names.find((name) => !Object.hasOwn(row, name));
    if (missing !== undefined) field.item(i).fail(`an input ${missing} too`);
  });
  return new Map(names.map((name) => [name, rows.map((row) => row[name])]));
}

function readColumns(field: JsonReader, graph: TensorModel): ReadonlyMap<string, unknown> {
  if (!isObject(field.value)) return new Map([[findOnlyInput(field, graph), field.value]]);
  return new Map(field.entries().map(([name, { value }]) => [name, value]));
}

function findOnlyInput(field: JsonReader, { signature: { inputs } }: TensorModel): string {
  const [only, ...others] = inputs;
  if (only !== undefined && others.length === 0) return only.name;
  const names = inputs.map(({ name }) => name).join(', ');
  return field.fail(`values by input name: the inputs are ${names}`);
}

function toInputTensor(name: string, value: unknown, { signature }: TensorModel): InputTensor {
  const shown = `input ${shortenInput(name)}`;
  const spec = signature.inputs.find((input) => input.name === name);
  if (spec === undefined) {
    const names = signature.inputs.map((input) => input.name).join(', ');
    throw new CubeError('INVALID_ARGUMENT', `${shown}: expected one of ${names}`);
  }
  const shape = inferShape(value, spec, shown);
  const values: unknown[] = [];
  collectValues(value, shape, 0, values, shown);
  const isText = spec.dataType === 'BYTES';
  const data = isText ? values.map((item, i) => toFeatureText(name, item, i)) : values;
  return InputTensor.fromJson({ name, datatype: spec.dataType, shape }, JsonReader.of(data, shown));
}

/** The lengths of the first list of each depth. */
function inferShape(value: unknown, { dataType }: TensorSpec, shown: string): number[] {
  const shape: number[] = [];
  let item = value;
  while (Array.isArray(item)) {
    shape.push(item.length);
    if (shape.length > DIMS_MAX) {
      throw new CubeError('INVALID_ARGUMENT', `${shown}: over ${DIMS_MAX} dimensions`);
    }
    item = item[0];
  }
  if (dataType !== 'BYTES' && isBase64(item)) {
    throw new CubeError('INVALID_ARGUMENT', `${shown}: b64 is only for text, not ${dataType}`);
  }
  return shape;
}

function collectValues(
  value: unknown,
  shape: readonly number[],
  depth: number,
  into: unknown[],
  shown: string,
): void {
  const length = shape[depth];
  const isList = Array.isArray(value);
  if (isList !== (length !== undefined) || (isList && value.length !== length)) {
    const got = isList ? `a list of ${value.length}` : 'one value';
    const expected = length === undefined ? 'one value' : `a list of ${length}`;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${shown}: lists of different lengths: expected ${expected} at depth ${depth}, got ${got}`,
    );
  }
  if (isList) {
    for (const item of value) collectValues(item, shape, depth + 1, into, shown);
    return;
  }
  into.push(value);
  if (into.length > REQUEST_VALUES_MAX) {
    throw new CubeError('TOO_LARGE', `${shown}: over ${REQUEST_VALUES_MAX} values`);
  }
}

function formatRows(outputs: readonly NamedTensor[]): string {
  const columns = outputs.map((output) => ({ name: output.name, rows: splitRows(output) }));
  const [first, ...others] = columns;
  const rows = first?.rows.map((row, i) => {
    if (others.length === 0) return row;
    return `{${columns.map(({ name, rows: own }) => `${JSON.stringify(name)}:${own[i]}`).join()}}`;
  });
  return `{"predictions":[${rows?.join() ?? ''}]}`;
}

function formatColumns(outputs: readonly NamedTensor[]): string {
  const [first, ...others] = outputs;
  if (first !== undefined && others.length === 0) return `{"outputs":${formatNested(first)}}`;
  const fields = outputs.map((output) => `${JSON.stringify(output.name)}:${formatNested(output)}`);
  return `{"outputs":{${fields.join()}}}`;
}

function formatNested(output: NamedTensor): string {
  const rows = splitRows(output);
  return output.shape.length === 0 ? (rows[0] ?? 'null') : `[${rows.join()}]`;
}

/** The JSON of each item of the first dimension; of the only element without dimensions. */
function splitRows(output: NamedTensor): string[] {
  const { shape } = output;
  let items = formatJsonElements(output);
  // Joins elements to lists of the last dimension, these to lists of the one before, and so on.
  for (let depth = shape.length - 1; depth > 0; depth--) {
    const length = shape[depth] ?? 0;
    const lists = shape.slice(0, depth).reduce((product, dim) => product * dim, 1);
    const inner = items;
    items = Array.from({ length: lists }, (_, i) => {
      return `[${inner.slice(i * length, (i + 1) * length).join()}]`;
    });
  }
  return items;
}
