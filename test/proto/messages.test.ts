/** Codecs of users' own messages: against protobufjs, round trips, hostile bytes and JSON. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import protobuf from 'protobufjs';
import { runAtOnce } from '../../lib/core/json-slices.ts';
import { decodeMessage } from '../../proto/message-decoder.ts';
import { encodeMessage } from '../../proto/message-encoder.ts';
import { formatMessage, parseMessage } from '../../proto/message-json.ts';
import type { MessageType, MessageValues } from '../../proto/message-schema.ts';
import { readProtoFiles } from '../../serving/config/proto-file.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

const LIMITS = { cost: 1 << 20 };
const NUMBERS = {
  double: fc.double(),
  float: fc.float(),
  int32: fc.integer(),
  sint32: fc.integer(),
  sfixed32: fc.integer(),
  uint32: fc.integer({ min: 0, max: 2 ** 32 - 1 }),
  fixed32: fc.integer({ min: 0, max: 2 ** 32 - 1 }),
  int64: fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
  sint64: fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
  sfixed64: fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }),
  uint64: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  fixed64: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
} as const;
const SCALARS = {
  ...NUMBERS,
  bool: fc.boolean(),
  string: fc.string({ unit: 'grapheme', maxLength: 80 }),
  bytes: fc.uint8Array({ maxLength: 20 }),
} as const;
const TYPES = Object.keys(SCALARS) as (keyof typeof SCALARS)[];
const ENUM = fc.constantFrom('A', 'B', 'NEGATIVE');

function formatUnpacked(type: string, number: number): string {
  const option = type === 'string' || type === 'bytes' ? '' : ' [packed = false]';
  return `  repeated ${type} loose_${type} = ${number}${option};`;
}

/** A message with every type: single, optional, repeated, in maps, and itself inside. */
const SCHEMA = `syntax = "proto3";
package demo;
enum Kind { A = 0; B = 7; NEGATIVE = -1; }
message Inner { int64 id = 1; string note = 2; }
message All {
${TYPES.map((type, i) => `  ${type} one_${type} = ${i + 1};`).join('\n')}
${TYPES.map((type, i) => `  optional ${type} maybe_${type} = ${i + 21};`).join('\n')}
${TYPES.map((type, i) => `  repeated ${type} many_${type} = ${i + 41};`).join('\n')}
${TYPES.map((type, i) => formatUnpacked(type, i + 61)).join('\n')}
  Kind one_kind = 101;
  repeated Kind many_kind = 102;
  Inner inner = 103;
  repeated Inner inners = 104;
  map<string, Inner> by_name = 105;
  map<sint32, double> by_id = 106;
  map<uint32, Kind> by_number = 107;
  All self = 108;
  oneof choice { string text = 109; int32 number = 110; }
}
service S { rpc Call(All) returns (All); }
`;

function readSchema(t: TestContext, text: string): MessageType {
  const file = join(temporaryFolder(t), 'test.proto');
  writeFileSync(file, text);
  return readProtoFiles([file]).services[0]!.methods[0]!.request;
}

function arbitraryMessage(): fc.Arbitrary<MessageValues> {
  const inner = fc.record({ id: NUMBERS.int64, note: SCALARS.string });
  const fields: Record<string, fc.Arbitrary<unknown>> = {};
  for (const type of TYPES) {
    const value = SCALARS[type] as fc.Arbitrary<unknown>;
    fields[`one_${type}`] = value;
    fields[`maybe_${type}`] = fc.option(value, { nil: undefined });
    fields[`many_${type}`] = fc.array(value, { maxLength: 4 });
    fields[`loose_${type}`] = fc.array(value, { maxLength: 4 });
  }
  const flat = fc.record({
    ...fields,
    one_kind: ENUM,
    many_kind: fc.array(ENUM, { maxLength: 4 }),
    inner: fc.option(inner, { nil: undefined }),
    inners: fc.array(inner, { maxLength: 3 }),
    by_name: fc.array(fc.tuple(SCALARS.string, inner), { maxLength: 3 }).map((all) => new Map(all)),
    by_id: fc
      .array(fc.tuple(NUMBERS.sint32, NUMBERS.double), { maxLength: 3 })
      .map((all) => new Map(all)),
    by_number: fc
      .array(fc.tuple(NUMBERS.uint32, ENUM), { maxLength: 3 })
      .map((all) => new Map(all)),
    text: fc.option(SCALARS.string, { nil: undefined }),
  });
  const choose = (values: Record<string, unknown>): MessageValues =>
    values['text'] === undefined ? { ...values, number: 5 } : values;
  return fc
    .tuple(flat.map(choose), fc.option(flat.map(choose), { nil: undefined }))
    .map(([outer, self]) => ({ ...outer, self }));
}

