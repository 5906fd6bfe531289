/** Valid requests to a toy model, and their hostile mutations. */
import { GENERAL_MODEL_SERVICE } from '../../../proto/general-model.ts';
import { encodeRequestFrame } from '../../rpc/support/echo-server.ts';
import { mutate, type SeededRandom } from '../../rpc/support/fuzz.ts';
import { binaryBody, encodeInfer, rawStrings, toRawBytes } from './kserve-client.ts';
import { encodeRequest } from './paddle-client.ts';
import { BUNDLE, toTsv, toyRows } from './toy-bundle.ts';

const JSON_TYPE = 'application/json';
const rows = toyRows(3).map((row) => ({ ...row, dense: [1, -2.5] }));
const shape = (columns: number): number[] => [rows.length, columns];
const categorical = rows.map((row) => row.categorical);
const dense = rows.map((row) => row.dense);
const tensors = [
  { name: 'categorical', datatype: 'BYTES', shape: shape(3), raw: rawStrings(categorical.flat()) },
  {
    name: 'dense',
    datatype: 'FP32',
    shape: shape(2),
    raw: toRawBytes(Float32Array.from(dense.flat())),
  },
];
const inputs = [
  { name: 'categorical', datatype: 'BYTES', shape: shape(3), data: categorical },
  { name: 'dense', datatype: 'FP32', shape: shape(2), data: dense.flat() },
];
const paddle = {
  tensor: [
    ...['C1', 'C2', 'C3'].map((name, slot) => ({
      name,
      elem_type: 0,
      shape: shape(1),
      lod: [0, 1, 2, 3],
      int64_data: rows.map((_, row) => String(row + slot)),
    })),
    { name: 'dense_input', elem_type: 1, shape: shape(2), float_data: dense.flat() },
  ],
  fetch_var_names: ['prob'],
  log_id: '7',
};

interface HttpRequest {
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Buffer;
}

const JSON_REQUESTS: readonly (readonly [string, object])[] = [
  [`/v2/models/${BUNDLE}/infer`, { id: 'a', inputs, outputs: [{ name: 'prob' }], parameters: {} }],
  ['/v1/ctr:predict', { rows: rows.map((row) => ({ label: 1, ...row })) }],
  ['/v1/ctr:predict', { shared: { C1: 'u', I1: 4 }, rows: [{ C2: 'x', C3: null, I2: 1 }] }],
  ['/v1/ctr:predict', { rows: [{ keys: ['1', '2', '3'], scaled: [0.5, 1] }] }],
  [`/v1/models/${BUNDLE}:predict`, { instances: rows.map((row) => ({ ...row })) }],
  [`/v1/models/${BUNDLE}:predict`, { inputs: { C1: ['a', { b64: 'Yg==' }], I1: [1, null] } }],
  ['/GeneralModelService/inference', paddle],
  ['/GeneralModelService/debug', paddle],
  ['/v2/repository/index', { ready: true }],
];

