/**
 * When the graph fails for a batch, each request runs again alone: only the request with the
 * invalid row fails.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { KeyedRows } from '../../../lib/core/feature-rows.ts';
import {
  FLOAT,
  floats,
  INT64,
  ints,
  model,
  node,
  value,
} from '../../tools/prune-model/support/onnx-builder.ts';
import { assertRejected, EngineFixture } from './support/engine-fixture.ts';

const ANSWERS = [0.125, 0.25, 0.5, 1];

/**
 * Returns row i of a table of four for a dense value i; onnxruntime fails the whole run for any
 * other value.
 */
const GRAPH = model({
  inputs: [value('deep', FLOAT, ['n', 3, 4]), value('dense', FLOAT, ['n', 2])],
  outputs: [value('prob', FLOAT, ['n', 2])],
  initializers: [floats('answers', [4], ANSWERS), ints('first', [1], [0])],
  nodes: [
    node('Gather', ['dense', 'first'], ['picked'], { attributes: { axis: 1 } }),
    node('Cast', ['picked'], ['at'], { attributes: { to: INT64 } }),
    node('Gather', ['answers', 'at'], ['score']),
    node('Concat', ['score', 'score'], ['prob'], { attributes: { axis: 1 } }),
  ],
});

function makeRows(indices: readonly number[]): KeyedRows {
  const dense = Float32Array.from(indices.flatMap((index) => [index, 0]));
  return { rowCount: indices.length, dense, keys: new Uint32Array(2 * 3 * indices.length) };
}

for (const where of ['inMemory', 'onFakeStore'] as const) {
  test(`only the request with the invalid row fails (${where})`, async (t) => {
    const engine = await EngineFixture[where](t, { files: { 'model.onnx': GRAPH } });
    const long = Array.from({ length: 150 }, (_, i) => i % 4);
    const requests = [[0, 1], [2, 9, 3], [3], [1, 2], long, [...long, 7], [-9], [0]];
    const outcomes = requests.map(async (indices) => {
      const answer = engine.send(makeRows(indices));
      if (indices.some((index) => index < -4 || index > 3)) {
        return assertRejected(answer, 'INTERNAL', /indices element out of data bounds/);
      }
      const { clickOutput } = await answer;
      assert.deepEqual(
        [...clickOutput],
        indices.flatMap((index) => [ANSWERS[index], ANSWERS[index]]),
      );
    });
    await Promise.all(outcomes);
    const { pendingRows, pendingRequests } = engine.bundle.stats;
    assert.deepEqual({ pendingRows, pendingRequests }, { pendingRows: 0, pendingRequests: 0 });
    assert.equal(engine.bundle.pool.workerDeaths, 0);
  });
}
