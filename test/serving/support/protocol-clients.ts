/**
 * A client per protocol and encoding: rows in, click probabilities out, in the order of the rows.
 * `protocols.test.ts` checks that all return the same scores, and say which of them are degraded; a
 * new protocol adds an entry here. Paddle's transports are in paddle-client.ts.
 */
import assert from 'node:assert/strict';
import type { Metadata } from '@grpc/grpc-js';
import { CtrClient } from '../../../lib/client/ctr-client.ts';
import {
  CTR_SERVICE,
  type CtrRequest,
  DEGRADED_KEY,
  decodeCtrResponse,
  encodeCtrRequest,
} from '../../../proto/ctr.ts';
import { RawGrpcClient } from '../../rpc/support/grpc-client.ts';
import {
  binaryBody,
  type Json,
  OipClient,
  postBinary,
  rawStrings,
  type Tensor,
  toRawBytes,
} from './kserve-client.ts';
import type { PlainRequest, PlainResponse } from './paddle-client.ts';
import type { ServingProcess } from './serving-process.ts';
import { BUNDLE, hashKey, type ToyRow, toTsv } from './toy-bundle.ts';

export interface ProtocolAnswer {
  /** A click probability for each row. */
  readonly clicks: readonly number[];
  /** Everything in the answer that says whether it is degraded: fields, headers, trailers. */
  readonly marks: readonly boolean[];
}

export type ProtocolClient = (
  serving: ServingProcess,
  rows: readonly ToyRow[],
) => Promise<ProtocolAnswer>;

const INFER = `/v2/models/${BUNDLE}/infer`;
const SLOTS = ['C1', 'C2', 'C3'];
const DENSE_NAMES = ['I1', 'I2'];

export const EMPTY_CTR_REQUEST: CtrRequest = {
  model: '',
  version: '',
  label: '',
  rowCount: 0,
  features: [],
  shared: undefined,
  priority: undefined,
  detail: false,
  timings: false,
  dense: new Float64Array(0),
  scaled: new Float32Array(0),
  keys: new Uint32Array(0),
  ends: new Uint32Array(0),
  tsv: new Uint8Array(0),
};

/** Every second value of the click output: P(no click), P(click). */
function selectClicks(data: ArrayLike<number>): number[] {
  return Array.from(data).filter((_, i) => i % 2 === 1);
}

function denseTensor(rows: readonly ToyRow[]): Tensor {
  const raw = toRawBytes(Float32Array.from(rows.flatMap(({ dense }) => dense)));
  return { name: 'dense', datatype: 'FP32', shape: [rows.length, 2], raw };
}

function categoricalTensor(rows: readonly ToyRow[]): Tensor {
  const raw = rawStrings(rows.flatMap(({ categorical }) => categorical));
  return { name: 'categorical', datatype: 'BYTES', shape: [rows.length, 3], raw };
}

function keyTensor(rows: readonly ToyRow[]): Tensor {
  const keys = rows.flatMap(({ categorical }) =>
    categorical.map((text, slot) => hashKey(slot, text)),
  );
  const raw = toRawBytes(BigUint64Array.from(keys));
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
      const raw = toRawBytes(Float64Array.from(rows.map(({ dense }) => dense[i]!)));
      return { name, datatype: 'FP64', shape, raw };
    }),
  ];
}

function nanToNull(value: number): number | null {
  return Number.isNaN(value) ? null : value;
}

function readHeaderMark(headers: Headers): boolean {
  return headers.get(DEGRADED_KEY) === 'true';
}

function readTrailerMark(trailers: Metadata): boolean {
  return trailers.get(DEGRADED_KEY)[0] === 'true';
}

async function inferJson(
  serving: ServingProcess,
  inputs: readonly object[],
): Promise<ProtocolAnswer> {
  const { status, headers, body } = await serving.post(INFER, JSON.stringify({ inputs }));
  assert.equal(status, 200, JSON.stringify(body));
  const marks = [body.parameters.degraded, readHeaderMark(headers)];
  return { clicks: selectClicks(body.outputs[0].data), marks };
}

