/** Malformed KServe requests over HTTP and gRPC, and connections that stall. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { test } from 'node:test';
import {
  binaryBody,
  type Json,
  OipClient,
  postBinary,
  rawStrings,
  type Tensor,
  toRawBytes,
} from './support/kserve-client.ts';
import type { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, ToyBundle } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const INFER = `/v2/models/${BUNDLE}/infer`;
const toy = new ToyBundle({ version: '1', seed: 21 });
const strings: Tensor = {
  name: 'categorical',
  datatype: 'BYTES',
  shape: [1, 3],
  raw: rawStrings(['a', 'b', 'c']),
};
const floats = (values: number[]): Tensor => {
  const shape = [1, values.length];
  return { name: 'dense', datatype: 'FP32', shape, raw: toRawBytes(Float32Array.from(values)) };
};
const good = [strings, floats([1, 2])];
/** Growth beyond this is a leak; garbage collection accounts for a few megabytes. */
const GROWTH_BYTES_MAX = 96 << 20;

function residentBytes({ child }: ServingProcess): number {
  const status = readFileSync(`/proc/${child.pid}/status`, 'utf8');
  return Number(/VmRSS:\s+(\d+)/.exec(status)![1]) * 1024;
}

/** Inputs, changed headers, expected error. */
const badBinaries: [readonly Tensor[], Record<string, string>, RegExp][] = [
  [good, { 'inference-header-content-length': '-1' }, /Inference-Header-Content-Length: expected/],
  [
    good,
    { 'inference-header-content-length': '99999' },
    /Inference-Header-Content-Length: expected/,
  ],
  [good, { 'inference-header-content-length': '20' }, /body: not JSON/],
  [
    good,
    { 'inference-header-content-length': '0' },
    /needs a model with one input; toy takes categorical, dense/,
  ],
  [[strings, { ...floats([1, 2]), raw: new Uint8Array(7) }], {}, /"dense": data: .*got 7 bytes/],
  [
    [{ ...strings, raw: strings.raw.subarray(0, 13) }, floats([1, 2])],
    {},
    /end within value 2 of 3/,
  ],
  [[strings, strings, floats([1, 2])], {}, /"categorical": name: expected each input once/],
  [[strings, floats([1, Number.POSITIVE_INFINITY])], {}, /row 1 \(I2\): Infinity/],
  [[{ ...strings, shape: [3, 1] }, floats([1, 2])], {}, /"(categorical|dense)": shape/],
  [[{ ...strings, shape: [10_001, 3] }, floats([1, 2])], {}, /10001 rows in one request/],
  [[{ ...strings, name: 'C9' }, floats([1, 2])], {}, /"C9": name: expected one of/],
  [
    [{ ...strings, name: 'C1', shape: [1, 3] }, floats([1, 2])],
    {},
    /"C1": shape: expected \[rows\]/,
  ],
];

test('invalid binary bodies are rejected with the input name, without memory growth', async (t) => {
  const { serving } = await startLocal(t, [toy], [], true);
  const ask = (inputs: readonly Tensor[], change: Record<string, string> = {}) => {
    const { body, headers } = binaryBody(inputs);
    return postBinary(serving, INFER, { body, headers: { ...headers, ...change } });
  };
  const round = async (): Promise<void> => {
    for (const [inputs, change, message] of badBinaries) {
      const { status, json } = await ask(inputs, change);
      assert.match(json.error, message);
      assert.ok(status === 400 || status === 413, json.error);
    }
  };
  for (let i = 0; i < 10; i++) await round();
  const before = residentBytes(serving);
  for (let i = 0; i < 40; i++) await round();
  const left = binaryBody(good);
  const behind = { ...left, body: Buffer.concat([left.body, Buffer.alloc(5)]) };
  assert.match((await postBinary(serving, INFER, behind)).json.error, /5 bytes .* no input/);
  const without = { body: left.body.subarray(0, -18), headers: { 'content-type': 'x/y' } };
  const { error } = (await postBinary(serving, INFER, without)).json;
  assert.match(error, /not JSON|not UTF-8|needs the header/);
  assert.ok(residentBytes(serving) - before < GROWTH_BYTES_MAX);
  assert.equal((await ask(good)).status, 200);
  assert.equal(await serving.stop(), 0);
});

