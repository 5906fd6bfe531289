/** Keys that are read from the bytes of string tensors are those of their strings. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { LINE_CHARS_MAX } from '../../lib/core/feature-rows.ts';
import { RowHasher } from '../../lib/core/hash.ts';
import type { KernelKind } from '../../lib/core/kernels/kernels.ts';
import type { HashSpec, Slot } from '../../lib/core/slots.ts';
import { type TextInput, TextKeys } from '../../lib/core/text-keys.ts';

const KINDS: readonly KernelKind[] = ['wasm', 'portable'];
const moduli = fc.constantFrom(0n, 7n, 100_003n, 2n ** 36n + 1n);
const hashes = fc.record({
  scheme: fc.constantFrom('xxh64-concat' as const, 'xxh64-tagged' as const),
  seed: fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  modulo: moduli,
});
const slotLists = fc.array(
  fc.record(
    {
      index: fc.constantFrom(0, 9, 12, 4_294_967_295),
      missing: fc.constantFrom('none', 'ä'),
      modulo: moduli,
    },
    { requiredKeys: ['index'] },
  ),
  { minLength: 1, maxLength: 4 },
);
const texts = fc.oneof(
  { weight: 6, arbitrary: fc.stringMatching(/^[ -~]{0,12}$/) },
  { weight: 2, arbitrary: fc.stringMatching(/^[a-z]{13,40}$/) },
  fc.constantFrom('', 'x'.repeat(500), '\0', '\x7f'),
);

interface Request {
  readonly inputs: readonly TextInput[];
  readonly data: Buffer;
  readonly ends: readonly number[];
  /** Row by row, all slots. */
  readonly features: readonly string[];
}

function encodeTexts(values: readonly string[]): Buffer {
  const pieces = values.flatMap((value) => {
    const bytes = Buffer.from(value);
    return [Buffer.from(Uint32Array.of(bytes.length).buffer), bytes];
  });
  return Buffer.concat(pieces);
}

/** @param others bytes of inputs that are no texts, before each input */
function join(columns: readonly (readonly string[])[], others: readonly number[]) {
  const pieces = columns.flatMap((values, i) => [Buffer.alloc(others[i]!, 7), encodeTexts(values)]);
  let end = 0;
  const ends = pieces.map(({ length }) => {
    end += length;
    return end;
  });
  return { data: Buffer.concat(pieces), ends };
}

/** One input for each slot, in some order, some shared and some left out. */
function slotRequest(slotNum: number, rowCount: number): fc.Arbitrary<Request> {
  const kinds = fc.array(fc.constantFrom('own', 'shared', 'absent'), {
    minLength: slotNum,
    maxLength: slotNum,
  });
  const order = fc.shuffledSubarray(
    Array.from({ length: slotNum }, (_, i) => i),
    {
      minLength: slotNum,
    },
  );
  const size = { minLength: slotNum * rowCount, maxLength: slotNum * rowCount };
  const gaps = fc.array(fc.nat({ max: 5 }), { minLength: slotNum, maxLength: slotNum });
  return fc.tuple(kinds, order, fc.array(texts, size), gaps).map(([kinds, order, all, gaps]) => {
    const value = (row: number, slot: number): string =>
      kinds[slot] === 'absent' ? '' : all[(kinds[slot] === 'own' ? row : 0) * slotNum + slot]!;
    const given = order.filter((slot) => kinds[slot] !== 'absent');
    const columns = given.map((slot) =>
      Array.from({ length: kinds[slot] === 'own' ? rowCount : 1 }, (_, row) => value(row, slot)),
    );
    const inputs = kinds.map((kind, slot): TextInput => {
      const at = given.indexOf(slot);
      return { position: at < 0 ? -1 : 2 * at + 1, slot, isShared: kind !== 'own' };
    });
    const features = Array.from({ length: rowCount * slotNum }, (_, i) =>
      value(Math.floor(i / slotNum), i % slotNum),
    );
    return { inputs, features, ...join(columns, gaps) };
  });
}

/** One input for all slots. */
function combinedRequest(slotNum: number, rowCount: number): fc.Arbitrary<Request> {
  const size = { minLength: slotNum * rowCount, maxLength: slotNum * rowCount };
  return fc.array(texts, size).map((features) => {
    const inputs = [{ position: 1, slot: undefined, isShared: false }];
    return { inputs, features, ...join([features], [3]) };
  });
}

const cases = fc
  .record({ hash: hashes, slots: slotLists, rowCount: fc.integer({ min: 1, max: 5 }) })
  .chain((given) => {
    const { slots, rowCount } = given;
    const request = fc.oneof(
      slotRequest(slots.length, rowCount),
      combinedRequest(slots.length, rowCount),
    );
    return request.map((request) => ({ ...given, request }));
  });

function nameSlots(slots: readonly Omit<Slot, 'name'>[]): Slot[] {
  return slots.map((slot, i) => ({ name: `C${i}`, ...slot }));
}

