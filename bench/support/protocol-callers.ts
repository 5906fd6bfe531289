/**
 * A caller for every protocol of serving. Requests are encoded before the measurement, so that the
 * client takes little CPU time. All protocols send the same rows of the demo's model.
 */

import { fileURLToPath } from 'node:url';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import { CtrClient } from '../../lib/client/ctr-client.ts';
import { requireDefined } from '../../lib/core/errors.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import { PIPELINE_SERVICE } from '../../proto/pipeline.ts';
import { BUNDLE, type RequestRows } from './demo-model.ts';
import { postBytes, RawHttp } from './raw-http.ts';

/** A caller has one request in flight. */
export interface Caller {
  call(i: number): Promise<unknown>;
  close(): void;
}

/** Encodes the rows. @returns a function that makes a caller of the server at a URL */
export type ProtocolConnector = (rows: readonly RequestRows[]) => (url: URL) => Caller;

export const SLOT_NUM = 26;
const DENSE_NUM = 13;
const TIMEOUT_MS = 10_000;
const NO_BYTES = new Uint8Array(0);

/** The values of rows, parsed from lines. */
export interface TextRows {
  readonly dense: readonly (readonly (number | null)[])[];
  readonly categorical: readonly (readonly string[])[];
}

export function readLines(lines: Uint8Array): TextRows {
  const columns = Buffer.from(lines)
    .toString()
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => line.split('\t').slice(1));
  return {
    dense: columns.map((row) =>
      row.slice(0, DENSE_NUM).map((text) => (text === '' ? null : Number(text))),
    ),
    categorical: columns.map((row) => row.slice(DENSE_NUM)),
  };
}

interface BinaryTensor {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly number[];
  readonly raw: Uint8Array;
}

/**
 * Encodes a request of the binary tensor extension. The JSON is padded, so that tensors are aligned
 * to 8 bytes.
 */
export function encodeInferRequest(tensors: readonly BinaryTensor[]): Buffer {
  const inputs = tensors.map(({ raw, ...head }) => {
    return { ...head, parameters: { binary_data_size: raw.length } };
  });
  const text = JSON.stringify({ parameters: { binary_data_output: true }, inputs });
  const json = text.padStart(8 * Math.ceil(text.length / 8));
  const headers = {
    'content-type': 'application/octet-stream',
    'inference-header-content-length': String(json.length),
  };
  const body = Buffer.concat([Buffer.from(json), ...tensors.map(({ raw }) => raw)]);
  return postBytes(`/v2/models/${BUNDLE}/infer`, headers, body);
}

export function encodeStrings(strings: readonly string[]): Uint8Array {
  const pieces = strings.flatMap((text) => {
    const bytes = Buffer.from(text);
    return [Buffer.from(Uint32Array.of(bytes.length).buffer), bytes];
  });
  return Buffer.concat(pieces);
}

