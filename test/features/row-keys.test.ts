/**
 * Keys of rows: shared features join each row, and rows that do not fit the model's slots are
 * rejected by row and slot.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import { RowHasher } from '../../lib/core/hash.ts';
import { BAG_VALUES_MAX } from '../../lib/core/limits.ts';
import type { Slot } from '../../lib/core/slots.ts';
import { RowKeys } from '../../lib/features/row-keys.ts';

const slots: readonly Slot[] = [
  { name: 'user', index: 3 },
  { name: 'tags', index: 1, pooling: 'mean' },
  { name: 'item', index: 7 },
  { name: 'words', index: 20, pooling: 'max' },
];
const HASH = { scheme: 'xxh64-concat', seed: 0n, modulo: 0n } as const;
const rowKeys = new RowKeys({ hash: HASH, slots, dense: undefined });
const NO_DENSE = new Float32Array(0);

/** Values of each slot. */
type Row = readonly (readonly string[])[];

function columns(rows: readonly Row[]): Pick<FeatureRows, 'features' | 'ends'> {
  let end = 0;
  return {
    features: rows.flat(2),
    ends: Uint32Array.from(rows.flat(), ({ length }) => (end += length)),
  };
}

test('rows with shared slots have the same keys as rows that repeat the features', () => {
  const one = fc.tuple(fc.string({ maxLength: 4 }));
  const any = fc.array(fc.string({ maxLength: 4 }), { maxLength: 4 });
  const rows = fc.array(fc.tuple(one, any, one, any), { minLength: 1, maxLength: 6 });
  const property = fc.property(
    rows,
    fc.subarray([0, 1, 2, 3], { minLength: 1 }),
    (given, shared) => {
      const common = given[0]!;
      const all = given.map((row) => row.map((bag, i) => (shared.includes(i) ? common[i]! : bag)));
      const own = given.map((row) => row.filter((_, i) => !shared.includes(i)));
      const rowCount = given.length;
      const whole = rowKeys.toKeyedRows({ rowCount, dense: NO_DENSE, ...columns(all) });
      const joined = rowKeys.toKeyedRows({
        rowCount,
        dense: NO_DENSE,
        ...columns(own),
        shared: {
          slots: Int32Array.from(shared),
          ...columns([common.filter((_, i) => shared.includes(i))]),
        },
      });
      assert.deepEqual(joined, whole);
    },
  );
  fc.assert(property);
});

test('a value of an item cannot be shared by rows; a missing one can', () => {
  const sided: readonly Slot[] = [
    { name: 'user', index: 1, side: 'user' },
    { name: 'ad', index: 2, side: 'item', missing: 'none' },
    { name: 'hour', index: 3 },
  ];
  const keys = new RowKeys({ hash: HASH, slots: sided, dense: undefined });
  const share = (at: readonly number[], shared: readonly string[], own: readonly string[]) =>
    keys.toKeyedRows({
      rowCount: 2,
      dense: NO_DENSE,
      features: own,
      shared: { slots: Int32Array.from(at), features: shared },
    }).keys;
  const expected = new Uint32Array(12);
  new RowHasher(HASH, sided).hashRows(['u', 'none', '5', 'u', '', '5'], 2, expected);
  assert.deepEqual(share([0, 2], ['u', '5'], ['none', '']), expected);
  assert.deepEqual(share([0, 1, 2], ['u', '', '5'], []), expected);
  assert.throws(() => share([1], ['a'], ['u', '5', 'u', '5']), {
    code: 'INVALID_ARGUMENT',
    message: /^slot ad has side item: give its value in each row instead of once for all rows$/,
  });
});

test('shared slots with one value need no bags', () => {
  const plain = slots.map(({ name, index }) => ({ name, index }));
  const keys = new RowKeys({ hash: HASH, slots: plain, dense: undefined });
  const joined = keys.toKeyedRows({
    rowCount: 2,
    dense: NO_DENSE,
    features: ['a', 'b', 'c', 'd'],
    shared: { slots: Int32Array.of(1, 3), features: ['s', 't'] },
  });
  const expected = new Uint32Array(16);
  new RowHasher(HASH, plain).hashRows(['a', 's', 'b', 't', 'c', 's', 'd', 't'], 2, expected);
  assert.deepEqual(joined, { rowCount: 2, dense: NO_DENSE, keys: expected });
});

test('rows that do not fit are rejected with row and slot', () => {
  const keyed = (ends: readonly number[], values: number): KeyedRows => ({
    rowCount: 1,
    dense: NO_DENSE,
    keys: new Uint32Array(2 * values),
    ends: Uint32Array.from(ends),
  });
  const long = BAG_VALUES_MAX + 1;
  const wrong: readonly (readonly [KeyedRows | FeatureRows, RegExp])[] = [
    [keyed([1, 1, 2, 3], 4), /4 bags of 3 values, expected 1 rows of 4 slots with 4 values/],
    [keyed([1, 1, 2], 2), /3 bags/],
    [keyed([2, 2, 3, 3], 3), /row 1, slot user: 2 values, the slot takes one value/],
    [keyed([1, 1, 1, 2], 2), /row 1, slot item: 0 values/],
    [keyed([1, 3, 2, 2], 2), /slot item: -1 values/],
    [keyed([1, 1 + long, 2 + long, 2 + long], 2 + long), /slot tags: 1025 values/],
    [{ rowCount: 1.25, dense: NO_DENSE, keys: new Uint32Array(10) }, /1\.25 rows/],
    [{ rowCount: 1, dense: NO_DENSE, features: ['a', 'b', 'c'] }, /3 values for 1 rows/],
    [{ rowCount: 1, dense: Float32Array.of(1), features: [] }, /1 dense values for 1 rows of 0/],
  ];
  for (const [rows, message] of wrong) {
    assert.throws(() => rowKeys.toKeyedRows(rows), { code: 'INVALID_ARGUMENT', message });
  }
  const feature = { name: 'age', missing: 0, log: false, shift: 0, scale: 1 };
  const dense = { input: 'dense', features: [feature, { ...feature, name: 'price' }] };
  const numbers = new RowKeys({ hash: HASH, slots: slots.slice(0, 1), dense });
  for (const bad of [Number.NaN, Infinity]) {
    const rows = { rowCount: 2, dense: Float32Array.of(1, 2, 3, bad), features: ['a', 'b'] };
    assert.throws(() => numbers.toKeyedRows(rows), {
      message: /row 2 \(price\): .* not a finite number/,
    });
  }
});
