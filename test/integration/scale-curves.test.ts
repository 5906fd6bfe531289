/** `npm run bench -- scale`: its curves, tables and charts, and one small point measured. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import {
  CURVE_NAMES,
  formatHead,
  formatRow,
  selectCurves,
  writeCharts,
} from '../../bench/support/scale-curves.ts';
import { measurePoint, type PointFigures } from '../../bench/support/scale-point.ts';
import { requireDefined } from '../../lib/core/errors.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

const FIGURES: PointFigures = {
  buildSeconds: 0.123_4,
  loadSeconds: 2,
  memoryMiB: 1_234.5,
  residentMiB: 2_000,
  keysPerSecond: 9_876_543,
  keysPerCpuSecond: 12_345_678,
  p50Ms: 0.1,
  p99Ms: 1.234_5,
};

test('curves are chosen by name, and points with too many rows are left out', () => {
  const all = selectCurves([], 100_000_000).map(({ name }) => name);
  assert.deepEqual(all, CURVE_NAMES);
  const [rows, ...others] = selectCurves(['rows'], 10_000_000);
  assert.deepEqual(others, []);
  assert.deepEqual(rows?.points, [100_000, 300_000, 1_000_000, 3_000_000, 10_000_000]);
});

test('a table has a row of rounded figures for each point', () => {
  const [curve] = selectCurves(['batch'], 1_000_000);
  const head = formatHead(requireDefined(curve, 'a curve'));
  const row = formatRow({ at: 4_096, figures: FIGURES });
  assert.equal(row, '| 4,096 | 0.123 | 2 | 1,230 | 2,000 | 9.88 | 12.3 | 0.1 | 1.23 |\n');
  const [titles, rule] = head.split('\n').map((line) => line.split('|').length);
  assert.equal(titles, row.split('|').length);
  assert.equal(rule, titles);
});

test('charts show each point, and those of tables also load and memory', (t) => {
  const folder = join(temporaryFolder(t), 'charts');
  for (const curve of selectCurves(['versions', 'batch'], 1_000_000)) {
    writeCharts(
      folder,
      curve,
      curve.points.map((at) => ({ at, figures: { ...FIGURES, p99Ms: at } })),
    );
  }
  const files = readdirSync(folder).sort();
  assert.deepEqual(files, ['scale-batch.svg', 'scale-versions-load.svg', 'scale-versions.svg']);
  for (const file of files) {
    const svg = readFileSync(join(folder, file), 'utf8');
    assert.doesNotMatch(svg, /NaN|Infinity|undefined/);
    // Two charts with three lines or four.
    const lines = file.endsWith('-load.svg') ? 4 : 3;
    assert.equal(svg.match(/<polyline/g)?.length, lines);
    const points = file.startsWith('scale-batch') ? 7 : 3;
    assert.equal(svg.match(/<circle/g)?.length, lines * points);
  }
});

test('a point with shards, tables, versions and deltas is built, loaded and measured', async () => {
  const figures = await measurePoint(
    { rows: 2_000, shards: 2, tables: 3, deltas: 2, versions: 2, keys: 30, connections: 2 },
    { warmMs: 50, closedMs: 100, openMs: 100 },
  );
  for (const [name, value] of Object.entries(figures)) assert.ok(value > 0, `${name}: ${value}`);
});
