/**
 * Parsing rows: formatted rows parse back, scaled as a plain computation does; every error names
 * its location.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import {
  type LabelledFeatureRows,
  type LabelledKeyedRows,
  LINE_CHARS_MAX,
  type RowShape,
  scaleDense,
} from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { parseJsonRows } from '../../lib/core/json-rows.ts';
import { BAG_VALUES_MAX } from '../../lib/core/limits.ts';
import type { DenseFeature } from '../../lib/core/slots.ts';
import { parseTsvRows } from '../../lib/core/tsv-rows.ts';

const dense: DenseFeature[] = Array.from({ length: 13 }, (_, i) => ({
  name: `I${i + 1}`,
  missing: i % 3 === 0 ? 0 : i - 5,
  log: i % 2 === 0,
  shift: i / 7,
  scale: 1 / (i + 1),
}));
const slots = Array.from({ length: 26 }, (_, i) => ({ name: `C${i + 1}`, index: 14 + i }));
const criteo: RowShape = { slots, dense: { input: 'dense', features: dense } };

interface Row {
  readonly label: 0 | 1 | undefined;
  readonly dense: readonly (number | null)[];
  readonly categorical: readonly (string | null)[];
}

const anyRow: fc.Arbitrary<Row> = fc.record({
  label: fc.constantFrom(0 as const, 1 as const, undefined),
  dense: fc.array(
    fc.option(
      fc.oneof(
        fc.integer({ min: -5, max: 2 ** 31 }),
        fc.double({ min: -1e9, max: 1e9, noNaN: true }),
      ),
    ),
    { minLength: 13, maxLength: 13 },
  ),
  categorical: fc.array(
    fc.option(
      fc
        .string({ unit: 'grapheme', maxLength: 12 })
        .map((text) => text.replaceAll(/[\t\r\n]/g, '')),
    ),
    { minLength: 26, maxLength: 26 },
  ),
});

function formatTsv(rows: readonly Row[], lineBreak: string, endsInBreak: boolean): string {
  const lines = rows.map(({ label, dense: numbers, categorical }) =>
    [...(label === undefined ? [] : [label]), ...numbers, ...categorical]
      .map((column) => (column === null ? '' : String(column)))
      .join('\t'),
  );
  return lines.join(lineBreak) + (endsInBreak ? lineBreak : '');
}

/** The definition in docs/formats/slots.md, step by step. */
function scaled(value: number | null, { missing, log, shift, scale }: DenseFeature): number {
  let x = value ?? missing;
  if (log) x = Math.log1p(Math.max(x, 0));
  return Math.fround((x - shift) * scale);
}

function assertColumns(columns: ReturnType<typeof parseTsvRows>, rows: readonly Row[]): void {
  assert.equal(columns.rowCount, rows.length);
  assert.deepEqual(
    [...columns.labels],
    rows.map(({ label }) => label ?? Number.NaN),
  );
  assert.deepEqual(
    columns.features,
    rows.flatMap(({ categorical }) => categorical.map((feature) => feature ?? '')),
  );
  assert.deepEqual(
    [...columns.dense],
    rows.flatMap((row) => row.dense.map((value, i) => scaled(value, dense[i]!))),
  );
}

function refuses(
  action: () => unknown,
  message: RegExp,
  code: ErrorCode = 'INVALID_ARGUMENT',
): void {
  assert.throws(action, (error: CubeError) => {
    assert.ok(error instanceof CubeError);
    assert.match(error.message, message);
    assert.equal(error.code, code);
    return true;
  });
}

test('TSV rows parse to the values that were formatted', () => {
  const manyRows = fc.array(anyRow, { minLength: 1, maxLength: 6 });
  const property = fc.property(
    manyRows,
    fc.constantFrom('\n', '\r\n'),
    fc.boolean(),
    (rows, lineBreak, endsInBreak) => {
      assertColumns(parseTsvRows(formatTsv(rows, lineBreak, endsInBreak), criteo, 100), rows);
    },
  );
  fc.assert(property);
});

