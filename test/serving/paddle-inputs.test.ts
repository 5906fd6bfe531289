/** Tensors of Paddle that are no whole rows of a model without features.json. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { openRepository } from '../../lib/repository/repository.ts';
import { smallModel } from '../tools/prune-model/support/onnx-builder.ts';
import { BUNDLE, publishModel } from './support/served-model.ts';
import { ServingProcess } from './support/serving-process.ts';

test('values that are no whole rows are refused, also beside rows of others', async (t) => {
  const location = await publishModel(t, smallModel());
  const by = { version: '1', by: 'test', reason: 'test' };
  await openRepository(location).activate(BUNDLE, 'stable', by);
  const flags = ['--repository', location, '--bundle', BUNDLE, '--store', 'memory'];
  const serving = await ServingProcess.start(t, [...flags, '--instances', '1']);
  await serving.waitUntilReady();
  const ask = async (values: readonly number[]): Promise<{ status: number; text: string }> => {
    const ids = { name: 'ids', elem_type: 0, int64_data: values };
    const dense = { name: 'dense', elem_type: 1, float_data: values.slice(0, 4) };
    const tensor = [ids, dense];
    const { status, body } = await serving.post(
      '/GeneralModelService/inference',
      JSON.stringify({ tensor, fetch_var_names: [] }),
    );
    return { status, text: JSON.stringify(body) };
  };
  const { status, text: expected } = await ask([1, 2, 3, 0, 1, 2]);
  assert.equal(status, 200, expected);
  const answers = await Promise.all(
    [...'gwgwgw'].map((kind) => ask(kind === 'g' ? [1, 2, 3, 0, 1, 2] : [1, 2, 3, 0])),
  );
  for (const [i, { status, text }] of answers.entries()) {
    if (i % 2 === 0) assert.equal(text, expected);
    else {
      assert.equal(status, 400, text);
      assert.match(text, /ids.*: its 4 values are not rows of 3/);
    }
  }
  assert.equal((await ask([1, 2, 3, 0, 1, 2])).text, expected);
});
