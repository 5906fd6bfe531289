/**
 * The ctr-client process against a real serving process: report, scores, and every way in which it
 * can go wrong.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { auc, logloss } from '../../../lib/core/model-metrics.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { ToyBundle, toTsv, toyRows } from '../../serving/support/toy-bundle.ts';
import { startLocal } from '../../serving/support/toy-service.ts';
import { ctrClient, startClient, startServer, startStandIn } from './client-process.ts';
import { assertScores, readScores } from './scores.ts';

test('reports what it measured and writes every score', async (t) => {
  const toy = new ToyBundle({ version: '3', seed: 9 });
  const { serving } = await startLocal(t, [toy]);
  const folder = temporaryFolder(t);
  const rows = toyRows(333);
  const labels = rows.map((_, i) => (i % 3 === 0 ? 1 : 0));
  const file = join(folder, 'rows.tsv');
  const output = join(folder, 'out', 'scores.tsv');
  writeFileSync(file, toTsv(rows, labels));
  const common = ['--rows', file, '--endpoint', `${serving.url}/`];
  const page = join(folder, 'page.html');
  const more = ['--output', output, '--chart', page, '--json'];
  const run = await ctrClient(...common, '--batch', '10', ...more);
  assert.equal(run.exit, 0, run.stderr);
  const report = JSON.parse(run.stdout);
  assert.deepEqual([report.rows, report.rowsPredicted, report.requests], [333, 333, 34]);
  assert.equal(report.versions[3].requests, 34);
  assert.deepEqual([report.mixedVersions, report.degraded, report.failures], [0, 0, {}]);
  assert.equal(
    report.unseen,
    rows.reduce((sum, row) => sum + toy.unseen(row), 0),
  );
  assertScores(output, toy, rows);
  const scores = readScores(output);
  assert.ok(scores.every(({ version }) => version === '3'));
  assert.deepEqual(
    scores.map(({ label }) => Number(label)),
    labels,
  );
  const probabilities = Float64Array.from(scores, ({ probability }) => Number(probability));
  assert.equal(report.auc, auc(Uint8Array.from(labels), probabilities));
  assert.equal(report.logloss, logloss(Uint8Array.from(labels), probabilities));
  const { avg, p50, p80, p90, p99, p999, max } = report.latencyMs;
  const ascending = [p50, p80, p90, p99, p999, max];
  assert.deepEqual(
    ascending,
    ascending.toSorted((a, b) => a - b),
  );
  assert.ok(avg > 0 && avg <= max);
  const html = readFileSync(page, 'utf8');
  assert.match(html, /<svg.*Calibration.*<\/svg>.*latency, ms/s);
  assert.doesNotMatch(html, /src=|href=|NaN|Infinity/);
  const text = await ctrClient(...common, '--limit', '7', '--concurrency', '2');
  assert.match(text.stdout, /rows +7 of 7 predicted/);
  assert.match(text.stdout, /versions +3 \(1 requests\)/);
  assert.match(text.stdout, /latency, ms +avg +p50 +p80 +p90 +p99 +p99\.9 +max/);
  const piped = await startClient(['--rows', '-', ...common.slice(2), '--json'], toTsv(rows)).done;
  assert.deepEqual([JSON.parse(piped.stdout).auc, JSON.parse(piped.stdout).rows], [null, 333]);
});

test('reports invalid rows and writes nothing', async (t) => {
  const { serving } = await startLocal(t, [new ToyBundle({ version: '1', seed: 9 })]);
  const folder = temporaryFolder(t);
  const output = join(folder, 'scores.tsv');
  const good = toTsv(toyRows(5), [0, 1, 0, 1, 0]);
  const positions = '{"dense":[1,2],"categorical":["a","b","c"]}\n';
  const cases: [string | undefined, RegExp, string?][] = [
    [undefined, /no such file/],
    ['', /the file is empty/],
    ['a\tb\n', /row 1: expected 6 tab-separated columns with label, or 5 without, got 2/],
    [`${good}1\t2\n`, /row 6: expected 6 tab-separated columns like the first row, got 2/],
    [`${good}2\t1\t2\ta\tb\tc\n`, /row 6, column 1 \(label\): expected 0 or 1, got "2"/],
    [
      `${good}0\tx\t2\ta\tb\tc\n`,
      /1 of 2 requests failed .*INVALID_ARGUMENT: request of rows 6 to 6: .*column 2 \(I1\)/,
    ],
    [`${good}0\tx\t2\ta\tb\tc\n`, /rows\.tsv: row 6, column 2 .*expected a number/, 'kserve'],
    [`${positions}{"dense":`, /row 2: not JSON/],
    [`${positions}{"I1":1}\n`, /row 2 is given by names, but the first row by positions/],
    [`${positions}{"label":1,"dense":[1,2],"categorical":["a","b","c"]}\n`, /1 of 2 rows have a/],
    [
      positions.replace('1,2', '1,2,3'),
      /rows\.tsv: rows\[0\]\.dense: expected an array of 2 items/,
      'tfs',
    ],
  ];
  for (const [text, message, protocol = 'ctr'] of cases) {
    const file = join(folder, text === undefined ? 'absent.tsv' : 'rows.tsv');
    if (text !== undefined) writeFileSync(file, text);
    const flags = ['--rows', file, '--endpoint', serving.url, '--batch', '5'];
    const run = await ctrClient(...flags, '--protocol', protocol, '--output', output);
    assert.match(run.stderr, message);
    assert.equal(run.exit, 1);
    assert.ok(!existsSync(output));
  }
});

test('reports wrong usage', async () => {
  const good = ['--rows', 'rows.tsv', '--endpoint', '127.0.0.1:1'];
  const cases: [string[], RegExp][] = [
    [['--rows', 'rows.tsv'], /--endpoint/],
    [['--rows', 'rows.tsv', '--endpoint', 'localhost'], /Expected host:port/],
    [[...good, '--protocol', 'thrift'], /Allowed choices are ctr, ctr-grpc/],
    [[...good, '--matrix', 'batch=0'], /Expected batch=1,8,64/],
    [[...good, '--matrix', 'batch=1', '--rps', '5'], /cannot be used with/],
    [[...good, '--rps', '0'], /Expected requests a second/],
    [[...good, '--chart', 'chart.png'], /ends in \.svg or \.html/],
  ];
  for (const [flags, message] of cases) {
    const { exit, stderr } = await ctrClient(...flags);
    assert.match(stderr, message);
    assert.equal(exit, 2, flags.join(' '));
  }
});

test('fails without a response, and when a response mixes versions', async (t) => {
  const folder = temporaryFolder(t);
  const file = join(folder, 'rows.tsv');
  writeFileSync(file, '0\t5\ta\n1\t6\tb\n');
  const down = await ctrClient('--rows', file, '--endpoint', 'http://127.0.0.1:1');
  assert.match(down.stderr, /connection refused; is serving running/);
  assert.equal(down.exit, 1);
  let tables = '2';
  const rest = { model: 'm', unseen: 0, unavailable: 0, degraded: false };
  const url = await startStandIn(t, () => {
    return { version: '1', tables_version: tables, probabilities: [0.5, 0.25], ...rest };
  });
  const mixed = await ctrClient('--rows', file, '--endpoint', url);
  assert.match(mixed.stdout, /MIXED +1 responses/);
  assert.match(mixed.stderr, /different versions of graph and tables/);
  assert.equal(mixed.exit, 1);
  tables = '1';
  assert.equal((await ctrClient('--rows', file, '--endpoint', url)).exit, 0);
});

test('reports a foreign server in one line, and a folder as output early', async (t) => {
  const folder = temporaryFolder(t);
  const file = join(folder, 'rows.tsv');
  writeFileSync(file, '0\t5\ta\n');
  const url = await startServer(t, (_, response) =>
    response.writeHead(404).end('<html>\n<p>none</p>'),
  );
  const foreign = await ctrClient('--rows', file, '--endpoint', url);
  assert.equal(foreign.exit, 1);
  assert.match(foreign.stderr, /^.*HTTP 404: <html>; is serving listening there\?\n$/);
  let asked = 0;
  const serving = await startStandIn(t, () => {
    asked++;
    return {};
  });
  const spoiled = await ctrClient('--rows', file, '--endpoint', serving, '--output', folder);
  assert.equal(spoiled.exit, 1);
  assert.match(spoiled.stderr, /^ctr-client: --output .* is a folder; give a file name\n$/);
  assert.equal(asked, 0);
});
