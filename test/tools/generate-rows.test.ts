/**
 * Generated rows are reproducible by seed, have Criteo's format and shape, and labels that a model
 * can learn.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import fc from 'fast-check';
import { auc, calibration, logloss } from '../../lib/core/model-metrics.ts';
import { makeTemporaryFolder, readText, removePath } from '../../lib/platform/files.ts';
import { formatCategory, PowerLaw } from '../../tools/generate-rows/features.ts';
import { RowStream } from '../../tools/generate-rows/row-stream.ts';
import { SLOT_FIELDS } from '../../tools/generate-rows/schema.ts';

const ROWS = 20_000;
const main = fileURLToPath(new URL('../../tools/generate-rows/main.js', import.meta.url));
const demoRows = fileURLToPath(new URL('../../../data/demo/rows.tsv', import.meta.url));

interface Drawn {
  readonly lines: string[][];
  readonly labels: Uint8Array;
  readonly probabilities: Float64Array;
}

function draw(stream: RowStream, count: number): Drawn {
  const labels = new Uint8Array(count);
  const probabilities = new Float64Array(count);
  const lines = Array.from({ length: count }, (_, row) => {
    stream.seek(row);
    labels[row] = stream.label;
    probabilities[row] = stream.probability;
    return stream.formatRow().replace(/\n$/, '').split('\t');
  });
  return { lines, labels, probabilities };
}

function formatRows(stream: RowStream, first: number, count: number): string {
  let text = '';
  for (let row = first; row < first + count; row++) {
    stream.seek(row);
    text += stream.formatRow();
  }
  return text;
}

/** How often each value of a column appears, most frequent first; missing ones apart. */
function countValues(lines: string[][], column: number): { counts: number[]; missing: number } {
  const seen = new Map<string, number>();
  for (const line of lines) seen.set(line[column]!, (seen.get(line[column]!) ?? 0) + 1);
  const missing = seen.get('') ?? 0;
  seen.delete('');
  return { counts: [...seen.values()].sort((a, b) => b - a), missing };
}

const readColumn = (slot: string): number =>
  14 + SLOT_FIELDS.findIndex((field) => field.name === slot);

const drawn = draw(new RowStream(1), ROWS);

test('a row stream gives the same bytes only for the same seed', () => {
  assert.equal(formatRows(new RowStream(7), 0, 200), formatRows(new RowStream(7), 0, 200));
  assert.notEqual(formatRows(new RowStream(7), 0, 200), formatRows(new RowStream(8), 0, 200));
});

test('a row depends only on seed and row number', () => {
  const straight = new RowStream(3);
  const jumping = new RowStream(3);
  const row = fc.oneof(fc.nat(1000), fc.integer({ min: 0, max: 2 ** 52 }));
  fc.assert(
    fc.property(row, row, (first, second) => {
      jumping.seek(second);
      assert.equal(formatRows(jumping, first, 1), formatRows(straight, first, 1));
    }),
  );
  // Beyond 32 bits the number still counts.
  assert.notEqual(formatRows(straight, 5, 1), formatRows(straight, 5 + 2 ** 32, 1));
});

test('the demo rows come from a row stream', () => {
  assert.equal(formatRows(new RowStream(1), 2_000_000, 4096), readText(demoRows));
});

test('a row has 40 columns: a label, integers and hex digits, or empty', () => {
  for (const line of drawn.lines) {
    assert.equal(line.length, 40);
    assert.match(line[0]!, /^[01]$/);
    for (const integer of line.slice(1, 14)) assert.match(integer, /^(-[1-3]|\d{1,10})?$/);
    for (const category of line.slice(14)) assert.match(category, /^([0-9a-f]{8})?$/);
  }
  const negative = drawn.lines.filter((line) => line[2]!.startsWith('-')).length / ROWS;
  assert.ok(negative > 0.1 && negative < 0.18, `I2 is negative in ${negative}`);
});

test('columns miss values as often as the schema says', () => {
  for (const { name, missing } of SLOT_FIELDS) {
    const share = countValues(drawn.lines, readColumn(name)).missing / ROWS;
    assert.ok(Math.abs(share - missing) < 0.02, `${name}: ${share} missing, expected ${missing}`);
  }
  const together = drawn.lines.every(
    (line) => (line[readColumn('C19')] === '') === (line[readColumn('C26')] === ''),
  );
  assert.ok(together, 'C19 and C26 are missing in the same rows');
});

