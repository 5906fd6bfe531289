/** Flags and build specs: the requests they make, and the errors for wrong ones. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { xxh64 } from '../../../lib/core/hash.ts';
import { keyToBigint } from '../../../lib/core/keys.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { readLayerRows } from '../../../lib/store/layer-file.ts';
import type { BuildOptions } from '../../../tools/cube-builder/build-options.ts';
import { readBuildSpec } from '../../../tools/cube-builder/build-spec.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { createRows, runBuilder, writeTable } from './support/tables.ts';

const BASE = ['--output-path', 'r', '--bundle', 'b', '--cur-version', '2'];

test('a wrong combination of options exits with code 2 and explains the fix', async () => {
  const cases: [string[], RegExp][] = [
    [BASE, /--input is missing/],
    [[...BASE, '--input', 'x'], /--shard-num is missing/],
    [[...BASE, '--input', 'x', '--shard-num', '2', '--depend-version', '1'], /--job-mode delta/],
    [[...BASE, '--input', 'x', '--shard-num', '2', '--last-version', '1'], /--job-mode delta/],
    [[...BASE, '--input', 'x', '--job-mode', 'delta'], /needs --depend-version/],
    [[...BASE, '--input', 'x', '--job-mode', 'full'], /Allowed choices are base, delta/],
    [[...BASE, '--diff', 'a', 'b', '--shard-num', '2'], /--diff needs --job-mode delta/],
    [[...BASE, '--diff', 'a', '--job-mode', 'delta', '--depend-version', '1'], /OLD NEW/],
    [[...BASE, '--diff', 'a', 'b', '--input', 'x'], /--diff OLD NEW replaces --input/],
    [
      [...BASE, '--input', 'x', '--shard-num', '2', '--deletes', 'd'],
      /--deletes needs --job-mode delta/,
    ],
    [[...BASE, '--input', 'x', '--shard-num', '2', '--only-shards', '3-'], /such as 0-3,7/],
    [[...BASE, '--input', 'x', '--shard-num', '2', '--memory', '1MiB'], /at least 16MiB/],
    [[...BASE, '--input', 'x', '--shard-num', '2', '--dtype', 'f8'], /Allowed choices are f32/],
    [[...BASE, '--input', 'x', '--shard-num', '2', '--default-row', 'a'], /Expected numbers/],
    [[...BASE, '--input', 'x', '--shard-num', '2', '--chain-max', '65'], /integer from 1 to 64/],
    [[...BASE, '--input', 'x', '--shard-num', '2', '--default-row', '1,,2'], /Expected numbers/],
    [[...BASE, '--spec', 's', '--input', 'x'], /describe tables and their options in s/],
    [[...BASE, '--spec', 's', '--default-row', '1'], /describe tables and their options in s/],
    [[...BASE, '--spec', 's', '--no-header'], /describe tables and their options in s/],
    [['--input', 'x', '--shard-num', '2', '--cur-version', '1', '--bundle', 'b'], /--output-path/],
    [['seal', '--bundle', 'b', '--version', '1'], /--output-path is missing/],
    [['seal', '--output-path', 'r', '--bundle', 'b'], /--version/],
    [['compact', '--output-path', 'r', '--bundle', 'b', '--version', '1'], /--cur-version/],
    [['diff', 'a', ...BASE], /missing required argument 'new'/],
    [['diff', 'a', 'b', ...BASE], /needs --depend-version/],
  ];
  for (const [args, expected] of cases) {
    const { code, stderr } = await runBuilder(...args);
    assert.equal(code, 2, `${args.join(' ')}: ${stderr}`);
    assert.match(stderr, expected);
  }
  const { code, stdout, stderr } = await runBuilder(...BASE);
  assert.deepEqual([code, stdout], [2, '']);
  assert.match(stderr, /--input is missing/);
});

const usage = (text: string): never => {
  throw new Error(text);
};

function read(t: TestContext, text: string, flags: BuildOptions = {}): unknown {
  const path = join(temporaryFolder(t), 'spec.yaml');
  writeFileSync(path, text);
  return readBuildSpec(path, flags, usage);
}

const HEAD = 'bundle: b\ncur-version: 7\nshard-num: 2\noutput-path: r\n';

test('a wrong spec is refused with line, column and field', (t) => {
  const cases: [string, RegExp][] = [
    ['', /spec\.yaml:1:1: expected a map/],
    ['- a', /spec\.yaml:1:1: expected a map of names and values, got a list/],
    ['bundle: [', /spec\.yaml:1:\d+: /],
    ['bundle: b\nbundle: c', /spec\.yaml:2:1: Map keys must be unique/],
    [`${HEAD}shards: 3`, /spec\.yaml:5:1: unknown field "shards" \(known here: bundle, /],
    [HEAD, /spec\.yaml:1:1: tables is missing/],
    [`${HEAD}tables: 3`, /spec\.yaml:5:9: tables: expected a list, got 3/],
    [`${HEAD}tables:\n  - dtype: f8\n`, /spec\.yaml:6:12: tables\[0\]\.dtype: expected one of f32/],
    [`${HEAD}tables:\n  - dtype: i8\n`, /spec\.yaml:6:5: tables\[0\]: input is missing/],
    [`${HEAD}tables:\n  - {input: a, dim: 0}`, /tables\[0\]\.dim: expected an integer in 1\.\./],
    [`${HEAD}tables:\n  - {input: a, old: b}`, /tables\[0\]\.old: a base has no old input/],
    [`${HEAD}memory: 3\ntables: []`, /spec\.yaml:5:9: memory: Expected at least 16MiB/],
    [`${HEAD}tables:\n  - &a {input: *a}`, /spec\.yaml:6:/],
    ['bundle: ../x\n', /spec\.yaml:1:9: bundle: bundle: expected a name/],
    [`${HEAD}job-mode: delta\ntables: []`, /needs --depend-version/],
    [
      `${HEAD}tables:\n  - input: a\n    header: "yes"`,
      /header: expected true or false, got "yes"/,
    ],
  ];
  for (const [text, expected] of cases) assert.throws(() => read(t, text), expected);
});

test('flags override the spec, and the spec overrides the defaults', (t) => {
  const text = `${HEAD}memory: 32MiB\ntables:\n  - input: [a, b]\n    default-row: 0.5\n`;
  const request = read(t, text, { curVersion: '8', threads: 3 }) as Record<string, unknown>;
  const { bundle, version, memoryBytes, threads, chainMax } = request;
  assert.deepEqual(
    { bundle, version, memoryBytes, threads, chainMax },
    { bundle: 'b', version: '8', memoryBytes: 32 << 20, threads: 3, chainMax: 8 },
  );
});

test('a spec builds several tables from relative paths and hashes text keys', async (t) => {
  const folder = temporaryFolder(t);
  writeTable(join(folder, 'in'), 'u', createRows(50), 4);
  writeFileSync(join(folder, 'words.csv'), 'alpha,1,2\n"be""ta",3,4\n');
  const spec = join(folder, 'build.yaml');
  writeFileSync(
    spec,
    `${HEAD}tables:
  - input: in
    dtype: i8
    i8-search: greedy
    default-row: [1, 2, 3, 4]
  - table: words
    input: words.csv
    sign-key: 14
`,
  );
  const { code, stderr, stdout } = await runBuilder('--spec', spec, '--json');
  assert.equal(code, 0, stderr);
  assert.equal(JSON.parse(stdout).perTable[0].maxError > 0, true);
  const repository = openRepository(join(folder, 'r'));
  const { tables, hash, slots } = await repository.readManifest('b', '7');
  assert.deepEqual(
    tables.map(({ name, dtype, dim, rows, defaultRow }) => ({
      name,
      dtype,
      dim,
      rows,
      defaultRow,
    })),
    [
      { name: 'u', dtype: 'i8', dim: 4, rows: 50, defaultRow: [1, 2, 3, 4] },
      { name: 'words', dtype: 'f32', dim: 2, rows: 2, defaultRow: [] },
    ],
  );
  assert.deepEqual(
    { hash, slots },
    {
      hash: { scheme: 'xxh64-concat', seed: 0n, modulo: 0n },
      slots: [{ name: 'slot14', index: 14 }],
    },
  );
  const keys = (tables[1]?.shards ?? []).flat().flatMap(({ contentId }) => {
    const path = repository.layerWritePath('b', 'words', contentId);
    return [...readLayerRows(path)].map((batch) => keyToBigint(batch.keys, 0));
  });
  const signed = ['14alpha', '14be"ta'].map((text) => xxh64(new TextEncoder().encode(text)));
  assert.ok(keys.every((key) => signed.includes(key)) && keys.length > 0);
});
