/** A pruned model with sequences, masks and switches, behind every protocol of tensors. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { OnnxModel } from '../../lib/platform/onnx.ts';
import { fromOnnxTensor } from '../../lib/platform/onnx-tensors.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { type Json, OipClient } from './support/kserve-client.ts';
import { connectClients } from './support/paddle-client.ts';
import { assertClose, BUNDLE, publishModel } from './support/served-model.ts';
import { ServingProcess } from './support/serving-process.ts';
import { attentionModel } from './support/tensor-models.ts';
import { TfsClient } from './support/tfs-client.ts';

/** Two users; the second has a shorter history, padded with id 0 and masked. */
const INPUTS = [
  { name: 'history', datatype: 'INT64', shape: [2, 3], data: [3, -1, 5, 7, 0, 0] },
  { name: 'mask', datatype: 'BOOL', shape: [2, 3], data: [true, true, true, true, false, false] },
  { name: 'item', datatype: 'INT64', shape: [2], data: [4, 11] },
  { name: 'boost', datatype: 'BOOL', shape: [2], data: [true, false] },
  { name: 'age', datatype: 'INT32', shape: [2, 1], data: [31, -2] },
  { name: 'price', datatype: 'FP64', shape: [2, 1], data: [0.25, 1.5] },
  { name: 'dense', datatype: 'FP32', shape: [2, 2], data: [0.5, -1, 2, 0.125] },
] as const;

async function computeScores(): Promise<Float32Array> {
  const full = await OnnxModel.load(attentionModel());
  const arrays = {
    INT64: (data: readonly unknown[]) => BigInt64Array.from(data as number[], BigInt),
    BOOL: (data: readonly unknown[]) => Uint8Array.from(data as boolean[], Number),
    INT32: (data: readonly unknown[]) => Int32Array.from(data as number[]),
    FP64: (data: readonly unknown[]) => Float64Array.from(data as number[]),
    FP32: (data: readonly unknown[]) => Float32Array.from(data as number[]),
  };
  const dtypes = { INT64: 'int64', BOOL: 'bool', INT32: 'int32', FP64: 'float64', FP32: 'float32' };
  const feeds = INPUTS.map(({ name, datatype, shape, data }) => {
    const tensor = { dtype: dtypes[datatype], data: arrays[datatype](data), dims: [...shape] };
    return [name, tensor] as const;
  });
  const { score } = await full.runTensors(Object.fromEntries(feeds) as Json);
  await full.release();
  const { data } = fromOnnxTensor('score', score!);
  return new Float32Array(new Uint8Array(data as Uint8Array).buffer);
}

/** What one protocol is written with for each datatype. */
const NAMES = {
  INT64: { oip: 'int64', tfs: [9, 'int64'], paddle: 'int64_data' },
  BOOL: { oip: 'bool', tfs: [10, 'bool'], paddle: 'bool_data' },
  INT32: { oip: 'int', tfs: [3, 'int'], paddle: 'int_data' },
  FP64: { oip: 'fp64', tfs: [2, 'double'], paddle: 'float64_data' },
  FP32: { oip: 'fp32', tfs: [1, 'float'], paddle: 'float_data' },
} as const;

async function serve(t: TestContext): Promise<ServingProcess> {
  const repo = await publishModel(t, attentionModel());
  const activation = { version: '1', by: 'test', reason: 'test' };
  await openRepository(repo).activate(BUNDLE, 'stable', activation);
  const flags = ['--repository', repo, '--bundle', BUNDLE, '--instances', '1'];
  const data = ['--store', 'local', '--data-dir', join(temporaryFolder(t), 'data')];
  const serving = await ServingProcess.start(t, [...flags, ...data]);
  await serving.waitUntilReady();
  return serving;
}