test('small fields have few values and large fields have a long tail', () => {
  for (const { name, categories } of SLOT_FIELDS) {
    const { counts } = countValues(drawn.lines, readColumn(name));
    assert.ok(counts.length <= categories, `${name}: ${counts.length} categories`);
  }
  assert.equal(countValues(drawn.lines, readColumn('C9')).counts.length, 3);
  const { counts } = countValues(drawn.lines, readColumn('C3'));
  assert.ok(counts.length > ROWS / 4, 'about half of C3 is rare');
  assert.ok(counts[0]! > ROWS / 50, 'yet one category is in every thirtieth row');
  assert.ok(counts[0]! > 5 * counts[9]!, 'and frequencies fall with the rank');
});

test('labels follow the known probabilities', () => {
  for (const seed of [1, 2, 0xffff_ffff]) {
    const { labels, probabilities } = seed === 1 ? drawn : draw(new RowStream(seed), ROWS);
    const clicks = labels.reduce((sum, label) => sum + label, 0) / ROWS;
    assert.ok(Math.abs(clicks - 0.25) < 0.015, `seed ${seed}: ${clicks} clicks`);
    const best = auc(labels, probabilities);
    assert.ok(best > 0.785 && best < 0.825, `seed ${seed}: AUC ${best}`);
    const loss = logloss(labels, probabilities);
    assert.ok(loss > 0.42 && loss < 0.47, `seed ${seed}: logloss ${loss}`);
    assert.ok(Math.abs(calibration(labels, probabilities) - 1) < 0.04);
  }
});

test('drift changes the probabilities by the given amount, not the features', () => {
  const far = draw(new RowStream(1, 1), ROWS);
  const near = draw(new RowStream(1, 0.2), ROWS);
  const features = (lines: string[][]): string[] => lines.map((line) => line.slice(1).join('\t'));
  assert.deepEqual(features(far.lines.slice(0, 500)), features(drawn.lines.slice(0, 500)));
  const nearAuc = auc(near.labels, drawn.probabilities);
  const farAuc = auc(far.labels, drawn.probabilities);
  assert.ok(nearAuc > 0.75 && nearAuc < auc(near.labels, near.probabilities));
  assert.ok(farAuc < 0.65, `the old probabilities give AUC ${farAuc} after the drift`);
});

test('categories have distinct digits within a slot', () => {
  const texts = new Set(Array.from({ length: 50_000 }, (_, rank) => formatCategory(1, 2, rank)));
  assert.equal(texts.size, 50_000);
});

test('ranks of categories stay in range for any random number', () => {
  const unit = fc.double({ min: 0, max: 1, noNaN: true });
  const shape = fc.constantFrom(...SLOT_FIELDS);
  fc.assert(
    fc.property(shape, unit, (field, value) => {
      const rank = new PowerLaw(field).toRank(value);
      assert.ok(Number.isInteger(rank) && rank >= 0 && rank < field.categories);
    }),
  );
});

const folder = makeTemporaryFolder('generate-rows-');
after(() => removePath(folder));
const command = (...args: string[]): { status: number | null; stdout: string; stderr: string } =>
  spawnSync(process.execPath, [main, ...args], { encoding: 'utf8' });

test('generate-rows writes rows and probabilities, and --skip gives the same rows', () => {
  const [all, tail, truth] = ['all.tsv', 'tail.tsv', 'truth.txt'].map((n) => join(folder, n));
  assert.ok(all && tail && truth);
  assert.equal(command('--rows', '2500', '-o', all).status, 0);
  const skipped = command('--rows', '1500', '--skip', '1000', '-o', tail, '--truth', truth);
  assert.equal(skipped.status, 0);
  assert.match(skipped.stderr, /1500 rows, .*% clicks.*AUC 0\.\d{5}, logloss 0\.\d{5}/);
  const lines = readText(all).split('\n');
  assert.equal(lines.slice(1000).join('\n'), readText(tail));
  const probabilities = readText(truth).trimEnd().split('\n').map(Number);
  assert.equal(probabilities.length, 1500);
  assert.ok(probabilities.every((p) => p > 0 && p < 1));
});

test('generate-rows writes to standard output', () => {
  const { status, stdout } = command('--rows', '20', '--seed', '9', '-o', '-');
  assert.equal(status, 0);
  assert.equal(stdout, formatRows(new RowStream(9), 0, 20));
});

test('generate-rows exits with 2 for wrong usage and 1 for a failure', () => {
  assert.equal(command().status, 2);
  assert.match(command('--rows', '0', '-o', '-').stderr, /Expected an integer from 1 to /);
  assert.equal(command('--drift', '2', '-o', '-').status, 2);
  assert.equal(command('--rows', '5', '-o', folder).status, 1);
  const path = join(folder, 'both');
  const both = command('-o', path, '--truth', join(folder, '.', 'both'));
  assert.equal(both.status, 2);
  assert.match(both.stderr, /--output and --truth are the same file/);
  assert.equal(command('--help').status, 0);
});
