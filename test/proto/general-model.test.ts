/**
 * The general model codec against protobuf: proto-loader, which reads the .proto file, decodes our
 * bytes and the reverse.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { runAtOnce } from '../../lib/core/json-slices.ts';
import {
  decodeGeneralRequest,
  encodeGeneralResponse,
  GENERAL_MODEL_SERVICE,
  type GeneralModelRequest,
  type GeneralModelResponse,
} from '../../proto/general-model.ts';
import { formatGeneralResponse, parseGeneralRequest } from '../../proto/general-model-json.ts';
import { WireWriter } from '../../proto/wire.ts';

const PROTO = join(import.meta.dirname, '..', '..', '..', 'proto', 'general-model.proto');
const PLAIN = { noNullPrototype: true };
const LIMITS = { tensors: 8, values: 1000 };

const definition = loadSync(PROTO, {
  keepCase: true,
  longs: String,
  bytes: Buffer,
  defaults: true,
});
const { inference } = definition[GENERAL_MODEL_SERVICE] as ServiceDefinition;
const { requestSerialize, responseDeserialize } = inference as MethodDefinition<object, object>;

interface PlainTensor {
  readonly int64_data?: string[];
  readonly float_data?: number[];
  readonly int_data?: number[];
  readonly float64_data?: number[];
  readonly uint32_data?: number[];
  readonly bool_data?: boolean[];
  readonly data?: string[];
  readonly elem_type?: number;
  readonly shape?: number[];
  readonly lod?: number[];
  readonly name?: string;
  readonly alias_name?: string;
  readonly tensor_content?: Buffer;
}

const int32 = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
const list = <T>(item: fc.Arbitrary<T>): fc.Arbitrary<T[]> => fc.array(item, { maxLength: 6 });
const tensor = fc.record(
  {
    int64_data: list(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }).map(String)),
    float_data: list(fc.float({ noDefaultInfinity: true, noNaN: true })),
    int_data: list(int32),
    float64_data: list(fc.double({ noDefaultInfinity: true, noNaN: true })),
    uint32_data: list(fc.integer({ min: 0, max: 2 ** 32 - 1 })),
    bool_data: list(fc.boolean()),
    data: list(fc.string({ unit: 'grapheme', maxLength: 5 })),
    elem_type: int32,
    shape: list(int32),
    lod: list(int32),
    name: fc.string({ maxLength: 8 }),
    alias_name: fc.string({ maxLength: 8 }),
    tensor_content: fc.uint8Array({ maxLength: 9 }).map((bytes) => Buffer.from(bytes)),
  },
  PLAIN,
);
const request = fc.record(
  {
    tensor: fc.array(tensor, { maxLength: 4 }),
    fetch_var_names: list(fc.string({ maxLength: 6 })),
    profile_server: fc.boolean(),
    log_id: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }).map(String),
  },
  PLAIN,
);

/** A decoded request as plain values, as proto-loader names them. */
function plain({ tensors, fetchNames, profileServer, logId }: GeneralModelRequest): object {
  return {
    tensor: tensors.map((one) => ({
      int64_data: Array.from(new BigInt64Array(Uint32Array.from(one.int64Words).buffer), String),
      float_data: Array.from(one.float32),
      int_data: Array.from(one.int32),
      float64_data: Array.from(one.float64),
      uint32_data: Array.from(one.uint32),
      bool_data: Array.from(one.bool, Boolean),
      data: [...one.strings],
      elem_type: one.elemType,
      shape: [...one.shape],
      lod: Array.from(one.lod),
      name: one.name,
      alias_name: one.aliasName,
      tensor_content: Buffer.from(one.content),
    })),
    fetch_var_names: fetchNames,
    profile_server: profileServer,
    log_id: String(logId),
  };
}

/** The protobuf JSON of a request: what a caller writes by hand. */
function toJson(value: { tensor: PlainTensor[] }, camel: boolean): string {
  const text = JSON.stringify({
    ...value,
    tensor: value.tensor.map((one) => ({
      ...one,
      tensor_content: one.tensor_content?.toString('base64'),
    })),
  });
  return camel ? text.replace(/"([a-z]+)_([a-z])([a-z_]*)":/g, camelKey) : text;
}

