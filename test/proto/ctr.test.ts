/** The codec of hypercube.CtrService against protobuf's own, both ways. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import {
  CTR_SERVICE,
  type CtrRequest,
  type CtrResponse,
  decodeCtrRequest,
  decodeCtrResponse,
  encodeCtrRequest,
  encodeCtrResponse,
} from '../../proto/ctr.ts';

const PROTO = join(import.meta.dirname, '..', '..', '..', 'proto', 'ctr.proto');
const definition = loadSync(PROTO, { keepCase: true, longs: String, defaults: true });
const { Predict } = definition[CTR_SERVICE] as ServiceDefinition;
const method = Predict as MethodDefinition<object, object>;
const VALUES_MAX = 100;
const PLAIN = { noNullPrototype: true };

const u32 = fc.integer({ min: 0, max: 2 ** 32 - 1 });
const u32s = fc.array(u32, { maxLength: 6 }).map((values) => Uint32Array.from(values));
const text = fc.string({ unit: 'grapheme', maxLength: 6 });
const texts = fc.array(text, { maxLength: 6 });
const numbers = fc.array(fc.double(), { maxLength: 6 }).map((values) => Float64Array.from(values));
const floats = fc.array(fc.float(), { maxLength: 6 }).map((values) => Float32Array.from(values));
const keys = fc
  .array(fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }), { maxLength: 6 })
  .map((values) => new Uint32Array(BigUint64Array.from(values).buffer));

const request: fc.Arbitrary<CtrRequest> = fc.record({
  model: text,
  version: text,
  label: text,
  rowCount: u32,
  dense: numbers,
  features: texts,
  keys,
  scaled: floats,
  ends: u32s,
  shared: fc.option(fc.record({ slots: u32s, features: texts, ends: u32s }, PLAIN), {
    nil: undefined,
  }),
  tsv: fc.uint8Array({ maxLength: 20 }),
  priority: fc.option(u32, { nil: undefined }),
  detail: fc.boolean(),
  timings: fc.boolean(),
});

test('requests are the same through our codec, and through protobuf in between', () => {
  fc.assert(
    fc.property(request, (value) => {
      const bytes = encodeCtrRequest(value);
      const again = method.requestSerialize(method.requestDeserialize(Buffer.from(bytes)));
      for (const read of [bytes, again]) {
        assert.deepEqual({ ...decodeCtrRequest(read, VALUES_MAX) }, { ...value });
      }
    }),
  );
});

test('responses are the same through our codec, and through protobuf in between', () => {
  const outcome = fc.record({ slot: text, hit: u32, unseen: u32, unavailable: u32 });
  const timings = fc.record({ queueMicros: u32, lookupMicros: u32, inferMicros: u32 });
  const response = fc.record(
    {
      model: text,
      version: text,
      tablesVersion: text,
      probabilities: floats,
      unseen: u32,
      unavailable: u32,
      degraded: fc.boolean(),
      timings,
      slots: fc.array(outcome, { minLength: 1, maxLength: 3 }),
    },
    {
      requiredKeys: [
        ...(['model', 'version', 'tablesVersion', 'probabilities'] as const),
        ...(['unseen', 'unavailable', 'degraded'] as const),
      ],
      noNullPrototype: true,
    },
  );
  fc.assert(
    fc.property(response as fc.Arbitrary<CtrResponse>, (value) => {
      const bytes = encodeCtrResponse(value);
      const again = method.responseSerialize(method.responseDeserialize(Buffer.from(bytes)));
      for (const read of [bytes, again]) {
        assert.deepEqual(
          JSON.parse(JSON.stringify(decodeCtrResponse(read))),
          JSON.parse(JSON.stringify(value)),
        );
      }
    }),
  );
});

test('any bytes decode or are refused with a CubeError', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 60 }), (bytes) => {
      for (const decode of [
        () => decodeCtrRequest(bytes, VALUES_MAX),
        () => decodeCtrResponse(bytes),
      ]) {
        try {
          decode();
        } catch (error) {
          assert.match((error as CubeError).code, /^(INVALID_ARGUMENT|TOO_LARGE)$/);
        }
      }
    }),
    { numRuns: 2000 },
  );
  const failures: [string, string][] = [
    ['3200'.repeat(101), 'TOO_LARGE'],
    [`4a65${'00'.repeat(101)}`, 'TOO_LARGE'],
    ['2a0700000000000000', 'INVALID_ARGUMENT'],
    ['3d00000000', 'INVALID_ARGUMENT'],
  ];
  for (const [hex, code] of failures) {
    assert.throws(
      () => decodeCtrRequest(Buffer.from(hex, 'hex'), VALUES_MAX),
      (error) => error instanceof CubeError && error.code === code,
      hex,
    );
  }
});
