import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  bf16ToF32Bits,
  f16ToF32Bits,
  f16ToNumber,
  f32BitsToBf16,
  f32BitsToF16,
} from '../../lib/core/half-floats.ts';
import { setKey } from '../../lib/core/keys.ts';
import { decodeCubeRow } from '../../lib/core/quantized-rows.ts';
import {
  computeRowBytes,
  decodeRows,
  encodeRows,
  mergeRowErrors,
} from '../../lib/core/row-codec.ts';

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

function viewBits(value: number): number {
  float[0] = value;
  return bits[0]!;
}

function fromBits(value: number): number {
  bits[0] = value;
  return float[0]!;
}

/** Every 16-bit float, by the definition of the format. */
function halfValue(half: number, exponentBits: number): number {
  const fractionBits = 15 - exponentBits;
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> fractionBits) & ((1 << exponentBits) - 1);
  const fraction = half & ((1 << fractionBits) - 1);
  const bias = (1 << (exponentBits - 1)) - 1;
  if (exponent === (1 << exponentBits) - 1) return fraction === 0 ? sign / 0 : Number.NaN;
  if (exponent === 0) return sign * fraction * 2 ** (1 - bias - fractionBits);
  return sign * (1 + fraction / (1 << fractionBits)) * 2 ** (exponent - bias);
}

const HALVES = [
  { name: 'f16', exponentBits: 5, decode: f16ToF32Bits, encode: f32BitsToF16 },
  { name: 'bf16', exponentBits: 8, decode: bf16ToF32Bits, encode: f32BitsToBf16 },
];

for (const { name, exponentBits, decode, encode } of HALVES) {
  test(`every ${name} has its value, and survives f32`, () => {
    for (let half = 0; half < 65_536; half++) {
      const value = fromBits(decode(half));
      assert.ok(Object.is(value, halfValue(half, exponentBits)), `${name} ${half}: ${value}`);
      if (!Number.isNaN(value)) assert.equal(encode(decode(half)), half);
      else assert.ok(Number.isNaN(halfValue(encode(decode(half)), exponentBits)));
    }
  });

  test(`an f32 becomes the nearest ${name}, the even one of two`, () => {
    const infinity = ((1 << exponentBits) - 1) << (15 - exponentBits);
    // Magnitudes in order; infinity counts as the value that would come next.
    const magnitudes = Array.from({ length: infinity }, (_, half) => halfValue(half, exponentBits));
    magnitudes.push(2 * magnitudes[infinity - 1]! - magnitudes[infinity - 2]!);
    const nearest = (size: number): number => {
      if (size >= magnitudes[infinity]!) return infinity;
      let below = 0;
      for (let above = infinity; above - below > 1; ) {
        const middle = (below + above) >> 1;
        if (magnitudes[middle]! <= size) below = middle;
        else above = middle;
      }
      const order = size - magnitudes[below]! - (magnitudes[below + 1]! - size);
      return order < 0 || (order === 0 && below % 2 === 0) ? below : below + 1;
    };
    const check = (value: number): void => {
      const half = encode(viewBits(value));
      if (Number.isNaN(value)) {
        assert.ok(Number.isNaN(halfValue(half, exponentBits)));
        return;
      }
      assert.equal(half >> 15, viewBits(value) >>> 31, `sign of ${value}`);
      assert.equal(half & 0x7fff, nearest(Math.abs(Math.fround(value))), `${value}`);
    };
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 2 ** 32 - 1 }), (word) => check(fromBits(word))),
      { numRuns: 3000 },
    );
    // Halfway between neighbours, and a hair beside it.
    for (let half = 0; half < infinity; half += 13) {
      const middle = viewBits((magnitudes[half]! + magnitudes[half + 1]!) / 2);
      for (const nudge of [-1, 0, 1]) check(fromBits(Math.max(0, middle + nudge)));
    }
    for (const value of [0, -0, 65_504, 65_519.99, 65_520, -65_536, 2 ** -24, 2 ** -25, 1 / 0]) {
      check(value);
    }
  });
}

