/**
 * Every door of serving as the benchmarks ask it: requests made before, so that a client costs little beside the server. All say
 * the same rows of the demo's model.
 */
import { fileURLToPath } from 'node:url';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import { CtrClient } from '../lib/client/ctr-client.ts';
import { Channel } from '../lib/rpc/channel.ts';
import { GENERAL_MODEL_SERVICE } from '../proto/general-model.ts';
import { postBytes, RawHttp } from './raw-http.ts';
import { BUNDLE, type DoorRows } from './serving-model.ts';

/** One caller: has one request under way. */
export interface Caller {
  call(i: number): Promise<unknown>;
  close(): void;
}

/** @returns makes a caller of the server at a URL */
export type Door = (rows: readonly DoorRows[]) => (url: URL) => Caller;

export const SLOT_NUM = 26;
const DENSE_NUM = 13;
const TIMEOUT_MS = 10_000;
const NO_BYTES = new Uint8Array(0);

/** The columns of the lines. */
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

/** A body of the binary tensor extension, its elements at a place that suits them. */
export function inferBytes(tensors: readonly BinaryTensor[]): Buffer {
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

export function rawStrings(strings: readonly string[]): Uint8Array {
  const pieces = strings.flatMap((text) => {
    const bytes = Buffer.from(text);
    return [Buffer.from(Uint32Array.of(bytes.length).buffer), bytes];
  });
  return Buffer.concat(pieces);
}

function bytesOf({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength);
}

/** Raw dense values, not scaled. */
export function denseTensor({ dense }: TextRows): BinaryTensor {
  const raw = bytesOf(Float32Array.from(dense.flat(), (value) => value ?? Number.NaN));
  return { name: 'dense', datatype: 'FP32', shape: [dense.length, DENSE_NUM], raw };
}

function inferKeys({ keys, lines }: DoorRows): Buffer {
  const text = readLines(lines);
  const shape = [text.dense.length, SLOT_NUM];
  return inferBytes([
    { name: 'keys', datatype: 'UINT64', shape, raw: bytesOf(keys) },
    denseTensor(text),
  ]);
}

function inferStrings({ lines }: DoorRows): Buffer {
  const text = readLines(lines);
  const shape = [text.dense.length, SLOT_NUM];
  const raw = rawStrings(text.categorical.flat());
  return inferBytes([{ name: 'categorical', datatype: 'BYTES', shape, raw }, denseTensor(text)]);
}

function jsonBytes(path: string, body: object): Buffer {
  const headers = { 'content-type': 'application/json' };
  return postBytes(path, headers, Buffer.from(JSON.stringify(body)));
}

function inferJson({ lines }: DoorRows): Buffer {
  const { dense, categorical } = readLines(lines);
  const rowCount = dense.length;
  const inputs = [
    { name: 'categorical', datatype: 'BYTES', shape: [rowCount, SLOT_NUM], data: categorical },
    { name: 'dense', datatype: 'FP32', shape: [rowCount, DENSE_NUM], data: dense },
  ];
  return jsonBytes(`/v2/models/${BUNDLE}/infer`, { inputs });
}

function objectRows({ lines }: DoorRows): object[] {
  const { dense, categorical } = readLines(lines);
  return dense.map((values, i) => ({ dense: values, categorical: categorical[i] }));
}

/** Callers that send bytes, each over a connection of its own. */
export function overHttp(encode: (rows: DoorRows) => Buffer): Door {
  return (rows) => {
    const requests = rows.map(encode);
    return (url) => {
      const connection = new RawHttp(url);
      return {
        call: (i) => connection.call(requests[i % requests.length]!),
        close: () => connection.close(),
      };
    };
  };
}

/** Paddle's: keys and scaled values, as its clients send them. */
function generalRequests(rows: readonly DoorRows[]): Uint8Array[] {
  const proto = fileURLToPath(new URL('../../proto/general-model.proto', import.meta.url));
  const service = loadSync(proto, { keepCase: true })[GENERAL_MODEL_SERVICE] as ServiceDefinition;
  const { requestSerialize } = service['inference'] as MethodDefinition<object, object>;
  return rows.map(({ keys, scaled }) => {
    const rowCount = scaled.length / DENSE_NUM;
    const ids = new BigUint64Array(keys.buffer, keys.byteOffset, keys.length / 2);
    const slots = Array.from({ length: SLOT_NUM }, (_, slot) => {
      const own = Array.from({ length: rowCount }, (_, row) =>
        String(BigInt.asIntN(64, ids[row * SLOT_NUM + slot]!)),
      );
      return { name: `C${slot + 1}`, elem_type: 0, shape: [rowCount, 1], int64_data: own };
    });
    const dense = { elem_type: 1, shape: [rowCount, DENSE_NUM], float_data: Array.from(scaled) };
    return requestSerialize({ tensor: [...slots, { name: 'dense_input', ...dense }] });
  });
}

/** All callers share a connection, as in brpc. */
const paddle: Door = (rows) => {
  const requests = generalRequests(rows);
  let channel: Channel | undefined;
  return (url) => {
    channel ??= new Channel(url.host);
    const own = channel;
    return {
      call: (i) => {
        const request = requests[i % requests.length]!;
        return own.call(GENERAL_MODEL_SERVICE, 'inference', request, NO_BYTES, TIMEOUT_MS);
      },
      close: () => own.close(),
    };
  };
};

/** Our own client, which encodes each request as it goes. */
const ctrGrpc: Door = (rows) => {
  const requests = rows.map(({ lines }) => {
    const { dense, categorical } = readLines(lines);
    return dense.map((values, i) => ({ dense: values, categorical: categorical[i]! }));
  });
  let client: CtrClient | undefined;
  return (url) => {
    client ??= new CtrClient({ url: `grpc://${url.host}`, timeoutMs: TIMEOUT_MS });
    const own = client;
    return { call: (i) => own.predict(requests[i % requests.length]!), close: () => own.close() };
  };
};

export const KEYS_DOOR = 'KServe, binary keys';
export const TSV_DOOR = 'CTR, TSV';

export const DOORS: ReadonlyMap<string, Door> = new Map([
  [KEYS_DOOR, overHttp(inferKeys)],
  ['KServe, binary strings', overHttp(inferStrings)],
  ['KServe, JSON', overHttp(inferJson)],
  [
    TSV_DOOR,
    overHttp(({ lines }) =>
      postBytes('/v1/ctr:predict', { 'content-type': 'text/tab-separated-values' }, lines),
    ),
  ],
  ['CTR, JSON', overHttp((rows) => jsonBytes('/v1/ctr:predict', { rows: objectRows(rows) }))],
  ['CTR, gRPC', ctrGrpc],
  [
    'TensorFlow Serving, JSON',
    overHttp((rows) => jsonBytes(`/v1/models/${BUNDLE}:predict`, { instances: objectRows(rows) })),
  ],
  ['Paddle, baidu_std', paddle],
]);
