/** Experiment keys in the body of a request, and keys from a slot of its rows. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { after, before, type TestContext, test } from 'node:test';
import { CtrClient } from '../../lib/client/ctr-client.ts';
import { assignVariant } from '../../lib/core/experiment.ts';
import { CTR_SERVICE, decodeCtrResponse, encodeCtrRequest } from '../../proto/ctr.ts';
import { parseTraffic } from '../../serving/config/traffic-file.ts';
import { RawGrpcClient } from '../rpc/support/grpc-client.ts';
import { type Json, OipClient } from './support/kserve-client.ts';
import { BUNDLE, hashKey, type ToyRow, toTsv, toyRows } from './support/toy-bundle.ts';
import {
  assertScores,
  parseVariants,
  startTrafficServer,
  type TrafficServer,
  until,
} from './support/traffic-server.ts';

const TRAFFIC = `experiments:
  - name: ranking
    model: ${BUNDLE}
    slot: C1
    variants:
      - { name: control, weight: 50 }
      - { name: new, weight: 50, channel: canary }
  - name: layout
    model: ${BUNDLE}
    variants: [{ name: a, weight: 1 }, { name: b, weight: 1 }]
`;
const EXPERIMENTS = parseTraffic(TRAFFIC, 'test').experiments;
const [RANKING] = EXPERIMENTS;
const VERSION_OF: Readonly<Record<string, string>> = { control: '1', new: '2' };
const TEXT_TYPE = 'text/tab-separated-values';

let server: TrafficServer;
let oip: OipClient;
let grpc: RawGrpcClient;
const cleanUps: (() => unknown)[] = [];

interface Answer {
  readonly variants: Readonly<Record<string, string>>;
  readonly clicks: readonly number[];
}
type Ask = (rows: readonly ToyRow[], key?: string) => Promise<Answer>;

before(async () => {
  const context = { after: (cleanUp: () => unknown) => cleanUps.push(cleanUp) };
  server = await startTrafficServer(context as unknown as TestContext, TRAFFIC);
  oip = new OipClient(server.url);
  grpc = new RawGrpcClient(Number(new URL(server.url).port));
  cleanUps.push(
    () => oip.close(),
    () => grpc.close(),
  );
});
after(async () => {
  for (const cleanUp of cleanUps.toReversed()) await cleanUp();
});

async function post(
  path: string,
  body: object | string,
  headers: Record<string, string> = {},
): Promise<{ status: number; json: Json; variants: Record<string, string> }> {
  const isText = typeof body === 'string';
  const response = await fetch(server.url + path, {
    method: 'POST',
    headers: { 'content-type': isText ? TEXT_TYPE : 'application/json', ...headers },
    body: isText ? body : JSON.stringify(body),
  });
  const variants = parseVariants(response.headers.get('hypercube-experiments'));
  return { status: response.status, json: await response.json(), variants };
}

const orNull = (value: number): number | null => (Number.isNaN(value) ? null : value);
const isOdd = (_: unknown, i: number): boolean => i % 2 === 1;

function toJsonRows(rows: readonly ToyRow[]): object[] {
  return rows.map(({ dense, categorical }) => ({ dense: dense.map(orNull), categorical }));
}

function toTensors(rows: readonly ToyRow[]): object[] {
  const shape = [rows.length];
  const strings = ['C1', 'C2', 'C3'].map((name, slot) => {
    const data = rows.map(({ categorical }) => categorical[slot]);
    return { name, datatype: 'BYTES', shape, data };
  });
  const floats = ['I1', 'I2'].map((name, at) => {
    return { name, datatype: 'FP64', shape, data: rows.map(({ dense }) => orNull(dense[at]!)) };
  });
  return [...strings, ...floats];
}

const askJson: Ask = async (rows, experimentKey) => {
  const body = { rows: toJsonRows(rows), ...(experimentKey !== undefined && { experimentKey }) };
  const { json, variants } = await post('/v1/ctr:predict', body);
  return { variants, clicks: json.probabilities };
};

const askInfer: Ask = async (rows, key) => {
  const parameters = key === undefined ? {} : { experiment_key: key };
  const body = { parameters, inputs: toTensors(rows) };
  const { json, variants } = await post(`/v2/models/${BUNDLE}/infer`, body);
  return { variants, clicks: json.outputs[0].data.filter(isOdd) };
};

const askInferGrpc: Ask = async (rows, key) => {
  const bytes = rows.flatMap(({ categorical }) => categorical.map((text) => Buffer.from(text)));
  const categorical = {
    name: 'categorical',
    datatype: 'BYTES',
    shape: [rows.length, 3],
    contents: { bytes_contents: bytes },
  };
  const dense = {
    name: 'dense',
    datatype: 'FP64',
    shape: [rows.length, 2],
    contents: { fp64_contents: rows.flatMap((row) => row.dense) },
  };
  const parameters = key === undefined ? {} : { experiment_key: { string_param: key } };
  const request = { model_name: BUNDLE, parameters, inputs: [categorical, dense] };
  const { answer, trailers } = await oip.callForTrailers('ModelInfer', request);
  const raw: Buffer = answer.raw_output_contents[0];
  const scores = Array.from({ length: raw.length / 4 }, (_, i) => raw.readFloatLE(4 * i));
  const variants = parseVariants(String(trailers.get('hypercube-experiments')[0] ?? ''));
  return { variants, clicks: scores.filter(isOdd) };
};

const askTsv: Ask = async (rows) => {
  const { json, variants } = await post('/v1/ctr:predict', toTsv(rows));
  return { variants, clicks: json.probabilities };
};

const askShared: Ask = async (rows) => {
  const own = rows.map(({ dense, categorical: [, C2, C3] }) => {
    return { I1: orNull(dense[0]!), I2: orNull(dense[1]!), C2, C3 };
  });
  const shared = { C1: rows[0]!.categorical[0] };
  const { json, variants } = await post('/v1/ctr:predict', { shared, rows: own });
  return { variants, clicks: json.probabilities };
};

const askCtrGrpc: Ask = async (rows) => {
  const request = encodeCtrRequest({
    model: '',
    version: '',
    label: '',
    rowCount: rows.length,
    features: rows.flatMap(({ categorical }) => categorical),
    shared: undefined,
    priority: undefined,
    detail: false,
    timings: false,
    dense: Float64Array.from(rows.flatMap(({ dense }) => dense)),
    keys: new Uint32Array(0),
    scaled: new Float32Array(0),
    ends: new Uint32Array(0),
    tsv: new Uint8Array(0),
  });
  const { bytes, trailers } = await grpc.call(`/${CTR_SERVICE}/Predict`, request);
  const variants = parseVariants(String(trailers.get('hypercube-experiments')[0] ?? ''));
  return { variants, clicks: [...decodeCtrResponse(bytes).probabilities] };
};

const askInstances: Ask = async (rows) => {
  const instances = rows.map(({ dense, categorical: [C1, C2, C3] }) => {
    return { C1, C2, C3, I1: orNull(dense[0]!), I2: orNull(dense[1]!) };
  });
  const { json, variants } = await post(`/v1/models/${BUNDLE}:predict`, { instances });
  return { variants, clicks: json.predictions.map((scores: number[]) => scores[1]) };
};

/** Hashed ids, and three steps in the profile, however often the request was parsed. */
const askPaddle: Ask = async (rows) => {
  const lod = Array.from({ length: rows.length + 1 }, (_, i) => i);
  const ids = ['C1', 'C2', 'C3'].map((name, slot) => ({
    name,
    elem_type: 0,
    shape: [rows.length, 1],
    lod,
    int64_data: rows.map(({ categorical }) => String(hashKey(slot, categorical[slot]!))),
  }));
  const scaled = rows.flatMap(({ dense: [i1, i2] }) => {
    const log = Math.log1p(Number.isNaN(i1!) ? 0 : Math.max(i1!, 0));
    return [(log - 1.25) * 0.5, (Number.isNaN(i2!) ? -1 : i2!) * 0.125];
  });
  const shape = [rows.length, 2];
  const dense = { name: 'dense_input', elem_type: 1, shape, float_data: scaled };
  const request = { tensor: [...ids, dense], profile_server: true };
  const { json, variants } = await post('/GeneralModelService/inference', request);
  assert.equal(json.profile_time?.length, 6, JSON.stringify(json));
  const times: number[] = json.profile_time.map(Number);
  for (let i = 1; i < times.length; i++) assert.ok(times[i]! >= times[i - 1]!, String(times));
  return { variants, clicks: json.outputs[0].tensor[0].float_data.filter(isOdd) };
};

