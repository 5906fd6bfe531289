/**
 * The JSON Schemas in docs/schemas describe what we write and accept: generated documents pass both
 * schema and reader, and whatever a schema refuses the reader refuses too, so that a schema is
 * never stricter than the code.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Ajv, type ValidateFunction } from 'ajv';
import fc from 'fast-check';
import {
  featureSpecToJson,
  readTrainedFeatures,
  type TrainedFeatures,
} from '../../lib/core/feature-spec.ts';
import { type Fleet, formatFleet, parseFleet } from '../../lib/core/fleet.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { formatManifest, type Manifest, parseManifest } from '../../lib/core/manifest.ts';

/** Tests run in the project's folder. */
function schema(name: string): ValidateFunction {
  const document = JSON.parse(readFileSync(`docs/schemas/${name}.schema.json`, 'utf8'));
  return new Ajv({ allErrors: true, allowUnionTypes: true, strictTuples: false }).compile(document);
}

const name = fc.constantFrom('a', 'ctr-dnn', '_', '1', '2024-01-31', 'emb.weight', 'Z'.repeat(128));
const hex = (digits: number): fc.Arbitrary<string> =>
  fc.constantFrom('0'.repeat(digits), '0123456789abcdef'.repeat(digits / 16));
const count = fc.nat();
const weight = fc.integer({ min: 1, max: 10_000 });
const u64 = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });

const manifests: fc.Arbitrary<Manifest> = fc
  .tuple(fc.integer({ min: 1, max: 4 }), fc.uniqueArray(name, { maxLength: 3 }))
  .chain(([shardNum, tableNames]) => {
    const layer = (kind: 'base' | 'delta') =>
      fc.record({
        contentId: hex(32),
        kind: fc.constant(kind),
        bytes: count,
        sha256: hex(64),
        rows: count,
      });
    const layers = fc
      .tuple(layer('base'), fc.array(layer('delta'), { maxLength: 2 }))
      .map(([base, deltas]) => [base, ...deltas]);
    const table = (tableName: string) =>
      fc.integer({ min: 0, max: 8 }).chain((dim) =>
        fc.record({
          name: fc.constant(tableName),
          dim: fc.constant(dim),
          dtype: dim === 0 ? fc.constant('bytes') : fc.constantFrom('f32', 'f16'),
          rows: count,
          defaultRow: fc.constantFrom(
            [],
            Array.from({ length: dim }, (_, i) => i / 2),
          ),
          shardNum: fc.constant(shardNum),
          shards: fc.array(layers, { minLength: shardNum, maxLength: shardNum }),
        }),
      );
    return fc.record({
      bundle: name,
      version: name,
      files: fc.array(fc.record({ path: name, bytes: count, sha256: hex(64) }), { maxLength: 3 }),
      hash: fc.record({
        scheme: fc.constantFrom('xxh64-concat', 'xxh64-tagged', 'raw'),
        seed: u64,
        modulo: u64,
      }),
      slots: fc.array(
        fc.record(
          { name, index: fc.nat(), modulo: u64, missing: fc.constantFrom('0', '17') },
          { requiredKeys: ['name', 'index'] },
        ),
        { maxLength: 3 },
      ),
      tables: fc.tuple(...tableNames.map(table)),
    });
  }) as fc.Arbitrary<Manifest>;

const endpoint = fc
  .tuple(
    fc.constantFrom('127.0.0.1', 'cube-3.shards.local', '[::1]'),
    fc.integer({ min: 1, max: 65_535 }),
  )
  .map(([host, port]) => `${host}:${port}`);

const fleets: fc.Arbitrary<Fleet> = fc
  .dictionary(
    name,
    fc.array(
      fc.integer({ min: 1, max: 3 }).chain((shardNum) =>
        fc.record({
          shardNum: fc.constant(shardNum),
          shards: fc.array(
            fc.array(
              fc.record(
                { data: endpoint, control: endpoint, group: name, agent: endpoint, weight },
                { requiredKeys: ['data', 'control', 'group', 'weight'] },
              ),
              { minLength: 1, maxLength: 2 },
            ),
            { minLength: shardNum, maxLength: shardNum },
          ),
        }),
      ),
      { minLength: 1, maxLength: 2 },
    ),
    { maxKeys: 3 },
  )
  .map((bundles) => ({ bundles: new Map(Object.entries(bundles)) }));

/** Every place of a document, as the keys that lead there. */
function places(value: unknown, path: readonly string[] = []): (readonly string[])[] {
  if (typeof value !== 'object' || value === null) return [path];
  return [
    path,
    ...Object.keys(value).flatMap((key) => places((value as never)[key], [...path, key])),
  ];
}

