/** The serving process with the LOCAL store, over real sockets: scores, doors, hostile requests, graceful end. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { openRepository } from '../../lib/repository/repository.ts';
import { temporaryFolder } from '../repository/fixtures.ts';
import { ServingProcess } from './serving-process.ts';
import { BUNDLE, keyOf, ToyBundle, toTsv, toyRows } from './toy-bundle.ts';
import { startLocal } from './toy-service.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));
const TOLERANCE = 1e-6;

describe('scores equal the plain computation', () => {
  const cases = [
    ['one concatenated input', { version: '1', seed: 1, inputs: 'one' }],
    ['an input for each slot', { version: '1', seed: 2, inputs: 'many', golden: true }],
    ['two tables of different dims, one input each', { version: '1', seed: 3, wide: true }],
    ['two tables, an input for each slot', { version: '1', seed: 4, wide: true, inputs: 'many' }],
  ] as const;
  for (const [name, wish] of cases) {
    it(name, async (t) => {
      const toy = new ToyBundle(wish);
      const { serving } = await startLocal(t, [toy]);
      // More than two batches, so that rows come back in their places.
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
});

describe('doors', () => {
  const toy = new ToyBundle({ version: '7', seed: 11 });
  const rows = toyRows(5, 3);
  const nan = (value: number): number | null => (Number.isNaN(value) ? null : value);

  it('answers the same through KServe v2 (features or keys) and both forms of JSON rows', async (t) => {
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
          slot === 0 ? Number(keyOf(slot, feature)) : String(keyOf(slot, feature)),
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

  it('says what it is', async (t) => {
    const { serving } = await startLocal(t, [toy]);
    for (const slash of ['', '/']) {
      assert.equal((await serving.get(`/v2${slash}`)).body.name, 'hypercube');
      const ready = await serving.get(`/v2/models/${BUNDLE}/ready${slash}`);
      assert.deepEqual(ready, { status: 200, body: { name: BUNDLE, ready: true } });
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
      'hypercube_serving_requests_total{door="ctr",code="OK"} 1',
      'hypercube_serving_requests_total{door="ctr",code="INVALID_ARGUMENT"} 1',
      'hypercube_serving_rows_total 5',
      'hypercube_serving_version_active{model="toy",version="7"} 1',
      'hypercube_serving_model_instances{state="alive"} 2',
    ]) {
      assert.ok(metrics.includes(line), `${line}\n${metrics}`);
    }
  });
});

describe('what may not be asked', () => {
  const toy = new ToyBundle({ version: '1', seed: 21 });
  const tensor = (name: string, datatype: string, shape: unknown, data: unknown): object => {
    return { name, datatype, shape, data };
  };
  const categorical = tensor('categorical', 'BYTES', [1, 3], ['a', 'b', 'c']);
  const dense = tensor('dense', 'FP32', [1, 2], [1, 2]);
  const infer = (...inputs: object[]): string => JSON.stringify({ inputs });
  const inferPath = `/v2/models/${BUNDLE}/infer`;

  it('is refused with one clear error, and the next request is answered', async (t) => {
    const { serving } = await startLocal(t, [toy]);
    const good = toTsv(toyRows(1));
    const tsv: [string, number, RegExp][] = [
      ['1\t2\t3\ta\tb\tc\td\n', 400, /row 1: expected 6 .*or 5 without label, got 7/],
      [`${good}1\t2\ta\tb\n`, 400, /row 2: expected 6 .* got 4/],
      ['x\t2\ta\tb\tc\n', 400, /row 1, column 1 \(I1\): expected a number or nothing, got "x"/],
      ['0\t5\t0x10\ta\tb\tc\n', 400, /row 1, column 3 \(I2\)/],
      ['2\t5\t1\ta\tb\tc\n', 400, /column 1 \(label\): expected 0 or 1/],
      ['1e999\t2\ta\tb\tc\n', 400, /row 1 \(I1\): Infinity is beyond/],
      [`1\t2\ta\tb\t${'c'.repeat(1_000_000)}\n`, 400, /row 1: a line of 1000008 characters/],
      ['\n'.repeat(10_001), 413, /10001 rows in one request, the limit is 10000/],
      ['', 400, /the body is empty/],
      ['x'.repeat(17 << 20), 413, /the body is too large/],
    ];
    for (const [body, status, error] of tsv) {
      const answer = await serving.postTsv(body);
      assert.match(answer.body.error, error);
      assert.equal(answer.status, status);
    }
    const json: [string, string, number, RegExp][] = [
      ['/v1/ctr:predict', '{"rows":', 400, /not JSON/],
      ['/v1/ctr:predict', '{"rows":[]}', 400, /rows: expected an array of at least 1/],
      ['/v1/ctr:predict', '{"rows":[5]}', 400, /rows\[0\]: expected an object/],
      ['/v1/ctr:predict', '{"rows":[{"dense":[1],"categorical":[]}]}', 400, /rows\[0\]\.dense/],
      ['/v1/ctr:predict', '{"rows":[{"I1":"5"}]}', 400, /rows\[0\]\.I1: expected a finite number/],
      ['/v1/ctr:predict', '{"rows":[{"C9":"5"}]}', 400, /rows\[0\]\.C9.*no feature of this name/],
      ['/v1/ctr:predict', '{"rows":[{"C1":9007199254740993}]}', 400, /rows\[0\]\.C1/],
      ['/v2/models/other/infer', infer(categorical, dense), 404, /model "other" is not served/],
      [`/v2/models/${BUNDLE}/versions/9/infer`, infer(categorical), 404, /loaded: 1/],
      [inferPath, infer(), 400, /inputs: expected an array of at least 1/],
      [inferPath, infer(dense), 400, /either an input categorical or an input keys/],
      [inferPath, infer(categorical), 400, /an input dense too/],
      [inferPath, infer(categorical, categorical), 400, /each input once/],
      [inferPath, infer(tensor('ids', 'INT64', [1], [1])), 400, /name: expected one of/],
      [inferPath, infer(tensor('dense', 'FP64', [1, 2], [1, 2])), 400, /datatype/],
      [inferPath, infer(tensor('dense', 'FP32', [1, 3], [1, 2, 3])), 400, /shape.*\[rows, 2\]/],
      [inferPath, infer(tensor('dense', 'FP32', [0, 2], [])), 400, /shape\[0\]/],
      [inferPath, infer(tensor('dense', 'FP32', [2, 2], [1, 2])), 400, /4 values/],
      [inferPath, infer(categorical, tensor('dense', 'FP32', [1, 2], [1, 'x'])), 400, /value 1/],
      [inferPath, infer(tensor('dense', 'FP32', [20_000, 2], [])), 413, /limit is 10000/],
      [
        inferPath,
        infer(dense, tensor('keys', 'UINT64', [1, 3], [1, 2 ** 53, 3])),
        400,
        /keys, value 1.*64-bit/,
      ],
      [inferPath, `{"inputs":[],"outputs":[{"name":"x"}]}`, 400, /outputs\[0\]\.name.*prob/],
      ['/v2/nothing', '{}', 404, /no such door/],
    ];
    for (const [path, body, status, error] of json) {
      const answer = await serving.post(path, body);
      assert.match(answer.body.error, error);
      assert.equal(answer.status, status, answer.body.error);
    }
    const headers = { 'content-type': 'text/tab-separated-values' };
    const ctr = '/v1/ctr:predict';
    const others = [
      await serving.post(ctr, good, { 'content-type': 'text/plain' }),
      await serving.post(ctr, good, { ...headers, 'timeout-ms': 'soon' }),
      await serving.post(ctr, Uint8Array.of(0xff, 0xfe, 9), headers),
      await serving.post(inferPath, '{}', { 'inference-header-content-length': '2' }),
    ];
    const errors = [/Content-Type "text\/plain"/, /timeout-ms/, /not UTF-8/, /binary tensor/];
    others.forEach(({ status, body }, i) => {
      assert.match(body.error, errors[i]!);
      assert.equal(status, 400);
    });
    assert.equal((await serving.postTsv(good)).status, 200);
    assert.equal(await serving.stop(), 0);
  });
});

describe('without a version', () => {
  it('is not ready, says why, and becomes ready by itself', async (t) => {
    const folder = temporaryFolder(t);
    const location = join(folder, 'repo');
    const repository = openRepository(location, { create: true });
    const serving = await ServingProcess.start(t, [
      ...['--repository', location, '--bundle', BUNDLE, '--store', 'local'],
      ...['--data-dir', join(folder, 'data')],
    ]);
    await serving.until('/readyz', ({ body }) => /has no channel stable/.test(body.error));
    const answer = await serving.postTsv(toTsv(toyRows(1)));
    assert.deepEqual([answer.status, answer.body.code], [503, 'NOT_READY']);
    assert.equal((await serving.get('/healthz')).status, 200);
    assert.equal((await serving.get(`/v2/models/${BUNDLE}/ready`)).body.ready, false);
    const toy = new ToyBundle({ version: '1', seed: 31 });
    await repository.publish(toy.publication(join(folder, 'layers')));
    await repository.activate(BUNDLE, 'stable', { version: '1', by: 'test', reason: 'first' });
    await serving.untilReady();
    assert.equal((await serving.postTsv(toTsv(toyRows(1)))).status, 200);
  });

  it('refuses wrong flags before it starts', (t) => {
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
});
