/** Bases, deltas, differences, merged chains and shards built apart, by the real process. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { Manifest, TableRef } from '../../../lib/core/manifest.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { readDeletedKeys, readLayerRows } from '../../../lib/store/layer-file.ts';
import { temporaryFolder } from '../../repository/fixtures.ts';
import { builder, DIM, filesOf, type Rows, spread, writeTable } from './tables.ts';

const SHARDS = 4;

class Place {
  readonly folder: string;
  readonly repository: string;

  constructor(t: TestContext) {
    this.folder = temporaryFolder(t);
    this.repository = join(this.folder, 'repository');
  }

  input(name: string, rows: Rows, dim?: number): string {
    return writeTable(join(this.folder, name), 't', rows, dim);
  }

  /** Runs the builder, which must end well. */
  async build(...args: string[]): Promise<void> {
    const { code, stderr } = await this.run(...args);
    assert.equal(code, 0, stderr);
  }

  run(...args: string[]): ReturnType<typeof builder> {
    return builder(...args, '--output-path', this.repository, '--bundle', 'b');
  }

  base(input: string, version: string, ...more: string[]): Promise<void> {
    return this.build(
      ...['--input', input, '--shard-num', String(SHARDS), '--cur-version', version, ...more],
    );
  }

  manifest(version: string): Promise<Manifest> {
    return openRepository(this.repository).manifest('b', version);
  }

  async table(version: string): Promise<TableRef> {
    const [table] = (await this.manifest(version)).tables;
    assert.ok(table !== undefined);
    return table;
  }

  /** What a chain lookup finds: key → first element. */
  async rows(version: string): Promise<Map<bigint, number>> {
    const repository = openRepository(this.repository);
    const found = new Map<bigint, number>();
    for (const layer of (await this.table(version)).shards.flat()) {
      const path = repository.layerTarget('b', 't', layer.contentId);
      for (const { keys, rows, count } of readLayerRows(path)) {
        const all = new BigUint64Array(keys.slice().buffer);
        const floats = new Float32Array(rows.slice().buffer);
        for (let i = 0; i < count; i++) found.set(all[i] as bigint, floats[i * DIM] as number);
      }
      if (layer.kind === 'base') continue;
      for (const keys of readDeletedKeys(path)) {
        for (const key of new BigUint64Array(keys.slice().buffer)) found.delete(key);
      }
    }
    return found;
  }
}

function sorted(rows: Rows): [bigint, number][] {
  return [...rows].sort(([a], [b]) => (a < b ? -1 : 1));
}

/** Every third row changed, every fifth gone, some new. */
function retrained(before: Rows): { after: Rows; changed: Rows; gone: bigint[] } {
  const after = new Map<bigint, number>();
  const changed = new Map<bigint, number>();
  const gone: bigint[] = [];
  [...before].forEach(([key, value], i) => {
    if (i % 5 === 0) gone.push(key);
    else after.set(key, i % 3 === 0 ? value + 0.5 : value);
    if (i % 5 !== 0 && i % 3 === 0) changed.set(key, value + 0.5);
  });
  for (let i = 0; i < 50; i++) {
    after.set(BigInt(i), i);
    changed.set(BigInt(i), i);
  }
  return { after, changed, gone };
}

test('whatever memory and threads, the repository is the same, byte for byte', async (t) => {
  const place = new Place(t);
  const rows = spread(60_000);
  const twice = new Map([...rows].map(([key, value]) => [key, value + 1]));
  const first = place.input('1', rows, 80);
  const second = writeTable(join(place.folder, '2'), 't', new Map([...twice].slice(0, 9000)), 80);
  const files = [];
  for (const resources of [
    ['--memory', '2GiB', '--threads', '1'],
    ['--memory', '16MiB', '--threads', '3'],
    ['--memory', '40MiB', '--threads', '2'],
  ]) {
    const other = new Place(t);
    await other.base(first, '1', ...resources, '--dtype', 'f16');
    await other.base(second, '2', ...resources);
    files.push(filesOf(other.repository));
  }
  assert.deepEqual(files[1], files[0]);
  assert.deepEqual(files[2], files[0]);
});

test('a delta given, a delta computed and a fresh base hold the same rows; merged, they are the base', async (t) => {
  const place = new Place(t);
  const before = spread(3000);
  const { after, changed, gone } = retrained(before);
  const [old, fresh] = [place.input('old', before), place.input('new', after)];
  const delta = place.input('delta', changed);
  const deletes = join(place.folder, 'gone.txt');
  writeFileSync(deletes, gone.join('\n'));
  await place.base(old, '1');
  await place.base(fresh, 'fresh');
  const on1 = ['--job-mode', 'delta', '--depend-version', '1'];
  await place.build(...on1, '--input-path', delta, '--deletes', deletes, '--cur-version', '2');
  await place.build(...on1, '--diff', old, fresh, '--cur-version', '3');
  await place.build(
    'diff',
    'version:1',
    'version:fresh',
    '--depend-version',
    '1',
    '--cur-version',
    '4',
  );
  for (const version of ['2', '3', '4']) {
    assert.deepEqual(sorted(await place.rows(version)), sorted(after));
    const table = await place.table(version);
    assert.deepEqual(
      table.shards.map((layers) => layers.map(({ kind }) => kind)),
      Array.from({ length: SHARDS }, () => ['base', 'delta']),
    );
    assert.deepEqual(table.shards, (await place.table('2')).shards);
  }
  await place.build('compact', '--version', '2', '--cur-version', '5', '--memory', '16MiB');
  assert.deepEqual((await place.table('5')).shards, (await place.table('fresh')).shards);
  assert.deepEqual((await place.table('5')).rows, after.size);
});

