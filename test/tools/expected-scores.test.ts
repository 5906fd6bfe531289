/**
 * Expected scores of raw rows: a wrong hash, slot index or scaling is refused before anything is
 * written or published, although the lookups of the model are right.
 */
import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { test } from 'node:test';
import { xxh64 } from '../../lib/core/hash.ts';
import { OnnxModel } from '../../lib/platform/onnx.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { runBuilder } from './cube-builder/support/tables.ts';
import { smallModel } from './prune-model/support/onnx-builder.ts';
import { PruneHarness } from './prune-model/support/prune-harness.ts';

const harness = new PruneHarness();
const ROWS = 100;
const MODULO = 7;
const FEATURES = {
  format: 1,
  hash: { scheme: 'xxh64-concat', seed: '7', modulo: String(MODULO) },
  slots: ['C1', 'C2', 'C3'].map((name, i) => ({ name, index: 14 + i })),
  dense: {
    input: 'dense',
    features: [
      { name: 'I1', log: true },
      { name: 'I2', scale: 0.5, missing: 3 },
    ],
  },
  click: { output: 'prob', column: 0 },
  ids: [{ input: 'ids', slots: ['C3', 'C1', 'C2'] }],
};

interface Row {
  readonly I1: number;
  /** Missing in some rows. */
  readonly I2: number | undefined;
  readonly C1: string;
  readonly C2: string;
  readonly C3: string;
}

const rows: readonly Row[] = Array.from({ length: ROWS }, (_, i) => ({
  I1: i % 5,
  I2: i % 4 === 0 ? undefined : i / 10,
  C1: `user${i}`,
  C2: `ad${i % 9}`,
  C3: i % 3 === 0 ? '' : 'mobile',
}));

/** The scores of the training script: its own hashing and scaling, and the full model. */
async function computeScores(): Promise<number[]> {
  const encoder = new TextEncoder();
  const hash = (index: number, text: string): bigint =>
    xxh64(encoder.encode(`${index}${text}`), 7n) % BigInt(MODULO);
  const ids = rows.flatMap(({ C1, C2, C3 }) => [hash(16, C3), hash(14, C1), hash(15, C2)]);
  const dense = rows.flatMap(({ I1, I2 }) => [Math.log1p(I1), (I2 ?? 3) * 0.5]);
  const model = await OnnxModel.load(smallModel());
  const { prob } = await model.run({
    ids: { dtype: 'int64', data: BigInt64Array.from(ids), dims: [ROWS, 3] },
    dense: { dtype: 'float32', data: Float32Array.from(dense), dims: [ROWS, 2] },
  });
  await model.release();
  return Array.from(prob?.data ?? [], Number);
}

const scores = await computeScores();
const tsv = harness.write(
  'rows.tsv',
  rows.map(({ I1, I2, C1, C2, C3 }) => [I1, I2 ?? '', C1, C2, C3].join('\t')).join('\n'),
);
const csv = harness.write(
  'scores.csv',
  `row,score\n${scores.map((s, i) => `${i},${s}`).join('\n')}\n`,
);
const golden = harness.write(
  'golden.jsonl',
  rows.map((row, i) => JSON.stringify({ ...row, score: scores[i] })).join('\n'),
);
const features = harness.write('features.json', FEATURES);
/** The ids are not in the order of the slots, which prune-model does not accept unasked. */
const FEATURES_OPTIONS: readonly string[] = ['--features', features, '--accept'];

test('prune-model accepts the scores of the training script', async () => {
  for (const expect of [`${tsv}:${csv}`, golden]) {
    const options = [...FEATURES_OPTIONS, '--expect', expect];
    const { report } = await harness.prune(smallModel(), ...options);
    assert.equal(report.expected?.rows, ROWS);
    assert.ok(report.expected.maxAbsDifference < 1e-6);
  }
});