function toBytes({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** The raw dense values, not scaled. */
export function makeDenseTensor({ dense }: TextRows): BinaryTensor {
  const raw = toBytes(Float32Array.from(dense.flat(), (value) => value ?? Number.NaN));
  return { name: 'dense', datatype: 'FP32', shape: [dense.length, DENSE_NUM], raw };
}

function encodeKeys({ keys, lines }: RequestRows): Buffer {
  const text = readLines(lines);
  const shape = [text.dense.length, SLOT_NUM];
  return encodeInferRequest([
    { name: 'keys', datatype: 'UINT64', shape, raw: toBytes(keys) },
    makeDenseTensor(text),
  ]);
}

function encodeCategorical({ lines }: RequestRows): Buffer {
  const text = readLines(lines);
  const shape = [text.dense.length, SLOT_NUM];
  const raw = encodeStrings(text.categorical.flat());
  return encodeInferRequest([
    { name: 'categorical', datatype: 'BYTES', shape, raw },
    makeDenseTensor(text),
  ]);
}

function encodeJson(path: string, body: object): Buffer {
  const headers = { 'content-type': 'application/json' };
  return postBytes(path, headers, Buffer.from(JSON.stringify(body)));
}

function encodeInferJson({ lines }: RequestRows): Buffer {
  const { dense, categorical } = readLines(lines);
  const rowCount = dense.length;
  const inputs = [
    { name: 'categorical', datatype: 'BYTES', shape: [rowCount, SLOT_NUM], data: categorical },
    { name: 'dense', datatype: 'FP32', shape: [rowCount, DENSE_NUM], data: dense },
  ];
  return encodeJson(`/v2/models/${BUNDLE}/infer`, { inputs });
}

function toObjectRows({ lines }: RequestRows): object[] {
  const { dense, categorical } = readLines(lines);
  return dense.map((values, i) => ({ dense: values, categorical: categorical[i] }));
}

/** Callers that send bytes, each over its own connection. */
export function connectHttp(encode: (rows: RequestRows) => Buffer): ProtocolConnector {
  return (rows) => {
    const requests = rows.map(encode);
    return (url) => {
      const connection = new RawHttp(url);
      return {
        call: (i) => connection.call(requireDefined(requests[i % requests.length], 'a request')),
        close: () => connection.close(),
      };
    };
  };
}

type Serialize = (request: object) => Buffer;

/** Encodes requests of a service's method `inference` with the protobuf library. */
function loadSerializer(file: string, service: string): Serialize {
  const proto = fileURLToPath(new URL(`../../../proto/${file}`, import.meta.url));
  const definition = loadSync(proto, { keepCase: true })[service] as ServiceDefinition;
  return (definition['inference'] as MethodDefinition<object, object>).requestSerialize;
}

/** Requests of Paddle: keys and scaled values, as its clients send them. */
function encodeGeneralRequests(rows: readonly RequestRows[]): Uint8Array[] {
  const requestSerialize = loadSerializer('general-model.proto', GENERAL_MODEL_SERVICE);
  return rows.map(({ keys, scaled }) => {
    const rowCount = scaled.length / DENSE_NUM;
    const ids = toInt64Texts(keys);
    const slots = Array.from({ length: SLOT_NUM }, (_, slot) => {
      const values = Array.from({ length: rowCount }, (_, row) => ids[row * SLOT_NUM + slot]);
      return { name: `C${slot + 1}`, elem_type: 0, shape: [rowCount, 1], int64_data: values };
    });
    const dense = { elem_type: 1, shape: [rowCount, DENSE_NUM], float_data: Array.from(scaled) };
    return requestSerialize({ tensor: [...slots, { name: 'dense_input', ...dense }] });
  });
}

/** The bits of each key as a signed number. */
function toInt64Texts(keys: Uint32Array): string[] {
  const ids = new BigInt64Array(keys.buffer, keys.byteOffset, keys.length / 2);
  return Array.from(ids, String);
}

/** Requests of a pipeline: the tensors of its op, keys and raw dense values. */
function encodePipelineTensors(rows: readonly RequestRows[]): Uint8Array[] {
  const requestSerialize = loadSerializer('pipeline.proto', PIPELINE_SERVICE);
  return rows.map(({ keys, lines }) => {
    const { dense } = readLines(lines);
    const values = dense.flat().map((value) => value ?? Number.NaN);
    const tensors = [
      {
        name: 'keys',
        elem_type: 0,
        shape: [dense.length, SLOT_NUM],
        int64_data: toInt64Texts(keys),
      },
      { name: 'dense', elem_type: 1, shape: [dense.length, DENSE_NUM], float_data: values },
    ];
    return requestSerialize({ tensors });
  });
}

/** Callers of the method `inference` of a service. All share one connection, as in brpc. */
function connectBaidu(
  service: string,
  encode: (rows: readonly RequestRows[]) => Uint8Array[],
): ProtocolConnector {
  return (rows) => {
    const requests = encode(rows);
    let channel: Channel | undefined;
    return (url) => {
      channel ??= new Channel(url.host);
      const connection = channel;
      return {
        call: (i) => {
          const request = requireDefined(requests[i % requests.length], 'a request');
          return connection.call(service, 'inference', request, NO_BYTES, TIMEOUT_MS);
        },
        close: () => connection.close(),
      };
    };
  };
}

/** The client of this project, which encodes each request during the measurement. */
const connectCtrGrpc: ProtocolConnector = (rows) => {
  const requests = rows.map(({ lines }) => {
    const { dense, categorical } = readLines(lines);
    return dense.map((values, i) => ({ dense: values, categorical: categorical[i] ?? [] }));
  });
  let client: CtrClient | undefined;
  return (url) => {
    client ??= new CtrClient({ url: `grpc://${url.host}`, timeoutMs: TIMEOUT_MS });
    const connection = client;
    return {
      call: (i) => connection.predict(requireDefined(requests[i % requests.length], 'a request')),
      close: () => connection.close(),
    };
  };
};

export const KEYS_PROTOCOL = 'KServe, binary keys';
export const TSV_PROTOCOL = 'CTR, TSV';

export const PROTOCOLS: ReadonlyMap<string, ProtocolConnector> = new Map([
  [KEYS_PROTOCOL, connectHttp(encodeKeys)],
  ['KServe, binary strings', connectHttp(encodeCategorical)],
  ['KServe, JSON', connectHttp(encodeInferJson)],
  [
    TSV_PROTOCOL,
    connectHttp(({ lines }) =>
      postBytes('/v1/ctr:predict', { 'content-type': 'text/tab-separated-values' }, lines),
    ),
  ],
  ['CTR, JSON', connectHttp((rows) => encodeJson('/v1/ctr:predict', { rows: toObjectRows(rows) }))],
  ['CTR, gRPC', connectCtrGrpc],
  [
    'TensorFlow Serving, JSON',
    connectHttp((rows) =>
      encodeJson(`/v1/models/${BUNDLE}:predict`, { instances: toObjectRows(rows) }),
    ),
  ],
  ['Paddle, baidu_std', connectBaidu(GENERAL_MODEL_SERVICE, encodeGeneralRequests)],
]);

/** Callers of a pipeline with the name `pipeline` whose op has a bundle. */
export const PIPELINE_PROTOCOLS: ReadonlyMap<string, ProtocolConnector> = new Map([
  [
    TSV_PROTOCOL,
    connectHttp(({ lines }) => {
      const text = Buffer.from(lines).toString();
      return encodeJson('/pipeline/prediction', { key: ['rows'], value: [text] });
    }),
  ],
  [KEYS_PROTOCOL, connectBaidu(PIPELINE_SERVICE, encodePipelineTensors)],
]);
