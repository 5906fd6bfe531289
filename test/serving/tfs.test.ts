/** TensorFlow Serving's protocols: versions, labels, signature, values and errors. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { loadSync, type MessageTypeDefinition } from '@grpc/proto-loader';
import { featureSpecToJson } from '../../lib/core/feature-spec.ts';
import type { Json } from './support/kserve-client.ts';
import type { ServingProcess } from './support/serving-process.ts';
import { TFS_PROTO, TfsClient } from './support/tfs-client.ts';
import { BUNDLE, ToyBundle, type ToyRow, toyRows } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const MODEL = `/v1/models/${BUNDLE}`;
const old = new ToyBundle({ version: '1', seed: 71 });
const next = new ToyBundle({ version: '2', seed: 72 });
const row = { dense: [1, 2], categorical: ['a', 'b', 'c'] };
const available = (version: string): object => ({
  version,
  state: 'AVAILABLE',
  status: { error_code: 'OK', error_message: '' },
});

async function start(t: TestContext): Promise<ServingProcess> {
  const { serving } = await startLocal(t, [old]);
  return serving;
}

async function predict(serving: ServingProcess, body: unknown, where = MODEL): Promise<Json> {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  return serving.post(`${where}:predict`, text);
}

function assertScores(scores: number[][], toy: ToyBundle, rows: readonly ToyRow[]): void {
  assert.equal(scores.length, rows.length);
  rows.forEach((one, i) => {
    for (const [column, score] of toy.score(one).entries()) {
      assert.ok(Math.abs(scores[i]![column]! - score) < 1e-5, `row ${i}, column ${column}`);
    }
  });
}

test('versions and labels are served with their state and signature', async (t) => {
  const { toys, serving } = await startLocal(t, [old, next], ['--channel', 'stable,canary']);
  await toys.activate('2', 'canary');
  await serving.waitFor(`${MODEL}/labels/canary`, ({ status }) => status === 200);
  const { body } = await serving.get(MODEL);
  // Names, slots and scaling, so that a client needs no copy of features.json.
  const { body: features } = await serving.get(`${MODEL}/features`);
  assert.ok(old.slotSpec.features);
  const expected = { model: BUNDLE, version: '1' };
  assert.deepEqual(features, Object.assign(expected, featureSpecToJson(old.slotSpec.features)));
  assert.equal((await serving.get(`${MODEL}/versions/2/features`)).body.version, '2');
  assert.equal((await serving.get(`${MODEL}/versions/9/features`)).status, 404);
  const versions = body.model_version_status.map(({ version }: Json) => version);
  assert.deepEqual(versions.toSorted(), ['1', '2']);
  for (const [path, toy] of [
    ['/versions/1', old],
    ['/labels/stable', old],
    ['/versions/2', next],
    ['/labels/canary', next],
    ['', old],
  ] as const) {
    const { version } = toy.options;
    if (path !== '') {
      const status = (await serving.get(`${MODEL}${path}`)).body;
      assert.deepEqual(status, { model_version_status: [available(version)] });
    }
    const { body: signature } = await serving.get(`${MODEL}${path}/metadata`);
    assert.deepEqual(signature.model_spec, { name: BUNDLE, signature_name: '', version });
    const { inputs, outputs, method_name } =
      signature.metadata.signature_def.signature_def.serving_default;
    assert.equal(method_name, 'tensorflow/serving/predict');
    const sizes = (info: Json): string[] => info.tensor_shape.dim.map(({ size }: Json) => size);
    assert.deepEqual(
      [inputs.categorical.dtype, sizes(inputs.categorical)],
      ['DT_STRING', ['-1', '3']],
    );
    assert.deepEqual([inputs.dense.dtype, sizes(inputs.dense)], ['DT_FLOAT', ['-1', '2']]);
    assert.deepEqual([outputs.prob.dtype, sizes(outputs.prob)], ['DT_FLOAT', ['-1', '2']]);
    const answer = await predict(serving, { instances: [row] }, `${MODEL}${path}`);
    assertScores(answer.body.predictions, toy, [row]);
  }
});

test('values by row and by column, base64, numbers as ids, shared rows', async (t) => {
  const serving = await start(t);
  const b64 = (text: string): object => ({ b64: Buffer.from(text).toString('base64') });
  const plain = { dense: [4, Number.NaN], categorical: ['ä', '7', ''] };
  for (const instance of [
    { C1: b64('ä'), C2: 7, I1: 4 },
    { C1: [b64('ä')], C2: ['7'], C3: null, I1: [4], I2: null },
    { categorical: ['ä', 7, null], dense: [4, null] },
  ]) {
    const body = { signature_name: 'serving_default', instances: [instance, instance] };
    assertScores((await predict(serving, body)).body.predictions, old, [plain, plain]);
  }
  const rows = toyRows(10_000).map((one) => ({ ...one, dense: [1, 2] }));
  const columns = { dense: [1, 2], categorical: rows.map(({ categorical }) => categorical) };
  const inputs = { I1: [1], I2: [2], C1: columns.categorical.map(([c1]) => c1), C2: ['u'] };
  const shared = rows.map(({ dense, categorical: [c1] }) => ({
    dense,
    categorical: [c1!, 'u', ''],
  }));
  assertScores((await predict(serving, { inputs })).body.outputs, old, shared);
  assertScores((await predict(serving, { instances: rows })).body.predictions, old, rows);
});

test('a feature that a row leaves out is missing in that row', async (t) => {
  const serving = await start(t);
  const missing = Number.NaN;
  const instances = [{ I1: 4, C1: 'a' }, { C2: 'b', I2: 3 }, {}, { C1: '', I1: null, C3: 'c' }];
  const expected: ToyRow[] = [
    { dense: [4, missing], categorical: ['a', '', ''] },
    { dense: [missing, 3], categorical: ['', 'b', ''] },
    { dense: [missing, missing], categorical: ['', '', ''] },
    { dense: [missing, missing], categorical: ['', '', 'c'] },
  ];
  assertScores((await predict(serving, { instances })).body.predictions, old, expected);
  // The only row may leave out all slots, or all dense features.
  const alone = [{ I1: 4 }, { C2: 'b', C3: '' }];
  const only: ToyRow[] = [
    { dense: [4, missing], categorical: ['', '', ''] },
    { dense: [missing, missing], categorical: ['', 'b', ''] },
  ];
  for (const [i, instance] of alone.entries()) {
    const { body } = await predict(serving, { instances: [instance] });
    assertScores(body.predictions, old, [only[i]!]);
  }
  const whole = await predict(serving, { instances: [row, { dense: [1, 2] }, { ...row }] });
  const empty = { dense: [1, 2], categorical: ['', '', ''] };
  assertScores(whole.body.predictions, old, [row, empty, row]);
});

test(':classify and :regress answer examples with a context', async (t) => {
  const serving = await start(t);
  const examples = [{ C1: ['a'], I1: 1 }, { C1: 'x' }];
  const context = { C2: 'b', C3: ['c'], I2: [2] };
  const rows = [
    { dense: [1, 2], categorical: ['a', 'b', 'c'] },
    { dense: [Number.NaN, 2], categorical: ['x', 'b', 'c'] },
  ];
  const ask = async (verb: string, body: object): Promise<Json> =>
    (await serving.post(`${MODEL}:${verb}`, JSON.stringify(body))).body;
  const named = { signature_name: 'regression', examples, context };
  const clicks = (await ask('regress', named)).results;
  rows.forEach((one, i) => {
    assert.ok(Math.abs(clicks[i] - old.score(one)[1]) < 1e-5, `row ${i}`);
  });
  const { results } = await ask('classify', { examples, context });
  const labels = results.map((classes: Json[]) => classes.map(([label]) => label));
  assert.deepEqual(labels, [
    ['0', '1'],
    ['0', '1'],
  ]);
  const scores = results.map((classes: Json[]) => classes.map(([, score]) => score));
  assertScores(scores, old, rows);
  for (const [body, problem] of [
    [{ examples: [5] }, /examples\[0\]: expected an object of features, got 5/],
    [{ examples, context: { C9: 'z' } }, /context\.C9: expected a name of an input of the model/],
    [{ examples, context: { C1: 'z' } }, /context\.C1: expected a feature that no example has/],
    [{ examples, signature_name: 'classification' }, /signature_name: expected one of/],
    [{ instances: examples }, /examples is missing/],
  ] as const) {
    assert.match((await ask('regress', body)).error, problem);
  }
});

test('Predict over gRPC takes dense tensors in both forms and selects outputs', async (t) => {
  const { serving } = await startLocal(t, [old]);
  const client = new TfsClient(serving.url);
  t.after(() => client.close());
  const toBytes = (...texts: string[]): Buffer[] => texts.map((text) => Buffer.from(text));
  const size = (...dims: number[]): object => ({ dim: dims.map((dim) => ({ size: dim })) });
  const rows = [row, { dense: [1, 2], categorical: ['d', '', 'f'] }];
  const floats = Buffer.from(Float32Array.of(1, 2, 1, 2).buffer);
  const categorical = {
    dtype: 'DT_STRING',
    tensor_shape: size(2, 3),
    string_val: rows.flatMap((one) => one.categorical.map((text) => Buffer.from(text))),
  };
  const byName = (I1: object, I2: object): object => ({
    C1: { dtype: 'DT_STRING', tensor_shape: size(2), string_val: toBytes('a', 'd') },
    C2: { dtype: 'DT_STRING', tensor_shape: size(2), string_val: toBytes('b', '') },
    C3: { dtype: 'DT_STRING', tensor_shape: size(2), string_val: toBytes('c', 'f') },
    I1,
    I2,
  });
  for (const inputs of [
    { categorical, dense: { dtype: 'DT_FLOAT', tensor_shape: size(2, 2), tensor_content: floats } },
    {
      categorical,
      dense: { dtype: 'DT_DOUBLE', tensor_shape: size(2, 2), double_val: [1, 2, 1, 2] },
    },
    // The last value is repeated.
    byName(
      { dtype: 'DT_INT32', tensor_shape: size(2, 1), int_val: [1] },
      { dtype: 'DT_HALF', tensor_shape: size(2), half_val: [0x4000] },
    ),
  ]) {
    const { outputs, model_spec: spec } = await client.predict({
      model_spec: { name: BUNDLE, signature_name: 'serving_default' },
      inputs,
    });
    assert.deepEqual([spec.name, spec.version.value], [BUNDLE, '1']);
    const { dtype, tensor_shape: shape, float_val: values } = outputs.prob;
    assert.deepEqual([dtype, shape.dim.map((dim: Json) => dim.size)], ['DT_FLOAT', ['2', '2']]);
    assertScores([values.slice(0, 2), values.slice(2)], old, rows);
  }
  const dense = { dtype: 'DT_FLOAT', tensor_shape: size(2, 2), tensor_content: floats };
  const good = { categorical, dense };
  for (const [request, problem] of [
    [{ model_spec: { name: 'x' } }, /NOT_FOUND: .*model "x"/],
    [{ model_spec: { name: BUNDLE, version: { value: 9 } } }, /NOT_FOUND: version "9"/],
    [{ model_spec: { name: BUNDLE, version_label: 'x' } }, /label "x" of toy: no such channel/],
    [{ model_spec: { name: BUNDLE, signature_name: 'x' } }, /signature_name: expected serving_d/],
    [{ inputs: { ...good, dense: { dtype: 'DT_INVALID' } } }, /"dense": dtype 0 is not supported/],
    [
      { inputs: { ...good, dense: { dtype: 'DT_FLOAT', int_val: [1] } } },
      /"dense": values of field 7 do not fit FP32/,
    ],
    [
      { inputs: { dense: { dtype: 'DT_FLOAT', tensor_shape: size(1e6, 1e6), float_val: [1] } } },
      /"dense": shape: over 1048576 elements/,
    ],
    [
      { inputs: { categorical: { dtype: 'DT_STRING', tensor_content: floats } } },
      /"categorical": strings in tensor_content: send string_val/,
    ],
    [{ inputs: good, output_filter: ['x'] }, /outputs\[0\]\.name: expected one of prob/],
  ] as const) {
    await assert.rejects(client.predict({ model_spec: { name: BUNDLE }, ...request }), problem);
  }
  const { status, body } = await serving.get('/monitoring/prometheus/metrics');
  assert.equal(status, 200);
  assert.match(body, /^hypercube_serving_requests_total\{protocol="tfs",code="OK"\} 3$/m);
});

/** Field numbers in TensorFlow's and TensorFlow Serving's definitions. */
const NUMBERS: Readonly<Record<string, string>> = {
  'tensorflow.TensorProto':
    'dtype 1, tensor_shape 2, version_number 3, tensor_content 4, float_val 5, double_val 6, ' +
    'int_val 7, string_val 8, int64_val 10, bool_val 11, half_val 13, uint32_val 16, uint64_val 17',
  'tensorflow.TensorShapeProto': 'dim 2, unknown_rank 3',
  'tensorflow.serving.ModelSpec': 'name 1, version 2, signature_name 3, version_label 4',
  'tensorflow.serving.PredictRequest': 'model_spec 1, inputs 2, output_filter 3',
  'tensorflow.serving.PredictResponse': 'outputs 1, model_spec 2',
};

