/** Requests split by rows, and their answers joined. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { countRows, joinAnswers, planParts, viewPart } from '../../lib/client/request-parts.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { FeedTensor } from '../../proto/general-model-client.ts';

test('every row is in one part; parts are full, and not more than the channels', () => {
  const numbers = fc.tuple(
    fc.integer({ min: 0, max: 500 }),
    fc.nat(60),
    fc.integer({ min: 1, max: 9 }),
  );
  fc.assert(
    fc.property(numbers, ([rows, packageSize, channels]) => {
      const parts = planParts(rows, packageSize, channels);
      assert.ok(parts.length <= channels);
      let next = 0;
      for (const { first, count } of parts) {
        assert.equal(first, next);
        next += count;
      }
      assert.equal(next, rows);
      if (packageSize === 0 || rows <= packageSize) assert.equal(parts.length, 1);
      // As in Paddle's SDK, all parts but the last have package_size rows, if all rows fit.
      else if (rows <= packageSize * channels) {
        assert.ok(parts.slice(0, -1).every(({ count }) => count === packageSize));
      }
    }),
  );
});

/** Tensors of `lengths.length` rows: one with a row of fixed width, one with lengths. */
function makeTensors(lengths: readonly number[]): FeedTensor[] {
  const rows = lengths.length;
  const total = lengths.reduce((sum, length) => sum + length, 0);
  const dense = Float32Array.from({ length: rows * 2 }, (_, i) => i);
  const ids = BigInt64Array.from({ length: total }, (_, i) => BigInt(i));
  let end = 0;
  const lod = [0, ...lengths.map((length) => (end += length))];
  const names = { aliasName: '' };
  return [
    {
      ...names,
      name: 'dense',
      dataType: 'FP32',
      shape: [rows, 2],
      data: new Uint8Array(dense.buffer),
    },
    {
      ...names,
      name: 'ids',
      dataType: 'INT64',
      shape: [total, 1],
      data: new Uint8Array(ids.buffer),
      lod,
    },
  ];
}

test('the parts of a request joined are the request', () => {
  const lengths = fc.array(fc.nat(4), { minLength: 1, maxLength: 40 });
  fc.assert(
    fc.property(lengths, fc.integer({ min: 1, max: 10 }), (rows, packageSize) => {
      const tensors = makeTensors(rows);
      assert.equal(countRows(tensors), rows.length);
      const answers = planParts(rows.length, packageSize, 8).map((part) => {
        const outputs = [{ engineName: 'm', tensors: viewPart(tensors, part) }];
        return { outputs, profileTime: [1, 2], logId: 7n, errMsg: '' };
      });
      const joined = joinAnswers(answers);
      const plain = joined.outputs[0]!.tensors.map(({ data, lod, ...tensor }) => ({
        ...tensor,
        data: [...data],
        ...(lod && { lod: Array.from(lod) }),
      }));
      assert.deepEqual(
        plain,
        tensors.map((tensor) => ({ ...tensor, data: [...tensor.data] })),
      );
      assert.equal(joined.profileTime.length, 2 * answers.length);
    }),
  );
});

test('tensors with different numbers of rows, and answers of different models, are refused', () => {
  const [dense, ids] = makeTensors([1, 2, 3]);
  const other = { ...dense!, shape: [2, 3] };
  assert.throws(() => countRows([other, ids!]), /tensor dense has 2 rows, ids has 3/);
  const answer = (tensor: FeedTensor) => {
    return {
      outputs: [{ engineName: 'm', tensors: [tensor] }],
      profileTime: [],
      logId: 0n,
      errMsg: '',
    };
  };
  assert.throws(
    () => joinAnswers([answer(dense!), answer({ ...dense!, shape: [3, 1] })]),
    (error) => error instanceof CubeError && error.code === 'INTERNAL',
  );
});
