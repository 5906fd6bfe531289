import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import { OnnxModel, type OnnxTensor } from '../../lib/platform/onnx.ts';
import {
  FLOAT,
  floats,
  model,
  node,
  smallModel,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';

const double = model({
  inputs: [value('x', FLOAT, ['batch', 2])],
  outputs: [value('y', FLOAT, ['batch', 2])],
  initializers: [floats('two', [1], [2])],
  nodes: [node('Mul', ['x', 'two'], ['y'])],
});

const row = (values: number[]): OnnxTensor => ({
  dtype: 'float32',
  data: Float32Array.from(values),
  dims: [values.length / 2, 2],
});

async function failure(action: () => Promise<unknown>): Promise<string> {
  try {
    await action();
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return `${error.code} ${error.message}`;
  }
  return 'no failure';
}

test('a model reports its inputs and outputs, and runs batches of any size', async () => {
  const loaded = await OnnxModel.load(double, { source: 'double.onnx' });
  assert.deepEqual(loaded.inputs, [{ name: 'x', dtype: 'float32', shape: ['batch', 2] }]);
  assert.deepEqual(loaded.outputs, [{ name: 'y', dtype: 'float32', shape: ['batch', 2] }]);
  for (const values of [
    [1, 2],
    [3, 4, -5, 0.5],
  ]) {
    const { y } = await loaded.run({ x: row(values) });
    assert.deepEqual(y, row(values.map((v) => v * 2)));
  }
  await loaded.release();
});

test('invalid models fail with a code and a reason', async () => {
  const load = (bytes: Uint8Array): Promise<string> =>
    failure(() => OnnxModel.load(bytes, { source: 'm.onnx' }));
  assert.match(await load(new Uint8Array(0)), /^CORRUPT m.onnx: onnxruntime cannot load it/);
  assert.match(await load(Uint8Array.of(1, 2, 3)), /^CORRUPT m.onnx: .*protobuf/);
  assert.match(await load(double.subarray(0, double.length - 9)), /^CORRUPT m.onnx: .*protobuf/);
  const unknown = model({
    inputs: [value('x', FLOAT, [1])],
    outputs: [value('y', FLOAT, [1])],
    nodes: [node('NoSuchOp', ['x'], ['y'])],
  });
  assert.match(await load(unknown), /^INVALID_ARGUMENT m.onnx: .*NoSuchOp/);
});

test('invalid tensors are refused with their names', async () => {
  const loaded = await OnnxModel.load(double);
  const run = (x: OnnxTensor): Promise<string> => failure(() => loaded.run({ x }));
  const shared = new Float32Array(new SharedArrayBuffer(8));
  assert.match(
    await run({ ...row([1, 2]), data: shared }),
    /^INVALID_ARGUMENT .*"x".*shared memory/,
  );
  assert.match(
    await run({ ...row([1, 2]), dims: [1, 3] }),
    /"x": 2 elements do not fill .*\[1, 3\]/,
  );
  assert.match(await run({ ...row([1, 2]), dtype: 'int32' }), /"x": its array is not one of int32/);
  assert.match(
    await run({ dtype: 'int32', data: new Int32Array(2), dims: [1, 2] }),
    /the run failed/,
  );
  assert.match(await failure(() => loaded.run({})), /^INVALID_ARGUMENT .*'x' is missing/);
  assert.match(await run({ ...row([1, 2]), dims: [2, 1] }), /^INVALID_ARGUMENT .*the run failed/);
  assert.deepEqual((await loaded.run({ x: row([1, 2]) }))['y'], row([2, 4]));
  await loaded.release();
});

test('an id outside the table fails the run, not the process', async () => {
  const loaded = await OnnxModel.load(smallModel(3, 7, 4));
  const dense = row([0, 0]);
  const ids = (last: bigint): OnnxTensor => ({
    dtype: 'int64',
    data: BigInt64Array.of(0n, 6n, last),
    dims: [1, 3],
  });
  assert.match(
    await failure(() => loaded.run({ ids: ids(7n), dense })),
    /the run failed: .*Gather/,
  );
  assert.equal((await loaded.run({ ids: ids(6n), dense }))['prob']?.data.length, 1);
  await loaded.release();
});
