import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  DictRequest,
  dictRowsBytesMax,
  encodeDictHitPrefix,
  writeDictRows,
} from '../../proto/dict.ts';
import { WireReader, WireWriter } from '../../proto/wire.ts';
import { getErrorCode } from '../support/errors.ts';

const u64 = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });
const edge = fc.constantFrom(
  0n,
  1n,
  127n,
  128n,
  2n ** 28n,
  2n ** 32n - 1n,
  2n ** 35n,
  2n ** 63n,
  2n ** 64n - 1n,
);
const keys = fc.array(fc.oneof(u64, edge), { maxLength: 50 });

function getKeys(request: DictRequest): bigint[] {
  return Array.from({ length: request.count }, (_, i) => {
    return BigInt(request.keys[2 * i]!) | (BigInt(request.keys[2 * i + 1]!) << 32n);
  });
}

function decode(bytes: Uint8Array, keysMax = 1000): DictRequest {
  return new DictRequest(keysMax).decode(bytes, 0, bytes.length);
}

test('keys are read packed, unpacked, mixed and among unknown fields', () => {
  fc.assert(
    fc.property(keys, keys, fc.boolean(), (unpacked, packed, versionRequired) => {
      const writer = new WireWriter(8);
      for (const key of unpacked) writer.uint(1, key);
      const inner = new WireWriter(8);
      for (const key of packed) inner.varint(key);
      writer.string(9, 'unknown').bytes(1, inner.finish());
      writer.uint(2, versionRequired ? 1 : 0);
      const request = decode(writer.finish());
      assert.deepEqual(getKeys(request), [...unpacked, ...packed]);
      assert.equal(request.versionRequired, versionRequired);
    }),
  );
});

test('any bytes decode or are refused with a CubeError', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 64 }), (bytes) => {
      assert.match(
        getErrorCode(() => decode(bytes, 8)),
        /^(no error|INVALID_ARGUMENT|TOO_LARGE)$/,
      );
    }),
    { numRuns: 3000 },
  );
  assert.equal(
    getErrorCode(() => decode(Uint8Array.of(0xff, 0xff, 0xff))),
    'INVALID_ARGUMENT',
  );
  assert.equal(
    getErrorCode(() => decode(Uint8Array.of(0x08))),
    'INVALID_ARGUMENT',
  );
  const endless = Uint8Array.of(0x08, ...Array.from({ length: 10 }, () => 0x80), 1);
  assert.equal(
    getErrorCode(() => decode(endless)),
    'INVALID_ARGUMENT',
  );
});

test('more keys than allowed are refused before they take memory', () => {
  const request = new DictRequest(100);
  const bytes = new Uint8Array(1 << 20).fill(1);
  const packed = new WireWriter().bytes(1, bytes).finish();
  assert.equal(
    getErrorCode(() => request.decode(packed, 0, packed.length)),
    'TOO_LARGE',
  );
  assert.ok(request.keys.length <= 200);
  const unpacked = new Uint8Array(2 * 101).fill(8);
  assert.equal(
    getErrorCode(() => request.decode(unpacked, 0, unpacked.length)),
    'TOO_LARGE',
  );
  assert.equal(request.decode(unpacked, 0, 200).count, 100);
});

