import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { openSources } from '../../../../tools/cube-builder/sources/open-sources.ts';
import { computeElement, writePrunedModel } from '../support/pruned-model.ts';
import { createTestFolder, encodeKeys, encodeNpy, readRows } from './support/writers.ts';

const folder = createTestFolder();

test('output of prune-model is read by slots.json, with keys or row numbers', async () => {
  const tables = [
    { name: 'users', rows: 3, dim: 2 },
    { name: 'items', rows: 2, dim: 4 },
  ];
  const pruned = writePrunedModel(join(folder, 'pruned'), tables);
  const keys = [7n, 2n ** 64n - 1n, 0n];
  const keysPath = join(pruned, 'tables', 'users.keys.npy');
  writeFileSync(keysPath, encodeNpy('u8', [3], encodeKeys(keys)));
  const sources = await openSources({ paths: [pruned] });
  assert.deepEqual(
    sources.map(({ name, dim, rows, files }) => ({ name, dim, rows, files: files.length })),
    [
      { ...tables[0], files: 2 },
      { ...tables[1], files: 1 },
    ],
  );
  const [users, items] = await Promise.all(sources.map(readRows));
  assert.deepEqual(
    users?.map(({ key }) => key),
    keys,
  );
  assert.deepEqual(
    [...(users?.[2]?.row ?? [])],
    [computeElement('users', 2, 0), computeElement('users', 2, 1)],
  );
  assert.deepEqual(
    items?.map(({ key }) => key),
    [0n, 1n],
  );
  writeFileSync(join(pruned, 'tables', 'users.npy'), encodeNpy('f4', [2, 2], Buffer.alloc(16)));
  await assert.rejects(
    openSources({ paths: [pruned] }),
    /shape \(2, 2\), but slots.json says \(3, 2\)/,
  );
  rmSync(join(pruned, 'tables', 'users.npy'));
  await assert.rejects(openSources({ paths: [pruned] }), /users.npy: no such file/);
});

test('each array of a folder is a table, and conflicting names are refused', async () => {
  const root = join(folder, 'pruned', 'tables');
  for (const name of ['a', 'b', 'a.keys']) {
    const isKeys = name.endsWith('keys');
    const data = isKeys
      ? encodeNpy('u8', [1], encodeKeys([9n]))
      : encodeNpy('f4', [1, 1], Buffer.alloc(4));
    writeFileSync(join(folder, `${name}.npy`), data);
  }
  rmSync(root, { recursive: true });
  const paths = [join(folder, '*.npy')];
  const sources = await openSources({ paths });
  const read = await Promise.all(sources.map(readRows));
  assert.deepEqual(
    sources.map(({ name }) => name),
    ['a', 'b'],
  );
  assert.deepEqual(
    read.map((rows) => rows[0]?.key),
    [9n, 0n],
  );
  await assert.rejects(
    openSources({ paths, table: 't' }),
    /--table t names one table, but the input has 2 \(a, b\)/,
  );
  const renamed = await openSources({ paths: [join(folder, 'b.npy')], table: 't' });
  assert.equal(renamed[0]?.name, 't');
  writeFileSync(join(folder, 'b.csv'), '1,2\n');
  const both = { paths: [join(folder, 'b.*')] };
  await assert.rejects(openSources(both), /two inputs are named table b/);
});
