/** Published versions and refused inputs. */
import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { encodeNpyHeader } from '../../../lib/core/npy.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { readLayerRows } from '../../../lib/store/layer-file.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runCommand } from '../../support/commands.ts';
import { type CommandResult, runProcess, startProcess } from '../../support/processes.ts';
import { encodeKeys, encodeNpy } from './sources/support/writers.ts';
import {
  computeElement,
  createGraph,
  type TableSpec,
  writePrunedModel,
} from './support/pruned-model.ts';

const TABLES = [
  { name: 'a', rows: 1001, dim: 10 },
  { name: 'emb.wide', rows: 3, dim: 64 },
  { name: 'none', rows: 0, dim: 4 },
];

function createArgs(input: string, repository: string, more: readonly string[]): string[] {
  const options = ['--shard-num', '4', '--output-path', repository, '--cur-version', '1'];
  return ['--input', input, ...options, ...more];
}

function build(input: string, repository: string, ...more: string[]): Promise<CommandResult> {
  return runCommand('tools/cube-builder/main.js', ...createArgs(input, repository, more));
}

function createWorkspace(
  t: TestContext,
  tables: readonly TableSpec[] = TABLES,
): { input: string; target: string } {
  const folder = temporaryFolder(t);
  return {
    input: writePrunedModel(join(folder, 'out'), tables),
    target: join(folder, 'repository'),
  };
}

