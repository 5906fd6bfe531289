/**
 * Requests of KServe whose JSON head is known give the results of a parser that never saw it: rows,
 * options, errors, and responses byte for byte.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import type { HashSpec, Slot } from '../../lib/core/slots.ts';
import { RowKeys } from '../../lib/features/row-keys.ts';
import { LoadedBundle } from '../../serving/engine/loaded-bundle.ts';
import type { LoadedVersion } from '../../serving/engine/loaded-version.ts';
import { recordRows } from '../../serving/models/recorded-rows.ts';
import { HEAD_BYTES_MAX } from '../../serving/protocols/head-text.ts';
import { InferParser, loadKnownHeads } from '../../serving/protocols/infer-parser.ts';
import {
  ALL_HEADS_BYTES_MAX,
  HEADS_MAX,
  type KnownHeads,
} from '../../serving/protocols/known-heads.ts';
import { rawStrings } from './support/kserve-client.ts';

await loadKnownHeads();

const plainDense = (name: string) => ({ name, missing: -1, log: true, shift: 0.5, scale: 2 });
const OUTPUTS = [
  { name: 'score', width: 2 },
  { name: 'hidden "layer"', width: 3 },
];

const HASH: HashSpec = { scheme: 'xxh64-concat', seed: 0n, modulo: 1_000n };

function makeBundle(
  version: string,
  slotNames: readonly (string | Partial<Slot>)[],
  denseNum: number,
  hash = HASH,
): LoadedVersion {
  const slots = slotNames.map((slot, index) => {
    return typeof slot === 'string' ? { name: slot, index } : { name: '', index, ...slot };
  });
  const features = {
    hash,
    slots,
    dense: { input: 'dense', features: ['I1', 'I2'].slice(0, denseNum).map(plainDense) },
  };
  return Object.assign(Object.create(LoadedBundle.prototype), {
    manifest: { bundle: 'toy', version },
    features,
    plan: { slotNum: slotNames.length, denseNum },
    pool: { outputs: OUTPUTS },
    ids: undefined,
    rowKeys: new RowKeys(features),
  });
}

const GRAPH = {
  name: 'plain',
  version: '3',
  isBatched: true,
  limitsQueueTimeout: false,
  signature: { inputs: [], outputs: OUTPUTS },
} as unknown as LoadedVersion;
const VERSIONS = [
  makeBundle('1', ['C1', 'C2'], 2),
  makeBundle('2', ['C2', 'C1', 'C3'], 1),
  makeBundle('3', ['C1', 'C2'], 0),
  makeBundle(
    '4',
    [
      { name: 'C1', side: 'item', missing: 'none' },
      { name: 'C2', modulo: 7n },
    ],
    2,
  ),
  makeBundle('5', ['C1', 'C2'], 2, { scheme: 'xxh64-tagged', seed: 3n, modulo: 0n }),
  makeBundle('6', [{ name: 'C1', missing: '0' }, 'C2'], 2, { ...HASH, scheme: 'raw' }),
  GRAPH,
];

interface Sent {
  readonly body: Buffer;
  readonly header: string | undefined;
}

const timings = { queueMicros: 1, lookupMicros: 2, inferMicros: 3, outputMicros: 4 };
const counts = { unseen: 3, unavailable: 1, degraded: true };
const slots = [{ slot: 'C1', hit: 1, unseen: 2, unavailable: 3 }];

/** Requests whose texts were read straight to keys. */
let textRequests = 0;

