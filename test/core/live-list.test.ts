import assert from 'node:assert/strict';
import { test } from 'node:test';
import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import fc from 'fast-check';
import { LiveEntry, type LiveItem, LiveList } from '../../lib/core/live-list.ts';

class Item implements LiveItem {
  previous: LiveItem | undefined;
  next: LiveItem | undefined;
  readonly id: number;
  readonly content: readonly number[];

  constructor(id: number, size = 0) {
    this.id = id;
    this.content = new Array(size).fill(id);
  }
}

function toIds(list: LiveList<Item>): number[] {
  const ids: number[] = [];
  list.forEach(({ id }) => {
    ids.push(id);
  });
  return ids;
}

test('a list behaves like a Set', () => {
  const operations = fc.array(fc.tuple(fc.boolean(), fc.nat(7)), { maxLength: 60 });
  fc.assert(
    fc.property(operations, (steps) => {
      const items = Array.from({ length: 8 }, (_, id) => new Item(id));
      const list = new LiveList<Item>();
      const expected = new Set<number>();
      for (const [isAdded, id] of steps) {
        const item = items[id]!;
        if (!isAdded) assert.equal(list.delete(item), expected.delete(id));
        else if (!expected.has(id)) {
          list.add(item);
          expected.add(id);
        }
        assert.deepEqual(toIds(list), [...expected]);
        assert.equal(list.size, expected.size);
        assert.equal(list.first?.id, [...expected][0]);
      }
    }),
  );
});

test('a visit may delete the member that it gets', () => {
  const list = new LiveList<Item>();
  for (let id = 0; id < 6; id++) list.add(new Item(id));
  list.forEach((item) => {
    if (item.id % 2 === 0) list.delete(item);
  });
  assert.deepEqual(toIds(list), [1, 3, 5]);
});

test('entries hold values of any class', () => {
  const list = new LiveList<LiveEntry<string>>();
  const entries = ['a', 'b', 'c'].map((value) => new LiveEntry(value));
  for (const entry of entries) list.add(entry);
  assert.ok(list.delete(entries[1]!));
  const values: string[] = [];
  list.forEach(({ value }) => {
    values.push(value);
  });
  assert.deepEqual(values, ['a', 'c']);
});

test('members that have left die young, also after a collection of the whole heap', () => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const list = new LiveList<Item>();
  const members: Item[] = [];
  const replace = (count: number): void => {
    for (let i = 0; i < count; i++) {
      const item = new Item(i, 100);
      members.push(item);
      list.add(item);
      if (members.length > 64) list.delete(members.shift()!);
    }
  };
  replace(1_000);
  collect();
  const before = countOldBytes();
  // 80 MB; with a Set more than half of them were copied to the old space.
  replace(100_000);
  assert.ok(countOldBytes() - before < 8e6);
});

function countOldBytes(): number {
  const spaces = getHeapSpaceStatistics();
  return spaces.find((space) => space.space_name === 'old_space')?.space_used_size ?? 0;
}
