/** Bags given as lists and offsets are compared with the bags that they were made from. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { JsonReader } from '../../lib/core/json.ts';
import { computeBagEnds, countBags, joinIds } from '../../serving/protocols/graph-bags.ts';
import { InputTensor } from '../../serving/protocols/input-tensor.ts';

function tensor(name: string, shape: readonly number[], data: readonly unknown[]): InputTensor {
  return InputTensor.fromJson({ name, datatype: 'INT64', shape }, JsonReader.of(data, name));
}

function computeOffsets(bags: readonly (readonly number[])[], includesLast: boolean): number[] {
  let end = 0;
  const ends = bags.map((bag) => (end += bag.length));
  return includesLast ? [0, ...ends] : [0, ...ends.slice(0, -1)];
}

test('rows get the ids of their bags, also beside inputs of single ids', () => {
  const bag = fc.array(fc.integer({ min: 0, max: 2 ** 31 }), { maxLength: 4 });
  const rows = fc.array(fc.tuple(bag, bag, fc.nat(9)), { minLength: 1, maxLength: 20 });
  fc.assert(
    fc.property(rows, fc.boolean(), fc.boolean(), (given, includesLast, inOne) => {
      const lists = [given.map(([first]) => first), given.map(([, second]) => second)];
      const width = given.length + Number(includesLast);
      const begins = lists.map((bags) => computeOffsets(bags, includesLast));
      const inputs = lists.map((bags, i) => {
        const ids = tensor('ids', [bags.flat().length], bags.flat());
        const spec = { pooling: 'sum', offsets: 'offsets', includesLast } as const;
        const offsets = inOne
          ? tensor('offsets', [2, width], begins.flat())
          : tensor('offsets', [width], begins[i]!);
        const row = { ...spec, ...(inOne && { offsetsRow: i }) };
        assert.equal(countBags(offsets, row), given.length);
        return { words: ids.keys(), columns: 1, ends: computeBagEnds(offsets, row, ids.count) };
      });
      const singles = given.map(([, , single]) => single);
      const single = { words: tensor('s', [given.length], singles).keys(), columns: 1 };
      const columns = [inputs[0]!, { ...single, ends: undefined }, inputs[1]!];
      const { keys, ends } = joinIds(columns, given.length);
      const wanted = given.flatMap(([first, second, one]) => [first, [one], second]);
      assert.deepEqual(
        [...keys.filter((_, i) => i % 2 === 0)],
        wanted.flat().map((id) => id >>> 0),
      );
      assert.deepEqual([...ends], computeOffsets(wanted, true).slice(1));
    }),
  );
});

test('invalid offsets are rejected with their position', () => {
  const spec = { pooling: 'sum', offsets: 'offsets', includesLast: true } as const;
  const ends = (data: readonly unknown[], count: number) => () =>
    computeBagEnds(tensor('offsets', [data.length], data), spec, count);
  assert.throws(ends([0, 1, 4], 5), /its last offset is 4, but the list has 5 ids/);
  assert.throws(ends([0, 2, 1], 2), /value 2: expected an offset in 2..2/);
  assert.throws(ends([0, '18446744073709551615'], 2), /offsets/);
  assert.throws(ends([0, '4294967296'], 2), /value 1: expected an offset in 0..2/);
  const wide = tensor('offsets', [2, 2], [0, 1, 0, 1]);
  assert.throws(() => countBags(wide, spec), /expected \[rows\]/);
  assert.throws(() => countBags(wide, { ...spec, offsetsRow: 2 }), /expected more than 2 lists/);
});
