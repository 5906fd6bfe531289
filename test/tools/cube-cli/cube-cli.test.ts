/** The cube-cli process on layer files and versions, compared with Maps of the expected rows. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { RowHasher } from '../../../lib/core/hash.ts';
import { keyToBigint } from '../../../lib/core/keys.ts';
import { layerPath } from '../../../lib/repository/layout.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runCommand } from '../../support/commands.ts';
import type { CommandResult } from '../../support/processes.ts';
import {
  activate,
  type LayerContent,
  makeKeys,
  makeRows,
  publish,
  type Rows,
  type TableSpec,
} from '../publish-version.ts';

const MAIN = join(import.meta.dirname, '..', '..', '..', 'tools', 'cube-cli', 'main.js');
const cli = (...args: string[]): Promise<CommandResult> =>
  runCommand('tools/cube-cli/main.js', ...args);

interface Line {
  readonly key: string;
  readonly table: string;
  readonly outcome: string;
  readonly shard: number;
  readonly version: string;
  readonly dtype: string;
  readonly layer?: string;
  readonly row?: number[];
  readonly raw?: string;
  readonly value?: string;
}

async function lines(...args: string[]): Promise<Line[]> {
  const { code, stdout, stderr } = await cli(...args, '--json');
  assert.equal(code, 0, stderr);
  return stdout
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Line);
}

const KEYS = [...makeKeys(300), 0n, 2n ** 64n - 1n];
const BASE = makeRows(KEYS, 4);
const CHAIN: readonly LayerContent[] = [
  { rows: BASE },
  { rows: makeRows(KEYS.slice(0, 40), 4, 0.5), deleted: KEYS.slice(40, 60) },
  { rows: makeRows([...KEYS.slice(50, 55), 12n, 13n], 4, 1), deleted: KEYS.slice(0, 7) },
];
const WIDE: TableSpec = {
  name: 'wide',
  dtype: 'f16',
  dim: 70,
  layers: [{ rows: makeRows(KEYS, 70) }],
};
const TEXTS: TableSpec = {
  name: 'texts',
  dtype: 'bytes',
  dim: 0,
  layers: [{ rows: new Map(KEYS.map((key, i) => [key, [...Buffer.from(`text ${i}`)]])) }],
};
const IDS: TableSpec = {
  name: 'ids',
  dtype: 'i8',
  dim: 3,
  layers: [{ rows: new Map(Array.from({ length: 100 }, (_, i) => [BigInt(i), [0, i, 255]])) }],
};
const SLOTS = [{ name: 'C1', index: 14 }];
const HASH = { scheme: 'xxh64-concat', seed: 7n, modulo: 100n } as const;

/** Applies a chain of layers, base first, to one Map of live rows. */
function mergeLayers(layers: readonly LayerContent[]): Map<bigint, readonly number[]> {
  const map = new Map<bigint, readonly number[]>();
  for (const { rows, deleted = [] } of layers) {
    for (const key of deleted) map.delete(key);
    for (const [key, row] of rows) map.set(key, row);
  }
  return map;
}

async function publishVersions(t: TestContext): Promise<string> {
  const root = join(temporaryFolder(t), 'repository');
  const users: TableSpec = { name: 'users', dim: 4, layers: [{ rows: BASE }] };
  const rest = { shardNum: 3, hash: HASH, slots: SLOTS };
  await publish(root, { version: '1', tables: [users, WIDE, TEXTS, IDS], ...rest });
  const chain = { ...users, layers: CHAIN };
  await publish(root, { version: '2', tables: [chain, WIDE, TEXTS, IDS], ...rest });
  await activate(root, '2');
  return root;
}