test('a key in the body gives the same variants as the key in the header', async () => {
  const rows = toyRows(3);
  const seen = new Set<string>();
  for (const key of Array.from({ length: 12 }, (_, i) => `user-${i}`)) {
    const expected = Object.fromEntries(
      EXPERIMENTS.map((each) => [each.name, assignVariant(each, key).name]),
    );
    for (const [way, ask] of Object.entries({ askJson, askInfer, askInferGrpc })) {
      const { variants, clicks } = await ask(rows, key);
      assert.deepEqual(variants, expected, `${way} ${key}`);
      assertScores({ version: VERSION_OF[variants['ranking']!]!, clicks }, rows);
    }
    seen.add(expected['ranking']!);
    const other = { rows: toJsonRows(rows), experimentKey: 'another' };
    const { variants } = await post('/v1/ctr:predict', other, { 'x-experiment-key': key });
    assert.deepEqual(variants, expected, 'the header comes before the body');
  }
  assert.deepEqual([...seen].sort(), ['control', 'new']);
});

test('the value of a slot in the first row gives one variant over every protocol', async () => {
  const ways = { askTsv, askJson, askShared, askInfer, askInferGrpc, askCtrGrpc };
  const all: Record<string, Ask> = { ...ways, askInstances, askPaddle };
  const seen = new Set<string>();
  for (let i = 0; i < 8; i++) {
    const user = `f${i}`;
    const rows = toyRows(3, i + 1).map((row, at) => ({
      ...row,
      categorical: [at === 0 ? user : `f${i + at}`, ...row.categorical.slice(1)],
    }));
    const key = String(hashKey(0, user));
    const expected = assignVariant(RANKING!, key).name;
    for (const [way, ask] of Object.entries(all)) {
      const own = way === 'askShared' ? rows.map((row) => withUser(row, user)) : rows;
      const { variants, clicks } = await ask(own);
      assert.equal(variants['ranking'], expected, `${way} ${user}`);
      assertScores({ version: VERSION_OF[expected]!, clicks }, own);
    }
    seen.add(expected);
    const hash = createHash('sha256').update(key).digest('hex');
    await until(() => readFileSync(server.exposureFile, 'utf8').includes(hash));
  }
  assert.deepEqual([...seen].sort(), ['control', 'new']);
});

