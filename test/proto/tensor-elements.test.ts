/** Integers of protobuf fields, which have 32 bits or more, as smaller elements of tensors. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { toRawElements } from '../../proto/tensor-elements.ts';
import { WireWriter } from '../../proto/wire.ts';

const TYPES = {
  INT8: Int8Array,
  UINT8: Uint8Array,
  INT16: Int16Array,
  UINT16: Uint16Array,
} as const;

/** Values of a packed field; negative ones as protobuf writes them. */
function pack(values: readonly number[]): Uint8Array {
  const writer = new WireWriter();
  for (const value of values) writer.varint(BigInt.asUintN(64, BigInt(value)));
  return writer.finish();
}

test('integers that the type has are kept, others are refused', () => {
  const type = fc.constantFrom(...(Object.keys(TYPES) as (keyof typeof TYPES)[]));
  const value = fc.oneof(fc.integer({ min: -300, max: 300 }), fc.integer());
  fc.assert(
    fc.property(type, fc.array(value, { maxLength: 5 }), (name, values) => {
      const elements = TYPES[name].from(values);
      const wrong = values.find((one, i) => elements[i] !== one);
      if (wrong === undefined) {
        const raw = toRawElements([pack(values)], name);
        assert.deepEqual(raw, new Uint8Array(elements.buffer));
        return;
      }
      assert.throws(() => toRawElements([pack(values)], name), {
        code: 'INVALID_ARGUMENT',
        message: new RegExp(`expected an integer in .* for ${name}, got ${wrong}$`),
      });
    }),
  );
});

test('booleans are 0 or 1, and half floats have 16 bits', () => {
  assert.deepEqual(toRawElements([pack([1, 0])], 'BOOL'), Uint8Array.of(1, 0));
  assert.throws(() => toRawElements([pack([300])], 'BOOL'), /in 0\.\.1 for BOOL, got 300/);
  assert.deepEqual(toRawElements([pack([0x3c00])], 'FP16'), Uint8Array.of(0, 0x3c));
  assert.throws(() => toRawElements([pack([0x13c00])], 'FP16'), /for FP16, got 80896/);
});
