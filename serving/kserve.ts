/**
 * The KServe v2 door's bodies (Open Inference Protocol, REST): what the model looks like from outside, tensors in, tensors
 * out. Drawn in docs/wire/serving.md.
 *
 * The model as presented takes raw features, not what its graph takes: `categorical` BYTES [-1, slots] (or `keys` UINT64, or
 * INT64, of the same shape: hashed by the caller, or the ids of a model that has no hash) and `dense` FP32 [-1, dense], unscaled. A
 * model that was pruned without features.json takes its graph's own inputs (named-inputs.ts). Errors name the field.
 */
import { CubeError } from '../lib/core/errors.ts';
import { LINE_CHARS_MAX, scaleDense } from '../lib/core/features.ts';
import { JsonReader } from '../lib/core/json.ts';
import { setKey } from '../lib/core/keys.ts';
import type { LoadedBundle } from './bundle.ts';
import type { KeyedRows } from './computed-keys.ts';
import { namedInputs, readNamedRows } from './named-inputs.ts';
import type { FeatureRows, Prediction } from './predictor.ts';

const CATEGORICAL = 'categorical';
const KEYS = 'keys';
const DENSE = 'dense';
const DATATYPES: Readonly<Record<string, string>> = {
  [CATEGORICAL]: 'BYTES',
  [KEYS]: 'UINT64',
  [DENSE]: 'FP32',
};

export interface InferRequest {
  readonly id: string | undefined;
  readonly rows: FeatureRows | KeyedRows;
}

/** One tensor of the request: its values in row-major order, not looked at yet. */
interface InputTensor {
  readonly json: JsonReader;
  readonly rowCount: number;
  readonly values: readonly unknown[];
}

export function modelMetadata(bundle: LoadedBundle): object {
  const { manifest, plan, pool } = bundle;
  const inputs =
    bundle.ids === undefined ? [tensorMetadata(CATEGORICAL, plan.slotNum)] : namedInputs(bundle);
  if (bundle.ids === undefined && plan.denseNum > 0) {
    inputs.push(tensorMetadata(DENSE, plan.denseNum));
  }
  return {
    name: manifest.bundle,
    versions: [manifest.version],
    platform: 'onnx_hypercube',
    inputs,
    outputs: [{ name: plan.clickOutput, datatype: 'FP32', shape: [-1, pool.outputNum] }],
  };
}

function tensorMetadata(name: string, columns: number): object {
  return { name, datatype: DATATYPES[name], shape: [-1, columns] };
}

/** @throws CubeError INVALID_ARGUMENT naming the field, TOO_LARGE over `rowsMax` */
export function readInferRequest(
  text: string,
  bundle: LoadedBundle,
  rowsMax: number,
): InferRequest {
  const { plan, features } = bundle;
  const body = JsonReader.parse(text, 'body');
  const id = body.optional('id', (field) => field.string());
  checkOutputs(body, plan.clickOutput);
  if (bundle.ids !== undefined) return { id, rows: readNamedRows(body, bundle, rowsMax) };
  const tensors = new Map<string, InputTensor>();
  for (const json of body.field('inputs').items({ min: 1, max: 16 })) {
    const name = json.field('name').string();
    const known = [CATEGORICAL, KEYS, ...(plan.denseNum > 0 ? [DENSE] : [])];
    if (!known.includes(name)) json.field('name').fail(`one of ${known.join(', ')}`);
    if (tensors.has(name)) json.field('name').fail('each input once');
    const columns = name === DENSE ? plan.denseNum : plan.slotNum;
    tensors.set(name, readTensor(json, name, columns, rowsMax));
  }
  const categorical = tensors.get(CATEGORICAL);
  const keys = tensors.get(KEYS);
  const one = categorical ?? keys;
  if (one === undefined || (categorical !== undefined && keys !== undefined)) {
    return body.field('inputs').fail(`either an input ${CATEGORICAL} or an input ${KEYS}`);
  }
  const { rowCount } = one;
  const raw = readDense(body, tensors.get(DENSE), rowCount, plan.denseNum);
  const dense = scaleDense(raw, rowCount, features.dense?.features ?? []);
  const rows = keys
    ? { rowCount, dense, keys: readKeys(keys) }
    : { rowCount, dense, features: readFeatures(one) };
  return { id, rows };
}