function withUser(row: ToyRow, user: string): ToyRow {
  return { ...row, categorical: [user, ...row.categorical.slice(1)] };
}

test('a body that is parsed in slices is parsed for the version of its key', async () => {
  const many = toyRows(3_000);
  assert.ok(JSON.stringify(toJsonRows(many)).length > 2 * (64 << 10));
  for (const variant of ['control', 'new']) {
    const keys = Array.from({ length: 40 }, (_, i) => `f${i}`);
    const isFit = (key: string): boolean => assignVariant(RANKING!, key).name === variant;
    const version = VERSION_OF[variant]!;
    const user = keys.find((one) => isFit(String(hashKey(0, one))))!;
    const rows = [withUser(many[0]!, user), ...many.slice(1)];
    for (const answer of [await askJson(rows), await askJson(rows, keys.find(isFit))]) {
      assert.equal(answer.variants['ranking'], variant);
      assertScores({ version, clicks: answer.clicks }, rows);
    }
  }
});

test('a missing value is no key: both variants answer', async () => {
  const rows = toyRows(1).map((row) => withUser(row, ''));
  for (const ask of [askTsv, askJson, askShared]) {
    const seen = new Set<string>();
    await until(async () => {
      const { variants, clicks } = await ask(rows);
      assertScores({ version: VERSION_OF[variants['ranking']!]!, clicks }, rows);
      seen.add(variants['ranking']!);
      return seen.size === 2;
    });
  }
});

test('a key of another type or length is refused with its place', async () => {
  const rows = toJsonRows(toyRows(1));
  const inputs = toTensors(toyRows(1));
  const infer = `/v2/models/${BUNDLE}/infer`;
  for (const [path, body, place] of [
    ['/v1/ctr:predict', { rows, experimentKey: 5 }, 'experimentKey'],
    ['/v1/ctr:predict', { rows, experimentKey: 'x'.repeat(257) }, 'experimentKey'],
    [infer, { inputs, parameters: { experiment_key: true } }, 'parameters.experiment_key'],
  ] as const) {
    const { status, json } = await post(path, body);
    assert.equal(status, 400);
    const problem = `${place}: expected one value of at most 256 characters`;
    assert.ok(String(json.error).includes(problem), JSON.stringify(json));
  }
});

test('a key in a header is the key of a body, beyond ASCII too', async () => {
  const rows = toyRows(1);
  const ask = async (header: string): Promise<unknown> =>
    (await post('/v1/ctr:predict', toTsv(rows), { 'x-experiment-key': header })).variants;
  for (let i = 0; i < 8; i++) {
    const key = `用户 Zoé ${i}`;
    const { variants } = await askJson(rows, key);
    assert.deepEqual(await ask(Buffer.from(key).toString('latin1')), variants, key);
    const client = new CtrClient({ url: server.url, timeoutMs: 10_000 });
    const answer = await client.predict(toTsv(rows), { experimentKey: key });
    client.close();
    assert.deepEqual(answer.variants, variants, `${key}, by the client`);
    const overGrpc = new CtrClient({ url: server.url.replace('http', 'grpc'), timeoutMs: 10_000 });
    await assert.rejects(overGrpc.predict(toTsv(rows), { experimentKey: key }), {
      code: 'INVALID_ARGUMENT',
      message: /printable ASCII/,
    });
    overGrpc.close();
    const latin = `Zo\xe9 ${i}`;
    assert.deepEqual(await ask(latin), (await askJson(rows, latin)).variants, 'Latin-1');
  }
});