test('field numbers are those of TensorFlow', () => {
  const definition = loadSync(TFS_PROTO, { keepCase: true });
  for (const [message, numbers] of Object.entries(NUMBERS)) {
    const { type } = definition[message] as MessageTypeDefinition<object, object>;
    const { field } = type as { field: { name: string; number: number }[] };
    const own = field.toSorted((a, b) => a.number - b.number);
    assert.equal(own.map(({ name, number }) => `${name} ${number}`).join(', '), numbers, message);
  }
});

/** Body, status, error. */
const wrong: [unknown, number, RegExp][] = [
  ['', 400, /the body is empty/],
  ['{"instances":', 400, /body: not JSON/],
  [[], 400, /body: expected an object/],
  [{}, 400, /either "instances" .* or "inputs"/],
  [{ instances: [row], inputs: {} }, 400, /either "instances"/],
  [{ instances: [] }, 400, /instances: expected a list of at least one row/],
  [{ instances: {} }, 400, /instances: expected a list/],
  [{ instances: [5] }, 400, /values by input name: the inputs of toy are categorical, dense/],
  [{ instances: [row, null] }, 400, /values by input name/],
  [{ instances: [row, { ...row, x: 1 }] }, 400, /input x: every row must have it, or none/],
  [
    { instances: [{ keys: [1, 2, 3], dense: [1, 2] }, { dense: [1, 2] }] },
    400,
    /input keys: every row must have it, or none/,
  ],
  [{ instances: [{ ...row, x: 1 }] }, 400, /"x": name: expected one of categorical, keys, dense/],
  [
    { instances: [{ ...row, C1: 'q' }] },
    400,
    /"C1": name: the input categorical already contains it/,
  ],
  [{ instances: [{ ...row, I1: 5 }] }, 400, /"I1": name: the input dense already contains it/],
  [
    { instances: [{ ...row, keys: [1, 2, 3] }] },
    400,
    /either an input categorical or an input keys/,
  ],
  [
    { instances: [{ ...row, dense: [1] }] },
    400,
    /"dense": shape: expected \[rows, 2\], got \[1,1\]/,
  ],
  [{ instances: [row, { ...row, dense: [1] }] }, 400, /dense, row 1: expected 2 values, got 1/],
  [
    { instances: [row, { ...row, dense: [1, 2, 3] }] },
    400,
    /dense, row 1: expected 2 values, got 3/,
  ],
  [{ instances: [row, { ...row, dense: [1, [2]] }] }, 400, /dense, row 1: a list in a list/],
  [{ instances: [{ ...row, dense: [1, 'x'] }] }, 400, /dense, value 1: expected a finite number/],
  ['{"instances":[{"C1":"a","I1":1e999}]}', 400, /I1, value 0: .* got Infinity/],
  [{ instances: [{ C1: 'a', I2: 1e300 }] }, 400, /row 1 \(I2\): 1e\+300/],
  [{ instances: [{ C1: 1.5, I1: 1 }] }, 400, /C1, value 0: expected a string/],
  [{ instances: [{ C1: 2 ** 53, I1: 1 }] }, 400, /C1, value 0: expected a string/],
  [{ instances: [{ C1: { b64: '!!' }, I1: 1 }] }, 400, /C1, value 0: its b64 is not valid base64/],
  [
    { instances: [{ C1: { b64: '/w==' }, I1: 1 }] },
    400,
    /C1, value 0: its b64 bytes are not UTF-8/,
  ],
  [
    { instances: [{ C1: ['a', 'b'], I1: 1 }] },
    400,
    /"C1": shape: expected \[rows\] or \[rows, 1\]/,
  ],
  [{ instances: [{ C1: [], I1: 1 }] }, 400, /input C1, row 0: expected 1/],
  [
    { inputs: { C1: ['a', 'b'], I1: [1, 2, 3] } },
    400,
    /"C1": shape: expected as many rows .*\(3\)/,
  ],
  [{ inputs: { C1: 'a', I1: [1] } }, 400, /inputs\.C1: expected a list of at least one row/],
  [{ instances: [row], signature_name: 'x' }, 400, /signature_name: expected one of/],
  [{ instances: new Array(10_001).fill(row) }, 413, /10001 rows in one request/],
];

