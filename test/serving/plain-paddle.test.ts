/** Plain models behind Paddle's general model service, over every transport. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import {
  FLOAT,
  INT32,
  INT64,
  model,
  node,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';
import {
  connectClients,
  type PaddleCall,
  type PlainRequest,
  type PlainTensor,
} from './support/paddle-client.ts';
import { everyType, serve, TYPES } from './support/plain-models.ts';
import { ServingProcess } from './support/serving-process.ts';

type Field = keyof PlainTensor;
type Values = readonly unknown[];

/** The field and the element type of each type, and how the values are written. */
const WIRE: Readonly<Record<string, readonly [Field, number, (values: Values) => unknown]>> = {
  INT64: ['int64_data', 0, (values) => values.map(String)],
  FP32: ['float_data', 1, (values) => values],
  INT32: ['int_data', 2, (values) => values],
  FP64: ['float64_data', 3, (values) => values],
  INT16: ['tensor_content', 4, (values) => toBytes(Int16Array.from(values as number[]))],
  UINT8: ['tensor_content', 7, (values) => toBytes(Uint8Array.from(values as number[]))],
  INT8: ['tensor_content', 8, (values) => toBytes(Int8Array.from(values as number[]))],
  BOOL: ['bool_data', 9, (values) => values],
  BYTES: ['data', 20, (values) => values],
};
/** Types without an element type: sent as integers, and answered as wider ones. */
const WIDER: Readonly<Record<string, readonly [Field, number, string]>> = {
  UINT16: ['int_data', 2, 'INT32'],
  UINT32: ['uint32_data', 0, 'INT64'],
};

function toBytes(values: ArrayBufferView): Buffer {
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength);
}

/** Values as each transport's client shows them. */
function normalize(field: Field, value: unknown): unknown {
  if (field === 'tensor_content') {
    return typeof value === 'string' ? value : (value as Buffer).toString('base64');
  }
  return field === 'int64_data' ? (value as Values).map(String) : value;
}

/** JSON as a hand-written caller sends it; 64-bit integers have all digits. */
async function postJson(url: string, request: PlainRequest): Promise<string> {
  const body = JSON.stringify(request, (_, item) => {
    return item?.type === 'Buffer' ? Buffer.from(item.data).toString('base64') : item;
  });
  const response = await fetch(`${url}/GeneralModelService/inference`, { method: 'POST', body });
  return response.text();
}

test('every type passes over every transport, exactly', async (t) => {
  const { serving } = await serve(t, { types: everyType });
  const tensor = TYPES.map(([, type, values]): PlainTensor => {
    if (type === 'UINT64') {
      return { name: 'in_UINT64', shape: [1, 2], int64_data: ['9223372036854775807', '1'] };
    }
    const [field, elemType] = WIRE[type] ?? WIDER[type]!;
    const data = WIRE[type]?.[2](values) ?? values;
    return { name: `in_${type}`, elem_type: elemType, shape: [1, 2], [field]: data };
  });
  const answerable = TYPES.filter(([, type]) => type !== 'UINT64');
  const fetch_var_names = answerable.map(([, type]) => `out_${type}`).reverse();
  const request = { tensor, fetch_var_names, log_id: '7' };
  const check = (name: string, received: Awaited<ReturnType<PaddleCall>>): void => {
    assert.equal(received.err_no, 0, `${name}: ${received.err_msg}`);
    const { tensor: outputs, engine_name } = received.outputs[0]!;
    assert.equal(engine_name, 'types');
    assert.deepEqual(
      outputs.map((output) => output.name),
      fetch_var_names,
    );
    for (const [, type, values] of answerable) {
      const output = outputs.find((one) => one.name === `out_${type}`)!;
      const [, , wider] = WIDER[type] ?? [];
      const [field, elemType, write] = WIRE[wider ?? type]!;
      assert.equal(output.elem_type, elemType, `${name}, ${type}`);
      assert.deepEqual(output.shape, [1, 2]);
      const expected = normalize(field, write(values));
      assert.deepEqual(normalize(field, output[field]), expected, `${name}, ${type}`);
    }
  };
  for (const [name, ask] of connectClients(t, serving.url)) {
    if (name !== 'HTTP, JSON') check(name, await ask(request));
  }
  const text = await postJson(serving.url, request);
  assert.ok(text.includes('"int64_data":[-9223372036854775808,9007199254740993]'), text);
  const exact = text.replace(/"int64_data":\[([^\]]*)\]/g, (_, list: string) => {
    return `"int64_data":[${list.replace(/-?\d+/g, '"$&"')}]`;
  });
  check('HTTP, JSON', JSON.parse(exact));
  const all = await postJson(serving.url, { tensor });
  assert.match(all, /fetch_var_names: output \\"out_UINT64\\" is UINT64, which this protocol has/);
});

/** Sums of floats, and the integers and texts as they came. */
const mixed = model({
  inputs: [
    value('x', FLOAT, ['batch', 2]),
    value('n', INT32, ['batch', 'length']),
    value('s', 8, ['batch']),
  ],
  outputs: [
    value('y', FLOAT, ['batch', 2]),
    value('n2', INT32, ['batch', 'length']),
    value('s2', 8, ['batch']),
  ],
  nodes: [
    node('Neg', ['x'], ['y']),
    node('Identity', ['n'], ['n2']),
    node('Identity', ['s'], ['s2']),
  ],
});

