/** ctr-client with experiments: the keys that it sends, and its report by variant. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { assignVariant } from '../../../lib/core/experiment.ts';
import {
  aucInterval,
  calibrationInterval,
  loglossInterval,
} from '../../../lib/core/metric-intervals.ts';
import { auc, calibration, logloss } from '../../../lib/core/model-metrics.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { completeConfig } from '../../../serving/config/serving-config.ts';
import { parseTraffic } from '../../../serving/config/traffic-file.ts';
import { startServing } from '../../../serving/server.ts';
import { readRowKeys } from '../../../tools/ctr-client/rows/experiment-keys.ts';
import { type RowValues, readRowsFile } from '../../../tools/ctr-client/rows/rows-file.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from '../../serving/support/toy-bundle.ts';
import { ToyRepository } from '../../serving/support/toy-service.ts';
import { ctrClient } from './client-process.ts';

const TRAFFIC = `experiments:
  - name: ranking
    model: ${BUNDLE}
    variants: [{ name: control, weight: 50 }, { name: new, weight: 50 }]
`;

/** Starts a serving process with the experiment. */
async function startExperiment(t: TestContext, toy: ToyBundle) {
  const toys = new ToyRepository(t);
  await toys.publish(toy);
  await toys.activate('1');
  const trafficFile = join(toys.folder, 'traffic.yaml');
  writeFileSync(trafficFile, TRAFFIC);
  const source = { repository: toys.location, bundle: BUNDLE };
  const config = completeConfig({
    port: 0,
    timeoutMs: 60_000,
    trafficFile,
    models: [{ ...source, store: 'memory', instances: 1 }],
  });
  const serving = await startServing({ config, logger: createLogger('test', { level: 'silent' }) });
  t.after(() => serving.stop());
  while (!(await fetch(`http://${serving.address}/v2/health/ready`)).ok) await sleep(20);
  return { serving, folder: toys.folder };
}