/** -0 is 0 without presence, NaN is NaN, and absent is undefined. */
function normalize(value: unknown): unknown {
  if (Object.is(value, -0)) return 0;
  if (typeof value === 'bigint') return `${value}n`;
  if (Array.isArray(value) || ArrayBuffer.isView(value)) {
    return Array.from(value as Uint8Array, normalize);
  }
  // The order of entries does not count.
  if (value instanceof Map) {
    return [...value].map(([key, item]) => [String(key), normalize(item)]).sort();
  }
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  return Object.fromEntries(entries.map(([name, item]) => [name, normalize(item)]));
}

test('messages survive protobuf and JSON, and protobufjs reads and writes the same', (t) => {
  const type = readSchema(t, SCHEMA);
  const { root } = protobuf.parse(SCHEMA, { keepCase: true });
  const oracle = root.lookupType('demo.All');
  fc.assert(
    fc.property(arbitraryMessage(), (values) => {
      const bytes = encodeMessage(type, values);
      const read = decodeMessage(type, bytes, LIMITS);
      assert.deepEqual(normalize(read), normalize(values));
      const again = oracle.encode(oracle.decode(bytes)).finish();
      assert.deepEqual(normalize(decodeMessage(type, again, LIMITS)), normalize(values));
      const json = formatMessage(type, values);
      assert.deepEqual(normalize(runAtOnce(parseMessage(type, json, 'body'))), normalize(values));
    }),
    { numRuns: 60 },
  );
});

test('mutated bytes are read or refused with INVALID_ARGUMENT or TOO_LARGE', (t) => {
  const type = readSchema(t, SCHEMA);
  fc.assert(
    fc.property(
      arbitraryMessage(),
      fc.array(fc.tuple(fc.nat(), fc.nat(255)), { minLength: 1, maxLength: 6 }),
      (values, changes) => {
        const bytes = encodeMessage(type, values).slice();
        for (const [at, byte] of changes) bytes[at % bytes.length] = byte;
        try {
          decodeMessage(type, bytes, LIMITS);
        } catch (error) {
          assert.match(String((error as { code?: string }).code), /^(INVALID_ARGUMENT|TOO_LARGE)$/);
        }
      },
    ),
    { numRuns: 150 },
  );
});

const STRICT = `syntax = "proto2";
package demo;
enum Kind { A = 0; POSITIVE = 1; }
message Item { required int32 id = 1; optional string note = 2 [default = "none"]; }
message Request {
  repeated Item items = 1; optional Kind kind = 2; optional bytes raw = 3;
  repeated int32 ids = 4; optional Request inner = 5; map<int32, string> names = 6;
  optional float score = 7; oneof k { int32 x = 8; int32 y = 9; } optional bool flag = 10;
  repeated Item many = 11;
}
service S { rpc Call(Request) returns (Request); }
`;

