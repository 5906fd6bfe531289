/**
 * The pipeline codec against protobuf: proto-loader, which reads the .proto file, decodes our bytes
 * and the reverse; both layouts of Request; hostile bytes.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { EMPTY_TENSOR, type GeneralTensor } from '../../proto/general-tensor.ts';
import {
  decodePipelineRequest,
  decodePipelineResponse,
  encodePipelineRequest,
  encodePipelineResponse,
  PIPELINE_BYTES,
  PIPELINE_KEYS_MAX,
  PIPELINE_SERVICE,
  PIPELINE_STRING,
  type PipelineRequest,
  toPipelineErrNo,
} from '../../proto/pipeline.ts';
import { WireWriter } from '../../proto/wire.ts';

const PROTO = join(import.meta.dirname, '..', '..', '..', 'proto', 'pipeline.proto');
const LIMITS = { tensors: 8, values: 1000 };

const definition = loadSync(PROTO, { keepCase: true, longs: String, defaults: true });
const { inference } = definition[PIPELINE_SERVICE] as ServiceDefinition;
const { requestSerialize, requestDeserialize, responseDeserialize } = inference as MethodDefinition<
  object,
  object
>;

const int32 = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 });
const tensorArbitrary: fc.Arbitrary<GeneralTensor> = fc.record(
  {
    name: fc.string(),
    aliasName: fc.constant(''),
    elemType: fc.nat(PIPELINE_BYTES),
    shape: fc.array(int32, { maxLength: 4 }),
    lod: fc.array(int32, { maxLength: 4 }).map((values) => Int32Array.from(values)),
    int64Words: fc
      .array(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), { maxLength: 4 })
      .map((values) => new Uint32Array(BigInt64Array.from(values).buffer)),
    float32: fc.float32Array({ maxLength: 4 }),
    int32: fc.array(int32, { maxLength: 4 }).map((values) => Int32Array.from(values)),
    float64: fc.float64Array({ maxLength: 4 }),
    uint32: fc.uint32Array({ maxLength: 4 }),
    bool: fc.uint8Array({ max: 1, maxLength: 4 }),
    strings: fc.array(fc.string(), { maxLength: 3 }),
    content: fc.uint8Array({ maxLength: 8 }),
  },
  { noNullPrototype: true },
);
const pairsArbitrary = fc.array(fc.tuple(fc.string(), fc.string()), { maxLength: 4 });
const logIdArbitrary = fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n });

function makeRequest(changes: Partial<PipelineRequest>): PipelineRequest {
  const texts = { name: '', method: '', logId: 0n, clientIp: '' };
  return { layout: 'tensors', keys: [], values: [], tensors: [], ...texts, ...changes };
}

function hasCode(code: string): (error: unknown) => boolean {
  return (error) => error instanceof CubeError && error.code === code;
}

test('a request of either layout survives encoding, its layout told by its fields', () => {
  const property = fc.property(
    fc.constantFrom('plain' as const, 'tensors' as const),
    pairsArbitrary,
    fc.array(tensorArbitrary, { maxLength: 3 }),
    fc.record({ name: fc.string(), method: fc.string(), logId: logIdArbitrary }),
    (layout, pairs, tensors, texts) => {
      const request = makeRequest({
        layout,
        keys: pairs.map(([key]) => key),
        values: pairs.map(([, value]) => value),
        tensors: layout === 'plain' ? [] : tensors,
        ...texts,
        clientIp: '10.0.0.1',
      });
      const other = layout === 'plain' ? 'tensors' : 'plain';
      assert.deepEqual(
        decodePipelineRequest(encodePipelineRequest(request), LIMITS, other),
        request,
      );
    },
  );
  fc.assert(property);
});

test('a response survives encoding, and negative error numbers keep their sign', () => {
  const property = fc.property(
    int32,
    fc.string(),
    pairsArbitrary,
    fc.array(tensorArbitrary, { maxLength: 3 }),
    (errNo, errMsg, pairs, tensors) => {
      const [keys, values] = [pairs.map(([key]) => key), pairs.map(([, value]) => value)];
      const response = { errNo, errMsg, keys, values, tensors };
      const bytes = encodePipelineResponse(response);
      assert.deepEqual(decodePipelineResponse(bytes, LIMITS), response);
      assert.equal((responseDeserialize(Buffer.from(bytes)) as { err_no: number }).err_no, errNo);
    },
  );
  fc.assert(property);
});

test('protobuf reads our requests and we read those of protobuf', () => {
  const tensor = { ...EMPTY_TENSOR, name: 'x', elemType: 1, shape: [2] };
  const ours = makeRequest({
    keys: ['words'],
    values: ['array([1, 2])'],
    tensors: [{ ...tensor, float32: Float32Array.of(0.5, -1) }],
    name: 'ctr',
    method: 'prediction',
    logId: -7n,
    clientIp: '127.0.0.1',
  });
  const plain = requestDeserialize(Buffer.from(encodePipelineRequest(ours))) as {
    tensors: { float_data: number[]; shape: number[]; name: string; elem_type: number }[];
    logid: string;
    method: string;
  };
  assert.equal(plain.logid, '-7');
  assert.equal(plain.method, 'prediction');
  assert.deepEqual(plain.tensors[0]?.float_data, [0.5, -1]);
  assert.deepEqual(plain.tensors[0]?.shape, [2]);
  assert.equal(plain.tensors[0]?.elem_type, 1);
  assert.deepEqual(decodePipelineRequest(requestSerialize(plain), LIMITS), ours);
});

test('a string tensor and a .npy tensor keep their fields', () => {
  const tensors = [
    { name: 'text', elem_type: PIPELINE_STRING, str_data: ['a', 'b'] },
    { name: 'file', elem_type: PIPELINE_BYTES, byte_data: Buffer.from([1, 2, 3]) },
  ];
  const request = decodePipelineRequest(requestSerialize({ tensors }), LIMITS);
  assert.deepEqual(request.tensors[0]?.strings, ['a', 'b']);
  assert.deepEqual([...(request.tensors[1]?.content ?? [])], [1, 2, 3]);
});

test('a request that fits both layouts takes the layout of the setting', () => {
  const bytes = new WireWriter().string(3, '').string(4, 'prediction').finish();
  assert.equal(decodePipelineRequest(bytes, LIMITS, 'plain').method, 'prediction');
  assert.equal(decodePipelineRequest(bytes, LIMITS, 'tensors').name, 'prediction');
});

test('contradicting, unpaired and oversized messages are refused', () => {
  const decode = (writer: WireWriter) => () => decodePipelineRequest(writer.finish(), LIMITS);
  const invalid = hasCode('INVALID_ARGUMENT');
  const tooLarge = hasCode('TOO_LARGE');
  assert.throws(decode(new WireWriter().uint(5, 1).uint(6, 1)), invalid);
  assert.throws(decode(new WireWriter().string(1, 'a')), invalid);
  assert.throws(decode(new WireWriter().string(2, 'a')), invalid);
  const many = new WireWriter();
  for (let i = 0; i <= PIPELINE_KEYS_MAX; i++) many.string(1, '');
  assert.throws(decode(many), tooLarge);
  const tensors = new WireWriter();
  for (let i = 0; i <= LIMITS.tensors; i++) tensors.bytes(3, new Uint8Array(0));
  assert.throws(decode(tensors), tooLarge);
  const values = new WireWriter().bytes(1, new Uint8Array(LIMITS.values + 1)).finish();
  assert.throws(decode(new WireWriter().bytes(3, values)), tooLarge);
  const plain = makeRequest({ layout: 'plain', tensors: [EMPTY_TENSOR] });
  assert.throws(() => encodePipelineRequest(plain), hasCode('UNSUPPORTED'));
});

test('a request that uses its whole limit of values is read', () => {
  const tensors = [{ name: 'x', elem_type: 1, shape: [1], float_data: [1] }];
  const request = decodePipelineRequest(requestSerialize({ tensors }), { tensors: 1, values: 2 });
  assert.deepEqual(request.tensors[0]?.shape, [1]);
});

test('a flood of fields outside the values of a tensor is limited too', () => {
  const tensor = new WireWriter();
  for (let i = 0; i <= LIMITS.values + 16; i++) tensor.string(23, '');
  const bytes = new WireWriter().bytes(3, tensor.finish()).finish();
  assert.throws(() => decodePipelineRequest(bytes, LIMITS), hasCode('TOO_LARGE'));
});

test('random and truncated bytes give a request or a CubeError', () => {
  const whole = encodePipelineRequest(
    makeRequest({ keys: ['k'], values: ['v'], clientIp: '::1', tensors: [EMPTY_TENSOR] }),
  );
  const tryDecode = (bytes: Uint8Array): void => {
    for (const decode of [decodePipelineRequest, decodePipelineResponse]) {
      try {
        decode(bytes, LIMITS);
      } catch (error) {
        assert.ok(error instanceof CubeError, String(error));
      }
    }
  };
  for (let length = 0; length < whole.length; length++) tryDecode(whole.subarray(0, length));
  fc.assert(fc.property(fc.uint8Array({ maxLength: 64 }), tryDecode));
});

test('an unknown name is err_no 3002 and an invalid request 5000', () => {
  assert.equal(toPipelineErrNo(new CubeError('NOT_FOUND', '')), 3002);
  assert.equal(toPipelineErrNo(new CubeError('INVALID_ARGUMENT', '')), 5000);
  assert.equal(toPipelineErrNo(new CubeError('DEADLINE_EXCEEDED', '')), 6000);
  assert.equal(toPipelineErrNo(new CubeError('INTERNAL', '')), 10_000);
});