/** A response with arbitrary scores. */
function answer(parsed: ReturnType<InferParser['parse']>): unknown {
  assert.ok(!('next' in parsed), 'small bodies are parsed at once');
  if ('graph' in parsed) {
    const { formatResponse, graph, ...rest } = parsed;
    const data = new Uint8Array(Float32Array.of(0.5).buffer);
    const outputs = [{ name: 'score', dataType: 'FP32' as const, shape: [1], data }];
    return { ...rest, response: formatResponse({ rowCount: 1, outputs, timings }) };
  }
  const { rows, bundle, timeoutMs, priority, detail = false, profile } = parsed;
  const outputs = OUTPUTS.map(({ name, width }) => {
    const data = Float32Array.from({ length: rows.rowCount * width }, (_, i) => i / 7);
    return { name, width, data };
  });
  const response = parsed.formatResponse({
    rowCount: rows.rowCount,
    clickOutput: outputs[0]!.data,
    clickWidth: 2,
    outputs,
    version: bundle.version,
    ...counts,
    ...(detail && { slots }),
    timings,
  });
  if ('keys' in rows && rows.readFeatures !== undefined) textRequests++;
  const { keys, dense } = bundle.rowKeys.toKeyedRows(rows);
  const recorded = recordRows(rows, bundle.features).format(new Set(), 0);
  const { version } = bundle;
  return { keys, dense, recorded, version, timeoutMs, priority, detail, profile, response };
}

function getHeads(parser: InferParser): KnownHeads {
  return requireDefined(parser.heads, 'loaded heads');
}

/** What a parser makes of a request: its answer, or the error; and the experiment key. */
function ask(parser: InferParser, { body, header }: Sent, loaded: LoadedVersion, model = 'toy') {
  let key: string | undefined;
  const choose = (given?: string): LoadedVersion => {
    key = given;
    return loaded;
  };
  try {
    return { key, answer: answer(parser.parse(body, header, { model, choose })) };
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return { code: error.code, message: error.message };
  }
}

interface Input {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly number[];
  readonly isJson: boolean;
  /** Added to the size in the head, or to the bytes sent. */
  readonly sizeError: number;
  readonly byteError: number;
}