async function checkKserve(t: TestContext, serving: ServingProcess, scores: Float32Array) {
  const { body: metadata } = await serving.get(`/v2/models/${BUNDLE}`);
  assert.deepEqual(metadata.inputs[0], { name: 'history', datatype: 'INT64', shape: [-1, -1] });
  assert.deepEqual(metadata.inputs[2], { name: 'mask', datatype: 'BOOL', shape: [-1, -1] });
  const body = JSON.stringify({ inputs: INPUTS, parameters: { detail: true } });
  const { body: rest } = await serving.post(`/v2/models/${BUNDLE}/infer`, body);
  assertClose(rest.outputs[0].data, scores, 'KServe REST');
  const { tables_version, unseen, unavailable, degraded } = rest.parameters;
  assert.deepEqual([tables_version, unseen, unavailable, degraded], ['1', 0, 0, false]);
  assert.ok(rest.parameters.lookup_micros > 0);

  const oip = new OipClient(serving.url);
  t.after(() => oip.close());
  const inputs = INPUTS.map(({ data: values, ...head }) => {
    return { ...head, contents: { [`${NAMES[head.datatype].oip}_contents`]: values } };
  });
  const parameters = { binary_data_output: { bool_param: false } };
  const grpc = await oip.call('ModelInfer', { model_name: BUNDLE, inputs, parameters });
  assertClose(grpc.outputs[0].contents.fp32_contents, scores, 'KServe gRPC');
}

async function checkTensorFlow(t: TestContext, serving: ServingProcess, scores: Float32Array) {
  const nested = {
    history: [
      [3, -1, 5],
      [7, 0, 0],
    ],
    mask: [
      [true, true, true],
      [true, false, false],
    ],
    item: [4, 11],
    boost: [true, false],
    age: [[31], [-2]],
    price: [[0.25], [1.5]],
    dense: [
      [0.5, -1],
      [2, 0.125],
    ],
  };
  const body = JSON.stringify({ inputs: nested });
  const { body: rest } = await serving.post(`/v1/models/${BUNDLE}:predict`, body);
  assertClose(rest.outputs.flat(), scores, 'TensorFlow Serving REST');

  const tfs = new TfsClient(serving.url);
  t.after(() => tfs.close());
  const tensors = INPUTS.map(({ name, datatype, shape, data: values }) => {
    const [dtype, field] = NAMES[datatype].tfs;
    const tensor_shape = { dim: shape.map((size) => ({ size })) };
    return [name, { dtype, tensor_shape, [`${field}_val`]: values }] as const;
  });
  const request = { model_spec: { name: BUNDLE }, inputs: Object.fromEntries(tensors) };
  const { outputs } = await tfs.predict(request);
  assertClose(outputs.score.float_val, scores, 'TensorFlow Serving gRPC');
}

async function checkPaddle(t: TestContext, serving: ServingProcess, scores: Float32Array) {
  const tensor = INPUTS.map(({ name, datatype, shape, data: values }) => {
    return { name, shape, [NAMES[datatype].paddle]: values };
  });
  for (const [name, ask] of connectClients(t, serving.url)) {
    const answer = await ask({ tensor, fetch_var_names: ['score'] });
    assertClose(answer.outputs[0]!.tensor[0]!.float_data, scores, name);
  }
}

test('every protocol of tensors gives the scores of the unpruned model', async (t) => {
  const serving = await serve(t);
  const scores = await computeScores();
  await checkKserve(t, serving, scores);
  await checkTensorFlow(t, serving, scores);
  await checkPaddle(t, serving, scores);
  const rows = await serving.postTsv('1\t2\n');
  assert.match(rows.body.error, /ctr takes tensors, not rows of features: call it over KServe v2/);
  const longer = INPUTS.map((input) =>
    input.name === 'mask' ? { ...input, shape: [3, 2] } : input,
  );
  const body = JSON.stringify({ inputs: longer });
  const wrong = await serving.post(`/v2/models/${BUNDLE}/infer`, body);
  assert.match(wrong.body.error, /input "mask": shape: expected as many rows as the other inputs/);
});
