/** Rows to columns: what is formatted parses back, scaled as a plain computation does; every mistake names its place. */
import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import {
  LINE_CHARS_MAX,
  parseJsonRows,
  parseTsvRows,
  type RowShape,
  scaleDense,
} from '../../lib/core/features.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { DenseFeature } from '../../lib/core/slots.ts';

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

describe('TSV rows', () => {
  it('parse back to what was formatted', () => {
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

  it('of 38 or 41 columns are refused, as are columns that are no numbers', () => {
    const good = Array.from({ length: 39 }, () => '').join('\t');
    const row3 =
      (line: string): (() => unknown) =>
      () =>
        parseTsvRows(`${good}\n0\t${good}\n${line}\n${good}\n`, criteo, 100);
    const expected =
      'row 3: expected 40 tab-separated columns \\(label, 13 dense, 26 categorical\\) or 39 without label';
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

  it('that are too long, too many or none are refused', () => {
    const columns = '\t'.repeat(38);
    const longest = columns + 'x'.repeat(LINE_CHARS_MAX - 38);
    assert.equal(parseTsvRows(longest, criteo, 1).rowCount, 1);
    refuses(() => parseTsvRows(`${longest}x`, criteo, 1), /row 1: a line of 65537 characters/);
    refuses(() => parseTsvRows('x'.repeat(1 << 20), criteo, 1), /row 1: a line of 1048576 char/);
    refuses(() => parseTsvRows('\n\n\n', criteo, 2), /3 rows in one request/, 'TOO_LARGE');
    refuses(() => parseTsvRows('', criteo, 2), /no rows/);
  });
});

describe('JSON rows', () => {
  const parse = (rows: unknown): ReturnType<typeof parseTsvRows> =>
    parseJsonRows(
      JsonReader.of(JSON.parse(JSON.stringify(rows)), 'body').field('rows'),
      criteo,
      10,
    );

  it('by position and by name parse to the same columns as TSV', () => {
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

  it('name the place of a mistake', () => {
    const of =
      (row: unknown): (() => unknown) =>
      () =>
        parse({ rows: [{}, row] });
    const categorical = Array.from({ length: 26 }, () => null);
    refuses(() => parse({ rows: [] }), /rows: expected an array of at least 1 items/);
    refuses(() => parse({}), /rows: expected an array/);
    refuses(of(null), /rows\[1\]: expected an object/);
    refuses(of([]), /rows\[1\]: expected an object/);
    refuses(of({ C27: 'x' }), /rows\[1\]\.C27: .*no feature of this name/);
    refuses(of({ I1: '5' }), /rows\[1\]\.I1: expected a finite number, got "5"/);
    refuses(of({ C2: 1.5 }), /rows\[1\]\.C2: expected a string/);
    refuses(of({ C2: 2 ** 53 }), /rows\[1\]\.C2: .*up to 2\^53, got 9007199254740992/);
    refuses(of({ label: 2 }), /rows\[1\]\.label: expected an integer in 0\.\.1/);
    refuses(of({ dense: [], categorical }), /rows\[1\]\.dense: expected an array of 13 items/);
    refuses(of({ categorical }), /rows\[1\]\.dense: expected an array of 13 items/);
    const numbers = Array.from({ length: 13 }, (_, i) => (i === 4 ? 'x' : 1));
    refuses(of({ dense: numbers, categorical }), /rows\[1\]\.dense\[4\]: expected a finite number/);
    const flags = categorical.map((_, i) => i === 25);
    refuses(
      of({ dense: categorical.slice(13), categorical: flags }),
      /categorical\[0\]: expected a/,
    );
    assert.deepEqual(parse({ rows: [{ C1: 7 }] }).features[0], '7');
  });
});

describe('scaling', () => {
  it('refuses what a 32-bit float cannot hold', () => {
    const feature = { name: 'I1', missing: 0, log: false, shift: 0, scale: 10 };
    refuses(() => scaleDense(Float64Array.of(1, 1e38), 2, [feature]), /row 2 \(I1\): 1e\+38/);
    refuses(() => scaleDense(Float64Array.of(-Infinity), 1, [feature]), /row 1 \(I1\): -Infinity/);
    assert.deepEqual([...scaleDense(Float64Array.of(Number.NaN, 2), 2, [feature])], [0, 20]);
  });
});
