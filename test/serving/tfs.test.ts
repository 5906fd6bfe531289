/** TensorFlow Serving's REST door: versions and labels, the signature, values in every form, and what is refused. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import type { Json } from './kserve-caller.ts';
import type { ServingProcess } from './serving-process.ts';
import { BUNDLE, ToyBundle, type ToyRow, toyRows } from './toy-bundle.ts';
import { startLocal } from './toy-service.ts';

const MODEL = `/v1/models/${BUNDLE}`;
const old = new ToyBundle({ version: '1', seed: 71 });
const next = new ToyBundle({ version: '2', seed: 72 });
const row = { dense: [1, 2], categorical: ['a', 'b', 'c'] };
const available = (version: string): object => ({
  ...{ version, state: 'AVAILABLE', status: { error_code: 'OK', error_message: '' } },
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

test('versions and labels answer as themselves, with their state and signature', async (t) => {
  const { toys, serving } = await startLocal(t, [old, next], ['--channel', 'stable,canary']);
  await toys.activate('2', 'canary');
  await serving.until(`${MODEL}/labels/canary`, ({ status }) => status === 200);
  const { body } = await serving.get(MODEL);
  const versions = body.model_version_status.map(({ version }: Json) => version);
  assert.deepEqual(versions.toSorted(), ['1', '2']);
  for (const [path, toy] of [
    ['/versions/1', old],
    ['/labels/stable', old],
    ['/versions/2', next],
    ['/labels/canary', next],
    ['', old],
  ] as const) {
    const { version } = toy.wish;
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

test('values by row and by column, bytes in base64, numbers as ids, rows shared by all', async (t) => {
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

/** Body, status, error. */
const wrong: [unknown, number, RegExp][] = [
  ['', 400, /the body is empty/],
  ['{"instances":', 400, /body: not JSON/],
  [[], 400, /body: expected an object/],
  [{}, 400, /either "instances" .* or "inputs"/],
  [{ instances: [row], inputs: {} }, 400, /either "instances"/],
  [{ instances: [] }, 400, /instances: expected a list of at least one row/],
  [{ instances: {} }, 400, /instances: expected a list/],
  [{ instances: [5] }, 400, /values by name: toy has the inputs categorical, dense/],
  [{ instances: [row, null] }, 400, /values by name/],
  [{ instances: [row, { dense: [1, 2] }] }, 400, /instances\[1\]: .* categorical is not in all/],
  [{ instances: [{ ...row, x: 1 }] }, 400, /"x": name: expected one of categorical, keys, dense/],
  [{ instances: [{ ...row, C1: 'q' }] }, 400, /"C1": name: expected nothing beside .*categorical/],
  [{ instances: [{ ...row, I1: 5 }] }, 400, /"I1": name: expected nothing beside the input dense/],
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
  [{ instances: [{ ...row, dense: [1, 'x'] }] }, 400, /dense, value 1: expected a finite number/],
  ['{"instances":[{"C1":"a","I1":1e999}]}', 400, /I1, value 0: .* got Infinity/],
  [{ instances: [{ C1: 'a', I2: 1e300 }] }, 400, /row 1 \(I2\): 1e\+300/],
  [{ instances: [{ C1: 1.5, I1: 1 }] }, 400, /C1, value 0: expected a string/],
  [{ instances: [{ C1: 2 ** 53, I1: 1 }] }, 400, /C1, value 0: expected a string/],
  [{ instances: [{ C1: { b64: '!!' }, I1: 1 }] }, 400, /C1, value 0: b64 is not base64/],
  [
    { instances: [{ C1: { b64: '/w==' }, I1: 1 }] },
    400,
    /C1, value 0: b64 of bytes that are not UTF-8/,
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

test('what is wrong is refused by its place, and so is every other verb', async (t) => {
  const serving = await start(t);
  for (const [body, status, message] of wrong) {
    const answer = await predict(serving, body);
    assert.match(answer.body.error, message, JSON.stringify(body).slice(0, 200));
    assert.equal(answer.status, status);
  }
  const body = JSON.stringify({ instances: [row] });
  for (const [path, status, message] of [
    [`${MODEL}:classify`, 501, /:classify is not answered here: call :predict/],
    [`${MODEL}:regress`, 501, /:regress is not answered here/],
    [MODEL, 404, /a call ends in ":predict"/],
    ['/v1/models/other:predict', 404, /model "other" is not served here \(served: toy\)/],
    [`${MODEL}/versions/9:predict`, 404, /version "9" .*served: 1/],
    [
      `${MODEL}/labels/x:predict`,
      404,
      /label "x" of toy is not followed here \(followed: stable\)/,
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
