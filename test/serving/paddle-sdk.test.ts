/** PredictorApi and PaddleClient with real serving processes, over all protocols. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, type TestContext, test } from 'node:test';
import { PaddleClient } from '../../lib/client/paddle-client.ts';
import { PredictorApi } from '../../lib/client/predictor-api.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { encodeGeneralRequest } from '../../proto/general-model-client.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { encodeRequest } from './support/paddle-client.ts';
import { multiply, serve } from './support/plain-models.ts';

const cleanUps: (() => unknown)[] = [];
const context = { after: (cleanUp: () => unknown) => cleanUps.push(cleanUp) };
/** host:port of a server that doubles, and of one that triples. */
let twice = '';
let thrice = '';

before(async () => {
  const t = context as unknown as TestContext;
  const servings = await Promise.all([
    serve(t, { twice: multiply(2) }),
    serve(t, { thrice: multiply(3) }),
  ]);
  [twice = '', thrice = ''] = servings.map(({ serving }) => new URL(serving.url).host);
});
after(async () => {
  for (const cleanUp of cleanUps.toReversed()) await cleanUp();
});

async function createApi(
  t: TestContext,
  variants: string,
  options: Parameters<typeof PredictorApi.create>[2] = {},
  weights = '1|1',
): Promise<PredictorApi> {
  const folder = temporaryFolder(t);
  writeFileSync(
    join(folder, 'predictors.prototxt'),
    `default_variant_conf { tag: "default" connection_conf { rpc_timeout_ms: 30000 } }
     predictors {
       name: "scale"
       weighted_random_render_conf { variant_weight_list: "${weights}" }
       ${variants}
     }`,
  );
  const api = await PredictorApi.create(folder, 'predictors.prototxt', options);
  t.after(() => api.destroy());
  return api;
}

const variant = (tag: string, host: string, rest = ''): string =>
  `variants { tag: "${tag}" naming_conf { cluster: "list://${host}" } ${rest} }\n`;

const X = { x: [[1], [2], [3]] };

for (const protocol of ['baidu_std', 'http', 'h2:grpc']) {
  test(`${protocol}: variants answer by weight and say their tag`, async (t) => {
    const rpc = `rpc_parameter { protocol: "${protocol}" }`;
    const api = await createApi(t, variant('double', twice, rpc) + variant('triple', thrice, rpc));
    const factors: Readonly<Record<string, number>> = { double: 2, triple: 3 };
    const seen = new Set<string>();
    for (let i = 0; seen.size < 2; i++) {
      assert.ok(i < 200, 'one variant was never chosen');
      const predictor = api.fetchPredictor('scale');
      const request = { tensors: X, logId: 2n ** 63n, profile: true };
      const { tag, outputs, logId, profileTimes, remark } = await predictor.inference(request);
      assert.equal(tag, predictor.tag);
      assert.equal(logId, 2n ** 63n);
      assert.equal(remark, '');
      assert.ok(profileTimes.length >= 2);
      const factor = factors[tag]!;
      assert.deepEqual(outputs[0]?.tensors['y'], {
        dataType: 'FP32',
        shape: [3, 1],
        data: Float32Array.of(factor, 2 * factor, 3 * factor),
      });
      seen.add(tag);
      api.freePredictor(predictor);
      await assert.rejects(predictor.inference(request), /was freed; fetch another one/);
    }
    const predictor = api.fetchPredictor('scale');
    const debug = await predictor.debug({ tensors: X });
    assert.match(debug.info, /version=/);
    assert.equal(debug.outputs.length, 1);
    await assert.rejects(
      predictor.inference({ tensors: { wrong: [[1]] } }),
      (error) => error instanceof CubeError && /wrong/.test(error.message),
    );
    const called = await new Promise((resolve) => {
      predictor.inference({ tensors: X }, (error, response) => resolve(error ?? response?.tag));
    });
    assert.equal(called, predictor.tag);
    predictor.sendInference({ tensors: X });
    assert.throws(() => predictor.sendInference({ tensors: X }), /was sent already/);
    assert.equal((await predictor.recvInference()).tag, predictor.tag);
    await assert.rejects(predictor.recvInference(), /no call was sent/);
    assert.throws(
      () => api.fetchPredictor('scales'),
      /no predictor "scales"; did you mean "scale"/,
    );
    const calls = api.stats().reduce((sum, one) => sum + one.calls, 0);
    assert.ok(calls >= seen.size + 3);
    api.destroy();
    assert.throws(() => api.fetchPredictor('scale'), /destroyed/);
  });
}

