/** Slots with several values over every protocol: bags of any size, and raw request bodies. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { openRepository } from '../../lib/repository/repository.ts';
import {
  CTR_SERVICE,
  type CtrRequest,
  decodeCtrResponse,
  encodeCtrRequest,
} from '../../proto/ctr.ts';
import { RawGrpcClient } from '../rpc/support/grpc-client.ts';
import { binaryBody, OipClient, postBinary, rawStrings } from './support/kserve-client.ts';
import { connectClients } from './support/paddle-client.ts';
import { assertClose, BUNDLE, publishModel } from './support/served-model.ts';
import { ServingProcess } from './support/serving-process.ts';
import { DIM, ROWS, TABLE, THREE, WEIGHTS } from './support/three-slots.ts';

const FEATURES = {
  format: 1,
  hash: { scheme: 'raw', seed: '0', modulo: '0' },
  slots: [
    { name: 'user', index: 0, pooling: 'sum' },
    { name: 'tags', index: 1, pooling: 'mean' },
    { name: 'item', index: 2 },
  ],
  click: { output: 'logit', column: 0 },
  ids: [{ input: 'ids', slots: ['user', 'tags', 'item'] }],
};
const SLOTS = ['user', 'tags', 'item'] as const;

interface Row {
  readonly user: readonly number[];
  readonly tags: readonly number[];
  readonly item: number;
}

const rows: readonly Row[] = Array.from({ length: 70 }, (_, i) => ({
  user: Array.from({ length: i % 4 }, (_value, k) => (i + 3 * k) % ROWS),
  tags: Array.from({ length: (i * 5) % 7 }, (_value, k) => (i * k + 1) % ROWS),
  item: (i * 7) % ROWS,
}));
const bags = (row: Row): (readonly number[])[] => [row.user, row.tags, [row.item]];

function pool(ids: readonly number[], isMean: boolean): number[] {
  const share = isMean ? Math.max(ids.length, 1) : 1;
  return Array.from({ length: DIM }, (_, d) =>
    ids.reduce((sum, id) => sum + TABLE[id * DIM + d]! / share, 0),
  );
}

function score({ user, tags, item }: Row): number {
  const x = [...pool(user, false), ...pool(tags, true), ...pool([item], false)];
  return x.reduce((sum, v, i) => sum + v * WEIGHTS[i]!, 0);
}

const expected = rows.map(score);

async function start(t: TestContext, features?: object): Promise<ServingProcess> {
  const location = await publishModel(t, THREE, features);
  const why = { version: '1', by: 'test', reason: 'test' };
  await openRepository(location).activate(BUNDLE, 'stable', why);
  const flags = ['--repository', location, '--bundle', BUNDLE, '--instances', '1'];
  const serving = await ServingProcess.start(t, flags);
  await serving.waitUntilReady();
  return serving;
}

/** All rows of a slot, padded with empty strings to the longest. */
function padded(slot: number): { shape: number[]; strings: string[] } {
  const values = rows.map((row) => bags(row)[slot]!.map(String));
  const width = Math.max(...values.map(({ length }) => length));
  const strings = values.flatMap((bag) => [...bag, ...new Array(width - bag.length).fill('')]);
  return { shape: [rows.length, width], strings };
}

test('bags over KServe: JSON, binary, gRPC', async (t) => {
  const serving = await start(t, FEATURES);
  const path = `/v2/models/${BUNDLE}/infer`;
  const tensors = SLOTS.map((name, slot) => {
    const { shape, strings } = padded(slot);
    return { name, datatype: 'BYTES', shape, data: strings };
  });
  const { body } = await serving.post(path, JSON.stringify({ inputs: tensors }));
  assertClose(body.outputs[0].data, expected, 'JSON');
  const raw = tensors.map(({ data, ...head }) => ({ ...head, raw: rawStrings(data) }));
  const asked = binaryBody(raw, { parameters: { binary_data_output: true } });
  const { outputs } = await postBinary(serving, path, asked);
  assertClose(viewFloats(outputs.get('logit')!), expected, 'binary');
  const grpc = new OipClient(serving.url);
  t.after(() => grpc.close());
  const answer = await grpc.call('ModelInfer', {
    model_name: BUNDLE,
    inputs: raw.map(({ raw: _raw, ...head }) => head),
    raw_input_contents: raw.map((tensor) => tensor.raw),
  });
  assertClose(viewFloats(answer.raw_output_contents[0]), expected, 'gRPC');
  // At most one value in each slot: all slots in one tensor.
  const single = rows.map(({ user: [user], tags: [tag], item }) => ({ user, tag, item }));
  const pick = (id: number | undefined): number[] => (id === undefined ? [] : [id]);
  const singleScores = single.map(({ user, tag, item }) =>
    score({ user: pick(user), tags: pick(tag), item }),
  );
  for (const none of ['', null]) {
    const data = single.flatMap(({ user, tag, item }) =>
      [user, tag, item].map((id) => (id === undefined ? none : String(id))),
    );
    const combined = { name: 'categorical', datatype: 'BYTES', shape: [rows.length, 3], data };
    const { body } = await serving.post(path, JSON.stringify({ inputs: [combined] }));
    assertClose(body.outputs[0].data, singleScores, `categorical, none as ${none}`);
  }
  // One user for all rows, and no user.
  for (const [user, own] of [
    [[{ name: 'user', datatype: 'BYTES', shape: [1, 3], data: ['3', '', '5'] }], [3, 5]],
    [[], []],
  ] as const) {
    const inputs = [...user, ...tensors.slice(1)];
    const shared = await serving.post(path, JSON.stringify({ inputs }));
    const scores = rows.map((row) => score({ ...row, user: own }));
    assertClose(shared.body.outputs[0].data, scores, 'a shared user');
  }
  assert.equal(await serving.stop(), 0);
});

