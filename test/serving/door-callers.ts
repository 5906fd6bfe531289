/**
 * Every door as a caller uses it: rows in, click probabilities out, in the order of the rows. `doors.test.ts` holds each to the
 * same scores; a new door adds a line here.
 */
import assert from 'node:assert/strict';
import { CtrClient } from '../../lib/client/ctr-client.ts';
import {
  binaryBody,
  type Json,
  OipClient,
  postBinary,
  rawOf,
  rawStrings,
  type Tensor,
} from './kserve-caller.ts';
import type { ServingProcess } from './serving-process.ts';
import { BUNDLE, keyOf, type ToyRow, toTsv } from './toy-bundle.ts';

export type DoorCaller = (
  serving: ServingProcess,
  rows: readonly ToyRow[],
) => Promise<readonly number[]>;

const INFER = `/v2/models/${BUNDLE}/infer`;
const SLOTS = ['C1', 'C2', 'C3'];
const DENSE_NAMES = ['I1', 'I2'];

/** Every second value of the click output: P(no click), P(click). */
function clicksOf(data: ArrayLike<number>): number[] {
  return Array.from(data).filter((_, i) => i % 2 === 1);
}

function denseTensor(rows: readonly ToyRow[]): Tensor {
  const raw = rawOf(Float32Array.from(rows.flatMap(({ dense }) => dense)));
  return { name: 'dense', datatype: 'FP32', shape: [rows.length, 2], raw };
}

function categoricalTensor(rows: readonly ToyRow[]): Tensor {
  const raw = rawStrings(rows.flatMap(({ categorical }) => categorical));
  return { name: 'categorical', datatype: 'BYTES', shape: [rows.length, 3], raw };
}

function keyTensor(rows: readonly ToyRow[]): Tensor {
  const keys = rows.flatMap(({ categorical }) =>
    categorical.map((text, slot) => keyOf(slot, text)),
  );
  const raw = rawOf(BigUint64Array.from(keys));
  return { name: 'keys', datatype: 'UINT64', shape: [rows.length, 3], raw };
}

function slotTensors(rows: readonly ToyRow[]): Tensor[] {
  const shape = [rows.length, 1];
  return [
    ...SLOTS.map((name, slot) => {
      const raw = rawStrings(rows.map(({ categorical }) => categorical[slot]!));
      return { name, datatype: 'BYTES', shape, raw };
    }),
    ...DENSE_NAMES.map((name, i) => {
      const raw = rawOf(Float64Array.from(rows.map(({ dense }) => dense[i]!)));
      return { name, datatype: 'FP64', shape, raw };
    }),
  ];
}

function orNull(value: number): number | null {
  return Number.isNaN(value) ? null : value;
}

async function inferJson(serving: ServingProcess, inputs: readonly object[]): Promise<number[]> {
  const { status, body } = await serving.post(INFER, JSON.stringify({ inputs }));
  assert.equal(status, 200, JSON.stringify(body));
  return clicksOf(body.outputs[0].data);
}

async function inferBinary(
  serving: ServingProcess,
  inputs: readonly Tensor[],
  pad: number,
): Promise<number[]> {
  const asked = binaryBody(inputs, { parameters: { binary_data_output: true } }, pad);
  const { status, json, outputs } = await postBinary(serving, INFER, asked);
  assert.equal(status, 200, JSON.stringify(json));
  const bytes = Uint8Array.from(outputs.get('prob')!);
  return clicksOf(new Float32Array(bytes.buffer));
}

async function inferGrpc(serving: ServingProcess, request: object): Promise<number[]> {
  const client = new OipClient(serving.url);
  try {
    return grpcClicks(await client.call('ModelInfer', { model_name: BUNDLE, ...request }));
  } finally {
    client.close();
  }
}

function grpcClicks({ outputs, raw_output_contents: raw }: Json): number[] {
  if (raw.length === 0) return clicksOf(outputs[0].contents.fp32_contents);
  return clicksOf(new Float32Array(Uint8Array.from(raw[0]).buffer));
}

function rawRequest(inputs: readonly Tensor[]): object {
  return {
    inputs: inputs.map(({ name, datatype, shape }) => ({ name, datatype, shape })),
    raw_input_contents: inputs.map(({ raw }) => raw),
  };
}

function typedRequest(rows: readonly ToyRow[]): object {
  const { raw: _c, ...categorical } = categoricalTensor(rows);
  const { raw: _d, ...dense } = denseTensor(rows);
  const strings = rows.flatMap((row) => row.categorical.map((text) => Buffer.from(text)));
  return {
    inputs: [
      { ...categorical, contents: { bytes_contents: strings } },
      { ...dense, contents: { fp32_contents: rows.flatMap((row) => row.dense) } },
    ],
  };
}

async function predictTfs(serving: ServingProcess, body: object): Promise<number[]> {
  const answer = await serving.post(`/v1/models/${BUNDLE}:predict`, JSON.stringify(body));
  assert.equal(answer.status, 200, JSON.stringify(answer.body));
  return (answer.body.predictions ?? answer.body.outputs).map((row: number[]) => row[1]);
}

function jsonRow({ dense, categorical }: ToyRow) {
  return { dense: dense.map(orNull), categorical };
}

async function predictCtr(url: string, rows: readonly ToyRow[]): Promise<number[]> {
  const client = new CtrClient({ url, timeoutMs: 10_000 });
  try {
    return Array.from((await client.predict(rows.map(jsonRow))).probabilities);
  } finally {
    client.close();
  }
}