function camelKey(key: string): string {
  return key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

function getFailure(action: () => unknown): CubeError {
  try {
    action();
  } catch (error) {
    assert.ok(error instanceof CubeError, String((error as Error).stack));
    return error;
  }
  throw new assert.AssertionError({ message: 'nothing was thrown' });
}

function parseJson(text: string): GeneralModelRequest {
  return runAtOnce(parseGeneralRequest(text, 'body', LIMITS));
}

test('requests encoded by protobuf decode', () => {
  fc.assert(
    fc.property(request, (value) => {
      const decoded = decodeGeneralRequest(requestSerialize(value), LIMITS);
      assert.deepEqual(plain(decoded), value);
    }),
  );
});

test('JSON in snake case and camel case equals the binary message', () => {
  fc.assert(
    fc.property(request, fc.boolean(), (value, camel) => {
      const fromJson = parseJson(toJson(value, camel));
      const fromBytes = decodeGeneralRequest(requestSerialize(value), LIMITS);
      // JSON has no negative zero.
      const zeroes = (of: GeneralModelRequest): string => JSON.stringify(plain(of));
      assert.equal(zeroes(fromJson), zeroes(fromBytes));
    }),
  );
});

test('whole 64-bit integers in JSON are exact as numbers too', () => {
  const text =
    '{"tensor": [{"int64_data": [9007199254740993, -9223372036854775808, ' +
    '"9223372036854775807", 7]}], "log_id": 18446744073709551615}';
  const decoded = plain(parseJson(text)) as { tensor: PlainTensor[] };
  const expected = ['9007199254740993', '-9223372036854775808', '9223372036854775807', '7'];
  assert.deepEqual(decoded.tensor[0]!.int64_data, expected);
  assert.equal((decoded as unknown as { log_id: string }).log_id, '18446744073709551615');
});

test('hand-written bytes: values packed, one by one, and in both ways in one field', () => {
  // tensor { int64_data: 1 (packed), 300 (alone), -1 (packed); float_data 0.5 (alone); shape [3];
  // name "C1" }, log_id 5
  const bytes = Buffer.from(
    '0a1d' +
      '0a0101' +
      '08ac02' +
      '0a0affffffffffffffffff01' +
      '150000003f' +
      '5803' +
      '6a024331' +
      '2005',
    'hex',
  );
  const { tensors, logId } = decodeGeneralRequest(bytes, LIMITS);
  assert.deepEqual(Array.from(tensors[0]!.int64Words), [1, 0, 300, 0, 0xffffffff, 0xffffffff]);
  assert.deepEqual(Array.from(tensors[0]!.float32), [0.5]);
  assert.deepEqual(tensors[0]?.shape, [3]);
  assert.equal(tensors[0]?.name, 'C1');
  assert.equal(logId, 5n);
});

test('any bytes decode or are refused; a truncated request is never a smaller one', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 80 }), (bytes) => {
      try {
        decodeGeneralRequest(bytes, LIMITS);
      } catch (error) {
        assert.match((error as CubeError).code, /^(INVALID_ARGUMENT|TOO_LARGE)$/);
      }
    }),
    { numRuns: 3000 },
  );
  const one = { tensor: [{ int64_data: ['5', '-6', '7'], shape: [3], name: 'C1' }] };
  const bytes = requestSerialize(one);
  for (let end = 1; end < bytes.length; end++) {
    getFailure(() => decodeGeneralRequest(bytes.subarray(0, end), LIMITS));
  }
});