test('sends keys by every kind of protocol, and reports each variant', async (t) => {
  const toy = new ToyBundle({ version: '1', seed: 3 });
  const { serving, folder } = await startExperiment(t, toy);
  // Column 4 is C1; a user has up to three rows, one after another.
  const rows = toyRows(240).map(({ dense, categorical: [, ...rest] }, i) => {
    return {
      dense,
      categorical: [`user-${Math.floor(i / 3) % 60}`, ...rest],
    };
  });
  const labels = Uint8Array.from(rows, (_, i) => ((i * 7) % 5 < 2 ? 1 : 0));
  const file = join(folder, 'rows.tsv');
  writeFileSync(file, toTsv(rows, [...labels]));
  const flags = ['--rows', file, '--endpoint', serving.address, '--by-variant', '--json'];

  const [experiment] = parseTraffic(TRAFFIC, 'test').experiments;
  assert.ok(experiment);
  for (const protocol of ['ctr', 'ctr-grpc', 'kserve']) {
    const run = await ctrClient(...flags, '--experiment-key', '4', '--protocol', protocol);
    assert.equal(run.exit, 0, run.stderr);
    const report = JSON.parse(run.stdout);
    assert.equal(report.requests, 80);
    assert.equal(report.byVariant.rowsWithoutVariant, 0);
    for (const name of ['control', 'new']) {
      const own: number[] = [...rows.keys()].filter((row) => {
        return assignVariant(experiment, rows[row]!.categorical[0]!).name === name;
      });
      const data = {
        labels: Uint8Array.from(own, (row) => labels[row]!),
        scores: Float64Array.from(own, (row) => toy.score(rows[row]!)[1]),
        groups: Uint32Array.from(own, (row) => Math.floor(row / 3) % 60),
      };
      const got = report.byVariant.variants.find((each: { variant: string }) => {
        return each.variant === name;
      });
      assert.equal(got.experiment, 'ranking');
      assert.deepEqual([got.rows, got.keys], [own.length, new Set(data.groups).size], protocol);
      const near = (one: number, other: number): void =>
        assert.ok(Math.abs(one - other) < 1e-4, `${protocol} ${name}: ${one} for ${other}`);
      const metrics = { auc, logloss, calibration };
      const intervals = {
        auc: aucInterval,
        logloss: loglossInterval,
        calibration: calibrationInterval,
      };
      for (const metric of ['auc', 'logloss', 'calibration'] as const) {
        near(got[metric].value, metrics[metric](data.labels, data.scores));
        near(got[metric].low, intervals[metric](data).low);
        near(got[metric].high, intervals[metric](data).high);
      }
    }
  }

  const random = await ctrClient(
    ...flags.slice(0, -1),
    '--experiment-key',
    'random',
    '--batch',
    '2',
  );
  assert.match(random.stdout, /experiment +variant +rows +keys +AUC, 95 % .*calibration, 95 %\n/);
  const lines = [...random.stdout.matchAll(/^ranking +(control|new) +(\d+) +(\d+) +0\.\d+ \(0/gm)];
  const sum = (column: number): number =>
    lines.reduce((total, line) => total + Number(line[column]), 0);
  assert.deepEqual([lines.length, sum(2), sum(3)], [2, 240, 120], random.stdout);

  writeFileSync(file, toTsv(rows));
  const unlabelled = await ctrClient(...flags);
  assert.match(unlabelled.stderr, /--by-variant: .*rows\.tsv has no labels/);
});

test('sends keys in UTF-8 over HTTP, and refuses them for gRPC', async (t) => {
  const { serving, folder } = await startExperiment(t, new ToyBundle({ version: '1', seed: 3 }));
  const [experiment] = parseTraffic(TRAFFIC, 'test').experiments;
  assert.ok(experiment);
  const file = join(folder, 'rows.tsv');
  const flags = ['--rows', file, '--endpoint', serving.address, '--by-variant', '--json'];
  const foreign = toyRows(60).map((row, i) => ({ ...row, categorical: [`ü用户-${i}`, '', ''] }));
  writeFileSync(
    file,
    toTsv(
      foreign,
      foreign.map((_, i) => i % 2),
    ),
  );
  const isNew = ({ categorical: [key] }: (typeof foreign)[number]): boolean =>
    assignVariant(experiment, key ?? '').name === 'new';
  for (const protocol of ['ctr', 'kserve']) {
    const run = await ctrClient(...flags, '--experiment-key', '4', '--protocol', protocol);
    assert.equal(run.exit, 0, run.stderr);
    const { variants } = JSON.parse(run.stdout).byVariant;
    const got = variants.find((each: { variant: string }) => each.variant === 'new');
    assert.equal(got.rows, foreign.filter(isNew).length, protocol);
  }
  const overGrpc = await ctrClient(...flags, '--experiment-key', '4', '--protocol', 'ctr-grpc');
  assert.match(overGrpc.stderr, /takes at most 256 printable ASCII characters over gRPC, got "ü/);
});

test('reads keys from a column, and refuses rows without it', async (t) => {
  const folder = temporaryFolder(t);
  const read = (text: string) => {
    const file = join(folder, 'rows');
    writeFileSync(file, text);
    return readRowsFile(file, 2, 10);
  };
  const lines = await read('0\ta\tx\n1\tb\t\n');
  assert.deepEqual(
    [0, 1].map((row) => readRowKeys(lines, '3', false)(row, 64)),
    ['x', ''],
  );
  for (const column of ['0', '1', '4', '1.5', 'C1']) {
    assert.throws(
      () => readRowKeys(lines, column, false),
      /expected random, or a column of .*, 2 to 3/,
    );
  }
  assert.throws(() => readRowKeys(lines, '0', false), /column 1 is the label/);
  const named = await read('{"user":7,"C1":["a","b"]}\n{"C1":"c"}\n');
  assert.deepEqual(
    [0, 1].map((row) => readRowKeys(named, 'user', false)(row, 64)),
    ['7', ''],
  );
  assert.throws(() => readRowKeys(named, 'absent', false), { code: 'NOT_FOUND' });
  assert.throws(() => readRowKeys(named, 'C1', false), /row 1: C1: expected one value/);
  const positions: RowValues = { kind: 'positions', values: [{ dense: [], categorical: ['a'] }] };
  const byPosition = { source: 'rows', rows: positions, count: 1, labels: undefined };
  assert.throws(() => readRowKeys(byPosition, '1', false), { code: 'UNSUPPORTED' });
  for (const key of ['ä', 'x'.repeat(257)]) {
    const wrong = await read(`0\ta\t${key}\n`);
    assert.throws(
      () => readRowKeys(wrong, '3', key === 'ä'),
      /row 1: x-experiment-key takes at most 256/,
    );
  }
});