/** Reads all rows of a published table from its layers: key → row. */
async function readRows(target: string, name: string): Promise<Map<number, number[]>> {
  const repository = openRepository(target);
  const manifest = await repository.readManifest('ctr', '1');
  const table = manifest.tables.find((candidate) => candidate.name === name);
  const rows = new Map<number, number[]>();
  assert.ok(table !== undefined);
  table.shards.forEach(([layer], shard) => {
    const path = repository.layerWritePath('ctr', name, layer?.contentId ?? '');
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

test('rows are published under their numbers, with hash and files of the model', async (t) => {
  const { input, target } = createWorkspace(t);
  const golden = join(input, 'golden.jsonl');
  writeFileSync(golden, '{"C1":"a"}\n{"C1":"b"}\n');
  const args = createArgs(input, target, toArguments({ bundle: 'ctr', golden }));
  const { code, stdout, stderr } = await runProcess('tools/cube-builder/main.js', ...args);
  assert.equal(code, 0, stderr);
  assert.match(stdout, /^published version 1 of ctr in .*repository\n {2}tables {2}3\n/);
  for (const { name, rows, dim } of TABLES) {
    const found = await readRows(target, name);
    assert.equal(found.size, rows);
    for (const [i, row] of found) {
      assert.deepEqual(
        row,
        Array.from({ length: dim }, (_, j) => computeElement(name, i, j)),
      );
    }
  }
  const repository = openRepository(target);
  const manifest = await repository.readManifest('ctr', '1');
  assert.deepEqual(manifest.hash, { scheme: 'xxh64-concat', seed: 7n, modulo: 100_000n });
  assert.deepEqual(manifest.slots, [
    { name: 'C1', index: 14, modulo: 1001n },
    { name: 'C2', index: 15, modulo: 3n },
    { name: 'C3', index: 16, modulo: 0n },
  ]);
  assert.deepEqual(
    manifest.files.map(({ path }) => path),
    ['model.onnx', 'slots.json', 'golden.jsonl'],
  );
  const slots = await repository.readVersionFile('ctr', '1', 'slots.json');
  assert.deepEqual(Buffer.from(slots), readFileSync(join(input, 'slots.json')));
});

test('equal input gives equal bytes, and a rebuild reports an existing version', async (t) => {
  const one = createWorkspace(t);
  const two = createWorkspace(t);
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

test('a rebuild restores missing files and layers of its version', async (t) => {
  const { input, target } = createWorkspace(t);
  await build(input, target, '--bundle', 'ctr');
  const layers = join(target, 'ctr/layers');
  const table = readdirSync(layers)[0]!;
  const layer = join(layers, table, readdirSync(join(layers, table))[0]!);
  const files = [layer, join(target, 'ctr/versions/1/slots.json')];
  const contents = files.map((file) => readFileSync(file));
  for (const file of files) rmSync(file);
  const again = await build(input, target, '--bundle', 'ctr');
  assert.equal(again.code, 0, again.stderr);
  assert.match(
    again.stdout,
    /already published in .* with this content; missing files restored: 2/,
  );
  assert.deepEqual(
    files.map((file) => readFileSync(file)),
    contents,
  );
});

test('versions share layers of unchanged tables, and a version cannot change', async (t) => {
  const { input, target } = createWorkspace(t);
  await build(input, target, '--bundle', 'ctr');
  writeFileSync(join(input, 'model.onnx'), createGraph(TABLES, 'another graph'));
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

test('a killed build publishes nothing, and the next run completes it', async (t) => {
  const { input, target } = createWorkspace(t, [
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
    for (const version of await repository.listVersions('ctr')) {
      await repository.readVersionFile('ctr', version, 'model.onnx');
      assert.equal((await readRows(target, 'b')).size, 60_000);
    }
  }
  assert.ok(killed > 0);
  const { code, stderr } = await build(input, target, '--bundle', 'ctr', '--shard-num', '16');
  assert.equal(code, 0, stderr);
  const rows = await readRows(target, 'a');
  assert.deepEqual(rows.get(59_999)?.[3], computeElement('a', 59_999, 3));
});

/** Damages an input. Nothing may be published, and one line on stderr must name the cause. */
const WRONG_INPUTS: Readonly<Record<string, [(input: string) => void, RegExp]>> = {
  'no slots.json': [
    (input) => rmSync(join(input, 'slots.json')),
    /has no slots\.json; --input must be an output folder of prune-model/,
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
    (input) => writeFileSync(join(input, 'model.onnx'), createGraph(TABLES.slice(1), 'graph')),
    /model\.onnx has no input "input of a", which slots\.json requires/,
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
    /a\.npy is truncated: shape \(1001, 10\) of f4 needs 40040 bytes/,
  ],
  'an empty table file': [(input) => writeFileSync(join(input, 'tables/a.npy'), ''), /a\.npy/],
  'another shape': [
    (input) => writeFileSync(join(input, 'tables/a.npy'), encodeNpyHeader('f4', [0, 10])),
    /a\.npy: shape \(0, 10\), but slots\.json says \(1001, 10\)/,
  ],
};

for (const [name, [damage, expected]] of Object.entries(WRONG_INPUTS)) {
  test(`a build fails with a one-line error: ${name}`, async (t) => {
    const { input, target } = createWorkspace(t);
    damage(input);
    const { code, stderr } = await build(input, target, '--bundle', 'ctr');
    assert.equal(code, 1);
    assert.match(stderr, expected);
    assert.equal(stderr.trimEnd().split('\n').length, 1);
    assert.deepEqual(readdirSync(getParent(target)).includes('repository'), false);
  });
}

const getParent = (target: string): string => join(target, '..');

test('missing inputs, foreign folders and unwritable folders are refused', async (t) => {
  const { input, target } = createWorkspace(t);
  const check = async (from: string, to: string, expected: RegExp): Promise<void> => {
    const { code, stderr } = await build(from, to, '--bundle', 'ctr');
    assert.equal(code, 1);
    assert.match(stderr, expected);
    assert.equal(stderr.trimEnd().split('\n').length, 1);
  };
  await check(join(input, 'nowhere'), target, /nowhere: no such file or folder/);
  await check(input, input, /--output-path .*out is not a repository: it contains model\.onnx/);
  await check(
    input,
    join(input, 'model.onnx'),
    /cannot make the folder .*model\.onnx: a file of that name exists/,
  );
  await check(
    input,
    join(input, 'model.onnx', 'x'),
    /cannot make the folder .*(a part of the path is not|a file of that name exists)/,
  );
});

test('wrong flags exit with code 2 and explain the fix', async (t) => {
  const { input, target } = createWorkspace(t);
  for (const [args, expected] of [
    [['--bundle', '../x'], /bundle: expected a name/],
    [['--bundle', 'ctr', '--cur-version', '.1'], /version: expected a name/],
    [['--bundle', 'ctr', '--shard-num', '0'], /Expected an integer from 1 to 65536/],
    [['--bundle', 'ctr', '--shard-num', 'four'], /Expected an integer/],
    [['--bundle', 'ctr', '--unknown'], /unknown option/],
    [['--bundle', 'a', '--dict-name', 'b'], /name different models/],
    [[], /--bundle is missing/],
  ] as const) {
    const { code, stderr } = await build(input, target, ...args);
    assert.equal(code, 2, stderr);
    assert.match(stderr, expected);
  }
  assert.equal((await runProcess('tools/cube-builder/main.js', '--help')).code, 0);
});

test('golden rows that are not JSON lines, or missing, are refused', async (t) => {
  const { input, target } = createWorkspace(t);
  const golden = join(input, 'golden.jsonl');
  writeFileSync(golden, '{"C1":"a"}\n{"C1":\n');
  const { code, stderr } = await build(input, target, '--bundle', 'ctr', '--golden', golden);
  assert.equal(code, 1);
  assert.match(stderr, /golden\.jsonl: line 2: not JSON/);
  writeFileSync(golden, '{"C1":"a"}\n{"C9":"b"}\n');
  const unknown = await build(input, target, '--bundle', 'ctr', '--golden', golden);
  assert.match(unknown.stderr, /golden\.jsonl: line 2: \[0\]: unknown field "C9" \(known/);
  writeFileSync(golden, '1\ta\n');
  const tsv = await build(input, target, '--bundle', 'ctr', '--golden', golden);
  assert.match(tsv.stderr, /golden\.jsonl: line 1: not a JSON object; golden rows are JSON lines/);
  writeFileSync(golden, '\n\n');
  const empty = await build(input, target, '--bundle', 'ctr', '--golden', golden);
  assert.match(
    empty.stderr,
    /golden\.jsonl has no rows; give a file with one JSON row in each line/,
  );
});

test('a delta whose model computes other keys is refused', async (t) => {
  const { input, target } = createWorkspace(t);
  assert.equal((await build(input, target, '--bundle', 'ctr')).code, 0);
  const path = join(input, 'slots.json');
  const spec = JSON.parse(readFileSync(path, 'utf8'));
  spec.features.slots[0].modulo = '70000';
  writeFileSync(path, JSON.stringify(spec));
  const args = ['--input', input, '--output-path', target, '--bundle', 'ctr', '--cur-version', '2'];
  const delta = ['--job-mode', 'delta', '--depend-version', '1'];
  const { code, stderr } = await runCommand('tools/cube-builder/main.js', ...args, ...delta);
  assert.equal(code, 1);
  assert.match(stderr, /keys of slot C1 differently from parent version 1 .*; build a base/);
});

test('keys beyond a table, columns beyond the output and bags of ids are refused', async (t) => {
  const { input, target } = createWorkspace(t);
  const path = join(input, 'slots.json');
  const text = readFileSync(path, 'utf8');
  const tooLarge = /its slot C1 has modulo 1002, but table "a" has 1001 rows; .* at most 1001/;
  for (const [from, to, expected] of [
    ['"1001"', '"1002"', tooLarge],
    ['"1001"', '"0"', /its slot C1 has unbounded keys \(modulo 0\), but table "a" has 1001 rows/],
    ['"column":0', '"column":1', /its click column 1 is outside the output "prob" \[batch\]/],
  ] as const) {
    writeFileSync(path, text.replace(from, to));
    const { code, stderr } = await build(input, target, '--bundle', 'ctr');
    assert.equal(code, 1);
    assert.match(stderr, expected);
  }
  const bags = JSON.parse(text);
  bags.ids = [{ input: 'ids', dtype: 'int64', columns: 1, slots: ['C1'], kept: true }];
  bags.features.slots[0].pooling = 'sum';
  writeFileSync(path, JSON.stringify(bags));
  const pooled = await build(input, target, '--bundle', 'ctr');
  assert.match(pooled.stderr, /the graph input ids takes the ids themselves, .* not a bag/);
  writeFileSync(path, text.replace('"1001"', '"1002"'));
  const keys = encodeNpy(
    'u8',
    [1001],
    encodeKeys(Array.from({ length: 1001 }, (_, i) => BigInt(i))),
  );
  writeFileSync(join(input, 'tables', 'a.keys.npy'), keys);
  const keyed = await build(input, target, '--bundle', 'ctr');
  assert.equal(keyed.code, 0, keyed.stderr);
});

test('slots.json that looks wrong is refused unless prune-model accepted it', async (t) => {
  const { input, target } = createWorkspace(t);
  const path = join(input, 'slots.json');
  const text = readFileSync(path, 'utf8').replace('"1001"', '"3"');
  writeFileSync(path, text);
  const refused = await build(input, target, '--bundle', 'ctr');
  assert.equal(refused.code, 1);
  const found = /looks wrong: (slot C1: modulo 3 reaches .*)\. Correct .*--accept$/m.exec(
    refused.stderr,
  );
  const warnings = found?.[1]?.split('; ') ?? [];
  assert.ok(warnings.length > 0, refused.stderr);
  writeFileSync(join(input, 'report.json'), JSON.stringify({ warnings }));
  assert.equal((await build(input, target, '--bundle', 'ctr')).code, 0);
});
