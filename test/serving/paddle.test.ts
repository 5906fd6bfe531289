/** The Paddle protocol over real sockets: equal scores over every transport, and errors. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { gzipSync } from 'node:zlib';
import {
  connectClients,
  type PaddleCall,
  type PlainRequest,
  type PlainTensor,
} from './support/paddle-client.ts';
import { hashKey, ToyBundle, type ToyRow, toyRows } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const TOLERANCE = 1e-5;
const toy = new ToyBundle({ version: '3', seed: 21, inputs: 'many' });
const SLOTS = ['C1', 'C2', 'C3'];

/** The scaled dense features. */
function scaled({ dense: [i1, i2] }: ToyRow): [number, number] {
  const log = Math.log1p(Math.max(Number.isNaN(i1!) ? 0 : i1!, 0));
  return [(log - 1.25) * 0.5, (Number.isNaN(i2!) ? -1 : i2!) * 0.125];
}

const createDense = (rows: readonly ToyRow[]): PlainTensor => ({
  name: 'dense_input',
  elem_type: 1,
  shape: [rows.length, 2],
  float_data: rows.flatMap(scaled),
});

/** Hashed ids with a lod of one value per row, as in Paddle's CTR example. */
function hashed(rows: readonly ToyRow[]): PlainTensor[] {
  return SLOTS.map((name, slot) => ({
    name,
    alias_name: `sparse_${slot}`,
    elem_type: 0,
    shape: [rows.length, 1],
    lod: Array.from({ length: rows.length + 1 }, (_, i) => i),
    int64_data: rows.map(({ categorical }) => String(hashKey(slot, categorical[slot]!))),
  }));
}

function strings(rows: readonly ToyRow[]): PlainTensor[] {
  return SLOTS.map((name, slot) => ({
    name,
    elem_type: 20,
    shape: [rows.length],
    data: rows.map(({ categorical }) => categorical[slot]!),
  }));
}

async function checkScores(ask: PaddleCall, rows: ToyRow[], request: PlainRequest): Promise<void> {
  const { outputs, err_no, err_msg, log_id } = await ask(request);
  assert.equal(err_no, 0, err_msg);
  assert.equal(String(log_id), request.log_id);
  const [tensor] = outputs[0]!.tensor;
  assert.ok(tensor);
  assert.deepEqual([tensor.name, tensor.shape, tensor.elem_type], ['prob', [rows.length, 2], 1]);
  rows
    .flatMap((row) => toy.score(row))
    .forEach((score, i) => {
      assert.ok(Math.abs(tensor.float_data[i]! - score) < TOLERANCE, `value ${i}`);
    });
}

async function start(t: TestContext) {
  const { serving } = await startLocal(t, [toy]);
  return { serving, ways: connectClients(t, serving.url) };
}

test('scores are as expected over every transport', async (t) => {
  const { serving, ways } = await start(t);
  const rows = toyRows(150);
  const log_id = '18446744073709551615';
  for (const [name, ask] of ways) {
    await t.test(name, async () => {
      const dense = createDense(rows);
      await checkScores(ask, rows, { log_id, tensor: [...hashed(rows), dense] });
      await checkScores(ask, rows, { log_id, tensor: [dense, ...strings(rows)] });
    });
  }
  await t.test(
    'ids and floats in other fields and types, tensors by the names of the graph',
    async () => {
      const graphNames = ['deep_C1', 'deep_C2', 'deep_C3'];
      const int32: PlainTensor[] = hashed(rows).map(({ int64_data, shape }, slot) => ({
        alias_name: graphNames[slot]!,
        elem_type: 2,
        shape: shape!,
        int_data: int64_data!.map(Number),
      }));
      const floats = new Float32Array(rows.flatMap(scaled));
      const content = { name: 'dense', elem_type: 1, tensor_content: Buffer.from(floats.buffer) };
      const int16 = int32.map(({ int_data, ...tensor }) => ({
        ...tensor,
        elem_type: 4,
        tensor_content: Buffer.from(Int16Array.from(int_data!).buffer),
      }));
      const ask = ways.get('baidu_std')!;
      await checkScores(ask, rows, { log_id, tensor: [...int32, content] });
      await checkScores(ask, rows, { log_id, tensor: [...int16, content] });
    },
  );
  assert.equal(await serving.stop(), 0);
});

test('bodies of the Python and PHP clients: no content type, gzip, long integers', async (t) => {
  const { serving } = await start(t);
  const rows = toyRows(100);
  const [first, ...rest] = hashed(rows);
  const body = JSON.stringify({ tensor: [first, ...rest, createDense(rows)], log_id: 0 });
  const bare = body.replace(/"(\d+)"/g, '$1');
  assert.notEqual(bare, body);
  const path = `${serving.url}/GeneralModelService/inference`;
  const send = (data: string | Uint8Array, headers: Record<string, string>): Promise<Response> =>
    fetch(path, { method: 'POST', body: data as string, headers });
  const plain = await send(bare, { 'accept-encoding': 'identity' });
  assert.equal(plain.headers.get('content-encoding'), null);
  const expected = (await plain.json()) as { outputs: object[]; err_no: number };
  assert.equal(expected.err_no, 0);
  const packed = await send(gzipSync(bare), {
    'content-encoding': 'gzip',
    'accept-encoding': 'gzip',
  });
  assert.equal(packed.headers.get('content-encoding'), 'gzip');
  assert.deepEqual(await packed.json(), expected);
});

