/** The serving process with the local store: scores, protocols, readiness, flags. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { toArguments } from '../../lib/platform/arguments.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, hashKey, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));
const TOLERANCE = 1e-6;

const cases = [
  ['one concatenated input', { version: '1', seed: 1, inputs: 'one' }],
  ['an input for each slot', { version: '1', seed: 2, inputs: 'many', golden: true }],
  ['two tables of different dims, one input each', { version: '1', seed: 3, wide: true }],
  ['two tables, an input for each slot', { version: '1', seed: 4, wide: true, inputs: 'many' }],
] as const;
for (const [name, options] of cases) {
  test(`scores are as expected with ${name}`, async (t) => {
    const toy = new ToyBundle(options);
    const { serving } = await startLocal(t, [toy]);
    // More than two batches, to check the order of rows.
    const rows = toyRows(150);
    const { status, body } = await serving.postTsv(toTsv(rows));
    assert.equal(status, 200, JSON.stringify(body));
    assert.equal(body.probabilities.length, rows.length);
    rows.forEach((row, i) => {
      assert.ok(Math.abs(body.probabilities[i] - toy.score(row)[1]) < TOLERANCE, `row ${i}`);
    });
    assert.equal(
      body.unseen,
      rows.reduce((sum, row) => sum + toy.unseen(row), 0),
    );
    assert.deepEqual(
      [body.model, body.version, body.tables_version, body.unavailable, body.degraded],
      [BUNDLE, '1', '1', 0, false],
    );
    assert.equal(await serving.stop(), 0);
  });
}

const toy = new ToyBundle({ version: '7', seed: 11 });
const rows = toyRows(5, 3);
const nan = (value: number): number | null => (Number.isNaN(value) ? null : value);

test('KServe v2 (features or keys) and both forms of JSON rows give the same scores', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const expected = rows.map((row) => toy.score(row));
  const dense = {
    name: 'dense',
    datatype: 'FP32',
    shape: [5, 2],
    data: rows.flatMap((row) => row.dense.map(nan)),
  };
  const categorical = {
    name: 'categorical',
    datatype: 'BYTES',
    shape: [5, 3],
    data: rows.map((row) => row.categorical),
  };
  const keys = {
    name: 'keys',
    datatype: 'UINT64',
    shape: [5, 3],
    data: rows.flatMap((row) =>
      row.categorical.map((feature, slot) =>
        slot === 0 ? Number(hashKey(slot, feature)) : String(hashKey(slot, feature)),
      ),
    ),
  };
  for (const [path, inputs] of [
    [`/v2/models/${BUNDLE}/infer`, [categorical, dense]],
    [`/v2/models/${BUNDLE}/infer/`, [dense, keys]],
    [`/v2/models/${BUNDLE}/versions/7/infer`, [keys, dense]],
  ] as const) {
    const { status, body } = await serving.post(path, JSON.stringify({ id: 'a-1', inputs }));
    assert.equal(status, 200, JSON.stringify(body));
    assert.deepEqual([body.model_name, body.model_version, body.id], [BUNDLE, '7', 'a-1']);
    const unseen = rows.reduce((sum, row) => sum + toy.unseen(row), 0);
    assert.deepEqual(body.parameters, {
      tables_version: '7',
      unseen,
      unavailable: 0,
      degraded: false,
    });
    const [output] = body.outputs;
    assert.deepEqual([output.name, output.datatype, output.shape], ['prob', 'FP32', [5, 2]]);
    expected.flat().forEach((value, i) => {
      assert.ok(Math.abs(output.data[i] - value) < TOLERANCE, `value ${i}`);
    });
  }
  const byPosition = rows.map((row) => ({ ...row, dense: row.dense.map(nan), label: 1 }));
  const byName = rows.map(({ dense: [i1, i2], categorical: [c1, c2, c3] }) => ({
    I1: nan(i1!),
    I2: nan(i2!),
    C1: c1,
    ...(c2 === '' ? {} : { C2: c2 }),
    C3: c3,
  }));
  for (const form of [byPosition, byName]) {
    const { body } = await serving.post('/v1/ctr:predict', JSON.stringify({ rows: form }));
    expected.forEach(([, click], i) => {
      assert.ok(Math.abs(body.probabilities[i] - click) < TOLERANCE, JSON.stringify(body));
    });
  }
});

test('metadata, status and metrics describe the process', async (t) => {
  const { serving } = await startLocal(t, [toy], ['--instances', '2']);
  for (const slash of ['', '/']) {
    assert.equal((await serving.get(`/v2${slash}`)).body.name, 'hypercube');
    const { status, body } = await serving.get(`/v2/models/${BUNDLE}/ready${slash}`);
    assert.deepEqual({ status, body }, { status: 200, body: { name: BUNDLE, ready: true } });
  }
  const { body } = await serving.get(`/v2/models/${BUNDLE}/versions/7`);
  assert.deepEqual(body.versions, ['7']);
  assert.deepEqual(body.inputs, [
    { name: 'categorical', datatype: 'BYTES', shape: [-1, 3] },
    { name: 'dense', datatype: 'FP32', shape: [-1, 2] },
  ]);
  assert.deepEqual(body.outputs, [{ name: 'prob', datatype: 'FP32', shape: [-1, 2] }]);
  for (const path of ['/v2/health/live', '/v2/health/ready', '/healthz', '/readyz']) {
    assert.equal((await serving.get(path)).status, 200);
  }
  await serving.postTsv(toTsv(rows));
  await serving.postTsv('nonsense');
  const { body: metrics } = await serving.get('/metrics');
  for (const line of [
    'hypercube_serving_requests_total{protocol="ctr",code="OK"} 1',
    'hypercube_serving_requests_total{protocol="ctr",code="INVALID_ARGUMENT"} 1',
    'hypercube_serving_rows_total 5',
    'hypercube_serving_version_active{model="toy",version="7",channel="stable"} 1',
    'hypercube_serving_model_instances{state="alive"} 2',
    'hypercube_engine_batches_total{model="toy",version="7",rows="8"} 1',
  ]) {
    assert.ok(metrics.includes(line), `${line}\n${metrics}`);
  }
});

test('the process is not ready with a reason, then becomes ready by itself', async (t) => {
  const folder = temporaryFolder(t);
  const location = join(folder, 'repo');
  const repository = openRepository(location, { create: true });
  const serving = await ServingProcess.start(
    t,
    toArguments({
      repository: location,
      bundle: BUNDLE,
      store: 'local',
      dataDir: join(folder, 'data'),
    }),
  );
  await serving.waitFor('/readyz', ({ body }) => /has no channel stable/.test(body.error));
  const answer = await serving.postTsv(toTsv(toyRows(1)));
  assert.deepEqual([answer.status, answer.body.code], [503, 'NOT_READY']);
  assert.equal((await serving.get('/healthz')).status, 200);
  assert.equal((await serving.get(`/v2/models/${BUNDLE}/ready`)).body.ready, false);
  const toy = new ToyBundle({ version: '1', seed: 31 });
  await repository.publish(toy.publication(join(folder, 'layers')));
  await repository.activate(BUNDLE, 'stable', { version: '1', by: 'test', reason: 'first' });
  await serving.waitUntilReady();
  assert.equal((await serving.postTsv(toTsv(toyRows(1)))).status, 200);
});

test('invalid flags are rejected before the process starts', (t) => {
  const folder = temporaryFolder(t);
  const cases: [string[], number, RegExp][] = [
    [[], 2, /--repository/],
    [['--repository', folder, '--bundle', 'b', '--store', 'local'], 2, /needs --data-dir/],
    [['--repository', folder, '--bundle', 'b', '--store', 'remote'], 2, /needs --fleet/],
    [
      ['--repository', '/no/such', '--bundle', 'b', '--store', 'local', '--data-dir', folder],
      1,
      /\/no\/such/,
    ],
  ];
  for (const [flags, exit, message] of cases) {
    const { status, stderr } = spawnSync(process.execPath, [MAIN, ...flags], {
      encoding: 'utf8',
    });
    assert.match(stderr, message);
    assert.equal(status, exit);
  }
});