async function inferBinary(
  serving: ServingProcess,
  inputs: readonly Tensor[],
  pad: number,
): Promise<ProtocolAnswer> {
  const asked = binaryBody(inputs, { parameters: { binary_data_output: true } }, pad);
  const { status, headers, json, outputs } = await postBinary(serving, INFER, asked);
  assert.equal(status, 200, JSON.stringify(json));
  const bytes = Uint8Array.from(outputs.get('prob')!);
  const marks = [json.parameters.degraded, readHeaderMark(headers)];
  return { clicks: selectClicks(new Float32Array(bytes.buffer)), marks };
}

async function inferGrpc(serving: ServingProcess, request: object): Promise<ProtocolAnswer> {
  const client = new OipClient(serving.url);
  try {
    const named = { model_name: BUNDLE, ...request };
    const { answer, trailers } = await client.callForTrailers('ModelInfer', named);
    const marks = [answer.parameters.degraded.bool_param, readTrailerMark(trailers)];
    return { clicks: grpcClicks(answer), marks };
  } finally {
    client.close();
  }
}

function grpcClicks({ outputs, raw_output_contents: raw }: Json): number[] {
  if (raw.length === 0) return selectClicks(outputs[0].contents.fp32_contents);
  return selectClicks(new Float32Array(Uint8Array.from(raw[0]).buffer));
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

async function predictTfs(serving: ServingProcess, body: object): Promise<ProtocolAnswer> {
  const answer = await serving.post(`/v1/models/${BUNDLE}:predict`, JSON.stringify(body));
  assert.equal(answer.status, 200, JSON.stringify(answer.body));
  const clicks = (answer.body.predictions ?? answer.body.outputs).map((row: number[]) => row[1]);
  return { clicks, marks: [readHeaderMark(answer.headers)] };
}

async function postCtr(
  serving: ServingProcess,
  body: string,
  type = 'application/json',
): Promise<ProtocolAnswer> {
  const answer = await serving.post('/v1/ctr:predict', body, { 'content-type': type });
  assert.equal(answer.status, 200, JSON.stringify(answer.body));
  const marks = [answer.body.degraded, readHeaderMark(answer.headers)];
  return { clicks: answer.body.probabilities, marks };
}

function jsonRow({ dense, categorical }: ToyRow) {
  return { dense: dense.map(nanToNull), categorical };
}

async function predictCtr(url: string, rows: readonly ToyRow[]): Promise<ProtocolAnswer> {
  const client = new CtrClient({ url, timeoutMs: 10_000 });
  try {
    const { probabilities, degraded } = await client.predict(rows.map(jsonRow));
    return { clicks: Array.from(probabilities), marks: [degraded] };
  } finally {
    client.close();
  }
}

async function predictCtrGrpc(
  serving: ServingProcess,
  rows: readonly ToyRow[],
): Promise<ProtocolAnswer> {
  const client = new RawGrpcClient(Number(new URL(serving.url).port));
  const tsv = new TextEncoder().encode(toTsv(rows));
  const request = encodeCtrRequest({ ...EMPTY_CTR_REQUEST, tsv });
  const { bytes, details, trailers } = await client.call(`/${CTR_SERVICE}/Predict`, request);
  client.close();
  assert.equal(details, '');
  const { probabilities, degraded } = decodeCtrResponse(bytes);
  return { clicks: Array.from(probabilities), marks: [degraded, readTrailerMark(trailers)] };
}

/** Strings to be hashed, and dense features as the graph takes them. */
export function createPaddleRequest(rows: readonly ToyRow[]): PlainRequest {
  const scaled = rows.flatMap(({ dense: [i1, i2] }) => [
    (Math.log1p(Math.max(nanToNull(i1!) ?? 0, 0)) - 1.25) * 0.5,
    (nanToNull(i2!) ?? -1) * 0.125,
  ]);
  const tensor = [
    ...SLOTS.map((name, slot) => ({ name, data: rows.map((row) => row.categorical[slot]!) })),
    { name: 'dense_input', float_data: scaled, shape: [rows.length, 2] },
  ];
  return { tensor };
}

/** @param metadata the header or trailer of the response; empty over baidu_std */
export function readPaddleAnswer(
  { outputs, err_no: errNo, err_msg: errMsg = '' }: PlainResponse,
  metadata: readonly (string | undefined)[],
): ProtocolAnswer {
  assert.equal(errNo ?? 0, 0, errMsg);
  const marks = [errMsg.startsWith('degraded: '), ...metadata.map((value) => value === 'true')];
  return { clicks: selectClicks(outputs[0]!.tensor[0]!.float_data), marks };
}

async function inferPaddle(
  serving: ServingProcess,
  rows: readonly ToyRow[],
): Promise<ProtocolAnswer> {
  const path = '/GeneralModelService/inference';
  const request = JSON.stringify(createPaddleRequest(rows));
  const { headers, body } = await serving.post(path, request);
  return readPaddleAnswer(body, [headers.get(DEGRADED_KEY) ?? undefined]);
}

export const PROTOCOL_CLIENTS: ReadonlyMap<string, ProtocolClient> = new Map<
  string,
  ProtocolClient
>([
  ['CTR, lines', (serving, rows) => postCtr(serving, toTsv(rows), 'text/tab-separated-values')],
  ['CTR, JSON', (serving, rows) => postCtr(serving, JSON.stringify({ rows: rows.map(jsonRow) }))],
  [
    'CTR, a row a line',
    async (serving, rows) => {
      const lines = rows.map((row) => `${JSON.stringify(jsonRow(row))}\n`).join('');
      const type = { 'content-type': 'application/x-ndjson' };
      const response = await fetch(`${serving.url}/v1/ctr:predict`, {
        method: 'POST',
        body: lines,
        headers: type,
      });
      const text = (await response.text()).trimEnd();
      const answers = text.split('\n').map((line) => JSON.parse(line));
      return {
        clicks: answers.map(({ probability }) => probability),
        marks: answers.map(({ degraded }) => degraded === true),
      };
    },
  ],
  ['CTR, gRPC', predictCtrGrpc],
  ['CTR client, gRPC', (serving, rows) => predictCtr(serving.url.replace('http:', 'grpc:'), rows)],
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
          data: rows.flatMap((row) => row.dense.map(nanToNull)),
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
          const data = rows.map(({ dense }) => nanToNull(dense[i]!));
          return { name, datatype: 'FP32', shape: [rows.length], data };
        }),
      ]),
  ],
  ...[0, 1, 4].map((pad): [string, ProtocolClient] => [
    `KServe, binary strings, ${pad} blanks`,
    (serving, rows) => inferBinary(serving, [categoricalTensor(rows), denseTensor(rows)], pad),
  ]),
  ...[0, 1, 2, 3].map((pad): [string, ProtocolClient] => [
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
      for (const { error_message: error } of answers) assert.equal(error, '');
      const responses = answers.map(({ infer_response: response }) => response);
      return {
        clicks: responses.flatMap(grpcClicks),
        marks: responses.map(({ parameters }) => parameters.degraded.bool_param),
      };
    },
  ],
  [
    'TensorFlow Serving, instances',
    (serving, rows) =>
      predictTfs(serving, {
        instances: rows.map(({ dense, categorical }) => {
          return { dense: dense.map(nanToNull), categorical };
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
          rows.map((row) => nanToNull(row.dense[i]!)),
        ),
      );
      return predictTfs(serving, { inputs: Object.fromEntries([...slots, ...dense]) });
    },
  ],
]);