test('compression 0 to 4 and all connection types give the same answers', async (t) => {
  const many = { x: Array.from({ length: 400 }, (_, i) => [i % 7]) };
  const ways: [string, number, string][] = [
    ...[0, 1, 2, 3, 4].map((type): [string, number, string] => ['baidu_std', type, 'pooled']),
    ['baidu_std', 2, 'single'],
    ['baidu_std', 0, 'short'],
    ['http', 2, 'pooled'],
    ['http', 0, 'short'],
    ['h2:grpc', 2, 'pooled'],
  ];
  for (const [protocol, type, connection] of ways) {
    const rpc = `rpc_parameter { protocol: "${protocol}" compress_type: ${type} }
      connection_conf { connection_type: "${connection}" }`;
    const api = await createApi(t, variant('only', twice, rpc));
    const predictor = api.fetchPredictor('scale');
    const answers = await Promise.all([1, 2, 3].map(() => predictor.inference({ tensors: many })));
    for (const { outputs } of answers) {
      const { data } = outputs[0]?.tensors['y'] ?? {};
      assert.deepEqual(
        [...(data as Float32Array)],
        many.x.map(([value = 0]) => 2 * value),
      );
    }
    api.destroy();
  }
});

test('large requests are split by package_size if asked for, rows in order', async (t) => {
  const rows = Array.from({ length: 61 }, (_, i) => [i]);
  const options = { splitRequests: true };
  const api = await createApi(t, variant('only', `${twice},${twice}`), options);
  const { outputs } = await api.fetchPredictor('scale').inference({ tensors: { x: rows } });
  const { data, shape } = outputs[0]?.tensors['y'] ?? {};
  assert.deepEqual(shape, [61, 1]);
  assert.deepEqual(
    [...(data as Float32Array)],
    rows.map(([value = 0]) => 2 * value),
  );
  assert.equal(api.stats()[0]?.calls, 3);
});

test('requests have the bytes that the protobuf library writes for them', () => {
  const floats = new Uint8Array(Float32Array.of(0.5, -1).buffer);
  const longs = new Uint8Array(BigInt64Array.of(1n, -2n, 2n ** 62n).buffer);
  const bytes = encodeGeneralRequest(
    [
      { name: 'dense', aliasName: 'd', dataType: 'FP32', shape: [1, 2], data: floats },
      { name: 'ids', aliasName: '', dataType: 'INT64', shape: [3, 1], data: longs, lod: [0, 3] },
      { name: 'text', aliasName: '', dataType: 'BYTES', shape: [1], data: ['a'] },
    ],
    { fetchNames: ['prob'], logId: 2n ** 64n - 1n, profileServer: true },
  );
  const int64_data = ['1', '-2', String(2n ** 62n)];
  const expected = encodeRequest({
    tensor: [
      { name: 'dense', alias_name: 'd', elem_type: 1, shape: [1, 2], float_data: [0.5, -1] },
      { name: 'ids', shape: [3, 1], int64_data, lod: [0, 3] },
      { name: 'text', elem_type: 20, shape: [1], data: ['a'] },
    ],
    fetch_var_names: ['prob'],
    log_id: '18446744073709551615',
    profile_server: true,
  });
  assert.deepEqual(Buffer.from(bytes), Buffer.from(expected));
});

const CLIENT_CONF = `
feed_var { name: "x" alias_name: "in" is_lod_tensor: false feed_type: 1 shape: 1 }
fetch_var { name: "y" alias_name: "out" is_lod_tensor: false fetch_type: 1 shape: 1 }
`;

