import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { DEFAULT_SERVER_LIMITS } from '../../lib/core/limits.ts';
import { TABLE_DTYPES } from '../../lib/core/manifest.ts';
import {
  bitmapBytes,
  decodeLookupRequest,
  decodeLookupResponse,
  decodeValues,
  encodeLookupRequest,
  encodeVersionField,
  fixedRowsResponseBytes,
  LOOKUP_GROUPS_MAX,
  LookupRequestDecoder,
  ROWS_F32,
  setGroupHits,
  writeResponseGroup,
} from '../../proto/lookup.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';

const name = fc.stringMatching(/^[A-Za-z0-9_][A-Za-z0-9._-]{0,20}$/);
const count = fc.integer({ min: 0, max: 2 ** 31 });

test('a request head decodes as encoded, with and without keys', () => {
  const head = fc.record({
    bundle: name,
    version: fc.oneof(fc.constant(''), name),
    shardIndex: fc.nat(70_000),
    shardNum: fc.nat(70_000),
    groups: fc.array(fc.record({ table: name, count }), { maxLength: 20 }),
    rowsAs: fc.constantFrom(undefined, ROWS_F32),
  });
  const keys = fc.option(fc.uint8Array({ maxLength: 64 }), { nil: undefined });
  fc.assert(
    fc.property(head, keys, ({ rowsAs, ...fields }, keyBytes) => {
      const expected = rowsAs === undefined ? fields : { ...fields, rowsAs };
      const decoded = decodeLookupRequest(encodeLookupRequest(expected, keyBytes));
      const plain = JSON.parse(JSON.stringify({ ...decoded, keys: null }));
      assert.deepEqual(plain, { ...JSON.parse(JSON.stringify(expected)), keys: null });
      assert.deepEqual(decoded.keys && [...decoded.keys], keyBytes && [...keyBytes]);
    }),
  );
});

test('a reused decoder keeps nothing of the earlier request', () => {
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

test('hostile requests are refused with a CubeError', () => {
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
        decodeValues(garbage, garbage.length >> 2);
      } catch (error) {
        assert.ok(error instanceof CubeError && error.code === 'INVALID_ARGUMENT', String(error));
      }
    }),
    { numRuns: 2000 },
  );
});

const group = fc
  .record({
    dtype: fc.constantFrom(...TABLE_DTYPES),
    rowBytes: fc.nat(1 << 12),
    count: fc.nat(1 << 20),
    hits: fc.nat(1 << 20),
    bytes: fc.nat(2 ** 30),
  })
  .map((g) => ({
    ...g,
    rowBytes: g.dtype === 'bytes' ? 0 : g.rowBytes,
    hits: Math.min(g.hits, g.count),
    bytes: g.dtype === 'bytes' ? 4 * g.count + g.bytes : g.count * g.rowBytes,
  }));

test('a response head decodes as encoded, with hits set afterwards', () => {
  fc.assert(
    fc.property(name, fc.array(group, { maxLength: 10 }), (version, groups) => {
      const output = new OutputBuffer(1);
      output.append(encodeVersionField(version));
      const hitsAt = groups.map((g) =>
        writeResponseGroup(output, g.dtype, g.rowBytes, g.count, g.bytes),
      );
      groups.forEach((g, i) => {
        setGroupHits(output, hitsAt[i]!, g.hits);
      });
      const decoded = decodeLookupResponse(output.writtenBytes());
      assert.equal(decoded.version, version);
      assert.deepEqual(
        decoded.groups.map((g) => ({ ...g })),
        groups.map((g) => ({ ...g })),
      );
      assert.equal(decoded.rows, undefined);
    }),
  );
});

test('a response whose numbers do not agree is refused', () => {
  const good = { dtype: 'f16', rowBytes: 20, count: 3, hits: 2, bytes: 60 } as const;
  const wrong = [
    { hits: 4 },
    { bytes: 61 },
    { bytes: 0 },
    { rowBytes: 24 },
    { dtype: 'bytes', bytes: 60 },
    { dtype: 'bytes', rowBytes: 0, bytes: 11 },
  ] as const;
  for (const change of [{}, ...wrong]) {
    const { dtype, rowBytes, count, hits, bytes } = { ...good, ...change };
    const output = new OutputBuffer();
    setGroupHits(output, writeResponseGroup(output, dtype, rowBytes, count, bytes), hits);
    const decode = (): unknown => decodeLookupResponse(output.writtenBytes());
    if (Object.keys(change).length === 0) decode();
    else assert.throws(decode, { code: 'INVALID_ARGUMENT', message: /do not agree/ });
  }
});

test('values of any length decode; lengths that do not add up are refused', () => {
  fc.assert(
    fc.property(fc.array(fc.uint8Array({ maxLength: 20 }), { maxLength: 20 }), (values) => {
      const lengths = new Uint8Array(Uint32Array.from(values, (v) => v.length).buffer);
      const part = Buffer.concat([lengths, ...values]);
      const decoded = decodeValues(part, values.length);
      const read = values.map((_, i) =>
        decoded.values.subarray(i === 0 ? 0 : decoded.ends[i - 1], decoded.ends[i]),
      );
      assert.deepEqual(
        read.map((value) => [...value]),
        values.map((value) => [...value]),
      );
      assert.throws(() => decodeValues(Buffer.concat([part, Buffer.of(0)]), values.length), {
        code: 'INVALID_ARGUMENT',
      });
      if (part.length > 0) {
        assert.throws(() => decodeValues(part.subarray(0, -1), values.length), {
          code: 'INVALID_ARGUMENT',
        });
      }
    }),
  );
});

test('the layout of a group', () => {
  assert.deepEqual([0, 1, 64, 65].map(bitmapBytes), [0, 8, 8, 16]);
  assert.equal(fixedRowsResponseBytes(0, 40), 0);
  assert.equal(fixedRowsResponseBytes(3, 4), 8 + 16);
  assert.equal(fixedRowsResponseBytes(65, 40), 16 + 65 * 40);
});

test('the largest legal response is a legal frame', () => {
  const output = new OutputBuffer();
  const version = encodeVersionField('v'.repeat(128));
  for (let g = 0; g < LOOKUP_GROUPS_MAX; g++)
    writeResponseGroup(output, 'bytes', 4 << 20, 1 << 20, 64 << 20);
  const metaBytes = 64;
  const { frameBytes, responseBytes } = DEFAULT_SERVER_LIMITS;
  assert.ok(metaBytes + version.length + output.length + responseBytes <= frameBytes);
});