test('fetch_var_names selects and orders outputs; profile and debug add information', async (t) => {
  const { ways } = await start(t);
  const rows = toyRows(2);
  const tensor = [...hashed(rows), createDense(rows)];
  for (const [name, ask] of ways) {
    const chosen = await ask({ tensor, fetch_var_names: ['predict', 'prob'] });
    const names = chosen.outputs[0]!.tensor.map((one) => [one.name, one.alias_name]);
    assert.deepEqual(
      names,
      [
        ['prob', 'predict'],
        ['prob', 'prob'],
      ],
      name,
    );
    assert.deepEqual(chosen.profile_time ?? [], []);
    const profiled = await ask({ tensor, profile_server: true });
    const times = profiled.profile_time.map(Number);
    assert.equal(times.length, 6);
    for (let i = 1; i < times.length; i++) assert.ok(times[i]! >= times[i - 1]!, String(times));
    const debug = await ask({ tensor }, 'debug');
    assert.equal(debug.profile_time.length, 6);
    const {
      tensor: [debugTensor],
      engine_name,
    } = debug.outputs[1]!;
    assert.equal(engine_name, 'debug');
    assert.ok(debugTensor!.data.includes('version=3'), String(debugTensor!.data));
  }
});

const row = toyRows(1);
const [c1, c2, c3] = hashed(row) as [PlainTensor, PlainTensor, PlainTensor];
const dense = createDense(row);

/** Invalid requests with their error number and message. */
const wrong: [PlainRequest, number, RegExp][] = [
  [{ tensor: [] }, 1003, /the tensor for slot C1 is missing/],
  [{ tensor: [c1, c2, dense] }, 1003, /the tensor for slot C3 is missing/],
  [{ tensor: [c1, c2, c3] }, 1003, /the tensor dense_input is missing/],
  [{ tensor: [c1, c2, c3, c3, dense] }, 1003, /tensor "C3": its slot is given twice/],
  [
    { tensor: [c1, c2, c3, dense, dense] },
    1003,
    /"dense_input": the dense features are given twice/,
  ],
  [
    { tensor: [{ ...c1, name: 'x', alias_name: 'y' }] },
    1003,
    /"x": not an input of the model, which/,
  ],
  [
    { tensor: [{ ...c1, shape: [2, 1] }] },
    1003,
    /"C1": its shape \[2, 1\] does not match its 1 values/,
  ],
  [{ tensor: [{ ...c1, shape: [-1, -1] }] }, 1003, /"C1": its shape \[-1, -1\]/],
  [{ tensor: [{ ...c1, lod: [0, 2] }] }, 1003, /"C1": its lod must rise/],
  [{ tensor: [{ ...c1, lod: [1, 1] }] }, 1003, /"C1": its lod/],
  [{ tensor: [{ ...c1, lod: [0, 5, 1] }] }, 1003, /"C1": its lod/],
  [{ tensor: [{ ...c1, float_data: [1] }] }, 1003, /"C1": it has values in several/],
  [
    { tensor: [{ name: 'C1', float_data: [1] }, c2, c3, dense] },
    1003,
    /"C1": its values are not ids/,
  ],
  [{ tensor: [{ name: 'C1', data: ['a'] }, c2, c3, dense] }, 1003, /"C2": it has ids, but other/],
  [
    { tensor: [{ name: 'C1', elem_type: 11, tensor_content: Buffer.alloc(8) }] },
    1003,
    /"C1": tensor_content of elem_type 11 is not/,
  ],
  [
    { tensor: [{ name: 'C1', elem_type: 2, tensor_content: Buffer.alloc(7) }] },
    1003,
    /"C1": its 7 bytes are not a multiple of 4/,
  ],
  [
    { tensor: [c1, c2, c3, { name: 'dense_input', float_data: [1, 2, 3] }] },
    1003,
    /"dense_input": expected 1 rows of 2 values, got 3/,
  ],
  [
    { tensor: [c1, c2, c3, { name: 'dense_input', float64_data: [1, 1e300] }] },
    1003,
    /"dense_input": value 1 is Infinity/,
  ],
  [
    { tensor: [c1, c2, c3, dense], fetch_var_names: ['nope'] },
    1003,
    /has no output "nope"; its outputs are prob/,
  ],
  [
    {
      tensor: [c1, c2, c3, dense].map((one) => ({
        ...one,
        shape: [],
        int64_data: [],
        lod: [0],
        float_data: [],
      })),
    },
    1003,
    /have no rows|has no numbers/,
  ],
  [
    {
      tensor: hashed(new Array(10_001).fill(row[0])).concat(
        createDense(new Array(10_001).fill(row[0])),
      ),
    },
    1003,
    /10001 rows in one request, the limit is 10000/,
  ],
  [
    { tensor: [{ ...c1, lod: [0, 2], shape: [2], int64_data: ['1', '2'] }, c2, c3, dense] },
    1003,
    /slot C1: 2 values, the slot takes one value/,
  ],
];

test('an invalid request gets err_no and err_msg, and the process keeps serving', async (t) => {
  const { serving, ways } = await start(t);
  const asked = new Map([...ways].filter(([name]) => !/snappy|gzip/.test(name)));
  for (const [name, ask] of asked) {
    for (const [request, errNo, message] of wrong) {
      const isJson = name === 'HTTP, JSON';
      if (isJson && request.tensor.some((one) => one.tensor_content !== undefined)) continue;
      const { err_no, err_msg, log_id } = await ask({ ...request, log_id: '77' });
      assert.match(err_msg, message, name);
      assert.equal(err_no, errNo);
      assert.equal(String(log_id), '77');
    }
  }
  const answer = await serving.post('/GeneralModelService/inference', '{"tensor": []}');
  assert.equal(answer.status, 400);
  const { status, body } = await serving.post('/GeneralModelService/inference', '{"tensor": 7}');
  assert.equal(status, 400);
  assert.match(body.error, /tensor: expected an array/);
  await checkScores(ways.get('baidu_std')!, row, { log_id: '1', tensor: [c1, c2, c3, dense] });
  assert.equal(await serving.stop(), 0);
});
