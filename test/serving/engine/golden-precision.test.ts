/** Golden rows in the check of a lower precision: values that are not sampled. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { BundleLoadOptions } from '../../../serving/engine/loaded-bundle.ts';
import {
  FLOAT,
  floats,
  ints,
  model,
  node,
  value,
} from '../../tools/prune-model/support/onnx-builder.ts';
import { EngineFixture } from './support/engine-fixture.ts';

const HIDDEN = 24;

/** Three embeddings of 4 values and 2 dense values. The second dense value has no influence. */
const GRAPH = model({
  inputs: [value('deep', FLOAT, ['batch', 3, 4]), value('dense', FLOAT, ['batch', 2])],
  outputs: [value('prob', FLOAT, ['batch', 2]), value('h', FLOAT, ['batch', HIDDEN])],
  initializers: [
    ints('flat_shape', [2], [-1, 12]),
    floats(
      'w1',
      [14, HIDDEN],
      Array.from({ length: 14 * HIDDEN }, (_, i) => (i < 13 * HIDDEN ? Math.sin(7 * i) : 0)),
    ),
    floats(
      'w2',
      [HIDDEN, 2],
      Array.from({ length: 2 * HIDDEN }, (_, i) => 0.3 * Math.cos(5 * i)),
    ),
  ],
  nodes: [
    node('Reshape', ['deep', 'flat_shape'], ['flat']),
    node('Concat', ['flat', 'dense'], ['x'], { attributes: { axis: 1 } }),
    node('MatMul', ['x', 'w1'], ['h']),
    node('MatMul', ['h', 'w2'], ['logits']),
    node('Softmax', ['logits'], ['prob'], { attributes: { axis: 1 } }),
  ],
});

function makeFiles(dense: readonly number[]): Record<string, Uint8Array> {
  const rows = [
    { dense: [1, 2], categorical: ['f1', 'f2', 'f3'] },
    { dense, categorical: ['f4', 'f5', null] },
  ];
  const text = rows.map((row) => JSON.stringify(row)).join('\n');
  return { 'model.onnx': GRAPH, 'golden.jsonl': new TextEncoder().encode(text) };
}

type Precision = NonNullable<BundleLoadOptions['precision']>;

/** One dense value of a row is so large that 8 bits leave nothing of the others. */
const LARGE = [1, 1e6];

test('a version whose golden rows change too much with a lower precision is refused', async (t) => {
  const options = { files: makeFiles(LARGE), precision: 'int8' as Precision };
  const message = /row 2: with precision int8 the output "\w+" differs from .*limit is 0\.05/;
  await assert.rejects(EngineFixture.inMemory(t, options), { code: 'UNSUPPORTED', message });
  await assert.rejects(EngineFixture.onFakeStore(t, options), { code: 'UNSUPPORTED', message });
});

test('golden rows within the tolerance are served', async (t) => {
  const one = [{ dense: [1, 2], categorical: ['f1', 'f2', 'f3'] }];
  const expected = await (await EngineFixture.inMemory(t, { files: makeFiles([3, 4]) })).predict(
    one,
  );
  for (const [precision, dense] of [
    ['int8', [3, 4]],
    ['fp16', LARGE],
  ] as const) {
    // The store has four areas for model workers; the original's instance takes none.
    const engine = await EngineFixture.inMemory(t, {
      files: makeFiles(dense),
      precision,
      instances: 4,
    });
    const { clickOutput } = await engine.predict(one);
    const difference = Math.abs(clickOutput[1]! - expected.clickOutput[1]!);
    assert.ok(difference > 0 && difference < 0.05, `${precision}: ${difference}`);
  }
});