test('PaddleClient predicts as in Python', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'serving_client_conf.prototxt'), CLIENT_CONF);
  for (const protocol of ['baidu_std', 'http', 'grpc'] as const) {
    const client = new PaddleClient({ protocol }).load_client_config(folder).connect([twice]);
    t.after(() => client.release());
    assert.deepEqual([client.get_feed_names(), client.get_fetch_names()], [['in'], ['out']]);
    const y = (shape: number[], ...data: number[]) => ({
      out: { dataType: 'FP32', shape, data: Float32Array.from(data) },
    });
    // A batch: nested lists, a flat array, and a tensor of another type.
    assert.deepEqual(await client.predict({ in: [[1], [2]] }, ['out'], true), y([2, 1], 2, 4));
    assert.deepEqual(
      await client.predict({ in: Float32Array.of(1, 2, 3) }, 'out', true),
      y([3, 1], 2, 4, 6),
    );
    const integers = { dataType: 'INT32', shape: [2, 1], data: Int32Array.of(4, 5) } as const;
    assert.deepEqual(await client.predict({ in: integers }, [], true), y([2, 1], 8, 10));
    // One row: the dimension of the batch is added.
    assert.deepEqual(await client.predict({ in: [7] }), y([1, 1], 14));
    await assert.rejects(
      client.predict({ inn: [7] }),
      /feed: unknown name "inn"; did you mean "in"/,
    );
    await assert.rejects(client.predict({ in: [7] }, ['y']), /fetch: unknown name "y"/);
    await assert.rejects(
      client.predict({ in: ['a'] }),
      /input "in": expected elements of type FP32/,
    );
    await assert.rejects(
      client.predict({ in: [7], 'in.lod': [0, 2] }),
      /lod of in: expected ascend/,
    );
    assert.throws(() => client.connect([twice]), /is connected; release it/);
    client.release();
    await assert.rejects(client.predict({ in: [7] }), /call connect first/);
  }
  const both = new PaddleClient().loadClientConfig(folder);
  assert.throws(() => both.connect(), /no servers/);
  both.addVariant('double', [twice], 0).add_variant('triple', [thrice], 1).connect();
  t.after(() => both.release());
  const { result, tag } = await both.predictWithTag({ in: [7] });
  assert.deepEqual([tag, result['out']?.data], ['triple', Float32Array.of(21)]);
});

test('a process ends after destroy, and long timeouts do not hold it', async (t) => {
  const folder = temporaryFolder(t);
  const module = (name: string): string =>
    new URL(`../../lib/client/${name}`, import.meta.url).href;
  const conf = `default_variant_conf { tag: "d" connection_conf {
      rpc_timeout_ms: 600000 hedge_request_timeout_ms: 500000 } }
    predictors { name: "scale" ${variant('only', `${twice},${thrice}`)} }`;
  writeFileSync(join(folder, 'predictors.prototxt'), conf);
  writeFileSync(
    join(folder, 'main.mjs'),
    `import { PredictorApi } from ${JSON.stringify(module('predictor-api.js'))};
     for (const protocol of ['baidu_std', 'http', 'h2:grpc']) {
       const api = await PredictorApi.create(${JSON.stringify(folder)});
       await api.fetchPredictor('scale').inference({ tensors: { x: [[1]] } });
       api.destroy();
     }
     const timers = process.getActiveResourcesInfo().filter((name) => name === 'Timeout');
     console.log(timers.length);`,
  );
  const child = spawn(process.execPath, [join(folder, 'main.mjs')], { stdio: 'pipe' });
  t.after(() => child.kill('SIGKILL'));
  let printed = '';
  child.stdout.on('data', (piece) => {
    printed += piece;
  });
  child.stderr.on('data', (piece) => {
    printed += piece;
  });
  const [code] = await once(child, 'exit');
  assert.deepEqual([code, printed], [0, '0\n']);
});