const element = fc.oneof(
  fc.float({ min: -2, max: 2, noNaN: true }),
  fc.float({ min: -65_504, max: 65_504, noNaN: true }),
  fc.constantFrom(0, -0, 1, -65_504, 65_504, 2 ** -30),
);
const anyRow = fc.array(element, { minLength: 1, maxLength: 20 });

function squaredError(row: readonly number[], decoded: Float32Array): number {
  return row.reduce((sum, value, i) => sum + (Math.fround(value) - decoded[i]!) ** 2, 0);
}

test('i8 errors are at most half a level, and greedy is never worse', () => {
  fc.assert(
    fc.property(anyRow, (row) => {
      const dim = row.length;
      const rows = Float32Array.from(row);
      const plain = encodeRows('i8', rows, dim);
      assert.equal(plain.rows.length, computeRowBytes('i8', dim));
      assert.ok(plain.rows.subarray(4 + dim).every((byte) => byte === 0));
      const scale = f16ToNumber(plain.rows[0]! | (plain.rows[1]! << 8));
      const decoded = decodeRows('i8', plain.rows, dim, 1);
      const range = Math.max(...rows) - Math.min(...rows);
      const half = (scale / 2) * 1.0001 + Math.max(...rows.map(Math.abs)) * 1e-6;
      rows.forEach((value, i) => {
        assert.ok(
          Math.abs(value - decoded[i]!) <= half,
          `${value} → ${decoded[i]}, scale ${scale}`,
        );
      });
      // Levels are not wider than the range and the rounding of an f16 offset ask for.
      const slack = Math.max(...rows.map(Math.abs)) / 1024 + 2 ** -24;
      assert.ok(scale <= ((range + slack) / 255) * 1.001 + 2 ** -24, `scale ${scale} for ${range}`);
      const greedy = encodeRows('i8', rows, dim, { search: 'greedy' });
      const better = squaredError(row, decodeRows('i8', greedy.rows, dim, 1));
      assert.ok(better <= squaredError(row, decoded) * (1 + 1e-6) + 1e-12);
    }),
    { numRuns: 500 },
  );
});

test('the greedy search gives up an outlier to bring the others nearer', () => {
  const row = Float32Array.from({ length: 64 }, (_, i) => Math.sin(i * 1.7) * 0.1);
  row[5] = 0.45;
  const plain = encodeRows('i8', row, 64).errors;
  const greedy = encodeRows('i8', row, 64, { search: 'greedy' }).errors;
  assert.ok(greedy.meanSquared <= plain.meanSquared);
  const narrow = Float32Array.from({ length: 2000 }, (_, i) => Math.sin(i * 1.7) * 0.1);
  narrow[5] = 0.1001;
  narrow[6] = 0.12;
  const wide = encodeRows('i8', narrow, 2000).errors;
  const found = encodeRows('i8', narrow, 2000, { search: 'greedy' }).errors;
  assert.ok(found.meanSquared < wide.meanSquared, `${found.meanSquared} < ${wide.meanSquared}`);
});

