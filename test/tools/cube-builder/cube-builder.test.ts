/** The real cube-builder process: what it publishes, and what it refuses. */
import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { encodeNpyHeader } from '../../../lib/core/npy.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { readLayerRows } from '../../../lib/store/layer-file.ts';
import { type Finished, runCommand, startProcess } from '../../cube-agent/processes.ts';
import { temporaryFolder } from '../../repository/fixtures.ts';
import { element, graphOf, type TableWish, writePruned } from './fixtures.ts';
import { builderHere } from './tables.ts';

const TABLES = [
  { name: 'a', rows: 1001, dim: 10 },
  { name: 'emb.wide', rows: 3, dim: 64 },
  { name: 'none', rows: 0, dim: 4 },
];

function argsOf(input: string, repository: string, more: readonly string[]): string[] {
  const options = ['--shard-num', '4', '--output-path', repository, '--cur-version', '1'];
  return ['--input', input, ...options, ...more];
}

function build(input: string, repository: string, ...more: string[]): Promise<Finished> {
  return runCommand('tools/cube-builder/main.js', ...argsOf(input, repository, more));
}

/** The same in this process, where it is refused. */
function buildHere(
  input: string,
  repository: string,
  ...more: string[]
): ReturnType<typeof builderHere> {
  return builderHere(...argsOf(input, repository, more));
}

function place(
  t: TestContext,
  tables: readonly TableWish[] = TABLES,
): { input: string; target: string } {
  const folder = temporaryFolder(t);
  return { input: writePruned(join(folder, 'out'), tables), target: join(folder, 'repository') };
}

/** Every row of a published table, read back from its layers: key → row. */
async function rowsOf(target: string, name: string): Promise<Map<number, number[]>> {
  const repository = openRepository(target);
  const manifest = await repository.manifest('ctr', '1');
  const table = manifest.tables.find((candidate) => candidate.name === name);
  const rows = new Map<number, number[]>();
  assert.ok(table !== undefined);
  table.shards.forEach(([layer], shard) => {
    const path = repository.layerTarget('ctr', name, layer?.contentId ?? '');
    for (const batch of readLayerRows(path)) {
      const values = new Float32Array(batch.rows.slice().buffer);
      for (let i = 0; i < batch.count; i++) {
        const key = (batch.keys[2 * i] ?? 0) + (batch.keys[2 * i + 1] ?? 0) * 2 ** 32;
        assert.equal(key % table.shardNum, shard);
        rows.set(key, [...values.subarray(i * table.dim, (i + 1) * table.dim)]);
      }
    }
  });
  return rows;
}

test('every row is published under its number, with what the model knows of its features', async (t) => {
  const { input, target } = place(t);
  const golden = join(input, 'golden.jsonl');
  writeFileSync(golden, '{"row":1}\n{"row":2}\n');
  const { code, stdout, stderr } = await build(
    input,
    target,
    '--bundle',
    'ctr',
    '--golden',
    golden,
  );
  assert.equal(code, 0, stderr);
  assert.match(stdout, /^published version 1 of ctr in .*repository\n {2}tables {2}3\n/);
  for (const { name, rows, dim } of TABLES) {
    const found = await rowsOf(target, name);
    assert.equal(found.size, rows);
    for (const [i, row] of found) {
      assert.deepEqual(
        row,
        Array.from({ length: dim }, (_, j) => element(name, i, j)),
      );
    }
  }
  const repository = openRepository(target);
  const manifest = await repository.manifest('ctr', '1');
  assert.deepEqual(manifest.hash, { scheme: 'xxh64-concat', seed: 7n, modulo: 1000n });
  assert.deepEqual(manifest.slots, [{ name: 'C1', index: 14 }]);
  assert.deepEqual(
    manifest.files.map(({ path }) => path),
    ['model.onnx', 'slots.json', 'golden.jsonl'],
  );
  const slots = await repository.readVersionFile('ctr', '1', 'slots.json');
  assert.deepEqual(Buffer.from(slots), readFileSync(join(input, 'slots.json')));
});