test('seek finds the newest row of every key and respects deletions', async (t) => {
  const root = await publishVersions(t);
  const version = ['--repository', root, '--bundle', 'b'];
  const probes = [...KEYS, 12n, 13n, 999n];
  const file = join(root, '..', 'keys.txt');
  const hex = (key: bigint, i: number): string =>
    i % 2 === 0 ? String(key) : `0x${key.toString(16)}`;
  writeFileSync(file, `# keys\n\n${probes.map(hex).join('\r\n')}`);
  const users = await lines('seek', ...version, '--table', 'users', '--keys', file);
  const map = mergeLayers(CHAIN);
  const everDeleted = new Set(CHAIN.flatMap(({ deleted = [] }) => deleted));
  probes.forEach((key, i) => {
    const line = users[i]!;
    const row = map.get(key);
    const missing = everDeleted.has(key) ? 'deleted' : 'unseen';
    assert.equal(line.key, String(key));
    assert.equal(line.outcome, row === undefined ? missing : 'hit');
    assert.deepEqual(line.row, row && [...row]);
    assert.equal(line.shard, Number(key % 3n));
    assert.deepEqual([line.version, line.dtype], ['2', 'f32']);
  });
  const [key] = KEYS as [bigint];
  const all = await lines('seek', String(key), '5', ...version, '--version', '1');
  assert.deepEqual(
    all.map(({ table, outcome }) => `${table} ${outcome}`),
    [
      'users hit',
      'users unseen',
      'wide hit',
      'wide unseen',
      'texts hit',
      'texts unseen',
      'ids unseen',
      'ids hit',
    ],
  );
  assert.deepEqual(all[2]!.row, makeRows([key], 70).get(key));
  assert.equal(Buffer.from(all[4]!.value!, 'base64').toString(), 'text 0');
  assert.ok(
    all[7]!.row!.every((x, i) => Math.abs(x - [0, 5, 255][i]!) < 1),
    String(all[7]!.row),
  );
  const text = await cli('seek', String(key), ...version, '--version', '1');
  assert.match(text.stdout, /^key +table +outcome +shard +version +dtype +row\n/);
  assert.match(text.stdout, /texts +hit +\d +1 +bytes +"text 0"/);
});

test('seek reads a single layer file and hashes features as the manifest defines', async (t) => {
  const root = await publishVersions(t);
  const version = ['--file', join(root, 'b', 'versions', '2')];
  const [line] = await lines('seek', String(KEYS[100]), ...version, '--table', 'users');
  assert.ok(line);
  const path = join(root, layerPath('b', 'users', line.layer!));
  const found = await lines('seek', ...KEYS.slice(100, 104).map(String), '--file', path, '--raw');
  found.forEach(({ outcome, shard, raw }, i) => {
    const key = KEYS[100 + i]!;
    assert.equal(shard, Number(key % 3n));
    assert.equal(outcome, shard === line.shard ? 'hit' : 'other-shard');
    const row = Buffer.from(Float32Array.from(BASE.get(key)!).buffer).toString('hex');
    assert.equal(raw, outcome === 'hit' ? row : undefined);
  });
  const keys = new Uint32Array(2);
  new RowHasher(HASH, SLOTS).hashRows(['68fd1e64'], 1, keys);
  const hashed = await lines(
    'seek',
    '--slot',
    'C1',
    '--feature',
    '68fd1e64',
    '--table',
    'ids',
    '--file',
    join(root, 'b', 'versions', '2', 'manifest.json'),
  );
  assert.equal(hashed[0]!.key, String(keyToBigint(keys, 0)));
  assert.equal(hashed[0]?.outcome, 'hit');
  const unknown = await cli('seek', '--slot', 'C9', '--feature', 'x', ...version);
  assert.deepEqual([unknown.code, /no slot "C9" \(it has: C1\)/.test(unknown.stderr)], [1, true]);
});

test('stat describes layer files and versions', async (t) => {
  const root = await publishVersions(t);
  const version = ['--repository', root, '--bundle', 'b'];
  const { stdout } = await cli('stat', ...version);
  assert.match(stdout, /^b 2: 4 tables in 3 shards, keys xxh64-concat mod 100, 1 slots/);
  assert.match(stdout, /users +4 +f32 +349 +[\d.]+ kB +3\n/);
  const json = JSON.parse((await cli('stat', ...version, '--json')).stdout);
  assert.deepEqual(
    json.tables[0].shards.map(({ layers }: { layers: number }) => layers),
    [3, 3, 3],
  );
  const [line] = await lines('seek', String(KEYS[100]), ...version, '--table', 'users');
  assert.ok(line);
  const path = join(root, layerPath('b', 'users', line.layer!));
  const layer = JSON.parse((await cli('stat', '--file', path, '--json')).stdout);
  assert.deepEqual([layer.table, layer.kind, layer.shardNum], ['users', 'base', 3]);
});

