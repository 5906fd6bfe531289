/** Tensors that warm up plain models: random floats of every width, and zeros. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { TENSOR_TYPE_BYTES, type TensorType } from '../../lib/core/graph-signature.ts';
import { bf16ToNumber, f16ToNumber } from '../../lib/core/half-floats.ts';
import { createElements } from '../../serving/models/warm-up-elements.ts';

const FLOATS: Readonly<Partial<Record<TensorType, (bytes: Uint8Array) => number[]>>> = {
  FP16: ({ buffer }) => Array.from(new Uint16Array(buffer), f16ToNumber),
  BF16: ({ buffer }) => Array.from(new Uint16Array(buffer), bf16ToNumber),
  FP32: ({ buffer }) => [...new Float32Array(buffer)],
  FP64: ({ buffer }) => [...new Float64Array(buffer)],
};

test('random elements are floats from -1 to 1; integers and bits are zeros', () => {
  const types = Object.keys(TENSOR_TYPE_BYTES) as TensorType[];
  for (const type of types.filter((one) => one !== 'BYTES')) {
    const bytes = createElements(type, 64, 'random') as Uint8Array;
    assert.equal(bytes.length, 64 * TENSOR_TYPE_BYTES[type], type);
    const values = FLOATS[type]?.(bytes);
    if (values === undefined)
      assert.ok(
        bytes.every((byte) => byte === 0),
        type,
      );
    else {
      assert.ok(
        values.every((x) => x >= -1 && x <= 1),
        type,
      );
      assert.ok(new Set(values).size > 32, `${type} is not random`);
    }
    assert.ok((createElements(type, 64, 'zeros') as Uint8Array).every((byte) => byte === 0));
  }
  assert.deepEqual(createElements('BYTES', 2, 'random'), ['', '']);
});