const ELEMENT_BYTES: Readonly<Record<string, number>> = { UINT64: 8, INT64: 8, FP32: 4, FP64: 8 };
const dims = fc.oneof(
  { weight: 6, arbitrary: fc.constantFrom([1, 2], [2, 2], [1, 1], [2, 1], [1, 3]) },
  fc.array(fc.integer({ min: -1, max: 3 }), { maxLength: 3 }),
);
const mistake = fc.oneof(
  { weight: 20, arbitrary: fc.constant(0) },
  fc.integer({ min: -9, max: 9 }),
);
const anyInput = fc.record<Input>({
  name: fc.constantFrom('keys', 'dense', 'categorical', 'C1', 'C2', 'C3', 'I1', 'C9'),
  datatype: fc.constantFrom('UINT64', 'INT64', 'FP32', 'FP64', 'BYTES', 'FP9'),
  shape: dims,
  isJson: fc.oneof({ weight: 9, arbitrary: fc.constant(false) }, fc.boolean()),
  sizeError: mistake,
  byteError: mistake,
});
const good = { isJson: false, sizeError: 0, byteError: 0 };
const goodInputs = fc.integer({ min: 1, max: 3 }).chain((rows) => {
  const dense = { name: 'dense', datatype: 'FP32', shape: [rows, 2], ...good };
  const keys = fc.constantFrom('UINT64', 'INT64').map((datatype) => {
    return { name: 'keys', datatype, shape: [rows, 2], ...good };
  });
  const strings = { name: 'categorical', datatype: 'BYTES', shape: [rows, 2], ...good };
  const slot = (name: string, count: number) => {
    return { name, datatype: 'BYTES', shape: [count, 1], ...good };
  };
  return fc.oneof(
    keys.map((one): Input[] => [one, dense]),
    keys.map((one): Input[] => [dense, one]),
    keys.map((one): Input[] => [one]),
    fc.constant<Input[]>([strings, dense]),
    fc.constant<Input[]>([slot('C1', 1), slot('C2', rows), dense]),
    fc.constant<Input[]>([slot('C2', rows), dense, slot('C1', rows)]),
    fc.constant<Input[]>([dense, slot('C2', rows)]),
  );
});
const inputs = fc.oneof(
  { weight: 5, arbitrary: goodInputs },
  fc.array(anyInput, { minLength: 1, maxLength: 3 }),
);
const goodParameters = fc.record(
  {
    detail: fc.boolean(),
    profile: fc.boolean(),
    priority: fc.nat({ max: 20 }),
    timeout: fc.constantFrom(0, 5_000, '700'),
    binary_data_output: fc.boolean(),
    experiment_key: fc.constantFrom('a user', 'another'),
    other: fc.constantFrom(1, 'text'),
  },
  { requiredKeys: [] },
);
const anyParameters = fc.dictionary(
  fc.constantFrom('detail', 'priority', 'timeout', 'binary_data_output', 'binary_data_size'),
  fc.oneof(fc.constantFrom(true, 0, 7, '5', 'x', -1, 1.5), fc.constant(null)),
  { maxKeys: 2 },
);
const parameters = fc.oneof({ weight: 9, arbitrary: goodParameters }, anyParameters);
const outputs = fc.uniqueArray(
  fc.record({
    name: fc.oneof(
      { weight: 9, arbitrary: fc.constantFrom('score', 'hidden "layer"') },
      fc.constant('none'),
    ),
    parameters: fc.record({ binary_data: fc.boolean() }, { requiredKeys: [] }),
  }),
  { maxLength: 2, selector: ({ name, parameters: { binary_data } }) => `${name} ${binary_data}` },
);
const shape = fc.record({
  inputs,
  more: fc.record({ parameters, outputs }, { requiredKeys: [] }),
  /** Where the id is: first, last or nowhere. */
  idPlace: fc.constantFrom('first', 'last', 'none', 'both'),
  space: fc.constantFrom('', ' '),
  pad: fc.constantFrom(0, 0, 0, 1, 2, 3, 4),
  lengthError: fc.oneof({ weight: 20, arbitrary: fc.constant(0) }, fc.integer({ min: -3, max: 3 })),
  hasHeader: fc.oneof({ weight: 20, arbitrary: fc.constant(true) }, fc.boolean()),
});
type Shape = typeof shape extends fc.Arbitrary<infer T> ? T : never;

/** What differs between requests of one shape. */
const values = fc.record({
  id: fc.oneof(
    { weight: 3, arbitrary: fc.nat().map(String) },
    fc.constantFrom('', 'a"b', 'é', 'x\\y', 'a,b', '"}'),
  ),
  number: fc.constantFrom(0, 1, 0.5, -3, 7, 20, 100, Number.NaN, Number.POSITIVE_INFINITY, 1e38),
  text: fc.oneof(
    fc.string({ maxLength: 12, unit: 'grapheme' }),
    fc.stringMatching(/^[ -~]{0,20}$/),
  ),
});
type Values = typeof values extends fc.Arbitrary<infer T> ? T : never;

function encodeData({ datatype, shape: dims }: Input, { number, text }: Values): Buffer {
  const count = dims.reduce((product, dim) => product * Math.abs(dim), 1);
  if (datatype === 'BYTES') {
    return Buffer.from(rawStrings(Array.from({ length: count }, (_, i) => `${text}${i}`)));
  }
  const bytes = Buffer.alloc(count * (ELEMENT_BYTES[datatype] ?? 4), 7);
  for (let i = 0; i < count; i++) {
    if (datatype === 'FP32') bytes.writeFloatLE(number, 4 * i);
    else if (datatype === 'FP64') bytes.writeDoubleLE(number, 8 * i);
    else if (ELEMENT_BYTES[datatype] === 8) bytes.writeBigUInt64LE(BigInt(text.length + i), 8 * i);
  }
  return bytes;
}

