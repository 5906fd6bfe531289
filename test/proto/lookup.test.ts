import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { DEFAULT_SERVER_LIMITS } from '../../lib/core/limits.ts';
import {
  bitmapBytes,
  decodeLookupRequest,
  decodeLookupResponse,
  encodeLookupRequest,
  encodeVersionField,
  groupBytes,
  LOOKUP_GROUPS_MAX,
  LookupRequestDecoder,
  setGroupHits,
  writeResponseGroup,
} from '../../proto/lookup.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';

const name = fc.stringMatching(/^[A-Za-z0-9_][A-Za-z0-9._-]{0,20}$/);
const count = fc.integer({ min: 0, max: 2 ** 31 });

test('a request head is read as it was written, keys inside or not', () => {
  const head = fc.record({
    bundle: name,
    version: fc.oneof(fc.constant(''), name),
    shardIndex: fc.nat(70_000),
    shardNum: fc.nat(70_000),
    groups: fc.array(fc.record({ table: name, count }), { maxLength: 20 }),
  });
  const keys = fc.option(fc.uint8Array({ maxLength: 64 }), { nil: undefined });
  fc.assert(
    fc.property(head, keys, (expected, keyBytes) => {
      const decoded = decodeLookupRequest(encodeLookupRequest(expected, keyBytes));
      const plain = JSON.parse(JSON.stringify({ ...decoded, keys: null }));
      assert.deepEqual(plain, { ...JSON.parse(JSON.stringify(expected)), keys: null });
      assert.deepEqual(decoded.keys && [...decoded.keys], keyBytes && [...keyBytes]);
    }),
  );
});

test('a decoder that served another request has nothing left of it', () => {
  const decoder = new LookupRequestDecoder();
  const groups = [{ table: 'a', count: 3 }];
  const full = { bundle: 'b', version: '1', shardIndex: 2, shardNum: 3, groups };
  decoder.decode(encodeLookupRequest(full, Uint8Array.of(1)));
  decoder.decode(new Uint8Array(0));
  const { bundle, version, shardIndex, shardNum, groupCount, keysStart } = decoder;
  assert.deepEqual(
    [bundle, version, shardIndex, shardNum, groupCount, keysStart],
    ['', '', 0, 0, 0, -1],
  );
});

test('hostile requests are refused by name', () => {
  const groups = Array.from({ length: LOOKUP_GROUPS_MAX + 1 }, () => ({ table: 'a', count: 0 }));
  const bytes = encodeLookupRequest({
    bundle: 'b',
    version: '',
    shardIndex: 0,
    shardNum: 1,
    groups,
  });
  assert.throws(
    () => decodeLookupRequest(bytes),
    (error: CubeError) => error.code === 'TOO_LARGE',
  );
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 80 }), (garbage) => {
      try {
        decodeLookupRequest(garbage);
        decodeLookupResponse(garbage);
      } catch (error) {
        assert.ok(error instanceof CubeError && error.code === 'INVALID_ARGUMENT', String(error));
      }
    }),
    { numRuns: 2000 },
  );
});

test('a response head is read as it was written, hits set afterwards', () => {
  const group = fc.record({
    dtype: fc.constantFrom('f32' as const, 'f16' as const, 'bytes' as const),
    rowBytes: fc.nat(2 ** 31),
    count: fc.nat(2 ** 31),
    hits: fc.nat(2 ** 31),
  });
  fc.assert(
    fc.property(name, fc.array(group, { maxLength: 10 }), (version, groups) => {
      const output = new OutputBuffer(1);
      output.append(encodeVersionField(version));
      const hitsAt = groups.map((g) => writeResponseGroup(output, g.dtype, g.rowBytes, g.count));
      groups.forEach((g, i) => {
        setGroupHits(output, hitsAt[i]!, g.hits);
      });
      const decoded = decodeLookupResponse(output.written());
      assert.equal(decoded.version, version);
      assert.deepEqual(
        decoded.groups.map((g) => ({ ...g })),
        groups.map((g) => ({ ...g })),
      );
      assert.equal(decoded.rows, undefined);
    }),
  );
});

test('the layout of a group', () => {
  assert.deepEqual([0, 1, 64, 65].map(bitmapBytes), [0, 8, 8, 16]);
  assert.equal(groupBytes(0, 40), 0);
  assert.equal(groupBytes(3, 4), 8 + 16);
  assert.equal(groupBytes(65, 40), 16 + 65 * 40);
});

test('the largest legal response is a legal frame', () => {
  const output = new OutputBuffer();
  const version = encodeVersionField('v'.repeat(128));
  for (let g = 0; g < LOOKUP_GROUPS_MAX; g++) writeResponseGroup(output, 'f32', 4 << 20, 1 << 20);
  const metaBytes = 64;
  const { frameBytes, responseBytes } = DEFAULT_SERVER_LIMITS;
  assert.ok(metaBytes + version.length + output.length + responseBytes <= frameBytes);
});