test('limits: values, tensors, names and dimensions are counted before they are kept', () => {
  const zeros = new WireWriter().bytes(1, new WireWriter().bytes(1, new Uint8Array(1001)).finish());
  assert.equal(getFailure(() => decodeGeneralRequest(zeros.finish(), LIMITS)).code, 'TOO_LARGE');
  const tensors = Buffer.from('0a00'.repeat(9), 'hex');
  assert.equal(getFailure(() => decodeGeneralRequest(tensors, LIMITS)).code, 'TOO_LARGE');
  const names = Buffer.from('1200'.repeat(257), 'hex');
  assert.equal(getFailure(() => decodeGeneralRequest(names, LIMITS)).code, 'TOO_LARGE');
  const dims = requestSerialize({ tensor: [{ shape: new Array(17).fill(1) }] });
  assert.equal(getFailure(() => decodeGeneralRequest(dims, LIMITS)).code, 'TOO_LARGE');
  const values = `{"tensor": [{"float_data": [${'0,'.repeat(1000)}0]}]}`;
  assert.equal(getFailure(() => parseJson(values)).code, 'TOO_LARGE');
});

test('invalid JSON is refused, naming the location', () => {
  const cases: [string, RegExp][] = [
    ['[]', /body: expected an object/],
    ['{"tensor": 5}', /tensor: expected an array/],
    [
      '{"tensor": [{"int64_data": [1.5]}]}',
      /tensor\[0\]\.int64_data\[0\]: expected an integer in -2\^63/,
    ],
    ['{"tensor": [{"int64_data": [99999999999999999999]}]}', /int64_data\[0\]/],
    ['{"tensor": [{"floatData": ["x"]}]}', /tensor\[0\]\.floatData\[0\]: expected a number/],
    ['{"tensor": [{"shape": [4294967296]}]}', /tensor\[0\]\.shape\[0\]: expected an integer/],
    ['{"tensor": [{"tensor_content": "*"}]}', /tensor_content: expected bytes as base64/],
    ['{"tensor": [{"bool_data": [1]}]}', /bool_data\[0\]: expected true or false/],
    ['{"log_id": -1}', /log_id/],
  ];
  for (const [text, message] of cases) {
    const error = getFailure(() => parseJson(text));
    assert.equal(error.code, 'INVALID_ARGUMENT', text);
    assert.match(error.message, message);
  }
});

test('protobuf decodes our responses, and their JSON has the names of the .proto file', () => {
  const response: GeneralModelResponse = {
    outputs: [
      {
        tensors: [
          {
            name: 'p',
            aliasName: 'prob',
            dataType: 'FP32',
            shape: [2, 1],
            data: new Uint8Array(Float32Array.of(0.25, 0.5).buffer),
          },
          { name: 'why', aliasName: 'why', dataType: 'BYTES', shape: [1], data: ['ü'] },
        ],
        engineName: 'ctr',
      },
    ],
    profileTime: [1_700_000_000_000_000, 1_700_000_000_000_321],
    profileServer: true,
    logId: 2n ** 63n + 1n,
    errNo: 1003,
    errMsg: 'no such tensor',
  };
  const read = responseDeserialize(Buffer.from(encodeGeneralResponse(response))) as {
    outputs: { tensor: PlainTensor[]; engine_name: string }[];
  };
  const [probabilities, why] = read.outputs[0]!.tensor;
  assert.ok(probabilities && why);
  assert.deepEqual(probabilities.float_data, [0.25, 0.5]);
  assert.deepEqual(probabilities.shape, [2, 1]);
  assert.equal(probabilities.alias_name, 'prob');
  assert.equal(probabilities.elem_type, 1);
  assert.deepEqual(why.data, ['ü']);
  assert.equal(why.elem_type, 20);
  const { outputs: _, ...rest } = read as Record<string, unknown>;
  assert.deepEqual(rest, {
    profile_time: ['1700000000000000', '1700000000000321'],
    profile_server: true,
    log_id: '9223372036854775809',
    err_no: 1003,
    err_msg: 'no such tensor',
  });
  const json = JSON.parse(formatGeneralResponse(response)) as typeof read & { log_id: unknown };
  assert.deepEqual(json.outputs[0]?.tensor[0]?.float_data, [0.25, 0.5]);
  assert.equal(json.outputs[0]?.engine_name, 'ctr');
  assert.equal(json.log_id, '9223372036854775809');
});