/**
 * The document with something else at one place: what a hand, an old tool or an attacker writes
 * there.
 */
function spoil(document: unknown, path: readonly string[], what: unknown): unknown {
  if (path.length === 0) return what;
  const copy = structuredClone(document) as Record<string, unknown>;
  let inner = copy;
  for (const key of path.slice(0, -1)) inner = inner[key] as Record<string, unknown>;
  const last = path.at(-1) ?? '';
  if (what === undefined) delete inner[last];
  else inner[last] = what;
  return copy;
}

const rubbish = fc.oneof(
  fc.constant(undefined),
  fc.constantFrom(null, true, '', '../x', 'x y', '12', -1, 0, 1, 1.5, 2 ** 53, 1e300, [], {}, [[]]),
  fc.jsonValue(),
);

function accepts(read: () => unknown): boolean {
  try {
    read();
    return true;
  } catch {
    return false;
  }
}

/** @param parse the reader under test */
function agree<T>(
  documents: fc.Arbitrary<T>,
  format: (document: T) => string,
  parse: (text: string, source: string) => T,
  validate: ValidateFunction,
): void {
  fc.assert(
    fc.property(documents, (document) => {
      const text = format(document);
      assert.ok(validate(JSON.parse(text)), JSON.stringify(validate.errors));
      assert.equal(format(parse(text, 'test')), text);
    }),
    { numRuns: 100 },
  );
  const wrong = fc.tuple(documents, fc.nat(), rubbish).map(([document, pick, what]) => {
    const parsed = JSON.parse(format(document));
    const all = places(parsed);
    return spoil(parsed, all[pick % all.length] ?? [], what);
  });
  fc.assert(
    fc.property(wrong, (document) => {
      if (validate(document)) return;
      const text = JSON.stringify(document) ?? 'null';
      assert.ok(
        !accepts(() => parse(text, 'test')),
        `the reader takes what the schema refuses: ${text}`,
      );
    }),
    { numRuns: 3000 },
  );
}

test('manifests that are written pass the schema; the reader refuses what it refuses', () => {
  agree(manifests, formatManifest, parseManifest, schema('manifest'));
});

test('fleets: what we write passes the schema, what the schema refuses the reader refuses', () => {
  agree(fleets, formatFleet, parseFleet, schema('fleet'));
});

const features: fc.Arbitrary<TrainedFeatures> = fc.record({
  hash: fc.record({
    scheme: fc.constantFrom('xxh64-concat', 'xxh64-tagged', 'raw'),
    seed: u64,
    modulo: u64,
  }),
  slots: fc.constantFrom<TrainedFeatures['slots']>(
    [{ name: 'user', index: 0 }],
    [
      { name: 'user', index: 3, modulo: 7n, missing: '5', side: 'user' },
      { name: 'tags', index: 2 ** 32 - 1, pooling: 'sqrtn', emptyBag: 'default' },
    ],
  ),
  dense: fc.constantFrom(undefined, {
    input: 'dense',
    features: [
      { name: 'age', missing: 30, log: false, shift: 1.5, scale: 0.1 },
      { name: 'price', input: 'prices', missing: 0, log: true, shift: 0, scale: 1 },
    ],
  }),
  click: fc.record({ output: fc.string(), column: fc.nat({ max: 9 }) }),
  ids: fc.constantFrom([{ input: 'ids', slots: ['user'] }]),
});

function formatTrainedFeatures({ ids, ...spec }: TrainedFeatures): string {
  const $comment = ['one', 'two'];
  const document = { $schema: 'x', $comment, format: 1, ids };
  return JSON.stringify(Object.assign(document, featureSpecToJson(spec)));
}

const parseFeatures = (text: string, source: string): TrainedFeatures =>
  readTrainedFeatures(JsonReader.parse(text, source));

test('features.json: what is written passes the schema, what it refuses the reader refuses', () => {
  agree(features, formatTrainedFeatures, parseFeatures, schema('features'));
  const demo = JSON.parse(readFileSync('data/demo/features.json', 'utf8')) as {
    readonly hash: object;
  };
  assert.equal(schema('features')(demo), true);
  const misspelled = { ...demo, hash: { ...demo.hash, modulus: '7' } };
  assert.equal(schema('features')(misspelled), false);
});

test('the schemas refuse what they must', () => {
  assert.equal(schema('manifest')({ format: 2 }), false);
  assert.equal(schema('fleet')({ format: 1, bundles: { 'a/b': [] } }), false);
});