test('TSV rows of 38 or 41 columns, and columns that are not numbers, are refused', () => {
  const good = Array.from({ length: 39 }, () => '').join('\t');
  const row3 =
    (line: string): (() => unknown) =>
    () =>
      parseTsvRows(`${good}\n0\t${good}\n${line}\n${good}\n`, criteo, 100);
  const expected =
    'row 3: expected 40 tab-separated columns \\(label, 13 dense, 26 categorical\\) ' +
    'or 39 without label';
  refuses(row3(good.slice(1)), new RegExp(`${expected}, got 38`));
  refuses(row3(`${good}\t\t`), new RegExp(`${expected}, got 41`));
  refuses(row3(''), new RegExp(`${expected}, got 1`));
  for (const value of [
    'x',
    '0x10',
    ' 5',
    '5 ',
    '-',
    '+',
    '.',
    '1e',
    'NaN',
    'Infinity',
    '1_000',
    '５',
  ]) {
    const line = `${'\t'.repeat(4)}${value}${'\t'.repeat(34)}`;
    refuses(row3(line), /row 3, column 5 \(I5\): expected a number or nothing, got "/);
    refuses(row3(`1\t${line}`), /row 3, column 6 \(I5\): expected a number or nothing, got "/);
  }
  refuses(row3(`yes\t${good}`), /row 3, column 1 \(label\): expected 0 or 1, got "yes"/);
});

test('TSV rows that are too long, too many or none are refused', () => {
  const columns = '\t'.repeat(38);
  const longest = columns + 'x'.repeat(LINE_CHARS_MAX - 38);
  assert.equal(parseTsvRows(longest, criteo, 1).rowCount, 1);
  refuses(() => parseTsvRows(`${longest}x`, criteo, 1), /row 1: a line of 65537 characters/);
  refuses(() => parseTsvRows('x'.repeat(1 << 20), criteo, 1), /row 1: a line of 1048576 char/);
  refuses(() => parseTsvRows('\n\n\n', criteo, 2), /3 rows in one request/, 'TOO_LARGE');
  refuses(() => parseTsvRows('', criteo, 2), /no rows/);
});

const parse = (rows: unknown): LabelledFeatureRows => {
  const body = JsonReader.of(JSON.parse(JSON.stringify(rows)), 'body');
  const columns = parseJsonRows(body.field('rows'), criteo, 10, body.field('shared'));
  return 'keys' in columns ? assert.fail('rows of keys') : columns;
};

test('JSON rows by position and by name parse to the same columns as TSV', () => {
  const property = fc.property(fc.array(anyRow, { minLength: 1, maxLength: 4 }), (rows) => {
    assertColumns(parse({ rows }), rows);
    const named = rows.map(({ label, dense: numbers, categorical }) => ({
      label,
      ...Object.fromEntries(numbers.map((value, i) => [`I${i + 1}`, value])),
      ...Object.fromEntries(
        categorical.flatMap((value, i) => (value === null ? [] : [[`C${i + 1}`, value]])),
      ),
    }));
    assertColumns(parse({ rows: named }), rows);
  });
  fc.assert(property);
});

test('errors of JSON rows name the location', () => {
  const of =
    (row: unknown): (() => unknown) =>
    () =>
      parse({ rows: [{}, row] });
  const categorical = Array.from({ length: 26 }, () => null);
  refuses(() => parse({ rows: [] }), /rows: expected an array of at least 1 items/);
  refuses(() => parse({}), /field rows is missing; expected an array/);
  refuses(of(null), /rows\[1\]: expected an object/);
  refuses(of([]), /rows\[1\]: expected an object/);
  refuses(of({ C27: 'x' }), /rows\[1\]: unknown field "C27" \(did you mean "C2"\?\)/);
  refuses(of({ I1: '5' }), /rows\[1\]\.I1: expected a finite number, got "5"/);
  refuses(of({ C2: 1.5 }), /rows\[1\]\.C2: expected a string/);
  refuses(of({ C2: 2 ** 53 }), /rows\[1\]\.C2: .*up to 2\^53, got 9007199254740992/);
  refuses(of({ label: 2 }), /rows\[1\]\.label: expected an integer in 0\.\.1/);
  refuses(of({ dense: [], categorical }), /rows\[1\]\.dense.* expected an array of 13 items/);
  refuses(of({ categorical }), /rows\[1\]\.dense.* expected an array of 13 items/);
  const numbers = Array.from({ length: 13 }, (_, i) => (i === 4 ? 'x' : 1));
  refuses(of({ dense: numbers, categorical }), /rows\[1\]\.dense\[4\]: expected a finite number/);
  const flags = categorical.map((_, i) => i === 25);
  refuses(of({ dense: categorical.slice(13), categorical: flags }), /categorical\[0\]: expected a/);
  assert.deepEqual(parse({ rows: [{ C1: 7 }] }).features[0], '7');
});

test('unknown fields of rows by position and of rows of keys are refused', () => {
  const none = Array.from({ length: 26 }, () => null);
  const positional = { dense: none.slice(13), categorical: none };
  const refusesRow = (row: unknown, message: RegExp): void =>
    refuses(() => parse({ rows: [positional, row] }), message);
  assert.equal(parse({ rows: [{ ...positional, label: 1 }] }).rowCount, 1);
  refusesRow(
    { ...positional, lable: 1 },
    /rows\[1\]: unknown field "lable" \(did you mean "label"\?\)/,
  );
  refusesRow(
    { ...positional, weight: 1 },
    /unknown field "weight" \(known here: label, dense, cat/,
  );
  refusesRow({ ...positional, C1: 'x' }, /rows\[1\]\.C1: expected no named feature: the row gives/);
  const keyed = { keys: none.map(() => '1'), scaled: Array.from({ length: 13 }, () => 0) };
  const body = (row: object): JsonReader => JsonReader.of([keyed, row], 'body');
  assert.equal(parseJsonRows(body({ ...keyed, label: 0 }), criteo, 2).rowCount, 2);
  refuses(
    () => parseJsonRows(body({ ...keyed, dense: [] }), criteo, 2),
    /\[1\]: unknown field "dense" \(known here: label, scaled, keys, at\)/,
  );
});

test('rows by position and rows of keys may have the time of a recording', () => {
  const none = Array.from({ length: 26 }, () => null);
  const positional = { dense: none.slice(13), categorical: none };
  const keyed = { keys: none.map(() => '1'), scaled: Array.from({ length: 13 }, () => 0) };
  for (const row of [positional, keyed]) {
    const parseRows = (...rows: object[]): object =>
      parseJsonRows(JsonReader.of(rows, 'rows'), criteo, 2);
    assert.deepEqual(parseRows({ at: 1_764_194_400_123.25, ...row }), parseRows(row));
    refuses(() => parseRows(row, { at: 'noon', ...row }), /\[1\]\.at: expected a finite number/);
  }
  refuses(() => parse({ rows: [{ at: 1, C1: 'x' }] }), /unknown field "at"/);
});

/** A slot of one value, one of several, another of one. */
const pooled: RowShape = {
  slots: [
    { name: 'user', index: 0 },
    { name: 'tags', index: 1, pooling: 'mean' },
    { name: 'item', index: 2 },
  ],
  dense: {
    input: 'dense',
    features: [
      { name: 'age', missing: 9, log: false, shift: 0, scale: 1 },
      { name: 'price', missing: 0, log: false, shift: 0, scale: 2 },
    ],
  },
  separator: '|',
};

function parsePooled(body: unknown): LabelledFeatureRows | LabelledKeyedRows {
  const json = JsonReader.of(body, 'body');
  return parseJsonRows(json.field('rows'), pooled, 10, json.field('shared'));
}

test('pooled rows by position and by name equal TSV rows', () => {
  const lines = ['1\t3\t4\tu\ta|b|\ti', '\t\t\t\t', '\t1\tu\tc\ti'].join('\n');
  const expected = {
    rowCount: 3,
    dense: Float32Array.of(3, 8, 9, 0, 9, 2),
    rawDense: Float64Array.of(3, 4, Number.NaN, Number.NaN, Number.NaN, 1),
    features: ['u', 'a', 'b', '', 'i', '', '', 'u', 'c', 'i'],
    ends: Uint32Array.of(1, 4, 5, 6, 6, 7, 8, 9, 10),
    labels: Float32Array.of(1, Number.NaN, Number.NaN),
  };
  assert.deepEqual(parseTsvRows(lines, pooled, 10), expected);
  const positional = [
    { label: 1, dense: [3, 4], categorical: ['u', ['a', 'b', ''], 'i'] },
    { dense: [null, null], categorical: [null, [], null] },
    { dense: [null, 1], categorical: ['u', 'c', 'i'] },
  ];
  assert.deepEqual(parsePooled({ rows: positional }), expected);
  const named = [
    { label: 1, age: 3, price: 4, user: 'u', tags: ['a', 'b', ''], item: 'i' },
    { tags: null },
    { price: 1, user: 'u', tags: ['c'], item: 'i' },
  ];
  assert.deepEqual(parsePooled({ rows: named }), expected);
});

test('pooled rows may have shared features', () => {
  const rows = [{ price: 1, item: 'x' }, { price: 2 }];
  const shared = { age: 30, user: 'u', tags: ['a', 'b'] };
  const columns = parsePooled({ shared, rows });
  assert.deepEqual(columns, {
    rowCount: 2,
    dense: Float32Array.of(30, 2, 30, 4),
    rawDense: Float64Array.of(30, 1, 30, 2),
    features: ['x', ''],
    shared: {
      slots: Int32Array.of(0, 1),
      features: ['u', 'a', 'b'],
      ends: Uint32Array.of(1, 3),
    },
    labels: Float32Array.of(Number.NaN, Number.NaN),
  });
  const positional = [
    { dense: [1], categorical: ['x'] },
    { dense: [2], categorical: [null] },
  ];
  assert.deepEqual(parsePooled({ shared, rows: positional }), columns);
  refuses(
    () => parsePooled({ shared, rows: [{ user: 'v' }] }),
    /rows\[0\]\.user: .*"shared" has too/,
  );
  refuses(
    () => parsePooled({ shared: { colour: 1 }, rows }),
    /shared: unknown field "colour" \(known here: /,
  );
  refuses(() => parsePooled({ shared: { user: ['u'] }, rows }), /shared\.user: expected a string/);
  refuses(() => parsePooled({ shared: [], rows }), /shared: expected an object/);
});

test('pooled rows may be keys', () => {
  const rows = [
    { label: 0, scaled: [1.5, 2], keys: ['1', ['2', 3, '18446744073709551615'], '4'] },
    { scaled: [0, 0], keys: ['5', [], '6'] },
  ];
  const columns = parsePooled({ rows });
  assert.ok('keys' in columns);
  assert.deepEqual(
    new BigUint64Array(columns.keys.buffer),
    BigUint64Array.of(1n, 2n, 3n, 2n ** 64n - 1n, 4n, 5n, 6n),
  );
  assert.deepEqual(columns.ends, Uint32Array.of(1, 4, 5, 6, 6, 7));
  assert.deepEqual(columns.dense, Float32Array.of(1.5, 2, 0, 0));
  const of = (row: unknown) => () => parsePooled({ rows: [rows[1], row] });
  refuses(of({ scaled: [0, 1e39], keys: ['1', [], '2'] }), /rows\[1\]\.scaled\[1\]: .*32-bit/);
  refuses(of({ scaled: [0], keys: ['1', [], '2'] }), /rows\[1\]\.scaled: .*of 2 items/);
  refuses(
    of({ scaled: [0, 0], keys: ['1', [], -2] }),
    /rows\[1\]\.keys\[2\]: .*integer in 0\.\.2\^64/,
  );
  refuses(
    of({ scaled: [0, 0], keys: [['1'], [], '2'] }),
    /rows\[1\]\.keys\[0\]: .*integer in 0\.\.2\^64/,
  );
  refuses(
    of({ scaled: [0, 0], keys: ['1', ['x'], '2'] }),
    /keys\[1\]\[0\]: .*integer in 0\.\.2\^64/,
  );
  refuses(
    of({ user: 'u' }),
    /rows\[1\]: unknown field "user" \(known here: label, scaled, keys, at\)/,
  );
  refuses(
    () => parsePooled({ rows, shared: { user: 'u' } }),
    /no shared features with rows of keys/,
  );
});

test('pooled values are limited, and other slots take one value', () => {
  const tags = Array.from({ length: BAG_VALUES_MAX }, String);
  assert.equal(parsePooled({ rows: [{ tags }] }).ends?.at(-1), BAG_VALUES_MAX + 2);
  const many = { rows: [{}, { tags: [...tags, 'x'] }] };
  refuses(() => parsePooled(many), /row 2 \(tags\): 1025 values in one slot/, 'TOO_LARGE');
  const line = `\t\t\t${'|'.repeat(BAG_VALUES_MAX)}\t`;
  refuses(() => parseTsvRows(line, pooled, 1), /row 1 \(tags\): 1025 values/, 'TOO_LARGE');
  refuses(() => parsePooled({ rows: [{ user: ['u'] }] }), /rows\[0\]\.user: expected a string/);
  refuses(
    () => parsePooled({ rows: [{ tags: ['u', null] }] }),
    /rows\[0\]\.tags: expected a string/,
  );
});

test('scaling refuses values that a 32-bit float cannot hold', () => {
  const feature = { name: 'I1', missing: 0, log: false, shift: 0, scale: 10 };
  refuses(() => scaleDense(Float64Array.of(1, 1e38), 2, [feature]), /row 2 \(I1\): 1e\+38/);
  refuses(() => scaleDense(Float64Array.of(-Infinity), 1, [feature]), /row 1 \(I1\): -Infinity/);
  assert.deepEqual([...scaleDense(Float64Array.of(Number.NaN, 2), 2, [feature])], [0, 20]);
});