test('the same input gives the same bytes; building again says that it is there', async (t) => {
  const one = place(t);
  const two = place(t);
  assert.equal((await build(one.input, one.target, '--bundle', 'ctr')).code, 0);
  assert.equal((await build(two.input, two.target, '--dict-name', 'ctr')).code, 0);
  const files = (folder: string): string[] =>
    readdirSync(folder, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name).slice(folder.length))
      .sort();
  assert.deepEqual(files(one.target), files(two.target));
  for (const file of files(one.target)) {
    assert.deepEqual(readFileSync(one.target + file), readFileSync(two.target + file));
  }
  const again = await build(one.input, one.target, '--bundle', 'ctr', '--json');
  assert.equal(again.code, 0);
  const { published, layersNew, layersShared } = JSON.parse(again.stdout);
  assert.deepEqual(
    { published, layersNew, layersShared },
    { published: false, layersNew: 0, layersShared: 12 },
  );
});

test('a version shares the layers of tables that did not change; other content is refused', async (t) => {
  const { input, target } = place(t);
  await build(input, target, '--bundle', 'ctr');
  writeFileSync(join(input, 'model.onnx'), graphOf(TABLES, 'another graph'));
  const refused = await build(input, target, '--bundle', 'ctr');
  assert.equal(refused.code, 1);
  assert.match(
    refused.stderr,
    /^cube-builder: version 1 of ctr is published .* with other content/,
  );
  const next = await build(input, target, '--bundle', 'ctr', '--cur-version', '2', '--json');
  const { published, layersNew, layersShared } = JSON.parse(next.stdout);
  assert.deepEqual(
    { published, layersNew, layersShared },
    { published: true, layersNew: 0, layersShared: 12 },
  );
});

test('a build that is killed publishes nothing, and running it again completes it', async (t) => {
  const { input, target } = place(t, [
    { name: 'a', rows: 60_000, dim: 16 },
    { name: 'b', rows: 60_000, dim: 16 },
  ]);
  const options = ['--input', input, '--shard-num', '16', '--output-path', target];
  let killed = 0;
  for (let round = 0; round < 12; round++) {
    const args = [...options, '--cur-version', '1', '--bundle', 'ctr'];
    const child = startProcess('tools/cube-builder/main.js', args);
    const exit = new Promise<number | null>((resolve) => child.once('exit', resolve));
    setTimeout(() => child.kill('SIGKILL'), 60 + round * 15);
    if ((await exit) === null) killed += 1;
    mkdirSync(target, { recursive: true });
    const repository = openRepository(target);
    for (const version of await repository.versions('ctr')) {
      await repository.readVersionFile('ctr', version, 'model.onnx');
      assert.equal((await rowsOf(target, 'b')).size, 60_000);
    }
  }
  assert.ok(killed > 0);
  const { code, stderr } = await build(input, target, '--bundle', 'ctr', '--shard-num', '16');
  assert.equal(code, 0, stderr);
  const rows = await rowsOf(target, 'a');
  assert.deepEqual(rows.get(59_999)?.[3], element('a', 59_999, 3));
});

