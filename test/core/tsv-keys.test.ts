/** The two parsers of lines give the same keys, dense values, labels and errors for any bytes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { RowHasher } from '../../lib/core/hash.ts';
import type { FeatureSpec } from '../../lib/core/slots.ts';
import { parseTsvKeys } from '../../lib/core/tsv-keys.ts';
import { parseTsvRows } from '../../lib/core/tsv-rows.ts';

const ROWS_MAX = 300;

const anySpec: fc.Arbitrary<FeatureSpec> = fc
  .record({
    scheme: fc.constantFrom('xxh64-concat', 'xxh64-tagged', 'raw'),
    modulo: fc.constantFrom(0n, 1009n),
    slotNum: fc.integer({ min: 1, max: 4 }),
    denseNum: fc.integer({ min: 0, max: 3 }),
    isPooled: fc.boolean(),
    own: fc.oneof(
      { weight: 8, arbitrary: fc.constant({}) },
      { weight: 2, arbitrary: fc.constantFrom({ modulo: 7n }, { missing: '3' }) },
    ),
  })
  .map(({ scheme, modulo, slotNum, denseNum, isPooled, own }) => ({
    hash: { scheme, seed: 5n, modulo },
    slots: Array.from({ length: slotNum }, (_, i) => ({
      name: `C${i}`,
      index: 10 ** (3 * i),
      ...(i === 0 ? own : {}),
      ...(isPooled && i === 1 ? { pooling: 'sum' as const } : {}),
    })),
    dense:
      denseNum === 0
        ? undefined
        : {
            input: 'dense',
            features: Array.from({ length: denseNum }, (_, i) => ({
              name: `I${i}`,
              missing: 1,
              log: i === 1,
              shift: 0.5,
              scale: 2,
            })),
          },
    click: { output: 'prob', column: 0 },
    separator: '|',
  }));

const anyColumn = fc.oneof(
  fc.constantFrom('', '0', '1', '-7', '1.5e3', '123456789012345', '1234567890123456', '-', 'x'),
  fc.stringMatching(/^[0-9a-f]{8}$/),
  fc.constantFrom('é', '🙂x', 'a|b', '\ufeff', '\r', '1\r', '1e39', 'y'.repeat(60_000)),
);

/** Of as many characters as are read at once, of one more, and what only looks like one. */
const anyNumber = fc.oneof(
  { weight: 9, arbitrary: fc.constantFrom('', '3', '-12', '0.25', '-0', '+5', '1e3') },
  { weight: 9, arbitrary: fc.constantFrom('1234567', '-123456', '12345678', '-1234567') },
  { weight: 3, arbitrary: fc.constantFrom('123456789012345', '9999999999999999') },
  { weight: 1, arbitrary: fc.constantFrom('-', '1:', '/5', '--1', '1-', '\r', '1234567x') },
);

/** Lines that mostly fit the spec, and bytes that are no UTF-8 among them. */
function anyBytes({ slots, dense }: FeatureSpec): fc.Arbitrary<Uint8Array> {
  const denseNum = dense?.features.length ?? 0;
  const plain = (count: number, column: fc.Arbitrary<string>) =>
    fc.array(column, { minLength: count, maxLength: count });
  const good = fc
    .tuple(plain(denseNum, anyNumber), plain(slots.length, anyColumn))
    .map((columns) => columns.flat().join('\t'));
  const labelled = good.map((line) => `1\t${line}`);
  const wild = fc.array(anyColumn, { maxLength: 8 }).map((columns) => columns.join('\t'));
  const lines = (line: fc.Arbitrary<string>) => fc.array(line, { maxLength: 6 });
  const damage = fc.option(fc.tuple(fc.nat(), fc.integer({ min: 0, max: 255 })), { freq: 3 });
  return fc
    .tuple(
      fc.oneof(lines(good), lines(labelled), lines(fc.oneof(good, labelled, wild))),
      fc.constantFrom('\n', '\r\n'),
      fc.constantFrom('', '\n'),
      damage,
    )
    .map(([texts, lineBreak, end, damaged]) => {
      const bytes = new TextEncoder().encode(texts.join(lineBreak) + end);
      if (damaged && bytes.length > 0) bytes[damaged[0] % bytes.length] = damaged[1];
      return bytes;
    });
}

type Parsed = ReturnType<typeof parseTsvKeys>;

/** What a request comes to, or the error. */
function outcome(spec: FeatureSpec, parse: () => Parsed): unknown {
  try {
    const rows = parse();
    if ('keys' in rows) return { ...rows, ends: rows.ends };
    const keys = new Uint32Array(2 * rows.features.length);
    const hasher = new RowHasher(spec.hash, spec.slots);
    if (rows.ends === undefined) hasher.hashRows(rows.features, rows.rowCount, keys);
    else hasher.hashBags(rows.features, rows.ends, keys);
    const { rowCount, dense, labels, ends } = rows;
    return { rowCount, keys, dense, labels, ends };
  } catch (error) {
    assert.ok(error instanceof CubeError);
    return { code: error.code, message: error.message };
  }
}

test('lines of any bytes give the same keys, or the same error, with both parsers', () => {
  let straight = 0;
  const property = fc.property(
    anySpec.chain((spec) => fc.tuple(fc.constant(spec), anyBytes(spec))),
    fc.constantFrom('wasm', 'portable'),
    ([spec, bytes], kind) => {
      const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);
      const expected = outcome(spec, () => parseTsvRows(text, spec, ROWS_MAX));
      const actual = outcome(spec, () => {
        const rows = parseTsvKeys(bytes, spec, ROWS_MAX, kind);
        if ('keys' in rows) straight++;
        return rows;
      });
      assert.deepEqual(actual, expected);
    },
  );
  fc.assert(property, { numRuns: 3000 });
  assert.ok(straight > 200, `${straight} of 3000 were read straight to keys`);
});

test('rows beyond one kernel call, bytes beyond one chunk, and the row limit', () => {
  const slots = Array.from({ length: 26 }, (_, i) => ({ name: `C${i}`, index: 14 + i }));
  const spec: FeatureSpec = {
    hash: { scheme: 'xxh64-concat', seed: 0n, modulo: 0n },
    slots,
    dense: undefined,
    click: { output: 'prob', column: 0 },
  };
  const rowNum = 2_500;
  const lines = Array.from({ length: rowNum }, (_, row) =>
    slots.map((_slot, i) => (row * 7919 + i).toString(16).repeat((row + i) % 6)).join('\t'),
  );
  const text = lines.join('\n');
  const bytes = new TextEncoder().encode(text);
  const expected = outcome(spec, () => parseTsvRows(text, spec, rowNum));
  for (const kind of ['wasm', 'portable'] as const) {
    const rows = parseTsvKeys(bytes, spec, rowNum, kind);
    assert.ok('keys' in rows);
    assert.deepEqual(
      outcome(spec, () => rows),
      expected,
    );
    assert.throws(() => parseTsvKeys(bytes, spec, rowNum - 1, kind), { code: 'TOO_LARGE' });
  }
});
