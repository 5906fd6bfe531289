import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import fc from 'fast-check';
import xxhash from 'xxhash-wasm';
import { RowHasher, xxh64 } from '../../lib/core/hash.ts';
import type { KernelKind } from '../../lib/core/kernels/kernels.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import type { HashSpec, Slot } from '../../lib/core/slots.ts';

const { h64, h64Raw } = await xxhash();
const KINDS: readonly KernelKind[] = ['wasm', 'portable'];
const SLOTS: readonly Slot[] = [
  { name: 'C1', index: 1 },
  { name: 'C26', index: 26 },
  { name: 'big', index: 4_294_967_295 },
];
/** A modulo per slot: small, prime, power of two, beyond 2^36, none. */
const moduli = fc.constantFrom(1n, 7n, 100_003n, 2n ** 32n, 2n ** 36n, 2n ** 36n + 1n, 0n);
const u64 = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });

/** The contract, said naively. */
function expectedKey(spec: HashSpec, slot: Slot, feature: string): bigint {
  const tag = spec.scheme === 'xxh64-tagged' ? '\0' : '';
  const value = feature === '' ? (slot.missing ?? '') : feature;
  const bytes = new TextEncoder().encode(`${slot.index}${tag}${value}`);
  const hash = spec.scheme === 'raw' ? BigInt(value) : h64Raw(bytes, spec.seed);
  const modulo = slot.modulo ?? spec.modulo;
  return modulo === 0n ? hash : hash % modulo;
}

function hashAll(
  spec: HashSpec,
  features: readonly string[],
  kind: KernelKind,
  slots: readonly Slot[] = SLOTS,
): bigint[] {
  const rowCount = features.length / slots.length;
  const keys = new Uint32Array(2 * features.length + 3);
  new RowHasher(spec, slots, kind).hashRows(features, rowCount, keys, 2);
  assert.deepEqual([keys[0], keys[1], keys.at(-1)], [0, 0, 0], 'wrote outside its range');
  return features.map((_, i) => keyToBigint(keys, i + 1));
}

test('xxh64 equals xxhash-wasm at every length and seed', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 200 }), u64, (bytes, seed) => {
      assert.equal(xxh64(bytes, seed), h64Raw(bytes, seed));
    }),
    { numRuns: 500 },
  );
  assert.equal(xxh64(new TextEncoder().encode('1234')), h64('1234'));
});

test('hashed rows follow docs/formats/keys.md with both kernels', () => {
  const feature = fc.oneof(
    fc.string({ unit: 'grapheme' }),
    fc.string({ unit: 'binary' }),
    fc.stringMatching(/^[0-9a-f]{8}$/),
    fc.constantFrom('', 'é', '🙂', '\ud800', 'a\udc00b', 'x'.repeat(5000), 'ä'.repeat(3000)),
  );
  const spec: fc.Arbitrary<HashSpec> = fc.record({
    scheme: fc.constantFrom('xxh64-concat', 'xxh64-tagged'),
    seed: fc.oneof(fc.constant(0n), u64),
    modulo: fc.oneof(fc.constant(0n), fc.constant(100_001n), u64),
  });
  const rows = fc.array(fc.tuple(feature, feature, feature), { maxLength: 40 });
  fc.assert(
    fc.property(spec, rows, (chosen, features) => {
      const flat = features.flat();
      const expected = flat.map((text, i) => expectedKey(chosen, SLOTS[i % 3]!, text));
      for (const kind of KINDS) assert.deepEqual(hashAll(chosen, flat, kind), expected);
    }),
    { numRuns: 150 },
  );
});

test('slots have a modulo and a value for missing ones of their own', () => {
  const rules = fc.record(
    { modulo: fc.oneof(moduli, u64), missing: fc.constantFrom('0', '17', 'none', 'é') },
    { requiredKeys: [] },
  );
  const spec = fc.record({
    scheme: fc.constantFrom('xxh64-concat', 'xxh64-tagged', 'raw'),
    seed: u64,
    modulo: fc.oneof(moduli, u64),
  });
  const values = fc.array(fc.oneof(fc.constant(''), u64.map(String)), { maxLength: 30 });
  const property = fc.property(spec, fc.tuple(rules, rules, rules), values, (hash, own, texts) => {
    const isRaw = hash.scheme === 'raw';
    const slots = SLOTS.map((slot, i): Slot => {
      const missing = isRaw ? '3' : own[i]!.missing;
      return { ...slot, ...own[i], ...(missing === undefined ? {} : { missing }) };
    });
    const features = texts.slice(0, texts.length - (texts.length % 3));
    const expected = features.map((text, i) => expectedKey(hash, slots[i % 3]!, text));
    for (const kind of KINDS) assert.deepEqual(hashAll(hash, features, kind, slots), expected);
    // As bags, the first slot takes all values but two.
    const ends = Uint32Array.of(Math.max(texts.length - 2, 0), texts.length, texts.length);
    const keys = new Uint32Array(2 * texts.length);
    new RowHasher(hash, slots).hashBags(texts, ends, keys);
    texts.forEach((text, i) => {
      const slot = slots[i < ends[0]! ? 0 : 1]!;
      assert.equal(keyToBigint(keys, i), expectedKey(hash, slot, text));
    });
  });
  fc.assert(property, { numRuns: 300 });
});

