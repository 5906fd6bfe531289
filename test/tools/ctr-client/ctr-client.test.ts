/** The ctr-client process against a real serving process: report, CSV, and every way in which it can go wrong. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { it, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { auc, logloss } from '../../../lib/core/model-metrics.ts';
import { percentile } from '../../../tools/ctr-client/report.ts';
import { temporaryFolder } from '../../repository/fixtures.ts';
import { ToyBundle, toTsv, toyRows } from '../../serving/toy-bundle.ts';
import { startLocal } from '../../serving/toy-service.ts';

const MAIN = fileURLToPath(new URL('../../../tools/ctr-client/main.js', import.meta.url));

interface Run {
  readonly exit: number;
  readonly stdout: string;
  readonly stderr: string;
}

function ctrClient(...flags: string[]): Promise<Run> {
  return new Promise((resolve) => {
    const child = execFile(process.execPath, [MAIN, ...flags], (_error, stdout, stderr) => {
      resolve({ exit: child.exitCode ?? -1, stdout, stderr });
    });
  });
}

/** A server that says it is a model of one dense and one categorical feature, and answers predictions as told. */
async function startStandIn(t: TestContext, predict: () => object): Promise<string> {
  const server = createServer((request, response) => {
    request.resume().on('end', () => {
      const answers: Record<string, () => object> = {
        '/v2/models': () => ({ models: ['m'] }),
        '/v2/models/m': () => ({ inputs: [{ shape: [-1, 1] }, { shape: [-1, 1] }] }),
        '/v1/ctr:predict': predict,
      };
      response.setHeader('content-type', 'application/json');
      response.end(JSON.stringify(answers[request.url!]!()));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

it('reports what it measured and writes every prediction', async (t) => {
  const toy = new ToyBundle({ version: '3', seed: 9 });
  const { serving } = await startLocal(t, [toy]);
  const folder = temporaryFolder(t);
  const rows = toyRows(333);
  const labels = rows.map((_, i) => (i % 3 === 0 ? 1 : 0));
  const file = join(folder, 'rows.tsv');
  const output = join(folder, 'out', 'predictions.csv');
  writeFileSync(file, toTsv(rows, labels));
  const common = ['--rows', file, '--endpoint', `${serving.url}/`];
  const run = await ctrClient(...common, '--batch', '10', '--output', output, '--json');
  assert.equal(run.exit, 0, run.stderr);
  const report = JSON.parse(run.stdout);
  assert.deepEqual([report.rows, report.rowsPredicted, report.requests], [333, 333, 34]);
  assert.deepEqual(report.versions, { 3: 34 });
  assert.deepEqual([report.mixedVersions, report.degraded, report.failures], [0, 0, {}]);
  const [header, ...lines] = readFileSync(output, 'utf8').trimEnd().split('\n');
  assert.equal(header, 'row,label,probability,version');
  const probabilities = new Float64Array(333);
  rows.forEach((row, i) => {
    const [number, label, probability, version] = lines[i]!.split(',');
    assert.deepEqual([number, label, version], [String(i + 1), String(labels[i]), '3']);
    probabilities[i] = Number(probability);
    assert.ok(Math.abs(probabilities[i]! - toy.score(row)[1]) < 1e-6);
  });
  assert.equal(report.auc, auc(Uint8Array.from(labels), probabilities));
  assert.equal(report.logloss, logloss(Uint8Array.from(labels), probabilities));
  const text = await ctrClient(...common, '--limit', '7', '--concurrency', '2');
  assert.match(text.stdout, /rows +7 of 7 predicted/);
  assert.match(text.stdout, /versions +3 \(1 requests\)/);
  writeFileSync(file, toTsv(rows));
  const unlabelled = await ctrClient(...common, '--json');
  assert.equal(JSON.parse(unlabelled.stdout).auc, null);
});

it('says what is wrong with the rows, and writes nothing', async (t) => {
  const { serving } = await startLocal(t, [new ToyBundle({ version: '1', seed: 9 })]);
  const folder = temporaryFolder(t);
  const output = join(folder, 'predictions.csv');
  const good = toTsv(toyRows(5), [0, 1, 0, 1, 0]);
  const cases: [string | undefined, RegExp][] = [
    [undefined, /no such file/],
    ['', /no rows: the file is empty/],
    ['a\tb\n', /row 1: expected 6 tab-separated columns with label, or 5 without, got 2/],
    [`${good}1\t2\n`, /row 6: expected 6 tab-separated columns like the first row, got 2/],
    [`${good}2\t1\t2\ta\tb\tc\n`, /row 6, column 1 \(label\): expected 0 or 1, got "2"/],
    [
      `${good}0\tx\t2\ta\tb\tc\n`,
      /1 of 6 rows .*INVALID_ARGUMENT: request of rows 6 to 6: .*column 2 \(I1\)/,
    ],
  ];
  for (const [text, message] of cases) {
    const file = join(folder, text === undefined ? 'absent.tsv' : 'rows.tsv');
    if (text !== undefined) writeFileSync(file, text);
    const flags = ['--rows', file, '--endpoint', serving.url, '--batch', '5'];
    const { exit, stderr } = await ctrClient(...flags, '--output', output);
    assert.match(stderr, message);
    assert.equal(exit, 1);
    assert.ok(!existsSync(output));
  }
});

it('fails when nobody answers, when flags are wrong, and when an answer mixes versions', async (t) => {
  const folder = temporaryFolder(t);
  const file = join(folder, 'rows.tsv');
  writeFileSync(file, '0\t5\ta\n1\t6\tb\n');
  const down = await ctrClient('--rows', file, '--endpoint', 'http://127.0.0.1:1');
  assert.match(down.stderr, /nobody listens there; is serving running/);
  assert.equal(down.exit, 1);
  const wrong = await ctrClient('--rows', file, '--endpoint', 'localhost:8080');
  assert.match(wrong.stderr, /--endpoint: expected a URL/);
  assert.equal((await ctrClient('--rows', file)).exit, 2);
  let tables = '2';
  const rest = { unseen: 0, unavailable: 0, degraded: false };
  const url = await startStandIn(t, () => {
    return { version: '1', tables_version: tables, probabilities: [0.5, 0.25], ...rest };
  });
  const mixed = await ctrClient('--rows', file, '--endpoint', url);
  assert.match(mixed.stdout, /MIXED +1 answers/);
  assert.match(mixed.stderr, /mixed versions/);
  assert.equal(mixed.exit, 1);
  tables = '1';
  assert.equal((await ctrClient('--rows', file, '--endpoint', url)).exit, 0);
});

it('says in one line that another server listens there, and before it sends that the output is a folder', async (t) => {
  const folder = temporaryFolder(t);
  const file = join(folder, 'rows.tsv');
  writeFileSync(file, '0\t5\ta\n');
  const other = createServer((_, response) => response.writeHead(404).end('<html>\n<p>none</p>'));
  await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
  t.after(() => other.close());
  const url = `http://127.0.0.1:${(other.address() as AddressInfo).port}`;
  const foreign = await ctrClient('--rows', file, '--endpoint', url);
  assert.equal(foreign.exit, 1);
  assert.match(foreign.stderr, /^.*HTTP 404: <html>; is it serving that listens there\?\n$/);
  let asked = 0;
  const serving = await startStandIn(t, () => {
    asked++;
    return {};
  });
  const spoiled = await ctrClient('--rows', file, '--endpoint', serving, '--output', folder);
  assert.equal(spoiled.exit, 1);
  assert.match(spoiled.stderr, /^ctr-client: --output .* is a folder; name a file in it\n$/);
  assert.equal(asked, 0);
});

it('a percentile is the nearest rank', () => {
  const values = Float64Array.from({ length: 100 }, (_, i) => i + 1);
  assert.deepEqual(
    [0.5, 0.95, 0.99, 1].map((share) => percentile(values, share)),
    [50, 95, 99, 100],
  );
  assert.equal(percentile(Float64Array.of(7), 0.99), 7);
  assert.equal(percentile(new Float64Array(0), 0.5), 0);
});