function encode(one: Shape, differing: Values): Sent {
  const pieces: Buffer[] = [];
  const listed = one.inputs.map((input) => {
    const { name, datatype, shape: dims } = input;
    const bytes = encodeData(input, differing);
    if (input.isJson) return { name, datatype, shape: dims, data: [differing.text] };
    const length = Math.max(0, bytes.length + input.byteError);
    pieces.push(Buffer.concat([bytes, Buffer.alloc(9)]).subarray(0, length));
    const size = bytes.length + input.sizeError;
    return { name, datatype, shape: dims, parameters: { binary_data_size: size } };
  });
  const id = JSON.stringify(differing.id);
  const { idPlace, space } = one;
  let json = JSON.stringify({ ...one.more, inputs: listed });
  if (idPlace === 'first' || idPlace === 'both') json = `{"id":${space}${id},${json.slice(1)}`;
  if (idPlace === 'last' || idPlace === 'both') json = `${json.slice(0, -1)},"id":${id}}`;
  if (space !== '') json = json.replaceAll('"binary_data_size":', '"binary_data_size": ');
  const head = Buffer.from(' '.repeat(one.pad) + json);
  const header = one.hasHeader ? String(head.length + one.lengthError) : undefined;
  return { body: Buffer.concat([head, ...pieces]), header };
}

test('requests with a known head give the results of a parser that never saw it', () => {
  const warm = new InferParser();
  let [known, accepted] = [0, 0];
  fc.assert(
    fc.property(
      shape,
      fc.array(values, { minLength: 8, maxLength: 10 }),
      fc.constantFrom(0, 0, 0, 1, 2, 3, 4, 5, 6),
      (one, all, first) => {
        for (const [i, differing] of all.entries()) {
          const sent = encode(one, differing);
          const loaded = VERSIONS[(first + (i > 7 ? 1 : 0)) % VERSIONS.length]!;
          const expected = ask(new InferParser(), sent, loaded);
          if (getHeads(warm).find(sent.body, Number(sent.header ?? 0)) !== undefined) known++;
          if ('answer' in expected) accepted++;
          assert.deepEqual(ask(warm, sent, loaded), expected);
        }
      },
    ),
    { numRuns: 600 },
  );
  assert.ok(known > 80 && accepted > 400, `${known} known heads, ${accepted} accepted`);
  assert.ok(textRequests > 15, `${textRequests} requests of texts`);
});

const keys = (rows: number, more: object = {}): Shape => ({
  inputs: [
    { name: 'keys', datatype: 'UINT64', shape: [rows, 2], ...good },
    { name: 'dense', datatype: 'FP32', shape: [rows, 2], ...good },
  ],
  more,
  idPlace: 'first',
  space: '',
  pad: 0,
  lengthError: 0,
  hasHeader: true,
});
const some = { id: '1', number: 1, text: 'abc' };

/** Sends a request until its head is known. */
function learn(parser: InferParser, sent: Sent, loaded: LoadedVersion): void {
  for (let i = 0; i < 4; i++) ask(parser, sent, loaded);
}

test('heads are known whose ids, sizes of strings and blanks before them differ', () => {
  const parser = new InferParser();
  const isKnown = ({ body, header }: Sent) =>
    getHeads(parser).find(body, Number(header)) !== undefined;
  const strings = { name: 'categorical', datatype: 'BYTES', shape: [1, 2], ...good };
  const withStrings: Shape = { ...keys(1), inputs: [strings, keys(1).inputs[1]!] };
  for (const one of [keys(1), withStrings]) {
    learn(parser, encode(one, some), VERSIONS[0]!);
    assert.ok(isKnown(encode(one, { id: '2222', number: 2, text: 'another text' })));
    assert.ok(isKnown(encode({ ...one, pad: 3 }, { ...some, id: '3' })), 'with blanks before it');
    assert.ok(!isKnown(encode(one, { ...some, id: 'a"b' })), 'an id with escapes is parsed');
  }
  assert.ok(!isKnown(encode(keys(2), some)));
});

