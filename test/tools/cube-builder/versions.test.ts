/** Bases, deltas, diffs, compaction and distributed builds, with the real process. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { Manifest, TableRef } from '../../../lib/core/manifest.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { readDeletedKeys, readLayerRows } from '../../../lib/store/layer-file.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { createRows, DIM, hashFiles, type Rows, runBuilder, writeTable } from './support/tables.ts';

const SHARDS = 4;

class Workspace {
  readonly folder: string;
  readonly repository: string;

  constructor(t: TestContext) {
    this.folder = temporaryFolder(t);
    this.repository = join(this.folder, 'repository');
  }

  writeInput(name: string, rows: Rows, dim?: number): string {
    return writeTable(join(this.folder, name), 't', rows, dim);
  }

  /** Runs the builder, which must succeed. */
  async build(...args: string[]): Promise<void> {
    const { code, stderr } = await this.run(...args);
    assert.equal(code, 0, stderr);
  }

  run(...args: string[]): ReturnType<typeof runBuilder> {
    return runBuilder(...args, '--output-path', this.repository, '--bundle', 'b');
  }

  buildBase(input: string, version: string, ...more: string[]): Promise<void> {
    return this.build(
      '--input',
      input,
      '--shard-num',
      String(SHARDS),
      '--cur-version',
      version,
      ...more,
    );
  }

  readManifest(version: string): Promise<Manifest> {
    return openRepository(this.repository).readManifest('b', version);
  }

  async readTable(version: string): Promise<TableRef> {
    const [table] = (await this.readManifest(version)).tables;
    assert.ok(table !== undefined);
    return table;
  }

  /** Reads the rows that a lookup finds: key → first element. */
  async readRows(version: string): Promise<Map<bigint, number>> {
    const repository = openRepository(this.repository);
    const found = new Map<bigint, number>();
    for (const layer of (await this.readTable(version)).shards.flat()) {
      const path = repository.layerWritePath('b', 't', layer.contentId);
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

/** Changes every third row, deletes every fifth and adds some. */
function retrain(before: Rows): { after: Rows; changed: Rows; deletedKeys: bigint[] } {
  const after = new Map<bigint, number>();
  const changed = new Map<bigint, number>();
  const deletedKeys: bigint[] = [];
  [...before].forEach(([key, value], i) => {
    if (i % 5 === 0) deletedKeys.push(key);
    else after.set(key, i % 3 === 0 ? value + 0.5 : value);
    if (i % 5 !== 0 && i % 3 === 0) changed.set(key, value + 0.5);
  });
  for (let i = 0; i < 50; i++) {
    after.set(BigInt(i), i);
    changed.set(BigInt(i), i);
  }
  return { after, changed, deletedKeys };
}

test('the repository has the same bytes with any memory and thread count', async (t) => {
  const workspace = new Workspace(t);
  const rows = createRows(60_000);
  const twice = new Map([...rows].map(([key, value]) => [key, value + 1]));
  const first = workspace.writeInput('1', rows, 80);
  const second = writeTable(
    join(workspace.folder, '2'),
    't',
    new Map([...twice].slice(0, 9000)),
    80,
  );
  const files = [];
  for (const resources of [
    ['--memory', '2GiB', '--threads', '1'],
    ['--memory', '16MiB', '--threads', '3'],
    ['--memory', '40MiB', '--threads', '2'],
  ]) {
    const other = new Workspace(t);
    await other.buildBase(first, '1', ...resources, '--dtype', 'f16');
    await other.buildBase(second, '2', ...resources);
    files.push(hashFiles(other.repository));
  }
  assert.deepEqual(files[1], files[0]);
  assert.deepEqual(files[2], files[0]);
});

test('given and computed deltas equal a fresh base, and so does compaction', async (t) => {
  const workspace = new Workspace(t);
  const before = createRows(3000);
  const { after, changed, deletedKeys } = retrain(before);
  const [old, fresh] = [workspace.writeInput('old', before), workspace.writeInput('new', after)];
  const delta = workspace.writeInput('delta', changed);
  const deletes = join(workspace.folder, 'deleted.txt');
  writeFileSync(deletes, deletedKeys.join('\n'));
  await workspace.buildBase(old, '1');
  await workspace.buildBase(fresh, 'fresh');
  const on1 = ['--job-mode', 'delta', '--depend-version', '1'];
  await workspace.build(...on1, '--input-path', delta, '--deletes', deletes, '--cur-version', '2');
  await workspace.build(...on1, '--diff', old, fresh, '--cur-version', '3');
  await workspace.build(
    'diff',
    'version:1',
    'version:fresh',
    '--depend-version',
    '1',
    '--cur-version',
    '4',
  );
  for (const version of ['2', '3', '4']) {
    assert.deepEqual(sorted(await workspace.readRows(version)), sorted(after));
    const table = await workspace.readTable(version);
    assert.deepEqual(
      table.shards.map((layers) => layers.map(({ kind }) => kind)),
      Array.from({ length: SHARDS }, () => ['base', 'delta']),
    );
    assert.deepEqual(table.shards, (await workspace.readTable('2')).shards);
  }
  await workspace.build('compact', '--version', '2', '--cur-version', '5', '--memory', '16MiB');
  assert.deepEqual(
    (await workspace.readTable('5')).shards,
    (await workspace.readTable('fresh')).shards,
  );
  assert.deepEqual((await workspace.readTable('5')).rows, after.size);
});

test('a delta adds layers only to changed shards, up to --chain-max', async (t) => {
  const workspace = new Workspace(t);
  const rows = createRows(200);
  await workspace.buildBase(workspace.writeInput('1', rows), '1');
  let version = 1;
  const [key] = rows.keys();
  const next = async (): ReturnType<typeof runBuilder> =>
    workspace.run(
      '--job-mode',
      'delta',
      '--depend-version',
      String(version),
      '--chain-max',
      '3',
      '--input',
      workspace.writeInput('d', new Map([[key as bigint, version]])),
      '--cur-version',
      String(version + 1),
    );
  for (; version <= 2; version++) assert.equal((await next()).code, 0);
  const { shards } = await workspace.readTable('3');
  const lengths = shards.map((layers) => layers.length);
  assert.deepEqual([...lengths].sort(), [1, 1, 1, 3]);
  const { code, stderr } = await next();
  assert.equal(code, 1);
  assert.match(
    stderr,
    /already has 3 layers, and --chain-max is 3; .*cube-builder compact --version 3/,
  );
});

test('shards built separately are sealed to the same version as one build', async (t) => {
  const [apart, whole] = [new Workspace(t), new Workspace(t)];
  const rows = createRows(2000);
  const input = apart.writeInput('1', rows);
  const options = ['--input', input, '--shard-num', '4', '--cur-version', '1', '--dtype', 'i8'];
  const seal = (): ReturnType<typeof runBuilder> => apart.run('seal', '--version', '1');
  const nothing = await seal();
  assert.equal(nothing.code, 1);
  await apart.build(...options, '--only-shards', '0-1');
  const early = await seal();
  assert.match(
    early.stderr,
    /table t: shards 2-3 of 4 are missing; build them with --only-shards 2-3/,
  );
  assert.deepEqual(await openRepository(apart.repository).listVersions('b'), []);
  const others = apart.writeInput('other', createRows(2001));
  await apart.build(...options.with(1, others), '--only-shards', '3');
  await apart.build(...options, '--only-shards', '2');
  assert.match((await seal()).stderr, /shards 0-2 and 3 were built from different inputs/);
  await apart.build(...options.with(7, 'f16'), '--only-shards', '3');
  assert.match((await seal()).stderr, /built with different .*dtype of t \("i8" and "f16"\)/);
  // The same rows at another path and time are the same input.
  await apart.build(...options.with(1, apart.writeInput('copy', rows)), '--only-shards', '3');
  const sealed = await seal();
  assert.equal(sealed.code, 0, sealed.stderr);
  await whole.build(...options);
  const manifest = 'b/versions/1/manifest.json';
  assert.deepEqual(
    readFileSync(join(apart.repository, manifest)),
    readFileSync(join(whole.repository, manifest)),
  );
  assert.equal(
    Object.keys(hashFiles(join(apart.repository, 'b'))).some((f) => f.startsWith('.')),
    false,
  );
});

test('a version built with --only-build is published by seal', async (t) => {
  const workspace = new Workspace(t);
  await workspace.buildBase(workspace.writeInput('1', createRows(100)), '1', '--only-build');
  assert.deepEqual(await openRepository(workspace.repository).listVersions('b'), []);
  await workspace.build('seal', '--version', '1');
  assert.equal((await workspace.readTable('1')).rows, 100);
});

test('of duplicate keys the last wins, or the build fails with the key', async (t) => {
  const workspace = new Workspace(t);
  const input = join(workspace.folder, 't.csv');
  writeFileSync(input, 'key,a,b,c,d\n7,1,1,1,1\n8,2,2,2,2\n7,3,3,3,3\n');
  const options = ['--input', input, '--key-column', 'key', '--shard-num', '1'];
  const refused = await workspace.run(...options, '--cur-version', '1', '--on-duplicate', 'error');
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /^cube-builder: table t: duplicate key 7; --on-duplicate last/);
  await workspace.build(...options, '--cur-version', '1');
  assert.deepEqual(sorted(await workspace.readRows('1')), [
    [7n, 3],
    [8n, 2],
  ]);
});

test('a delta that does not fit its parent is refused', async (t) => {
  const workspace = new Workspace(t);
  await workspace.buildBase(workspace.writeInput('1', createRows(100)), '1');
  const refusals: [string[], RegExp][] = [
    [
      ['--input', workspace.writeInput('w', createRows(9), 8)],
      /a delta of f32 × 8 does not fit f32 × 4 of version 1/,
    ],
    [
      ['--input', workspace.writeInput('i', createRows(9)), '--dtype', 'i8'],
      /a delta of i8 × 4 does not fit f32 × 4/,
    ],
    [
      ['--input', workspace.writeInput('n', createRows(9)), '--shard-num', '5'],
      /version 1 has 4 shards/,
    ],
    [
      [
        '--diff',
        workspace.writeInput('a', createRows(9)),
        workspace.writeInput('b', createRows(9), 8),
      ],
      /cannot be compared/,
    ],
  ];
  for (const [args, expected] of refusals) {
    const { code, stderr } = await workspace.run(
      '--job-mode',
      'delta',
      '--depend-version',
      '1',
      '--cur-version',
      '2',
      ...args,
    );
    assert.equal(code, 1);
    assert.match(stderr, expected);
    assert.equal(stderr.trimEnd().split('\n').length, 1);
  }
  const refused = await workspace.run('compact', '--version', '1', '--cur-version', '2');
  assert.match(refused.stderr, /version 1 of b has no deltas/);
});
