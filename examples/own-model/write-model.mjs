/**
 * Writes the models of docs/your-own-model.md for which no framework is needed here: graphs in the
 * form that tf2onnx and torch.onnx give, encoded as ONNX protobuf by hand.
 *
 *   node examples/own-model/write-model.mjs keras model.onnx
 *   node examples/own-model/write-model.mjs raw-ids model.onnx
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';

const FLOAT = 1;
const INT32 = 6;
const INT64 = 7;

// Protobuf: a field is a tag, then a varint (type 0) or a length and bytes (type 2).

function varint(value) {
  const bytes = [];
  for (let rest = BigInt(value); ; rest >>= 7n) {
    if (rest < 128n) return Buffer.from([...bytes, Number(rest)]);
    bytes.push(Number(rest & 127n) | 128);
  }
}

const uint = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);

function bytes(field, value) {
  const data = Buffer.from(value);
  return Buffer.concat([varint((field << 3) | 2), varint(data.length), data]);
}

const message = (...fields) => Buffer.concat(fields);

// ONNX: onnx.proto names these messages and numbers these fields.

function attribute(name, value) {
  const integers = Array.isArray(value)
    ? [...value.map((item) => uint(8, item)), uint(20, 7)]
    : [uint(3, value), uint(20, 2)];
  return message(bytes(1, name), ...integers);
}

const node = (op, inputs, output, attributes = {}) =>
  message(
    ...inputs.map((input) => bytes(1, input)),
    bytes(2, output),
    bytes(4, op),
    ...Object.entries(attributes).map(([name, value]) => bytes(5, attribute(name, value))),
  );

function tensor(name, type, dims, array) {
  const data = Buffer.from(array.buffer, array.byteOffset, array.byteLength);
  return message(...dims.map((dim) => uint(1, dim)), uint(2, type), bytes(8, name), bytes(9, data));
}

/** Weights that look trained: fixed values in (-1, 1). */
function weights(name, ...dims) {
  const length = dims.reduce((product, dim) => product * dim, 1);
  const values = Float32Array.from({ length }, (_, i) => Math.sin(i * 12.9898 + name.length));
  return tensor(name, FLOAT, dims, values);
}

const integers = (name, ...values) =>
  tensor(name, INT64, [values.length], BigInt64Array.from(values, BigInt));

function value(name, type, ...dims) {
  const shape = dims.map((dim) => bytes(1, typeof dim === 'number' ? uint(1, dim) : bytes(2, dim)));
  const tensorType = message(uint(1, type), bytes(2, message(...shape)));
  return message(bytes(1, name), bytes(2, bytes(1, tensorType)));
}

function model(producer, { nodes, initializers, inputs, outputs }) {
  const graph = message(
    ...nodes.map((item) => bytes(1, item)),
    bytes(2, 'graph'),
    ...initializers.map((item) => bytes(5, item)),
    ...inputs.map((item) => bytes(11, item)),
    ...outputs.map((item) => bytes(12, item)),
  );
  const opset = message(bytes(1, ''), uint(2, 13));
  return message(uint(1, 8), bytes(2, producer), bytes(7, graph), bytes(8, opset));
}

/** Three Keras Embedding layers of one id each, and two dense features. */
function writeKeras() {
  const layers = [
    ['user', 1000],
    ['ad', 200],
    ['hour', 24],
  ];
  const lookups = layers.flatMap(([name]) => [
    node('Cast', [`${name}`], `model/${name}_embedding/Cast:0`, { to: INT64 }),
    node(
      'Gather',
      [`model/${name}_embedding/embeddings:0`, `model/${name}_embedding/Cast:0`],
      `model/${name}_embedding/embedding_lookup:0`,
      { axis: 0 },
    ),
    node(
      'Reshape',
      [`model/${name}_embedding/embedding_lookup:0`, 'flat'],
      `model/${name}_flatten/Reshape:0`,
    ),
  ]);
  const flattened = layers.map(([name]) => `model/${name}_flatten/Reshape:0`);
  return model('tf2onnx', {
    inputs: [
      ...layers.map(([name]) => value(name, INT32, 'batch', 1)),
      value('numbers', FLOAT, 'batch', 2),
    ],
    outputs: [value('click', FLOAT, 'batch', 1)],
    initializers: [
      ...layers.map(([name, rows]) => weights(`model/${name}_embedding/embeddings:0`, rows, 8)),
      integers('flat', -1, 8),
      weights('model/dense/kernel:0', 26, 1),
      weights('model/dense/bias:0', 1),
    ],
    nodes: [
      ...lookups,
      node('Concat', [...flattened, 'numbers'], 'model/concat:0', { axis: 1 }),
      node('MatMul', ['model/concat:0', 'model/dense/kernel:0'], 'model/dense/MatMul:0'),
      node('Add', ['model/dense/MatMul:0', 'model/dense/bias:0'], 'model/dense/BiasAdd:0'),
      node('Sigmoid', ['model/dense/BiasAdd:0'], 'click'),
    ],
  });
}

/**
 * A user and the ad and two ads seen before: three columns read the table of ads. The graph takes
 * any 64-bit ids: column i modulo the size of its table.
 */
function writeRawIds() {
  const columns = (name, ...at) => [
    integers(`${name}_columns`, ...at),
    node('Gather', ['rows', `${name}_columns`], `${name}_rows`, { axis: 1 }),
  ];
  const [userColumns, userNode] = columns('user', 0);
  const [adColumns, adNode] = columns('ads', 1, 2, 3);
  return model('pytorch', {
    inputs: [value('ids', INT64, 'batch', 4)],
    outputs: [value('prob', FLOAT, 'batch', 1)],
    initializers: [
      weights('users.weight', 500, 4),
      weights('ads.weight', 90, 4),
      tensor('sizes', INT64, [1, 4], BigInt64Array.of(500n, 90n, 90n, 90n)),
      integers('flat', -1, 16),
      weights('out.weight', 16, 1),
      userColumns,
      adColumns,
    ],
    nodes: [
      node('Mod', ['ids', 'sizes'], 'rows'),
      userNode,
      adNode,
      node('Gather', ['users.weight', 'user_rows'], 'user', { axis: 0 }),
      node('Gather', ['ads.weight', 'ads_rows'], 'ads', { axis: 0 }),
      node('Concat', ['user', 'ads'], 'all', { axis: 1 }),
      node('Reshape', ['all', 'flat'], 'x'),
      node('MatMul', ['x', 'out.weight'], 'logit'),
      node('Sigmoid', ['logit'], 'prob'),
    ],
  });
}

const [kind, path = 'model.onnx'] = process.argv.slice(2);
const writers = { keras: writeKeras, 'raw-ids': writeRawIds };
if (!Object.hasOwn(writers, kind ?? '')) {
  process.stderr.write('usage: write-model.mjs keras|raw-ids <file>\n');
  process.exit(2);
}
mkdirSync(dirname(path), { recursive: true });
writeFileSync(path, writers[kind]());