test('invalid gRPC messages get INVALID_ARGUMENT with the input name', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const grpc = new OipClient(serving.url);
  t.after(() => grpc.close());
  const heads = good.map(({ name, datatype, shape }) => ({ name, datatype, shape }));
  const raw = good.map((tensor) => tensor.raw);
  const dense = { ...heads[1]!, contents: { fp32_contents: [1, 2] } };
  const bad: [object, RegExp][] = [
    [
      { inputs: heads, raw_input_contents: raw.slice(1) },
      /3 INVALID.*one for each input, got 1 for 2/,
    ],
    [{ inputs: heads }, /"categorical": it has neither contents nor raw_input_contents/],
    [{ inputs: [dense], raw_input_contents: [raw[1]] }, /"dense": either contents or raw/],
    [{ inputs: [{ ...dense, datatype: 'FP64' }] }, /"dense": contents of field 6 do not fit FP64/],
    [{ inputs: [{ ...dense, shape: ['9007199254740993', 2] }] }, /"dense": shape/],
    [{ inputs: [{ ...dense, shape: [1, 3] }] }, /"dense": data: expected 3 values/],
    [
      { inputs: heads, raw_input_contents: raw, outputs: [{ name: 'x' }] },
      /outputs\[0\]\.name.*prob/,
    ],
    [{ inputs: heads, raw_input_contents: raw, model_version: '9' }, /5 NOT_FOUND: version "9"/],
    [
      { inputs: heads, raw_input_contents: raw, parameters: { sequence_id: { int64_param: 5 } } },
      /sequence/,
    ],
    [
      { inputs: heads, raw_input_contents: raw, parameters: { timeout: { string_param: 'x' } } },
      /parameters\.timeout/,
    ],
  ];
  for (const [request, message] of bad) {
    await assert.rejects(grpc.call('ModelInfer', { model_name: BUNDLE, ...request }), message);
  }
  const fine = { model_name: BUNDLE, id: '5', inputs: heads, raw_input_contents: raw };
  const answer: Json = await grpc.call('ModelInfer', fine);
  assert.deepEqual([answer.id, answer.model_version], ['5', '1']);
  assert.equal(await serving.stop(), 0);
});

test('connections that stall, flood or close do not affect others', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const { hostname, port } = new URL(serving.url);
  const open = async (bytes: string): Promise<Socket> => {
    const socket = connect(Number(port), hostname);
    socket.on('error', () => undefined);
    await once(socket, 'connect');
    socket.write(bytes);
    return socket;
  };
  const head = `POST ${INFER} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n`;
  const json = JSON.stringify({
    inputs: [
      { name: 'categorical', datatype: 'BYTES', shape: [1, 3], data: ['a', 'b', 'c'] },
      { name: 'dense', datatype: 'FP32', shape: [1, 2], data: [1, 2] },
    ],
  });
  // The body is missing or incomplete, or the client closes before the response.
  const stuck = [await open(`${head}content-length: 5000\r\n\r\n`), await open(head)];
  for (let i = 0; i < 50; i++) {
    (await open(`${head}content-length: ${json.length}\r\n\r\n${json}`)).destroy();
    (await open(`${head}content-length: ${json.length}\r\n\r\n${json.slice(0, 40)}`)).destroy();
  }
  // A client that sent everything and closes its side still gets its response.
  const half = await open(
    `${head}content-length: ${json.length}\r\nconnection: close\r\n\r\n${json}`,
  );
  half.end();
  assert.match(await readText(half), /^HTTP\/1\.1 200 /);
  const flood = await open(`${head}${'x-header: many\r\n'.repeat(2_500)}\r\n`);
  // A reset may discard the response, because the client is still sending.
  assert.match(await readText(flood), /^(HTTP\/1\.1 431 |$)/);
  assert.equal((await serving.post(INFER, json)).status, 200);
  for (const socket of stuck) socket.destroy();
  assert.equal(await serving.stop(), 0);
});

function readText(socket: Socket): Promise<string> {
  let text = '';
  socket.on('data', (chunk) => {
    text += chunk;
  });
  return new Promise((resolve) => socket.once('close', () => resolve(text)));
}