test('bags over the Paddle protocol, given by a lod', async (t) => {
  const serving = await start(t, FEATURES);
  const computeLod = (slot: number): number[] => {
    let end = 0;
    return [0, ...rows.map((row) => (end += bags(row)[slot]!.length))];
  };
  const listValues = (slot: number): number[] => rows.flatMap((row) => bags(row)[slot]!);
  for (const [name, ask] of connectClients(t, serving.url)) {
    for (const isText of [false, true]) {
      const tensor = SLOTS.map((slot, i) => ({
        name: slot,
        lod: computeLod(i),
        elem_type: isText ? 20 : 0,
        ...(isText ? { data: listValues(i).map(String) } : { int64_data: listValues(i) }),
      }));
      const { outputs, err_msg } = await ask({ tensor });
      assert.ok(outputs?.[0], `${name}: ${err_msg}`);
      assertClose(outputs[0].tensor[0]!.float_data, expected, name);
    }
  }
  assert.equal(await serving.stop(), 0);
});

test('bags over CTR and TensorFlow Serving: arrays, keys, ends, ragged rows', async (t) => {
  const serving = await start(t, FEATURES);
  const named = rows.map(({ user, tags, item }) => ({ user, tags: tags.map(String), item }));
  const positional = rows.map((row) => ({
    dense: [],
    categorical: [row.user.map(String), row.tags, row.item],
  }));
  const keyed = rows.map(({ user, tags, item }) => ({
    keys: [user.map(String), tags.map(String), String(item)],
    scaled: [],
  }));
  for (const body of [named, positional, keyed]) {
    const answer = await serving.post('/v1/ctr:predict', JSON.stringify({ rows: body }));
    assertClose(answer.body.probabilities, expected, JSON.stringify(body[0]));
  }
  const instances = rows.map(({ user, tags, item }) => ({ user, tags, item: [item] }));
  const tfs = await serving.post(`/v1/models/${BUNDLE}:predict`, JSON.stringify({ instances }));
  assertClose(tfs.body.predictions.flat(), expected, 'ragged');
  const grpc = new RawGrpcClient(Number(new URL(serving.url).port));
  t.after(() => grpc.close());
  let end = 0;
  const ends = Uint32Array.from(rows.flatMap(bags), (bag) => (end += bag.length));
  const values = rows.flatMap((row) => bags(row).flat());
  const common: CtrRequest = {
    model: '',
    version: '',
    label: '',
    shared: undefined,
    priority: undefined,
    detail: false,
    timings: false,
    rowCount: rows.length,
    ends,
    features: [],
    dense: new Float64Array(0),
    scaled: new Float32Array(0),
    keys: new Uint32Array(0),
    tsv: new Uint8Array(0),
  };
  for (const request of [
    { ...common, features: values.map(String) },
    { ...common, keys: Uint32Array.from(values.flatMap((id) => [id, 0])) },
  ]) {
    const { bytes, details } = await grpc.call(
      `/${CTR_SERVICE}/Predict`,
      encodeCtrRequest(request),
    );
    assert.equal(details, '');
    assertClose(decodeCtrResponse(bytes).probabilities, expected, 'gRPC');
  }
  assert.equal(await serving.stop(), 0);
});

test('a request body of only the data of the single input', async (t) => {
  const serving = await start(t);
  const path = `/v2/models/${BUNDLE}/infer`;
  const single = rows.map(({ item }) => ({ user: [item], tags: [(item + 1) % ROWS], item }));
  const ids = BigInt64Array.from(
    single.flatMap((row) => bags(row).flat()),
    BigInt,
  );
  const send = async (bytes: Uint8Array, more: Record<string, string> = {}) => {
    const type = { 'content-type': 'application/octet-stream' };
    const headers = { ...type, 'inference-header-content-length': '0', ...more };
    return serving.post(path, bytes, headers);
  };
  const bytes = new Uint8Array(ids.buffer);
  assertClose((await send(bytes)).body.outputs[0].data, single.map(score), 'elements');
  for (const [cut, message] of [
    [bytes.subarray(0, 20), /"ids": data: expected 3 values of 8 bytes .* got 20 bytes/],
    [new Uint8Array(0), /the body is empty/],
    [new Uint8Array(24 * 10_001), /10001 rows in one request/],
  ] as const) {
    const { status, body } = await send(cut);
    assert.match(body.error, message);
    assert.ok(status === 400 || status === 413);
  }
  const none = { name: 'ids', datatype: 'INT64', shape: [1, 3], raw: new Uint8Array(0) };
  const empty = await postBinary(serving, path, binaryBody([none]));
  assert.match(empty.json.error, /"ids": data: expected 3 values of 8 bytes .*got 0 bytes/);
  assert.equal(await serving.stop(), 0);
});

function viewFloats(bytes: Uint8Array): Float32Array {
  return new Float32Array(Uint8Array.from(bytes).buffer);
}