export function inferResponse(
  prediction: Prediction,
  { manifest, plan }: LoadedBundle,
  id: string | undefined,
): object {
  const { output, outputNum, rowCount, version, unseen, unavailable, degraded } = prediction;
  return {
    model_name: manifest.bundle,
    model_version: manifest.version,
    ...(id === undefined ? {} : { id }),
    parameters: { tables_version: version, unseen, unavailable, degraded },
    outputs: [
      {
        name: plan.clickOutput,
        datatype: 'FP32',
        shape: [rowCount, outputNum],
        data: Array.from(output),
      },
    ],
  };
}

function checkOutputs(body: JsonReader, known: string): void {
  body.optional('outputs', (outputs) => {
    for (const output of outputs.items({ max: 16 })) output.field('name').oneOf([known]);
  });
}

function readTensor(json: JsonReader, name: string, columns: number, rowsMax: number): InputTensor {
  json.field('datatype').oneOf(name === KEYS ? ['UINT64', 'INT64'] : [DATATYPES[name]!]);
  const shape = json.field('shape').items();
  const [rowsField, columnsField] = shape;
  if (shape.length !== 2 || columnsField?.value !== columns) {
    json.field('shape').fail(`[rows, ${columns}]`);
  }
  const rowCount = rowsField!.integer(1);
  if (rowCount > rowsMax) {
    throw new CubeError(
      'TOO_LARGE',
      `${rowCount} rows in one request, the limit is ${rowsMax}: send them in several requests`,
    );
  }
  return { json, rowCount, values: flatten(json.field('data'), rowCount, columns) };
}

/** Flat or nested data as one list. */
function flatten(data: JsonReader, rowCount: number, columns: number): readonly unknown[] {
  const { value } = data;
  if (!Array.isArray(value)) data.fail('an array');
  const flat = value.some(Array.isArray) ? value.flat() : value;
  if (flat.length !== rowCount * columns || flat.some(Array.isArray)) {
    data.fail(`${rowCount * columns} values (${rowCount} rows of ${columns}), flat or in rows`);
  }
  return flat;
}

function readFeatures({ json, values }: InputTensor): string[] {
  return values.map((value, i) => {
    if (value === null) return '';
    if (typeof value !== 'string' || value.length > LINE_CHARS_MAX) {
      failValue(json, i, value, `a string of at most ${LINE_CHARS_MAX} characters, or null`);
    }
    return value;
  });
}

/** Unsigned keys, or ids that may be below zero (which count from the end of a table that computes with them). */
function readKeys({ json, values }: InputTensor): Uint32Array {
  const isSigned = json.field('datatype').value === 'INT64';
  const keys = new Uint32Array(2 * values.length);
  values.forEach((value, i) => {
    const field = JsonReader.of(value, `body: input ${KEYS}, value ${i}`);
    setKey(keys, i, isSigned ? BigInt.asUintN(64, field.i64()) : field.u64());
  });
  return keys;
}

/** Raw values, NaN for a missing one. */
function readDense(
  body: JsonReader,
  tensor: InputTensor | undefined,
  rowCount: number,
  denseNum: number,
): Float64Array {
  const raw = new Float64Array(rowCount * denseNum);
  if (denseNum === 0) return raw;
  if (tensor === undefined) return body.field('inputs').fail(`an input ${DENSE} too`);
  if (tensor.rowCount !== rowCount) {
    tensor.json.field('shape').fail(`as many rows as the other input has (${rowCount})`);
  }
  tensor.values.forEach((value, i) => {
    if (value === null) raw[i] = Number.NaN;
    else if (typeof value === 'number' && Number.isFinite(value)) raw[i] = value;
    else failValue(tensor.json, i, value, 'a finite number, or null for a missing value');
  });
  return raw;
}

function failValue(json: JsonReader, i: number, value: unknown, expected: string): never {
  const place = `body: input ${json.field('name').string()}, value ${i}`;
  return JsonReader.of(value, place).fail(expected);
}