/** Strings to be hashed, and dense features as the graph takes them. */
async function inferPaddle(serving: ServingProcess, rows: readonly ToyRow[]): Promise<number[]> {
  const scaled = rows.flatMap(({ dense: [i1, i2] }) => [
    (Math.log1p(Math.max(orNull(i1!) ?? 0, 0)) - 1.25) * 0.5,
    (orNull(i2!) ?? -1) * 0.125,
  ]);
  const tensor = [
    ...SLOTS.map((name, slot) => ({ name, data: rows.map((row) => row.categorical[slot]!) })),
    { name: 'dense_input', float_data: scaled, shape: [rows.length, 2] },
  ];
  const path = '/GeneralModelService/inference';
  const { status, body } = await serving.post(path, JSON.stringify({ tensor }));
  assert.equal(status, 200, JSON.stringify(body));
  return clicksOf(body.outputs[0].tensor[0].float_data);
}

export const DOORS: ReadonlyMap<string, DoorCaller> = new Map<string, DoorCaller>([
  ['CTR, lines', async (serving, rows) => (await serving.postTsv(toTsv(rows))).body.probabilities],
  [
    'CTR, JSON',
    async (serving, rows) => {
      const body = JSON.stringify({ rows: rows.map(jsonRow) });
      return (await serving.post('/v1/ctr:predict', body)).body.probabilities;
    },
  ],
  [
    'CTR, a row a line',
    async (serving, rows) => {
      const lines = rows.map((row) => `${JSON.stringify(jsonRow(row))}\n`).join('');
      const type = { 'content-type': 'application/x-ndjson' };
      const response = await fetch(`${serving.url}/v1/ctr:predict`, {
        ...{ method: 'POST', body: lines, headers: type },
      });
      const answers = (await response.text()).trimEnd().split('\n');
      return answers.map((line) => JSON.parse(line).probability);
    },
  ],
  ['CTR, gRPC', (serving, rows) => predictCtr(serving.url.replace('http:', 'grpc:'), rows)],
  ['CTR client over HTTP', (serving, rows) => predictCtr(serving.url, rows)],
  ['Paddle, HTTP', inferPaddle],
  [
    'KServe, JSON',
    (serving, rows) =>
      inferJson(serving, [
        { ...categoricalTensor(rows), raw: undefined, data: rows.map((row) => row.categorical) },
        {
          ...denseTensor(rows),
          raw: undefined,
          data: rows.flatMap((row) => row.dense.map(orNull)),
        },
      ]),
  ],
  [
    'KServe, JSON, slots by name',
    (serving, rows) =>
      inferJson(serving, [
        ...SLOTS.map((name, slot) => {
          const data = rows.map(({ categorical }) => categorical[slot]!);
          return { name, datatype: 'BYTES', shape: [rows.length], data };
        }),
        ...DENSE_NAMES.map((name, i) => {
          const data = rows.map(({ dense }) => orNull(dense[i]!));
          return { name, datatype: 'FP32', shape: [rows.length], data };
        }),
      ]),
  ],
  ...[0, 1, 4].map((pad): [string, DoorCaller] => [
    `KServe, binary strings, ${pad} blanks`,
    (serving, rows) => inferBinary(serving, [categoricalTensor(rows), denseTensor(rows)], pad),
  ]),
  ...[0, 1, 2, 3].map((pad): [string, DoorCaller] => [
    `KServe, binary keys, ${pad} blanks`,
    (serving, rows) => inferBinary(serving, [keyTensor(rows), denseTensor(rows)], pad),
  ]),
  ['KServe, binary slots by name', (serving, rows) => inferBinary(serving, slotTensors(rows), 0)],
  [
    'KServe over gRPC, raw strings',
    (serving, rows) => inferGrpc(serving, rawRequest([categoricalTensor(rows), denseTensor(rows)])),
  ],
  [
    'KServe over gRPC, raw keys',
    (serving, rows) => inferGrpc(serving, rawRequest([denseTensor(rows), keyTensor(rows)])),
  ],
  ['KServe over gRPC, typed', (serving, rows) => inferGrpc(serving, typedRequest(rows))],
  [
    'KServe over gRPC, streamed row by row',
    async (serving, rows) => {
      const client = new OipClient(serving.url);
      const requests = rows.map((row) => ({ model_name: BUNDLE, ...typedRequest([row]) }));
      const answers = await client.stream(requests);
      client.close();
      return answers.flatMap(({ error_message: error, infer_response: answer }) => {
        assert.equal(error, '');
        return grpcClicks(answer);
      });
    },
  ],
  [
    'TensorFlow Serving, instances',
    (serving, rows) =>
      predictTfs(serving, {
        instances: rows.map(({ dense, categorical }) => {
          return { dense: dense.map(orNull), categorical };
        }),
      }),
  ],
  [
    'TensorFlow Serving, inputs by slot',
    (serving, rows) => {
      const column = (name: string, values: readonly unknown[]): [string, unknown] => [
        name,
        values,
      ];
      const slots = SLOTS.map((name, i) =>
        column(
          name,
          rows.map((row) => row.categorical[i]),
        ),
      );
      const dense = DENSE_NAMES.map((name, i) =>
        column(
          name,
          rows.map((row) => orNull(row.dense[i]!)),
        ),
      );
      return predictTfs(serving, { inputs: Object.fromEntries([...slots, ...dense]) });
    },
  ],
]);