test('f32 keeps every bit; f16 and bf16 decode to what is stored, with exact error figures', () => {
  const words = Uint32Array.of(0x7fc0_1234, 0xff80_0000, 0x8000_0000, 0x3f80_0001, 0x7f80_0001, 1);
  const rows = new Float32Array(words.buffer);
  const stored = encodeRows('f32', rows, 3);
  assert.deepEqual(new Uint32Array(stored.rows.buffer), words);
  assert.deepEqual(new Uint32Array(decodeRows('f32', stored.rows, 3, 2).buffer), words);
  const values = Float32Array.of(1.0001, -3, 0.5, Number.NaN, Number.POSITIVE_INFINITY, 1e-3);
  for (const dtype of ['f16', 'bf16'] as const) {
    const { rows: halves, errors } = encodeRows(dtype, values, 3);
    assert.equal(halves.length, 2 * 8);
    assert.deepEqual([halves[6], halves[7], halves[14], halves[15]], [0, 0, 0, 0]);
    const decoded = decodeRows(dtype, halves, 3, 2);
    const off = [0, 1, 2, 5].map((i) => Math.abs(values[i]! - decoded[i]!));
    assert.deepEqual([decoded[1], decoded[3], decoded[4]], [-3, Number.NaN, values[4]]);
    assert.equal(errors.elements, 4);
    assert.equal(errors.maxAbsolute, Math.max(...off));
    assert.ok(Math.abs(errors.meanAbsolute - off.reduce((a, b) => a + b) / 4) < 1e-12);
    assert.ok(Math.abs(errors.meanSquared - off.reduce((a, b) => a + b * b, 0) / 4) < 1e-12);
  }
});

test('merged errors of two batches equal the errors of both together', () => {
  const rows = Float32Array.from({ length: 60 }, (_, i) => Math.cos(i) * i);
  const whole = encodeRows('f16', rows, 4).errors;
  const split = mergeRowErrors(
    encodeRows('f16', rows.subarray(0, 12), 4).errors,
    encodeRows('f16', rows.subarray(12), 4).errors,
  );
  assert.equal(split.elements, whole.elements);
  assert.equal(split.maxAbsolute, whole.maxAbsolute);
  assert.ok(Math.abs(split.meanAbsolute - whole.meanAbsolute) < 1e-12);
  assert.ok(Math.abs(split.meanSquared - whole.meanSquared) < 1e-12);
});

test('i8 refuses values that it cannot store and names the key', () => {
  const keys = new Uint32Array(4);
  setKey(keys, 1, 2n ** 64n - 7n);
  for (const bad of [Number.NaN, Number.NEGATIVE_INFINITY, 65_505, -1e6]) {
    const rows = Float32Array.of(1, 2, 3, bad);
    assert.throws(() => encodeRows('i8', rows, 2, { keys }), {
      code: 'INVALID_ARGUMENT',
      message: /the row of key 18446744073709551609 .* dtype i8/,
    });
    assert.throws(() => encodeRows('i8', rows, 2), { message: /row 1 / });
  }
});

test('f16 and bf16 keep infinities and refuse larger finite elements with the key', () => {
  const keys = new Uint32Array(4);
  setKey(keys, 1, 77n);
  const infinite = Float32Array.of(1 / 0, -1 / 0, Number.NaN, 65_504);
  const kept = decodeRows('f16', encodeRows('f16', infinite, 2).rows, 2, 2);
  assert.deepEqual([...kept], [...infinite]);
  for (const [dtype, bad] of [
    ['f16', 65_520],
    ['f16', -1e6],
    ['bf16', 3.4e38],
  ] as const) {
    assert.throws(() => encodeRows(dtype, Float32Array.of(1, 2, 3, bad), 2, { keys }), {
      code: 'INVALID_ARGUMENT',
      message: new RegExp(`^the row of key 77 .* dtype ${dtype} would make infinite`),
    });
  }
});

test("Cube's own 8-bit values decode with its divisor of 256", () => {
  const value = new Uint8Array(8 + 3);
  const view = new DataView(value.buffer);
  view.setFloat32(0, -1, true);
  view.setFloat32(4, 3, true);
  value.set([0, 255, 128], 8);
  const row = new Float32Array(3);
  decodeCubeRow(value, row);
  assert.deepEqual(row, Float32Array.of(-1, -1 + (255 * 4) / 256, 1));
  assert.throws(() => decodeCubeRow(value, new Float32Array(4)), { code: 'INVALID_ARGUMENT' });
  view.setFloat32(4, Number.NaN, true);
  assert.throws(() => decodeCubeRow(value, row), { message: /range -1 to NaN/ });
});