/** Spoils an input; nothing may be published, and the one line on stderr must say what is wrong. */
const WRONG_INPUTS: Readonly<Record<string, [(input: string) => void, RegExp]>> = {
  'no slots.json': [
    (input) => rmSync(join(input, 'slots.json')),
    /has no slots\.json; --input is a folder/,
  ],
  'no model.onnx': [(input) => rmSync(join(input, 'model.onnx')), /has no model\.onnx/],
  'an empty model.onnx': [
    (input) => writeFileSync(join(input, 'model.onnx'), ''),
    /model\.onnx is empty/,
  ],
  'a truncated model.onnx': [
    (input) => truncateSync(join(input, 'model.onnx'), 100),
    /model\.onnx: onnxruntime cannot load it: .*; prune the model again/,
  ],
  'the graph of another model': [
    (input) => writeFileSync(join(input, 'model.onnx'), graphOf(TABLES.slice(1), 'graph')),
    /model\.onnx has no input "input of a", which slots\.json names/,
  ],
  'slots.json is not JSON': [
    (input) => writeFileSync(join(input, 'slots.json'), '{'),
    /slots\.json: not JSON/,
  ],
  'slots.json of another format': [
    (input) => writeFileSync(join(input, 'slots.json'), '{"format":9}'),
    /slots\.json: format: expected/,
  ],
  'a table is missing': [
    (input) => rmSync(join(input, 'tables/a.npy')),
    /tables\/a\.npy: no such file/,
  ],
  'a truncated table': [
    (input) => truncateSync(join(input, 'tables/a.npy'), 5000),
    /a\.npy is truncated: shape \(1001, 10\) of f4 is 40040 bytes/,
  ],
  'an empty table file': [(input) => writeFileSync(join(input, 'tables/a.npy'), ''), /a\.npy/],
  'another shape': [
    (input) => writeFileSync(join(input, 'tables/a.npy'), encodeNpyHeader('f4', [0, 10])),
    /a\.npy: shape \(0, 10\), slots\.json says \(1001, 10\)/,
  ],
};

for (const [name, [spoil, expected]] of Object.entries(WRONG_INPUTS)) {
  test(`refused in one line: ${name}`, async (t) => {
    const { input, target } = place(t);
    spoil(input);
    const { code, stderr } = await buildHere(input, target, '--bundle', 'ctr');
    assert.equal(code, 1);
    assert.match(stderr, expected);
    assert.equal(stderr.trimEnd().split('\n').length, 1);
    assert.deepEqual(readdirSync(temporaryParent(target)).includes('repository'), false);
  });
}

const temporaryParent = (target: string): string => join(target, '..');

test('refused: folders that are none, are no repository or cannot be written', async (t) => {
  const { input, target } = place(t);
  const check = async (from: string, to: string, expected: RegExp): Promise<void> => {
    const { code, stderr } = await buildHere(from, to, '--bundle', 'ctr');
    assert.equal(code, 1);
    assert.match(stderr, expected);
    assert.equal(stderr.trimEnd().split('\n').length, 1);
  };
  await check(join(input, 'nowhere'), target, /nowhere: no such file or folder/);
  await check(input, input, /--output-path .*out is not a repository: it holds model\.onnx/);
  await check(
    input,
    join(input, 'model.onnx'),
    /cannot make the folder .*model\.onnx: a file of that name is in the way/,
  );
  await check(
    input,
    join(input, 'model.onnx', 'x'),
    /cannot make the folder .*(a part of the path is not|a file of that name is in the way)/,
  );
});

test('wrong flags: exit 2 and what to do', async (t) => {
  const { input, target } = place(t);
  for (const [args, expected] of [
    [['--bundle', '../x'], /bundle: expected a name/],
    [['--bundle', 'ctr', '--cur-version', '.1'], /version: expected a name/],
    [['--bundle', 'ctr', '--shard-num', '0'], /Expected an integer in 1\.\.65536/],
    [['--bundle', 'ctr', '--shard-num', 'four'], /Expected an integer/],
    [['--bundle', 'ctr', '--unknown'], /unknown option/],
    [['--bundle', 'a', '--dict-name', 'b'], /name two models/],
    [[], /--bundle is missing/],
  ] as const) {
    const { code, stderr } = await buildHere(input, target, ...args);
    assert.equal(code, 2, stderr);
    assert.match(stderr, expected);
  }
  assert.equal((await runCommand('tools/cube-builder/main.js', '--help')).code, 0);
});

test('golden requests that are not JSON lines are refused', async (t) => {
  const { input, target } = place(t);
  const golden = join(input, 'golden.jsonl');
  writeFileSync(golden, '{"row":1}\n{"row":\n');
  const { code, stderr } = await build(input, target, '--bundle', 'ctr', '--golden', golden);
  assert.equal(code, 1);
  assert.match(stderr, /golden\.jsonl: line 2: not JSON/);
});
