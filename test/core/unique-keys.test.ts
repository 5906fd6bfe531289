/** Distinct keys of a batch against a Map. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { keyToBigint, setKey } from '../../lib/core/keys.ts';
import { UniqueKeys } from '../../lib/core/unique-keys.ts';

const ROWS_MAX = 16;
const anyKey = fc.oneof(
  fc.bigInt({ min: 0n, max: 7n }),
  fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  fc.constantFrom(0n, 2n ** 32n, 2n ** 64n - 1n, 2n ** 63n),
);

test('finds the distinct keys in order of appearance, batch after batch', () => {
  const unique = new UniqueKeys(ROWS_MAX * 3);
  const property = fc.property(
    fc.array(fc.array(anyKey, { minLength: 4, maxLength: 4 }), {
      minLength: 1,
      maxLength: ROWS_MAX,
    }),
    fc.uniqueArray(fc.integer({ min: 0, max: 3 }), { minLength: 1, maxLength: 3 }),
    fc.nat(),
    (rows, columns, skip) => {
      const rowStart = skip % rows.length;
      const rowCount = rows.length - rowStart;
      const keys = new Uint32Array(2 * 4 * rows.length);
      rows.flat().forEach((key, i) => {
        setKey(keys, i, key);
      });
      const found = new Uint32Array(2 * rowCount * columns.length);
      const index = new Int32Array(rowCount * columns.length);
      const range = { keys, rowStart, rowCount, rowKeys: 4 };
      const count = unique.find(range, Int32Array.from(columns), found, index);
      const wanted = rows.slice(rowStart).flatMap((row) => columns.map((column) => row[column]!));
      const distinct = [...new Set(wanted)];
      assert.deepEqual(
        Array.from({ length: count }, (_, i) => keyToBigint(found, i)),
        distinct,
      );
      assert.deepEqual(
        [...index],
        wanted.map((key) => distinct.indexOf(key)),
      );
    },
  );
  fc.assert(property);
});