test('a head that differs from the last one in any byte is another one', () => {
  const parser = new InferParser();
  const heads = getHeads(parser);
  const { body, header } = encode(keys(1, { parameters: { other: 'text' } }), some);
  const length = Number(header);
  learn(parser, { body, header }, VERSIONS[0]!);
  const idAt = body.indexOf('"id":"') + 6;
  for (let at = 0; at < length; at++) {
    assert.ok(heads.find(body, length) !== undefined);
    const other = Buffer.from(body);
    other[at]! ^= 1;
    assert.equal(heads.find(other, length) !== undefined, at === idAt, `byte ${at}`);
  }
  // The data has the length of the sizes, but a size is no number any more.
  const noSize = Buffer.from(body.toString('latin1').replace('size":8', 'size":x'), 'latin1');
  assert.equal(heads.find(noSize, length), undefined);
});

test('a request with a known head is checked against the version that serves it', () => {
  const parser = new InferParser();
  const sent = encode(keys(2), some);
  learn(parser, sent, VERSIONS[0]!);
  assert.match(
    JSON.stringify(ask(parser, sent, VERSIONS[1]!)),
    /expected \[rows, 1\], got \[2,2\]/,
  );
  const other = makeBundle('8', ['C7', 'C8'], 2);
  assert.match(JSON.stringify(ask(parser, sent, other)), /"version":"8"/);
  assert.deepEqual(ask(parser, sent, VERSIONS[0]!), ask(new InferParser(), sent, VERSIONS[0]!));
  const renamed = ask(parser, sent, VERSIONS[0]!, 'renamed');
  assert.deepEqual(renamed, ask(new InferParser(), sent, VERSIONS[0]!, 'renamed'));
});

test('known heads are bounded in number and bytes', () => {
  const parser = new InferParser();
  const note = (parameters: object): void => {
    const sent = encode(keys(1, { parameters }), some);
    for (let i = 0; i < 2; i++) ask(parser, sent, VERSIONS[0]!);
  };
  for (let i = 0; i < 3 * HEADS_MAX; i++) note({ other: `head ${i}` });
  assert.ok(getHeads(parser).size.count > HEADS_MAX / 2);
  assert.ok(getHeads(parser).size.count <= HEADS_MAX);
  for (let i = 0; i < 200; i++) {
    note({ other: `${i}`.padEnd(HEAD_BYTES_MAX - 400) });
    assert.ok(getHeads(parser).size.bytes <= ALL_HEADS_BYTES_MAX);
  }
  const before = getHeads(parser).size;
  note({ other: 'x'.repeat(HEAD_BYTES_MAX) });
  assert.deepEqual(getHeads(parser).size, before, 'longer heads are not kept');
});

test('heads that come once are not kept', () => {
  const parser = new InferParser();
  for (let i = 0; i < 100; i++) {
    ask(parser, encode(keys(1, { parameters: { other: i } }), some), VERSIONS[0]!);
  }
  assert.equal(getHeads(parser).size.count, 0);
});

test('values that only look like sizes or ids are not cut out', () => {
  const parser = new InferParser();
  const inner = '{"name":"keys","datatype":"UINT64","shape":[1,2],"parameters":';
  const heads = [
    `{"inputs":[${inner}{"x":{"binary_data_size":16},"binary_data_size" :16}}]}`,
    `{"id":"1","inputs":[${inner}{"binary_data_size":16}}],"id":"2"}`,
    `{"inputs":[],"inputs":[${inner}{"binary_data_size":16}}],"parameters":{"binary_data_size":9}}`,
  ];
  for (const head of heads) {
    const sent = {
      body: Buffer.concat([Buffer.from(head), Buffer.alloc(16)]),
      header: String(head.length),
    };
    learn(parser, sent, VERSIONS[2]!);
  }
  assert.equal(getHeads(parser).size.count, 0);
});