test('prune-model refuses a features.json that differs from the training script', async () => {
  const [first, ...others] = FEATURES.slots;
  const dense = { ...FEATURES.dense, features: [{ name: 'I1' }, FEATURES.dense.features[1]] };
  const wrong = {
    seed: { ...FEATURES, hash: { ...FEATURES.hash, seed: '8' } },
    'slot index': { ...FEATURES, slots: [{ ...first, index: 1 }, ...others] },
    ids: { ...FEATURES, ids: [{ input: 'ids', slots: ['C1', 'C3', 'C2'] }] },
    scaling: { ...FEATURES, dense },
  };
  rmSync(harness.output, { recursive: true, force: true });
  for (const [what, json] of Object.entries(wrong)) {
    const path = harness.write(`wrong.json`, json);
    const options = ['--features', path, '--accept', '--expect', `${tsv}:${csv}`];
    const stderr = await harness.expectRefusal(smallModel(), 1, ...options);
    assert.match(
      stderr,
      /the scores of \d+ of 100 raw rows of .*line \d+: 0\.\d+ instead of/,
      what,
    );
  }
  const [good, bad] = rows.map((row, i) => ({ ...row, score: scores[i] }));
  const lines = [good, { ...bad, score: undefined, scroe: 1 }].map((row) => JSON.stringify(row));
  const misspelled = harness.write('misspelled.jsonl', lines.join('\n'));
  assert.match(
    await harness.expectRefusal(smallModel(), 1, ...FEATURES_OPTIONS, '--expect', tsv),
    /line 1: not a JSON object; tab-separated rows need a second file with their scores: /,
  );
  assert.match(
    await harness.expectRefusal(smallModel(), 1, ...FEATURES_OPTIONS, '--expect', misspelled),
    /misspelled\.jsonl, line 2: \[0\]: unknown field "scroe"/,
  );
  const few = harness.write('few.csv', '0.5\n0.25');
  const options = [...FEATURES_OPTIONS, '--expect', `${tsv}:${few}`];
  assert.match(
    await harness.expectRefusal(smallModel(), 1, ...options),
    /has 100 rows and .* 2 scores/,
  );
});

test('cube-builder publishes only versions with the expected scores', async () => {
  await harness.prune(smallModel(), ...FEATURES_OPTIONS);
  const folder = harness.path('repository');
  const input = ['--input', harness.output, '--shard-num', '2'];
  const target = ['--output-path', folder, '--bundle', 'b'];
  const build = (version: string, ...more: string[]): ReturnType<typeof runBuilder> =>
    runBuilder(...input, '--cur-version', version, ...target, ...more);
  const wrong = harness.write('wrong.csv', scores.map((score) => score + 1e-4).join('\n'));
  const refused = await build('1', '--expect', `${tsv}:${wrong}`);
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /the scores of 100 of 100 raw rows .* by more than 0\.00001/);
  const repository = openRepository(folder);
  assert.deepEqual(await repository.listVersions('b'), []);
  const loose = ['--expect', `${tsv}:${wrong}`, '--expect-tolerance', '0.001'];
  assert.equal((await build('1', ...loose)).code, 0);

  // Golden rows with scores are verified too; rounding needs a larger tolerance.
  assert.equal((await build('2', '--golden', golden)).code, 0);
  const i8 = ['--golden', golden, '--dtype', 'i8'];
  assert.equal((await build('3', ...i8)).code, 1);
  assert.equal((await build('3', ...i8, '--expect-tolerance', '0.05')).code, 0);

  // Where shards are built apart, the step that publishes verifies.
  const apart = await build('4', '--only-build', '--expect', `${tsv}:${wrong}`);
  assert.equal(apart.code, 2);
  assert.equal((await build('4', '--only-build')).code, 0);
  const seal = ['seal', ...target, '--version', '4'];
  assert.equal((await runBuilder(...seal, '--expect', `${tsv}:${wrong}`)).code, 1);
  assert.equal((await runBuilder(...seal, '--expect', `${tsv}:${csv}`)).code, 0);

  // A delta has other rows, so the golden rows of its parent lose their scores.
  const delta = ['--job-mode', 'delta', '--depend-version', '2', '--cur-version', '5'];
  const table = `${harness.output}/tables/embedding.weight.npy`;
  assert.equal((await runBuilder('--input', table, ...delta, ...target)).code, 0);
  const bytes = await repository.readVersionFile('b', '5', 'golden.jsonl');
  assert.deepEqual(JSON.parse(new TextDecoder().decode(bytes).split('\n')[1] ?? ''), rows[1]);
  // A whole graph has no tables, but hashing and scaling all the same.
  const graph = ['graph', '--model', harness.path('model.onnx'), '--features', features];
  const target6 = ['--cur-version', '6', ...target];
  const doubtful = await runBuilder(...graph, ...target6);
  assert.match(doubtful.stderr, /lists C3 before C1, .* Correct it, or publish with --accept/);
  const whole = [...graph, '--accept', ...target6, '--expect'];
  assert.equal((await runBuilder(...whole, `${tsv}:${wrong}`)).code, 1);
  assert.equal((await runBuilder(...whole, `${tsv}:${csv}`)).code, 0);
});