test('JSON that does not fit names the field', (t) => {
  const type = readSchema(t, STRICT);
  const cases: readonly (readonly [unknown, RegExp])[] = [
    [[1], /^body: expected an object of demo\.Request, got a list of 1/],
    [{ itms: [] }, /body: itms: demo\.Request has no such field; did you mean "items"/],
    [{ items: {} }, /body: items: expected a list/],
    [{ items: [{ id: 1 }, { note: 'a' }] }, /body: items\[1\]\.id: the field is required/],
    [{ items: [{ id: 1.5 }] }, /items\[0\]\.id: expected an integer in -2147483648\.\..*got 1\.5/],
    [{ ids: [1, '2147483648'] }, /ids\[1\]: expected an integer/],
    [{ ids: [null] }, /ids\[0\]: .* got null/],
    [{ kind: 'POSITVE' }, /kind: expected a value of demo\.Kind.*did you mean "POSITIVE"/],
    [{ raw: 'a*b' }, /raw: expected bytes in base64, got "a\*b"/],
    [{ names: { a: 'b' } }, /names\.a: expected a key that is an integer/],
    [{ score: 1e300 }, /score: expected a number that fits float/],
    [{ score: 'one' }, /score: .* got "one"/],
    [{ x: 1, y: 2 }, /y: x is set too; a oneof has one of its fields/],
    [{ flag: 'true' }, /flag: expected a boolean, got "true"/],
    [{ __proto__: null, constructor: 1 }, /constructor: demo\.Request has no such field/],
  ];
  for (const [json, message] of cases) {
    assert.throws(() => runAtOnce(parseMessage(type, JSON.stringify(json), 'body')), {
      code: 'INVALID_ARGUMENT',
      message,
    });
  }
  const own = '{"__proto__": {"id": 1}}';
  assert.throws(() => runAtOnce(parseMessage(type, own, 'body')), /__proto__: .*no such field/);
  const read = runAtOnce(parseMessage(type, '{"items":[{"id":"7"}],"raw":"_-8","x":null}', 'b'));
  assert.deepEqual(read['items'], [{ id: 7, note: 'none' }]);
  assert.deepEqual(read['raw'], Uint8Array.of(0xff, 0xef));
});

test('answers that do not fit name the field', (t) => {
  const type = readSchema(t, STRICT);
  const cyclic: Record<string, unknown> = {};
  cyclic['inner'] = cyclic;
  const cases: readonly (readonly [object, RegExp])[] = [
    [{ score: 'a' }, /^demo\.Request: score: expected a number that fits float, got "a"/],
    [{ items: [{ id: 2n ** 40n }] }, /items\[0\]\.id: expected an integer in/],
    [{ nam: 1 }, /nam: demo\.Request has no such field/],
    [{ ids: 5 }, /ids: expected a list, got 5/],
    [cyclic, /nested more than 128 levels deep/],
  ];
  for (const [values, message] of cases) {
    assert.throws(() => encodeMessage(type, values), { code: 'INVALID_ARGUMENT', message });
  }
  // A tensor of a model is a list of its numbers.
  const ids = { dataType: 'INT64', shape: [1, 2], data: BigInt64Array.of(3n, -4n) };
  const { ids: read } = decodeMessage(type, encodeMessage(type, { ids }), LIMITS);
  assert.deepEqual(read, Int32Array.of(3, -4));
});

