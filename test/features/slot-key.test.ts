/** The key of a slot in the first row: the same from features, shared features and keys. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { FeatureRows } from '../../lib/core/feature-rows.ts';
import { RowHasher } from '../../lib/core/hash.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import type { Slot } from '../../lib/core/slots.ts';
import { RowKeys } from '../../lib/features/row-keys.ts';
import { SlotKeyReader } from '../../lib/features/slot-key.ts';

const slots: readonly Slot[] = [
  { name: 'tags', index: 1, pooling: 'mean' },
  { name: 'user', index: 3, modulo: 1_000_003n, missing: 'none' },
  { name: 'words', index: 20, pooling: 'max' },
  { name: 'item', index: 7 },
];
const spec = { hash: { scheme: 'xxh64-concat', seed: 5n, modulo: 0n } as const, slots };
const rowKeys = new RowKeys({ ...spec, dense: undefined });
const dense = new Float32Array(0);

type Row = readonly (readonly string[])[];

function toBags(rows: readonly Row[]): Pick<FeatureRows, 'features' | 'ends'> {
  let end = 0;
  return {
    features: rows.flat(2),
    ends: Uint32Array.from(rows.flat(), ({ length }) => (end += length)),
  };
}

/** By the definition: the first value of the slot, hashed alone; none when it is missing. */
function expectKey(row: Row, position: number): bigint | undefined {
  const [feature] = row[position]!;
  const missing = slots[position]!.missing ?? '';
  if (feature === undefined || feature === '' || feature === missing) return undefined;
  const key = new Uint32Array(2);
  new RowHasher(spec.hash, [slots[position]!]).hashRows([feature], 1, key);
  return keyToBigint(key, 0);
}

test('features, shared features and keys give the key of the first row', () => {
  const text = fc.constantFrom('', 'none', 'a', 'b', 'user-1', 'ü');
  const one = fc.tuple(text);
  const any = fc.array(text, { maxLength: 3 });
  const rows = fc.array(fc.tuple(any, one, any, one), { minLength: 1, maxLength: 3 });
  const property = fc.property(rows, fc.subarray([0, 1, 2, 3]), (given, at) => {
    const common = given[0]!;
    const all = given.map((row) => row.map((bag, i) => (at.includes(i) ? common[i]! : bag)));
    const rowCount = all.length;
    const plain: FeatureRows = { rowCount, dense, ...toBags(all) };
    const own = all.map((row) => row.filter((_, i) => !at.includes(i)));
    const shared = {
      slots: Int32Array.from(at),
      ...toBags([common.filter((_, i) => at.includes(i))]),
    };
    const joined: FeatureRows = { rowCount, dense, ...toBags(own), shared };
    slots.forEach(({ name }, position) => {
      const reader = SlotKeyReader.find(spec, name)!;
      const expected = expectKey(all[0]!, position);
      for (const form of [plain, joined, rowKeys.toKeyedRows(plain)]) {
        assert.equal(reader.read(form), expected, name);
      }
    });
  });
  fc.assert(property);
});

test('with ids as features, a missing id has no key, and a row with too few keys neither', () => {
  const raw = {
    hash: { scheme: 'raw', seed: 0n, modulo: 0n } as const,
    slots: [
      { name: 'user', index: 0 },
      { name: 'item', index: 1 },
    ],
  };
  const user = SlotKeyReader.find(raw, 'user')!;
  assert.equal(user.read({ rowCount: 1, dense, features: ['17', '2'] }), 17n);
  assert.equal(user.read({ rowCount: 1, dense, features: ['', '2'] }), undefined);
  const item = SlotKeyReader.find(raw, 'item')!;
  assert.equal(item.read({ rowCount: 1, dense, keys: Uint32Array.of(1, 0, 9, 1) }), 2n ** 32n + 9n);
  assert.equal(item.read({ rowCount: 1, dense, keys: Uint32Array.of(1, 0) }), undefined);
  assert.equal(SlotKeyReader.find(raw, 'absent'), undefined);
});