const binary = binaryBody(tensors, { parameters: { binary_data_output: true } });
const tsv = Buffer.from(toTsv(rows));
const lines = Buffer.from(rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
const BYTE_REQUESTS: readonly HttpRequest[] = [
  { path: `/v2/models/${BUNDLE}/infer`, ...binary },
  { path: '/v1/ctr:predict', headers: { 'content-type': 'text/tab-separated-values' }, body: tsv },
  { path: '/v1/ctr:predict', headers: { 'content-type': 'application/x-ndjson' }, body: lines },
  {
    path: '/GeneralModelService/inference',
    headers: { 'content-type': 'application/proto' },
    body: encodeRequest(paddle),
  },
  ...JSON_REQUESTS.map(([path, body]) => ({
    path,
    headers: { 'content-type': JSON_TYPE },
    body: Buffer.from(JSON.stringify(body)),
  })),
];

const OIP = 'inference.GRPCInferenceService';
const heads = tensors.map(({ name, datatype, shape: dims }) => ({ name, datatype, shape: dims }));
const GRPC_REQUESTS: readonly (readonly [string, Buffer])[] = [
  [
    `/${OIP}/ModelInfer`,
    encodeInfer({
      model_name: BUNDLE,
      inputs: heads,
      raw_input_contents: tensors.map(({ raw }) => raw),
    }),
  ],
  [
    `/${OIP}/ModelInfer`,
    encodeInfer({
      model_name: BUNDLE,
      inputs: [
        {
          ...heads[0]!,
          contents: { bytes_contents: categorical.flat().map((text) => Buffer.from(text)) },
        },
        { ...heads[1]!, contents: { fp32_contents: dense.flat() } },
      ],
    }),
  ],
  [`/${OIP}/ModelMetadata`, encodeInfer({ model_name: BUNDLE })],
  [`/${OIP}/ModelStatistics`, encodeInfer({ model_name: BUNDLE })],
  [`/${OIP}/RepositoryIndex`, Buffer.alloc(0)],
  ['/hypercube.CtrService/Predict', Buffer.concat([Buffer.of(0x5a, tsv.length), tsv])],
  [`/${GENERAL_MODEL_SERVICE}/inference`, encodeRequest(paddle)],
];

const HOSTILE_VALUES: readonly unknown[] = [
  null,
  true,
  -1,
  0,
  1.5,
  2 ** 31,
  2 ** 53,
  2 ** 64,
  1e300,
  -0,
  10_001,
  1e9,
  '',
  'x',
  '-1',
  '18446744073709551616',
  '\u0000',
  '\ud800',
  'é'.repeat(300),
  '__proto__',
  [],
  {},
  [null],
  [[]],
  [[[[1]]]],
  { b64: 5 },
  { b64: '/w==' },
  { name: 'C1' },
  'BYTES',
  'INT64',
  'FP16',
  'UINT8',
  'BOOL',
  'categorical',
  'keys',
  'dense',
  'C1',
  'I1',
];

/** Replaces, removes, repeats or adds one value at a random position. */
function corrupt(random: SeededRandom, value: unknown): unknown {
  if (Array.isArray(value) && value.length > 0 && random.below(5) > 0) {
    const at = random.below(value.length);
    const kind = random.below(8);
    if (kind === 0) return value.toSpliced(at, 1);
    if (kind === 1) return value.toSpliced(at, 0, value[at]);
    return value.with(at, corrupt(random, value[at]));
  }
  if (typeof value === 'object' && value !== null && random.below(6) > 0) {
    const names = Object.keys(value);
    const name = names.length === 0 ? 'x' : random.pick(names);
    const { [name]: inner, ...others } = value as Record<string, unknown>;
    const kind = random.below(8);
    if (kind === 0) return others;
    if (kind === 1)
      return { ...value, [String(random.pick(HOSTILE_VALUES))]: random.pick(HOSTILE_VALUES) };
    return { ...others, [name]: corrupt(random, inner) };
  }
  return random.pick(HOSTILE_VALUES);
}

export function hostileHttp(random: SeededRandom): HttpRequest {
  if (random.below(3) === 0) {
    const request = random.pick(BYTE_REQUESTS);
    return { ...request, body: mutate(random, request.body) };
  }
  const [path, golden] = random.pick(JSON_REQUESTS);
  let body: unknown = golden;
  for (let i = random.below(3); i >= 0; i--) body = corrupt(random, body);
  const text = JSON.stringify(body) ?? '';
  return { path, headers: { 'content-type': JSON_TYPE }, body: Buffer.from(text) };
}

export function hostileGrpc(random: SeededRandom): readonly [string, Buffer] {
  const [path, bytes] = random.pick(GRPC_REQUESTS);
  return [path, mutate(random, bytes)];
}

/** Bytes for a raw connection: baidu_std, or HTTP with its headers. */
export function hostileBytes(random: SeededRandom): Buffer {
  if (random.below(2) === 0) {
    const payload = encodeRequest(paddle);
    const damaged = random.below(2) === 0 ? mutate(random, payload) : payload;
    const frame = encodeRequestFrame(1, damaged, {
      service: GENERAL_MODEL_SERVICE,
      method: 'inference',
    });
    return random.below(2) === 0 ? mutate(random, Buffer.from(frame)) : Buffer.from(frame);
  }
  const { path, headers, body } = random.pick(BYTE_REQUESTS);
  const head = Object.entries({ host: 'x', ...headers, 'content-length': String(body.length) });
  const text = head.map(([name, value]) => `${name}: ${value}\r\n`).join('');
  return mutate(random, Buffer.concat([Buffer.from(`POST ${path} HTTP/1.1\r\n${text}\r\n`), body]));
}
