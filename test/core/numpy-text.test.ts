/** NumPy's text form of arrays: what NumPy writes is read, what is written reads back equal. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { TensorType } from '../../lib/core/graph-signature.ts';
import { formatNumpyText, isNumpyText, parseNumpyText } from '../../lib/core/numpy-text.ts';
import type { Tensor } from '../../lib/core/tensor.ts';

const LIMIT = 10_000;

function parse(text: string): Tensor {
  return parseNumpyText(text, 'value x', LIMIT);
}

function numbers({ data }: Tensor): number[] {
  const bytes = (data as Uint8Array).slice().buffer;
  return Array.from(new Float32Array(bytes));
}

/** Written by NumPy 1.24, as clients send them. */
const WRITTEN_BY_NUMPY: readonly (readonly [string, TensorType, readonly number[]])[] = [
  ['array([1, 2, 3])', 'INT64', [3]],
  ['array([[1., 2.],\n       [3., 4.]])', 'FP64', [2, 2]],
  ['array([ 0.1 , -2.5 ,  1e-05], dtype=float32)', 'FP32', [3]],
  ['array([], shape=(0, 3), dtype=float32)', 'FP32', [0, 3]],
  ['array([], dtype=float64)', 'FP64', [0]],
  ['array(5)', 'INT64', []],
  ['array([ True, False])', 'BOOL', [2]],
  ["array(['a', \"b's\", 'c\\\\d'], dtype='<U3')", 'BYTES', [3]],
  ['array([nan, inf, -inf])', 'FP64', [3]],
  ['array([1, 2], dtype=uint8)', 'UINT8', [2]],
  ['array([0.5, 1.5], dtype=float16)', 'FP16', [2]],
  ['array([9223372036854775807])', 'INT64', [1]],
  ['[[1, 2], [3, 4]]', 'INT64', [2, 2]],
];

test('arrays as NumPy writes them are read with type and shape', () => {
  for (const [text, dataType, shape] of WRITTEN_BY_NUMPY) {
    const tensor = parse(text);
    assert.equal(tensor.dataType, dataType, text);
    assert.deepEqual(tensor.shape, shape, text);
  }
  assert.deepEqual(numbers(parse('array([ 0.1 , -2.5 ,  1e-05], dtype=float32)')), [
    Math.fround(0.1),
    -2.5,
    Math.fround(1e-5),
  ]);
  assert.deepEqual(parse("array(['a', \"b's\", 'c\\\\d'], dtype='<U3')").data, [
    'a',
    "b's",
    'c\\d',
  ]);
  const largest = parse('array([9223372036854775807])').data as Uint8Array;
  assert.equal(new DataView(largest.buffer).getBigInt64(0, true), 2n ** 63n - 1n);
});

test('text that is not an array is refused with the place', () => {
  const cases: readonly (readonly [string, RegExp])[] = [
    ['array([1, 2', /expected , or \]/],
    ['array([[1], [2, 3]])', /the lists differ in length/],
    ['array([1, ..., 9])', /abbreviated; call numpy\.set_printoptions/],
    ['array([1, True])', /bool among values of kind number/],
    ['array([300], dtype=uint8)', /300 does not fit UINT8/],
    ['array([1.5], dtype=int32)', /1\.5 does not fit INT32/],
    ['array([1], dtype=complex64)', /dtype "complex64" is not supported/],
    ['array([], shape=(2, 3), dtype=float32)', /shape \(2, 3\) does not fit 0 values/],
    ['array([1]) or 1', /expected the end/],
    ['__import__("os")', /expected a number/],
    [`array(${'['.repeat(40)}`, /more than 32 dimensions/],
    [`[${'1,'.repeat(LIMIT + 1)}]`, /more than 10000 values/],
  ];
  for (const [text, message] of cases) assert.throws(() => parse(text), { message });
  assert.ok(isNumpyText(' array([1])'));
  assert.ok(!isNumpyText('arrays are fun'));
});

test('property: written arrays read back equal, bit by bit', () => {
  const float32 = fc.float32Array({ maxLength: 20 });
  const float64 = fc.float64Array({ maxLength: 20 });
  const int64 = fc.bigInt64Array({ maxLength: 20 });
  const array = fc.oneof(
    float32.map((data) => ({ dataType: 'FP32' as const, data })),
    float64.map((data) => ({ dataType: 'FP64' as const, data })),
    int64.map((data) => ({ dataType: 'INT64' as const, data })),
    fc.int8Array({ maxLength: 20 }).map((data) => ({ dataType: 'INT8' as const, data })),
    fc.uint16Array({ maxLength: 20 }).map((data) => ({ dataType: 'UINT16' as const, data })),
  );
  fc.assert(
    fc.property(array, fc.boolean(), ({ dataType, data }, isColumn) => {
      const bytes = new Uint8Array(data.buffer.slice(0));
      const tensor = { dataType, shape: isColumn ? [data.length, 1] : [data.length], data: bytes };
      const read = parse(formatNumpyText(tensor));
      assert.deepEqual({ ...read, data: undefined }, { ...tensor, data: undefined });
      const values = new (data.constructor as Float64ArrayConstructor)(
        (read.data as Uint8Array).slice().buffer,
      );
      // NumPy's text has one NaN.
      assert.deepEqual(values, data);
    }),
    { numRuns: 300 },
  );
});

test('property: strings read back equal', () => {
  fc.assert(
    fc.property(fc.array(fc.string({ unit: 'binary' }), { maxLength: 8 }), (data) => {
      const tensor: Tensor = { dataType: 'BYTES', shape: [data.length], data };
      const read = parse(formatNumpyText(tensor));
      assert.deepEqual(read, tensor);
    }),
  );
});