function decodeJson(text: string, keysMax = 100): DictRequest {
  const steps = new DictRequest(keysMax).decodeJson(new TextEncoder().encode(text), 'body');
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

test('JSON keys are exact beyond 2^53, as numbers and as strings', () => {
  const json = (text: string): bigint[] => getKeys(decodeJson(text));
  assert.deepEqual(json('{"keys":[1,5,2000000]}'), [1n, 5n, 2_000_000n]);
  assert.deepEqual(json('{"keys": [18446744073709551615 ,"18446744073709551615"]}'), [
    2n ** 64n - 1n,
    2n ** 64n - 1n,
  ]);
  assert.deepEqual(json('{"keys":[9007199254740993],"note":"12345678901234567 \\" [1]"}'), [
    9_007_199_254_740_993n,
  ]);
  assert.deepEqual(json('{}'), []);
  assert.deepEqual(json('{"keys":[ ],"a":{"keys":[7]},"b":["keys",[8]],"note":"keys"}'), []);
  assert.deepEqual(json('{"keys":[1],"keys":[2]}'), [2n]);
  const both = decodeJson('{ "version_required" : true , "keys" : [\n3\t] , "more" : [1.5] }');
  assert.deepEqual([getKeys(both), both.versionRequired], [[3n], true]);
  assert.equal(decodeJson('{"version_required":"true"}').versionRequired, true);
  assert.equal(decodeJson('{"version_required":"false"}').versionRequired, false);
  const space = fc.stringMatching(/^[ \n\r\t]{0,3}$/);
  fc.assert(
    fc.property(keys, space, fc.boolean(), (list, gap, quoted) => {
      const items = list.map((key) => `${gap}${quoted ? `"${key}"` : key}${gap}`);
      assert.deepEqual(json(`{"keys":${gap}[${items.join(',')}]}`), list);
    }),
  );
});

test('a long JSON seek is read with pauses', () => {
  const list = Array.from({ length: 200_000 }, (_, i) => 2n ** 64n - 1n - BigInt(i));
  const text = new TextEncoder().encode(`{"keys":[${list.join(',')}]}`);
  const request = new DictRequest(1 << 20);
  assert.ok([...request.decodeJson(text, 'body')].length > 20, 'pauses');
  assert.deepEqual(getKeys(request), list);
  assert.equal(
    getErrorCode(() => decodeJson('{"keys":[1,2,3]}', 2)),
    'TOO_LARGE',
  );
});

test('invalid JSON is refused, and no number is rounded', () => {
  const refused = [
    '',
    '[',
    '{"keys":[1.5]}',
    '{"keys":[-1]}',
    '{"keys":[-12345678901234567890]}',
    '{"keys":[18446744073709551616]}',
    '{"keys":[1e30]}',
    '{"keys":[12345678901234567890.5]}',
    '{"keys":[012345678901234567]}',
    '{"keys":"1"}',
    '{"keys":[1],"version_required":"yes"}',
    '{"keys":[12345678901234567890',
    '{"keys":[1,]}',
    '{"keys":[1 2]}',
    '{"keys":["1]}',
    '{"keys":["1",]',
    '{"keys":[null]}',
    '{"keys":[]',
    '{"k\\u0065ys":[1]}',
    '[{"keys":[1]}]',
  ];
  for (const text of refused) {
    assert.equal(
      getErrorCode(() => decodeJson(text)),
      'INVALID_ARGUMENT',
      text,
    );
  }
  assert.throws(() => decodeJson('{"keys":[1,18446744073709551616]}'), {
    message: /keys\[1\]: expected an integer in 0\.\.2\^64 - 1, .*got 18446744073709551616/,
  });
  const hostile = '\\"'.repeat(500_000);
  assert.equal(
    getErrorCode(() => decodeJson(`{"${hostile}`)),
    'INVALID_ARGUMENT',
  );
});

test('values are written as protobuf, hits and misses, rows of any size', () => {
  const rowBytesOf = fc.constantFrom(1, 4, 7, 40, 120, 128, 256, 260, 1024, 20_000);
  fc.assert(
    fc.property(rowBytesOf, fc.array(fc.boolean(), { maxLength: 40 }), (rowBytes, hits) => {
      const count = hits.length;
      const rows = new Uint8Array(Math.ceil((count * rowBytes) / 4) * 4).map(
        (_, i) => (i * 7) & 255,
      );
      const found = new Uint8Array(Math.ceil(count / 8));
      hits.forEach((hit, i) => {
        if (hit) found[i >> 3]! |= 1 << (i & 7);
      });
      const target = new Uint8Array(3 + dictRowsBytesMax(count, rowBytes));
      const end = writeDictRows(target, new DataView(target.buffer), 3, {
        count,
        rowBytes,
        rows,
        found,
        hitPrefix: encodeDictHitPrefix(rowBytes),
        rowWords: new Int32Array(rows.buffer),
      });
      const reader = new WireReader(target, 3, end);
      for (let i = 0; i < count; i++) {
        assert.ok(reader.next());
        const value = reader.message();
        value.next();
        assert.equal(value.uint32(), hits[i] ? 0 : 0xffff_ffff);
        value.next();
        const row = hits[i] ? rows.subarray(i * rowBytes, (i + 1) * rowBytes) : new Uint8Array(0);
        assert.ok(Buffer.from(value.view()).equals(row), `row ${i}`);
      }
      assert.equal(reader.next(), false);
    }),
  );
});
