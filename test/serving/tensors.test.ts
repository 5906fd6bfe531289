/** Input tensors: every datatype as binary and JSON, and invalid shapes, lengths and values. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { JsonReader } from '../../lib/core/json.ts';
import { decodeOipRequest } from '../../proto/oip.ts';
import { InputTensor } from '../../serving/protocols/input-tensor.ts';
import { rawStrings } from './support/kserve-client.ts';

const head = (datatype: string, shape: number[]) => ({ name: 't', datatype, shape });
const viewBytes = (values: { buffer: ArrayBufferLike }): Uint8Array =>
  new Uint8Array(values.buffer);
/** The same bytes at an unaligned address. */
function shifted(bytes: Uint8Array): Uint8Array {
  const moved = new Uint8Array(bytes.length + 1);
  moved.set(bytes, 1);
  return moved.subarray(1);
}

test('keys are equal from every element type, at any alignment', () => {
  const key = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });
  fc.assert(
    fc.property(fc.array(key, { minLength: 1, maxLength: 20 }), (keys) => {
      const shape = [keys.length];
      const words = new Uint32Array(BigUint64Array.from(keys).buffer);
      const raw = viewBytes(BigUint64Array.from(keys));
      const text = keys.map(String);
      assert.deepEqual(InputTensor.fromBytes(head('UINT64', shape), raw).keys(), words);
      assert.deepEqual(InputTensor.fromBytes(head('INT64', shape), shifted(raw)).keys(), words);
      assert.deepEqual(InputTensor.fromBytes(head('BYTES', shape), rawStrings(text)).keys(), words);
      const json = JsonReader.of(text, 'body');
      assert.deepEqual(InputTensor.fromJson(head('UINT64', shape), json).keys(), words);
    }),
  );
  const small = InputTensor.fromBytes(head('INT16', [2]), viewBytes(Int16Array.of(-2, 3)));
  assert.deepEqual([...small.keys()], [0xffff_fffe, 0xffff_ffff, 3, 0]);
});

test('floats of every width, aligned or not; FP16 by its bits', () => {
  const values = [1.5, -2.25, Number.NaN, 0];
  const f32 = viewBytes(Float32Array.from(values));
  const f64 = viewBytes(Float64Array.from(values));
  const f16 = viewBytes(Uint16Array.of(0x3e00, 0xc080, 0x7e00, 0));
  for (const [datatype, bytes] of [
    ['FP32', f32],
    ['FP64', f64],
    ['FP16', f16],
  ] as const) {
    for (const form of [bytes, shifted(bytes)]) {
      assert.deepEqual([...InputTensor.fromBytes(head(datatype, [4]), form).floats()], values);
    }
  }
});

test('strings are read back unchanged', () => {
  const text = fc.string({ unit: 'grapheme' });
  fc.assert(
    fc.property(fc.array(text, { minLength: 1, maxLength: 10 }), (strings) => {
      const tensor = InputTensor.fromBytes(head('BYTES', [strings.length]), rawStrings(strings));
      assert.deepEqual(tensor.strings(), strings);
    }),
  );
});

const json = (datatype: string, shape: number[], data: unknown[]) => () =>
  InputTensor.fromJson(head(datatype, shape), JsonReader.of(data, 'body'));
const raw = (datatype: string, shape: number[], bytes: Uint8Array) => () =>
  InputTensor.fromBytes(head(datatype, shape), bytes);
const cases: [string, () => unknown, RegExp][] = [
  ['an unknown datatype', json('INT65', [1], [1]), /"t": datatype: expected one of BOOL/],
  ['no dims', () => json('INT64', [], [1])().checkRows(), /"t": shape: expected 1 to 8 dims/],
  [
    'an empty batch',
    () => json('INT64', [0, 1], [])().checkRows(),
    /shape\[0\]: expected an integer ≥ 1, got 0/,
  ],
  ['a negative dim', json('INT64', [1, -1], [1]), /shape\[1\]/],
  [
    'a batch of 10,001',
    () => json('INT64', [10_001, 1], new Array(10_001).fill(1))().checkRows(),
    /10001 rows in one request/,
  ],
  ['a shape beyond numbers', json('INT64', [9_000, 2 ** 53 - 1], []), /elements/],
  ['fewer values', json('FP32', [2, 2], [1, 2, 3]), /expected 4 values \(shape \[2,2\]\), got 3/],
  ['FP16 in JSON', json('FP16', [1], [1]), /FP16 is not supported in JSON/],
  ['BF16 in JSON', json('BF16', [1], [1]), /BF16 is not supported in JSON/],
  ['bytes too few', raw('FP32', [2], new Uint8Array(7)), /2 values of 4 bytes.*got 7 bytes/],
  ['a rounded key', () => json('UINT64', [1], [2 ** 53])().keys(), /value 0.*2\^53 are rounded/],
  ['a key beyond its type', () => json('UINT8', [2], [255, '256'])().keys(), /value 1.*0\.\.255/],
  ['a key below its type', () => json('INT16', [1], [-32_769])().keys(), /value 0.*-32768\.\./],
  ['a key below zero', () => json('UINT64', [1], ['-1'])().keys(), /value 0/],
  ['text as a float', () => json('FP32', [2], [1, '2'])().floats(), /value 1.*finite number/],
  ['keys of floats', () => json('FP32', [1], [1])().keys(), /datatype: expected one of UINT64/],
  ['strings of numbers', () => json('INT64', [1], [1])().strings(), /expected one of BYTES/],
  [
    'a length beyond the end',
    () => raw('BYTES', [2], Uint8Array.of(1, 0, 0, 0, 65, 9, 0, 0, 0))().strings(),
    /end within value 1 of 2/,
  ],
  [
    'bytes behind the last string',
    () => raw('BYTES', [1], Uint8Array.of(1, 0, 0, 0, 65, 66))().strings(),
    /1 bytes after the 1 values/,
  ],
  [
    'a count that the bytes cannot hold',
    () => raw('BYTES', [10_000, 6_000], new Uint8Array(8))().strings(),
    /8 bytes cannot hold the 60000000 values/,
  ],
  [
    'bytes that are no text',
    () => raw('BYTES', [1], Uint8Array.of(1, 0, 0, 0, 0xff))().strings(),
    /value 0: not UTF-8/,
  ],
];
for (const [name, act, message] of cases) {
  test(`an input tensor is rejected: ${name}`, () => void assert.throws(act, message));
}

test('any bytes given to the gRPC codec parse or fail with a clear error', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), (bytes) => {
      try {
        decodeOipRequest(bytes);
      } catch (error) {
        assert.equal((error as { code?: string }).code, 'INVALID_ARGUMENT', String(error));
      }
    }),
    { numRuns: 2000 },
  );
});