function hashStrings(hash: HashSpec, slots: readonly Slot[], features: readonly string[]) {
  const keys = new Uint32Array(2 * features.length);
  new RowHasher(hash, slots).hashRows(features, features.length / slots.length, keys);
  return keys;
}

test('keys of texts are those of the strings, with both kernels', () => {
  fc.assert(
    fc.property(cases, ({ hash, slots: unnamed, rowCount, request }) => {
      const slots = nameSlots(unnamed);
      const { inputs, data, ends, features } = request;
      const expected = hashStrings(hash, slots, features);
      const before = Buffer.from(data);
      for (const kind of KINDS) {
        const texts = TextKeys.create(hash, slots, { inputs, rowCount }, kind);
        assert.deepEqual(texts?.read(data, ends), expected, kind);
        assert.deepEqual(texts?.read(data, ends), expected, `${kind}, read again`);
      }
      assert.deepEqual(data, before);
    }),
    { numRuns: 500 },
  );
});

/** Whether a parser of strings finds as many ASCII texts as there must be. */
function isReadable(bytes: Buffer, count: number): boolean {
  let at = 0;
  for (let i = 0; i < count; i++) {
    if (at + 4 > bytes.length) return false;
    const end = at + 4 + bytes.readUInt32LE(at);
    if (end > bytes.length || end - at - 4 > LINE_CHARS_MAX) return false;
    if (bytes.subarray(at + 4, end).some((byte) => byte > 0x7f)) return false;
    at = end;
  }
  return at === bytes.length;
}

test('damaged texts are refused, and others are read as what they are', () => {
  const hash: HashSpec = { scheme: 'xxh64-concat', seed: 1n, modulo: 0n };
  const slots = nameSlots([{ index: 1 }, { index: 22 }]);
  const damage = fc.record({ at: fc.nat(), byte: fc.nat({ max: 255 }), cut: fc.nat({ max: 3 }) });
  const inputs = [{ position: 0, slot: undefined, isShared: false }];
  let [refused, read] = [0, 0];
  fc.assert(
    fc.property(fc.array(texts, { minLength: 4, maxLength: 4 }), damage, (values, damage) => {
      const whole = encodeTexts(values);
      whole[damage.at % whole.length] = damage.byte;
      const data = whole.subarray(0, whole.length - damage.cut);
      for (const kind of KINDS) {
        const texts = TextKeys.create(hash, slots, { inputs, rowCount: 2 }, kind);
        const keys = texts?.read(data, [data.length]);
        assert.equal(keys !== undefined, isReadable(data, 4), kind);
        if (keys === undefined) {
          refused++;
          continue;
        }
        read++;
        const features: string[] = [];
        for (let at = 0; at < data.length; ) {
          const end = at + 4 + data.readUInt32LE(at);
          features.push(data.toString('latin1', at + 4, end));
          at = end;
        }
        assert.deepEqual(keys, hashStrings(hash, slots, features), kind);
      }
    }),
    { numRuns: 1_000 },
  );
  assert.ok(refused > 200 && read > 100, `${refused} refused, ${read} read`);
});

test('texts up to the longest line are read', () => {
  const hash: HashSpec = { scheme: 'xxh64-concat', seed: 0n, modulo: 1_000n };
  const slots = nameSlots([{ index: 3 }]);
  const inputs = [{ position: 0, slot: 0, isShared: false }];
  for (const kind of KINDS) {
    const texts = TextKeys.create(hash, slots, { inputs, rowCount: 1 }, kind);
    for (const length of [LINE_CHARS_MAX, LINE_CHARS_MAX + 1]) {
      const text = 'y'.repeat(length);
      const data = encodeTexts([text]);
      const expected = length > LINE_CHARS_MAX ? undefined : hashStrings(hash, slots, [text]);
      assert.deepEqual(texts?.read(data, [data.length]), expected, `${kind}, ${length}`);
    }
    // The prefixes of short texts are in registers, those of long ones in memory.
    for (let length = 0; length < 40; length++) {
      const data = encodeTexts(['z'.repeat(length)]);
      const expected = hashStrings(hash, slots, ['z'.repeat(length)]);
      assert.deepEqual(texts?.read(data, [data.length]), expected, `${kind}, ${length}`);
    }
  }
});

test('ids and requests beyond the scratch memory are left to other parsers', () => {
  const raw: HashSpec = { scheme: 'raw', seed: 0n, modulo: 0n };
  const hash: HashSpec = { ...raw, scheme: 'xxh64-concat' };
  const slots = nameSlots([{ index: 1 }]);
  const inputs = [{ position: 0, slot: undefined, isShared: false }];
  assert.equal(TextKeys.create(raw, slots, { inputs, rowCount: 1 }), undefined);
  assert.equal(TextKeys.create(hash, slots, { inputs, rowCount: 1 << 18 }), undefined);
  const many = TextKeys.create(hash, slots, { inputs, rowCount: 20 });
  const data = encodeTexts(new Array(20).fill('x'.repeat(60_000)));
  assert.equal(many?.read(data, [data.length]), undefined);
});
