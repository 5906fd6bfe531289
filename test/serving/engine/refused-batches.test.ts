/** A batch that the graph refuses is run again request by request: only the one it is refused for fails. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { KeyedRows } from '../../../lib/core/features.ts';
import {
  FLOAT,
  floats,
  INT64,
  ints,
  model,
  node,
  value,
} from '../../tools/prune-model/onnx-builder.ts';
import { EngineBench, refused } from './engine-bench.ts';

const ANSWERS = [0.125, 0.25, 0.5, 1];

/** Answers row i of a table of four for a dense value i; onnxruntime refuses the whole run for any other. */
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

function rowsOf(places: readonly number[]): KeyedRows {
  const dense = Float32Array.from(places.flatMap((place) => [place, 0]));
  return { rowCount: places.length, dense, keys: new Uint32Array(2 * 3 * places.length) };
}

for (const where of ['inMemory', 'onMaps'] as const) {
  test(`only who is to blame fails, tables ${where}`, async (t) => {
    const bench = await EngineBench[where](t, { files: { 'model.onnx': GRAPH } });
    const long = Array.from({ length: 150 }, (_, i) => i % 4);
    const asked = [[0, 1], [2, 9, 3], [3], [1, 2], long, [...long, 7], [-9], [0]];
    const outcomes = asked.map(async (places) => {
      const answer = bench.send(rowsOf(places));
      if (places.some((place) => place < -4 || place > 3)) {
        return refused(answer, 'INTERNAL', /indices element out of data bounds/);
      }
      const { output } = await answer;
      assert.deepEqual(
        [...output],
        places.flatMap((place) => [ANSWERS[place], ANSWERS[place]]),
      );
    });
    await Promise.all(outcomes);
    const { pendingRows, pendingRequests } = bench.bundle.stats;
    assert.deepEqual({ pendingRows, pendingRequests }, { pendingRows: 0, pendingRequests: 0 });
    assert.equal(bench.bundle.pool.deaths, 0);
  });
}