test('sample draws the same live rows for the same seed, and at most all rows', async (t) => {
  const root = await publishVersions(t);
  const from = ['--repository', root, '--bundle', 'b', '--table', 'users'];
  const drawn = await lines('sample', '20', ...from, '--seed', '5');
  assert.deepEqual(await lines('sample', '20', ...from, '--seed', '5'), drawn);
  assert.notDeepEqual(await lines('sample', '20', ...from, '--seed', '6'), drawn);
  const map = mergeLayers(CHAIN);
  for (const { key, row } of drawn) assert.deepEqual(row, map.get(BigInt(key)));
  assert.equal(new Set(drawn.map(({ key }) => key)).size, 20);
  const all = await lines('sample', '1000', ...from);
  assert.deepEqual(all.map(({ key }) => BigInt(key)).sort(), [...map.keys()].sort());
});

test('sample of a large layer draws slots and skips replaced rows', async (t) => {
  const root = join(temporaryFolder(t), 'repository');
  const keys = makeKeys(220_000);
  const deleted = new Set(keys.filter((_, i) => i % 2 === 0));
  const layers = [{ rows: makeRows(keys, 1) }, { rows: new Map(), deleted: [...deleted] }];
  await publish(root, { version: '1', shardNum: 1, tables: [{ name: 'big', dim: 1, layers }] });
  const drawn = await lines('sample', '200', '--file', join(root, 'b', 'versions', '1'));
  assert.equal(new Set(drawn.map(({ key }) => key)).size, 200);
  assert.ok(drawn.every(({ key, outcome }) => outcome === 'hit' && !deleted.has(BigInt(key))));
});

interface Difference {
  added: string[];
  removed: string[];
  changed: string[];
  max: number;
}

function difference(before: Rows, after: Rows): Difference {
  const found: Difference = { added: [], removed: [], changed: [], max: 0 };
  for (const [key, row] of after) {
    const old = before.get(key);
    if (old === undefined) found.added.push(String(key));
    else if (row.some((x, i) => x !== old[i])) {
      found.changed.push(String(key));
      found.max = Math.max(found.max, ...row.map((x, i) => Math.abs(x - old[i]!)));
    }
  }
  for (const key of before.keys()) if (!after.has(key)) found.removed.push(String(key));
  return found;
}