test('invalid requests and other verbs are rejected with clear errors', async (t) => {
  const serving = await start(t);
  for (const [body, status, message] of wrong) {
    const answer = await predict(serving, body);
    assert.match(answer.body.error, message, JSON.stringify(body).slice(0, 200));
    assert.equal(answer.status, status);
  }
  const body = JSON.stringify({ instances: [row] });
  for (const [path, status, message] of [
    [`${MODEL}:multi`, 501, /:multi is not supported: call :predict, :classify or :regress/],
    [`${MODEL}:regress`, 400, /examples: expected a list of at least one row|examples is missing/],
    [MODEL, 404, /the path of a call must end in ":predict", ":classify" or ":regress"/],
    ['/v1/models/other:predict', 404, /model "other" is not served here \(served: toy\)/],
    [`${MODEL}/versions/9:predict`, 404, /version "9" .*served: 1/],
    [
      `${MODEL}/labels/x:predict`,
      404,
      /label "x" of toy: no such channel here \(channels: stable\)/,
    ],
    ['/v1/models/%ff:predict', 400, /not a valid url/],
  ] as const) {
    const answer = await serving.post(path, body);
    assert.match(answer.body.error, message, path);
    assert.equal(answer.status, status);
    assert.equal(typeof answer.body.code, 'string');
  }
  for (const path of ['/v1/models/other', `${MODEL}/versions/9`, `${MODEL}/labels/x/metadata`]) {
    assert.equal((await serving.get(path)).status, 404, path);
  }
  assert.equal((await predict(serving, { instances: [row] })).status, 200);
  assert.equal(await serving.stop(), 0);
});