const x = { name: 'x', shape: [2, 2], float64_data: [1, 2, 3, 4] };
const n = { name: 'n', shape: [6, 1], lod: [0, 3, 6], int64_data: [1, 2, 3, 4, 5, -6] };
const s = { alias_name: 's', data: ['a', 'é'] };

test('values in other fields and rows by lod are converted if nothing is lost', async (t) => {
  const { serving } = await serve(t, { mixed });
  const ask = connectClients(t, serving.url).get('baidu_std')!;
  const fine = await ask({ tensor: [s, x, n] });
  assert.equal(fine.err_msg, '');
  const outputs = fine.outputs[0]!.tensor;
  assert.deepEqual(outputs[0]!.float_data, [-1, -2, -3, -4]);
  assert.deepEqual(
    [outputs[1]!.shape, outputs[1]!.int_data],
    [
      [2, 3],
      [1, 2, 3, 4, 5, -6],
    ],
  );
  assert.deepEqual(outputs[2]!.data, ['a', 'é']);
  const half = Buffer.from([0, 60, 0, 192, 0, 0, 0, 128]);
  const floats = await ask({
    tensor: [s, { name: 'x', elem_type: 5, shape: [2, 2], tensor_content: half }, n],
  });
  assert.deepEqual(floats.outputs[0]!.tensor[0]!.float_data, [-1, 2, -0, 0]);
  const debug = await ask(
    { tensor: [s, x, n], fetch_var_names: ['y'], profile_server: true },
    'debug',
  );
  assert.equal(debug.profile_time.length, 6);
  assert.ok(debug.outputs[1]!.tensor[0]!.data.includes('version=1'));
});

test('tensors that do not fit a plain model are refused by name', async (t) => {
  const { serving } = await serve(t, { mixed });
  const ask = connectClients(t, serving.url).get('baidu_std')!;
  const refuse = async (tensor: PlainTensor[], message: RegExp, fetch_var_names?: string[]) => {
    const answer = await ask({ tensor, ...(fetch_var_names && { fetch_var_names }) });
    assert.match(answer.err_msg, message);
    assert.equal(answer.err_no, 1003);
  };
  await refuse([s, x], /expected an input n too/);
  await refuse([s, x, n, n], /input "n": name: expected each input once/);
  await refuse(
    [s, x, n, { name: 'z', data: ['a'] }],
    /"z": not an input of the model, which takes x/,
  );
  await refuse([s, x, { ...n, lod: [0, 2, 6] }], /"n": its lod has rows of 2 and of 4 values.*pad/);
  await refuse([s, x, { ...n, lod: [0, 4, 8] }], /"n": its lod must rise from 0 to its first/);
  await refuse([s, x, { ...n, lod: [0, 6, 0] }], /"n": its lod must not fall/);
  await refuse([s, x, { ...n, lod: [0] }], /"n": its lod must rise/);
  await refuse(
    [s, x, { ...n, int64_data: [1, 2, 3, 4, 5, 2 ** 31] }],
    /value 5 is 2147483648, which/,
  );
  await refuse(
    [s, x, { ...n, int64_data: [], float_data: [1, 2, 3, 4, 5, 6] }],
    /"n": expected INT32, got FP32/,
  );
  await refuse([s, { ...x, shape: [2, 3] }, n], /"x": its shape \[2, 3\] does not match its 4/);
  await refuse([s, { ...x, shape: [-2, -2] }, n], /"x": its shape \[-2, -2\] does not match/);
  await refuse([s, { ...x, shape: [] }, n], /"x": it has no shape; expected \[-1, 2\]/);
  await refuse([s, { ...x, int_data: [1, 2, 3, 4] }, n], /"x": it has values in several fields/);
  await refuse(
    [{ name: 's', int_data: [1, 2] }, x, n],
    /"s": expected strings in data, got numbers/,
  );
  await refuse(
    [{ ...s, data: ['a'.repeat(70_000), ''] }, x, n],
    /"s": a string of 70000 characters/,
  );
  await refuse(
    [s, { name: 'x', data: ['1', '2'], shape: [1, 2] }, n],
    /"x": expected FP32, got strings/,
  );
  await refuse([s, x, n], /has no output "nope"; its outputs are y, n2, s2/, ['nope']);
  assert.equal((await ask({ tensor: [s, x, n] })).err_no, 0);
});

test('services and aliases of a configuration reach plain models', async (t) => {
  const folder = temporaryFolder(t);
  const count = model({
    inputs: [value('ids', INT64, ['batch', 'n'])],
    outputs: [value('out', INT64, ['batch', 'n'])],
    nodes: [node('Identity', ['ids'], ['out'])],
  });
  for (const name of ['one', 'two']) writeFileSync(join(folder, `${name}.onnx`), count);
  const yaml = `port: 0
models:
  - model: one.onnx
  - model: two.onnx
services:
  - name: OneService
    model: one
  - name: TwoService
    model: two
`;
  writeFileSync(join(folder, 'serving.yaml'), yaml);
  const serving = await ServingProcess.start(t, ['--config', join(folder, 'serving.yaml')]);
  await serving.waitFor('/readyz', ({ status }) => status === 200);
  const body = JSON.stringify({ tensor: [{ name: 'ids', shape: [1, 2], int64_data: [4, 5] }] });
  for (const [service, engine] of [
    ['OneService', 'one'],
    ['TwoService', 'two'],
    ['GeneralModelService', 'one'],
  ]) {
    const answer = await serving.post(`/${service}/inference`, body);
    assert.equal(answer.body.outputs[0].engine_name, engine);
    assert.deepEqual(answer.body.outputs[0].tensor[0].int64_data, [4, 5]);
  }
});
