import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { decodeNpy, decodeNpyHeader, encodeNpyHeader } from '../../lib/core/npy.ts';

const latin1 = (text: string): Uint8Array => Uint8Array.from(text, (c) => c.charCodeAt(0));

/** A file as NumPy writes it, from the dict literal alone. */
function file(dict: string, data = new Uint8Array(0), version = 1): Uint8Array {
  const length = dict.length + 1;
  const size = version === 1 ? [length & 255, length >> 8] : [length & 255, length >> 8, 0, 0];
  return new Uint8Array([
    ...latin1('\x93NUMPY'),
    version,
    0,
    ...size,
    ...latin1(`${dict}\n`),
    ...data,
  ]);
}

function refusal(bytes: Uint8Array): string {
  try {
    decodeNpy(bytes, 't.npy');
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return `${error.code} ${error.message}`;
  }
  return 'accepted';
}

test("the header equals NumPy's byte for byte", () => {
  const fields = `{'descr': '<f4', 'fortran_order': False, 'shape': (100001, 10), }`;
  const expected = `\x93NUMPY\x01\x00\x76\x00${fields}`;
  const header = encodeNpyHeader('f4', [100001, 10]);
  assert.equal(header.length, 128);
  assert.deepEqual(header, latin1(`${expected.padEnd(127, ' ')}\n`));
  const text = new TextDecoder().decode(encodeNpyHeader('u8', [3]).subarray(10));
  assert.match(text, /'shape': \(3,\), }/);
});

test('encoded arrays decode to the same values at any alignment', () => {
  const arrays = fc.oneof(
    fc.float32Array({ maxLength: 40 }).map((data) => ({ dtype: 'f4' as const, data })),
    fc.uint16Array({ maxLength: 40 }).map((data) => ({ dtype: 'f2' as const, data })),
    fc.float64Array({ maxLength: 40 }).map((data) => ({ dtype: 'f8' as const, data })),
    fc.bigInt64Array({ maxLength: 40 }).map((data) => ({ dtype: 'i8' as const, data })),
    fc.bigUint64Array({ maxLength: 40 }).map((data) => ({ dtype: 'u8' as const, data })),
  );
  fc.assert(
    fc.property(arrays, fc.nat(9), ({ dtype, data }, shift) => {
      const header = encodeNpyHeader(dtype, [1, data.length]);
      const raw = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
      const bytes = new Uint8Array(shift + header.length + raw.length);
      bytes.set(header, shift);
      bytes.set(raw, shift + header.length);
      const read = decodeNpy(bytes.subarray(shift), 't.npy');
      assert.equal(read.dtype, dtype);
      assert.deepEqual(read.shape, [1, data.length]);
      const back = new Uint8Array(read.data.buffer, read.data.byteOffset, read.data.byteLength);
      assert.deepEqual(back, raw);
    }),
  );
});

test('versions 1 and 2, other spacing, quotes and order of entries are read', () => {
  const data = new Uint8Array(new Float32Array([1, 2]).buffer);
  for (const version of [1, 2]) {
    const dict = `{ "shape":(2 ,),'fortran_order':False, "descr" : '<f4' }`;
    assert.deepEqual([...decodeNpy(file(dict, data, version), 't').data], [1, 2]);
  }
  const scalar = file(`{'descr': '<f4', 'fortran_order': False, 'shape': (), }`, data.subarray(4));
  assert.deepEqual(decodeNpy(scalar, 't').shape, []);
});

test('other arrays are refused by name', () => {
  const dict = (descr: string, order = 'False', shape = '(1,)'): Uint8Array =>
    file(`{'descr': ${descr}, 'fortran_order': ${order}, 'shape': ${shape}, }`, new Uint8Array(4));
  assert.match(refusal(dict(`'<c8'`)), /^UNSUPPORTED t.npy: elements of type "<c8"/);
  assert.match(refusal(dict(`'>f4'`)), /^UNSUPPORTED .*">f4" \(big-endian\)/);
  assert.match(refusal(dict(`'|O'`)), /^UNSUPPORTED .*"\|O"/);
  assert.match(refusal(dict(`[('a', '<f4')]`)), /^UNSUPPORTED .*\[\('a'/);
  assert.match(refusal(dict(`'<f4'`, 'True')), /^UNSUPPORTED .*Fortran order/);
  const future = file(`{'descr': '<f4', 'fortran_order': False, 'shape': (), }`, new Uint8Array(4));
  future[6] = 3;
  assert.match(refusal(future), /^UNSUPPORTED .*version 3/);
});

test('damaged files are reported as corrupt with the reason', () => {
  const whole = file(
    `{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }`,
    new Uint8Array(8),
  );
  for (let length = 0; length < whole.length; length++) {
    assert.match(refusal(whole.subarray(0, length)), /^CORRUPT t.npy.*(truncated|not a .npy)/);
  }
  assert.match(refusal(new Uint8Array([...whole, 0])), /^CORRUPT .*bytes after its end/);
  const lies = [
    `{'descr': '<f4', 'fortran_order': False, 'shape': (9007199254740993, 2), }`,
    `{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2), }`,
    `{'descr': '<f4', 'fortran_order': False, 'shape': (1,, 2), }`,
    `{'descr': '<f4', 'fortran_order': False, }`,
    `{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,), }`,
    `{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': True}`,
    `__import__('os').abort()`,
    '',
  ];
  for (const dict of lies) {
    assert.match(refusal(file(dict, new Uint8Array(8))), /^CORRUPT .*not a .npy header/, dict);
  }
  const long = file('{'.padEnd(20_000, ' '));
  assert.match(refusal(long), /^CORRUPT .*header of 20011 bytes/);
});

test('any bytes give an array or a CubeError', () => {
  const start = file(
    `{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }`,
    new Uint8Array(8),
  );
  fc.assert(
    fc.property(fc.nat(start.length - 1), fc.nat(255), (at, byte) => {
      const bytes = start.slice();
      bytes[at] = byte;
      refusal(bytes);
    }),
    { numRuns: 500 },
  );
});

test('a header decodes from the first bytes of a file', () => {
  const header = encodeNpyHeader('f4', [1000, 4]);
  const read = decodeNpyHeader(header, header.length + 16_000, 't.npy');
  assert.deepEqual(read, { dtype: 'f4', shape: [1000, 4], dataOffset: 128, dataBytes: 16_000 });
});