test('batches and features larger than the scratch memory hash correctly', () => {
  const spec: HashSpec = { scheme: 'xxh64-concat', seed: 7n, modulo: 0n };
  const many = Array.from({ length: 3 * 5000 }, (_, i) => `value-${i}`);
  many[100] = 'y'.repeat(300_000);
  many[7001] = `${'é'.repeat(200_000)}\ud800`;
  const expected = many.map((text, i) => expectedKey(spec, SLOTS[i % 3]!, text));
  for (const kind of KINDS) assert.deepEqual(hashAll(spec, many, kind), expected);
});

test('scheme raw accepts every u64 and refuses other text, naming row and slot', () => {
  const spec: HashSpec = { scheme: 'raw', seed: 0n, modulo: 0n };
  const features = ['0', '18446744073709551615', '4294967296'];
  assert.deepEqual(hashAll(spec, features, 'wasm'), [0n, 2n ** 64n - 1n, 2n ** 32n]);
  assert.deepEqual(hashAll({ ...spec, modulo: 10n }, features, 'wasm'), [0n, 5n, 6n]);
  for (const wrong of ['', '-1', '1.5', '0x10', '18446744073709551616', ' 1']) {
    assert.throws(() => hashAll(spec, ['1', '1', '1', '1', wrong, '1'], 'wasm'), {
      code: 'INVALID_ARGUMENT',
      message: /^row 2, slot C26: .* decimal integer/,
    });
  }
});

test('values of bags hash as single values of their slots do, with both kernels', () => {
  const bag = fc.array(fc.string({ unit: 'grapheme', maxLength: 8 }), { maxLength: 5 });
  const rows = fc.array(fc.tuple(bag, bag, bag), { maxLength: 12 });
  const spec: HashSpec = { scheme: 'xxh64-concat', seed: 3n, modulo: 0n };
  const property = fc.property(rows, (bags) => {
    const flat = bags.flat();
    const features = flat.flat();
    let end = 0;
    const ends = Uint32Array.from(flat, ({ length }) => (end += length));
    const expected = flat.flatMap((texts, i) =>
      texts.map((text) => expectedKey(spec, SLOTS[i % 3]!, text)),
    );
    for (const kind of KINDS) {
      const keys = new Uint32Array(2 * features.length);
      new RowHasher(spec, SLOTS, kind).hashBags(features, ends, keys);
      assert.deepEqual(
        features.map((_, i) => keyToBigint(keys, i)),
        expected,
      );
    }
  });
  fc.assert(property);
  const raw = new RowHasher({ ...spec, scheme: 'raw' }, SLOTS);
  const ends = Uint32Array.of(1, 1, 3, 4, 5, 6);
  assert.throws(() => raw.hashBags(['1', '2', '3', '4', 'x', '6'], ends, new Uint32Array(12)), {
    message: /^row 2, slot C26: /,
  });
  assert.throws(() => raw.hashBags(['1'], Uint32Array.of(1, 0, 1), new Uint32Array(2)), {
    code: 'INVALID_ARGUMENT',
  });
});

test('arrays that are too short are refused, not overrun', () => {
  const hasher = new RowHasher({ scheme: 'xxh64-concat', seed: 0n, modulo: 0n }, SLOTS);
  assert.throws(() => hasher.hashRows(['a', 'b'], 1, new Uint32Array(6)), {
    code: 'INVALID_ARGUMENT',
  });
  assert.throws(() => hasher.hashRows(['a', 'b', 'c'], 1, new Uint32Array(6), 1), {
    code: 'INVALID_ARGUMENT',
  });
});

test('the published test vectors match', () => {
  const text = readFileSync(new URL('../../../docs/hash-vectors.json', import.meta.url), 'utf8');
  const vectors = JSON.parse(text) as readonly {
    scheme: HashSpec['scheme'];
    slot: number;
    feature: string;
    seed: string;
    modulo: string;
    key: string;
  }[];
  assert.ok(vectors.length > 0);
  const keys = new Uint32Array(2);
  for (const { scheme, slot, feature, seed, modulo, key } of vectors) {
    const spec: HashSpec = { scheme, seed: BigInt(seed), modulo: BigInt(modulo) };
    for (const kind of KINDS) {
      new RowHasher(spec, [{ name: 'slot', index: slot }], kind).hashRows([feature], 1, keys);
      assert.equal(
        keyToBigint(keys, 0),
        BigInt(key),
        JSON.stringify({ scheme, slot, feature, kind }),
      );
    }
  }
});