test('hostile bytes: depth, cost, UTF-8, wire types, missing fields', (t) => {
  const type = readSchema(t, STRICT);
  const nest = (depth: number): Uint8Array => {
    let bytes = new Uint8Array(0);
    for (let i = 0; i < depth; i++) {
      const writer = new protobuf.Writer();
      bytes = writer
        .uint32((5 << 3) | 2)
        .bytes(bytes)
        .finish() as Uint8Array<ArrayBuffer>;
    }
    return bytes;
  };
  decodeMessage(type, nest(100), LIMITS);
  const empties = new Uint8Array(200_000).map((_, i) => (i % 2 === 0 ? (11 << 3) | 2 : 0));
  const cases: readonly (readonly [Uint8Array, RegExp])[] = [
    [nest(5_000), /inner\.inner\..*nested more than 128 levels deep/],
    [Uint8Array.of(0x0a, 0x02, 0x12, 0x00), /items\[0\]\.id: the field is required/],
    [Uint8Array.of(0x0a, 0x05, 0x08, 0x01, 0x12, 0x01, 0xff), /items\[0\]\.note: the text .*UTF-8/],
    [Uint8Array.of(0x3a, 0x00), /score: .*wire type 2, expected 5/],
    [Uint8Array.of(0x22, 0x01, 0x80), /ids: a varint runs past the end/],
    [Uint8Array.of(0x1a, 0x7f, 0x00), /raw: .*a length of 127 bytes with 1 left/],
    [Uint8Array.of(0x0b), /unsupported wire type 3|wire type 3/],
    [empties, /many\[0\]\.id: the field is required/],
  ];
  for (const [bytes, message] of cases) {
    assert.throws(() => decodeMessage(type, bytes, LIMITS), { code: 'INVALID_ARGUMENT', message });
  }
  // Two bytes each, but an object each.
  const cheap = new Uint8Array(200_000).map((_, i) => (i % 2 === 0 ? (5 << 3) | 2 : 0));
  decodeMessage(type, cheap, LIMITS);
  const many = new Uint8Array(400_000).map((_, i) => [(11 << 3) | 2, 2, 8, 1][i % 4] ?? 0);
  assert.throws(() => decodeMessage(type, many, LIMITS), {
    code: 'TOO_LARGE',
    message: /many\[\d+/,
  });
});

test('a message in several parts is merged; the last member of a oneof counts', (t) => {
  const type = readSchema(t, STRICT);
  const parts = [
    { inner: { ids: [1], score: 1, x: 1 } },
    { inner: { ids: [2], kind: 'POSITIVE', y: 2 } },
  ];
  const bytes = Buffer.concat(parts.map((part) => encodeMessage(type, part)));
  const { inner } = decodeMessage(type, bytes, LIMITS) as { inner: MessageValues };
  assert.deepEqual([inner['ids'], inner['score']], [Int32Array.of(1, 2), 1]);
  assert.deepEqual([inner['kind'], inner['y'], 'x' in inner], ['POSITIVE', 2, false]);
});

test('files that cannot be served say why', (t) => {
  const folder = temporaryFolder(t);
  const file = join(folder, 'a.proto');
  const read = (text: string) => {
    writeFileSync(file, text);
    return readProtoFiles([file]);
  };
  const one = 'message M {} service S { rpc Call(M) returns (M); }';
  const cases: readonly (readonly [string, RegExp])[] = [
    ['syntax = "proto3"; message M {}', /no service/],
    ['syntax = "proto3"; message {', /a\.proto.*line 1/],
    [`syntax = "proto3"; import "b.proto"; ${one}`, /import b\.proto: .*no such file/],
    [
      'syntax = "proto3"; message M {} service S { rpc C(stream M) returns (M); }',
      /S\/C: streams are not supported/,
    ],
    ['syntax = "proto3"; message M { Nope n = 1; } service S { rpc C(M) returns (M); }', /Nope/],
    [
      'syntax = "proto3"; import "google/protobuf/timestamp.proto"; ' +
        'message M { google.protobuf.Timestamp t = 1; } service S { rpc C(M) returns (M); }',
      /google\.protobuf\.Timestamp is not supported/,
    ],
  ];
  for (const [text, message] of cases) assert.throws(() => read(text), message);
  // The options of Paddle Serving's code generator have no effect.
  const paddle = `syntax = "proto2"; import "pds_option.proto"; message M {}
    service S { rpc inference(M) returns (M); option (pds.options).generate_impl = true; }`;
  assert.deepEqual(
    read(paddle).services.map(({ name }) => name),
    ['S'],
  );
  writeFileSync(
    join(folder, 'b.proto'),
    'syntax = "proto3"; package b; message N { int32 x = 1; }',
  );
  const imported = 'message M { b.N n = 1; } service S { rpc Call(M) returns (M); }';
  assert.equal(read(`syntax = "proto3"; import "b.proto"; ${imported}`).services.length, 1);
  assert.throws(() => readProtoFiles([join(folder, 'c.proto')]), { code: 'NOT_FOUND' });
});