test('diff compares deltas, new bases, other shard counts and other dtypes', async (t) => {
  const root = await publishVersions(t);
  const third: readonly LayerContent[] = [
    { rows: makeRows([...KEYS.slice(20), ...makeKeys(50, 1000)], 4, 0.25) },
    { rows: makeRows(KEYS.slice(10, 30), 4), deleted: KEYS.slice(100, 120) },
  ];
  const dense = new Map(Array.from({ length: 90 }, (_, i) => [BigInt(i), [i, i, i, i]]));
  const users: TableSpec = { name: 'users', dim: 4, layers: third };
  await publish(root, { version: '3', shardNum: 4, tables: [{ ...users, indexed: true }] });
  await publish(root, {
    version: '4',
    shardNum: 3,
    tables: [{ ...users, layers: [...CHAIN, ...third.slice(1)] }],
  });
  await publish(root, { version: '5', shardNum: 2, tables: [{ ...users, dtype: 'f16' }] });
  await publish(root, {
    version: '6',
    shardNum: 3,
    tables: [{ ...users, layers: [{ rows: dense }] }],
  });
  const contents: Record<string, Rows> = {
    '1': BASE,
    '2': mergeLayers(CHAIN),
    '3': mergeLayers(third),
    '4': mergeLayers([...CHAIN, ...third.slice(1)]),
    '5': mergeLayers(third),
    '6': dense,
  };
  for (const pair of ['1 2', '2 1', '1 1', '2 3', '3 2', '2 4', '4 2', '3 5', '6 1', '1 6']) {
    const [one, other] = pair.split(' ') as [string, string];
    const { code, stdout, stderr } = await cli(
      'diff',
      one,
      other,
      '--repository',
      root,
      '--bundle',
      'b',
      '--json',
      '--limit',
      '1000',
      '--table',
      'users',
    );
    assert.equal(code, 0, stderr);
    const [table] = JSON.parse(stdout).tables;
    const expected = difference(contents[one]!, contents[other]!);
    for (const change of ['added', 'removed', 'changed'] as const) {
      const listed = table.examples.filter(
        (example: { change: string }) => example.change === change,
      );
      const keys = listed.map(({ key }: { key: string }) => key);
      assert.deepEqual(keys.sort(), [...expected[change]].sort(), `${pair}: ${change}`);
      assert.equal(table[change], expected[change].length);
      const perShard = table.shards.map((shard: Record<string, number>) => shard[change]);
      assert.equal(
        perShard.reduce((sum: number, n: number) => sum + n, 0),
        table[change],
      );
    }
    assert.ok(Math.abs(table.maxAbsDifference - expected.max) < 1e-6, pair);
  }
  const folder = (version: string): string => join(root, 'b', 'versions', version);
  const text = await cli('diff', folder('2'), folder('3'), '--limit', '1');
  assert.match(text.stdout, /users +\d+ +\d+ +\d+ +[\d.]+ +f32 4, 3 shards → f32 4, 4 shards/);
  assert.match(text.stdout, /wide .* the table was removed/);
  assert.match(text.stdout, /^added +users +\d+ +- +[\d. ]+$/m);
});

test('exits with 2 for wrong usage, 1 for missing data, and 0 after a closed pipe', async (t) => {
  const root = await publishVersions(t);
  const version = ['--repository', root, '--bundle', 'b'];
  for (const args of [
    ['seek', ...version],
    ['seek', '-5', ...version],
    ['seek', ...version, '--', '-5'],
    ['seek', '18446744073709551616', ...version],
    ['seek', '1.5', ...version],
    ['seek', '0xg', ...version],
    ['seek', '1'],
    ['seek', '1', '--repository', root],
    ['seek', '1', ...version, '--file', root],
    ['seek', '1', ...version, '--slot', 'C1'],
    ['seek', '1', '--server', 'nowhere'],
    ['seek', '1', '--server', '127.0.0.1:1'],
    ['seek', '1', '--cube-conf', 'x.conf'],
    ['stat'],
    ['sample', '0', ...version],
    ['diff', '1', '2'],
    ['nonsense'],
  ]) {
    const { code, stderr } = await cli(...args);
    assert.equal(code, 2, `${args.join(' ')}: ${stderr}`);
    assert.doesNotMatch(stderr, /\n {4}at /);
  }
  for (const args of [
    ['seek', '1', ...version, '--version', '9'],
    ['seek', '1', ...version, '--table', 'nothing'],
    ['seek', '1', '--file', join(root, 'absent.cube')],
  ]) {
    assert.equal((await cli(...args)).code, 1, args.join(' '));
  }
  const bad = join(root, '..', 'bad.txt');
  writeFileSync(bad, '1\n2 3\n');
  const line = await cli('seek', '--keys', bad, ...version);
  assert.deepEqual([line.code, /bad\.txt, line 2: a key is/.test(line.stderr)], [1, true]);
  const keys = join(root, '..', 'many.txt');
  writeFileSync(keys, Array.from({ length: 30_000 }, (_, i) => i).join('\n'));
  const script =
    '{ "$0" "$1" seek --keys - --repository "$2" --bundle b < "$3"; ' +
    'echo "exit $?" >&2; } | head -1';
  const piped = spawnSync('sh', ['-c', script, process.execPath, MAIN, root, keys], {
    encoding: 'utf8',
  });
  assert.match(piped.stdout, /^key +table/);
  assert.equal(piped.stderr, 'exit 0\n');
});
