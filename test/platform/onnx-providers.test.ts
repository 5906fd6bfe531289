/** Execution providers: their order, what is missing on this machine, and what replaces it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { findProviderProblem, OnnxModel } from '../../lib/platform/onnx.ts';
import {
  chooseProviders,
  formatProvider,
  listProviderOrders,
  type ProviderName,
  type ProviderOrder,
} from '../../lib/platform/onnx-providers.ts';
import { FLOAT, model, node, value } from '../tools/prune-model/support/onnx-builder.ts';

const show = (order: ProviderOrder): string => order.map(formatProvider).join();
const order = (...names: ProviderName[]): ProviderOrder => names.map((name) => ({ name }));

test('each device has its own order; contradictions are refused', () => {
  const list = (names: ProviderName[], devices?: number[]): string[] =>
    listProviderOrders(names, devices).map(show);
  assert.deepEqual(list(['tensorrt', 'cuda', 'cpu'], [0, 3]), [
    'tensorrt:0,cuda:0,cpu',
    'tensorrt:3,cuda:3,cpu',
  ]);
  assert.deepEqual(list(['webgpu', 'cpu']), ['webgpu,cpu']);
  assert.throws(() => list(['cuda', 'cuda']), /cuda is listed twice/);
  assert.throws(() => list(['cpu', 'cuda']), /list cpu last: .* cuda after it gets none/);
  assert.throws(() => list(['cpu'], [0]), /devices need a provider with devices \(cuda, /);
});

test('a missing provider is refused, or replaced by those listed after it with cpu', async () => {
  const findProblem = async ({ name }: { name: string }) =>
    name === 'tensorrt' ? 'no library' : undefined;
  const { order: used, missing } = await chooseProviders(
    order('tensorrt', 'cuda', 'cpu'),
    findProblem,
  );
  assert.equal(show(used), 'cuda,cpu');
  assert.deepEqual(
    missing.map(({ provider }) => provider.name),
    ['tensorrt'],
  );
  await assert.rejects(chooseProviders(order('tensorrt', 'cuda'), findProblem), {
    code: 'UNSUPPORTED',
    message: /provider tensorrt is not available: no library; .*CUDA 12 .*TensorRT 10; or list cpu/,
  });
});

test('the runtime of this machine is asked, and gets the order', async () => {
  assert.equal(await findProviderProblem({ name: 'cpu' }), undefined);
  const foreign = process.platform === 'darwin' ? 'dml' : 'coreml';
  const problem = await findProviderProblem({ name: foreign });
  assert.match(problem ?? '', /^onnxruntime-node [\d.]+ for \w+\/\w+ has only cpu/);
  // onnxruntime names the first provider of the order that it cannot load.
  const graph = model({
    inputs: [value('x', FLOAT, [1])],
    outputs: [value('y', FLOAT, [1])],
    nodes: [node('Identity', ['x'], ['y'])],
  });
  const load = (providers: ProviderOrder): Promise<OnnxModel> =>
    OnnxModel.load(graph, { source: 'm', providers });
  await (await load(order('cpu'))).release();
  await assert.rejects(load(order(foreign)), { code: 'INVALID_ARGUMENT' });
  const cuda = await findProviderProblem({ name: 'cuda' });
  if (cuda === undefined) return;
  await assert.rejects(load(order('cuda', 'cpu')), /CUDA|cuda/i);
});