test('a delta that changes nothing in a shard adds no layer there; a chain has an end', async (t) => {
  const place = new Place(t);
  const rows = spread(200);
  await place.base(place.input('1', rows), '1');
  let version = 1;
  const [key] = rows.keys();
  const next = async (): ReturnType<typeof builder> =>
    place.run(
      ...['--job-mode', 'delta', '--depend-version', String(version), '--chain-max', '3'],
      ...['--input', place.input('d', new Map([[key as bigint, version]]))],
      ...['--cur-version', String(version + 1)],
    );
  for (; version <= 2; version++) assert.equal((await next()).code, 0);
  const { shards } = await place.table('3');
  const lengths = shards.map((layers) => layers.length);
  assert.deepEqual([...lengths].sort(), [1, 1, 1, 3]);
  const { code, stderr } = await next();
  assert.equal(code, 1);
  assert.match(
    stderr,
    /has 3 layers already, --chain-max is 3; .*cube-builder compact --version 3/,
  );
});

test('shards built apart are sealed when all are there; the version is the one built at once', async (t) => {
  const [apart, whole] = [new Place(t), new Place(t)];
  const rows = spread(2000);
  const input = apart.input('1', rows);
  const options = ['--input', input, '--shard-num', '4', '--cur-version', '1', '--dtype', 'i8'];
  const seal = (): ReturnType<typeof builder> => apart.run('seal', '--version', '1');
  const nothing = await seal();
  assert.equal(nothing.code, 1);
  await apart.build(...options, '--only-shards', '0-1');
  const early = await seal();
  assert.match(early.stderr, /table t lacks 2-3 of 4 shards; build them with --only-shards 2-3/);
  assert.deepEqual(await openRepository(apart.repository).versions('b'), []);
  const others = apart.input('other', spread(2001));
  await apart.build(...options.with(1, others), '--only-shards', '3');
  await apart.build(...options, '--only-shards', '2');
  assert.match((await seal()).stderr, /shards 0-2 and 3 were built from different inputs/);
  await apart.build(...options.with(7, 'f16'), '--only-shards', '3');
  assert.match((await seal()).stderr, /built with other .*dtype of t \("i8" and "f16"\)/);
  // The same rows at another place and time are the same input.
  await apart.build(...options.with(1, apart.input('copy', rows)), '--only-shards', '3');
  const sealed = await seal();
  assert.equal(sealed.code, 0, sealed.stderr);
  await whole.build(...options);
  const manifest = 'b/versions/1/manifest.json';
  assert.deepEqual(
    readFileSync(join(apart.repository, manifest)),
    readFileSync(join(whole.repository, manifest)),
  );
  assert.equal(
    Object.keys(filesOf(join(apart.repository, 'b'))).some((f) => f.startsWith('.')),
    false,
  );
});

test('only what is built and not published waits for seal', async (t) => {
  const place = new Place(t);
  await place.base(place.input('1', spread(100)), '1', '--only-build');
  assert.deepEqual(await openRepository(place.repository).versions('b'), []);
  await place.build('seal', '--version', '1');
  assert.equal((await place.table('1')).rows, 100);
});

test('a key that comes twice: the last one, or an error that names it', async (t) => {
  const place = new Place(t);
  const input = join(place.folder, 't.csv');
  writeFileSync(input, 'key,a,b,c,d\n7,1,1,1,1\n8,2,2,2,2\n7,3,3,3,3\n');
  const options = ['--input', input, '--key-column', 'key', '--shard-num', '1'];
  const refused = await place.run(...options, '--cur-version', '1', '--on-duplicate', 'error');
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /^cube-builder: table t: key 7 comes twice/);
  await place.build(...options, '--cur-version', '1');
  assert.deepEqual(sorted(await place.rows('1')), [
    [7n, 3],
    [8n, 2],
  ]);
});

test('a delta fits its parent, or is refused with what to do', async (t) => {
  const place = new Place(t);
  await place.base(place.input('1', spread(100)), '1');
  const refusals: [string[], RegExp][] = [
    [['--input', place.input('w', spread(9), 8)], /f32 × 8 is no delta on f32 × 4 of version 1/],
    [['--input', place.input('i', spread(9)), '--dtype', 'i8'], /i8 × 4 is no delta on f32 × 4/],
    [['--input', place.input('n', spread(9)), '--shard-num', '5'], /version 1 has 4 shards/],
    [['--diff', place.input('a', spread(9)), place.input('b', spread(9), 8)], /cannot be compared/],
  ];
  for (const [args, expected] of refusals) {
    const { code, stderr } = await place.run(
      ...['--job-mode', 'delta', '--depend-version', '1', '--cur-version', '2', ...args],
    );
    assert.equal(code, 1);
    assert.match(stderr, expected);
    assert.equal(stderr.trimEnd().split('\n').length, 1);
  }
  const gone = await place.run('compact', '--version', '1', '--cur-version', '2');
  assert.match(gone.stderr, /version 1 of b has no deltas/);
});
