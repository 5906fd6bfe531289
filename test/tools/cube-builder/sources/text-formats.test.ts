import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { xxh64 } from '../../../../lib/core/hash.ts';
import { keyToBigint } from '../../../../lib/core/keys.ts';
import { ByteReader } from '../../../../tools/cube-builder/sources/byte-reader.ts';
import { RecordScanner } from '../../../../tools/cube-builder/sources/delimited-text.ts';
import { openKeys } from '../../../../tools/cube-builder/sources/key-file.ts';
import { openSources } from '../../../../tools/cube-builder/sources/open-sources.ts';
import type { InputSpec } from '../../../../tools/cube-builder/sources/row-source.ts';
import { parseFloatBytes, parseKey } from '../../../../tools/cube-builder/sources/text-values.ts';
import {
  createTestFolder,
  encodeKeys,
  encodeNpy,
  formatRows,
  openOne,
  readOutcome,
  readRows,
  readValues,
  TABLES,
  type TestRow,
} from './support/writers.ts';

const folder = createTestFolder();

function file(name: string, text: string | Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, text);
  return path;
}

const read = (name: string, text: string, spec: Partial<InputSpec> = {}) =>
  readOutcome({ paths: [file(name, text)], ...spec });

async function refusal(name: string, text: string, spec: Partial<InputSpec> = {}): Promise<string> {
  const got = await read(name, text, spec);
  assert.equal(typeof got, 'string', `accepted: ${String(got)}`);
  return got as string;
}

const numbers = ({ row }: TestRow): string[] => [...row].map(String);
const jsonRow = ({ key, row }: TestRow): string => {
  const elements = [...row].map((x) =>
    Number.isFinite(x) ? String(x) : JSON.stringify(String(x)),
  );
  return `{"key": "${key}", "row": [${elements.join(', ')}]}`;
};

test('any table reads back equal from CSV, TSV, lists in a column, and JSON lines', async () => {
  await fc.assert(
    fc.asyncProperty(
      TABLES,
      fc.constantFrom('\n', '\r\n'),
      fc.boolean(),
      async (rows, end, named) => {
        const expected = formatRows(rows);
        const lines = (first: string, record: (row: TestRow) => string): string =>
          (named ? first + end : '') + rows.map(record).join(end) + (named ? end : '');
        const names = ['key', ...rows[0]!.row.map((_, j) => j)].map((x) =>
          x === 'key' ? x : `v${x}`,
        );
        const csv = lines(names.join(','), (row) => [`"${row.key}"`, ...numbers(row)].join(','));
        const tsv = lines(names.join('\t'), (row) => [`${row.key}`, ...numbers(row)].join('\t'));
        const list = lines('key,row', (row) => `${row.key},"[${numbers(row).join(' ')}]"`);
        const jsonl = rows.map(jsonRow).join(end);
        for (const [name, text] of Object.entries({
          'a.csv': csv,
          'a.tsv': tsv,
          'l.csv': list,
          'a.jsonl': jsonl,
        })) {
          assert.deepEqual(await read(name, text), expected, text);
          assert.deepEqual(
            await readOutcome({ paths: [file(`${name}.gz`, gzipSync(text))] }),
            expected,
          );
        }
      },
    ),
    { numRuns: 30 },
  );
});

test('CSV: columns, quotes, lists, blank lines and a byte order mark are supported', async () => {
  const csv = '\uFEFFname,id,"a ""x""",b\r\n"one, two",7,1,2\r\n\r\n"line\nbreak",8,"3", 4e0 \r\n';
  const columns = { keyColumn: 'id', valueColumns: ['b', 'a "x"'] };
  assert.deepEqual(await read('c.csv', csv, columns), ['7: 2 1', '8: 4 3']);
  const byNumber = { keyColumn: '1', valueColumns: ['2'] };
  assert.deepEqual(await read('c.csv', csv, byNumber), ['7: 1', '8: 3']);
  assert.deepEqual(await read('n.csv', '5,1,2\n6,nan,-inf\n'), ['5: 1 2', '6: NaN -Infinity']);
  assert.deepEqual(await read('n.csv', '9,5\n', { header: true, dim: 1 }), []);
  assert.deepEqual(await read('n.csv', ',x\n9,5\n'), ['9: 5']);
  assert.deepEqual(await read('n.csv', 'id,0,1\n9,5,6\n'), ['9: 5 6']);
  assert.deepEqual(await read('n.csv', '9,text,5\n', { valueColumns: ['2'] }), ['9: 5']);
  const lists = '1,"0.5,1"\n2,0.5 1\n3,"[0.5,\n 1]"\n4,(0.5 1)\n';
  assert.deepEqual(await read('n.csv', lists), ['1: 0.5 1', '2: 0.5 1', '3: 0.5 1', '4: 0.5 1']);
  assert.deepEqual(await read('n.csv', '1,7'), ['1: 7']);
});

test('CSV: errors name file, record and byte', async () => {
  const cases: [string, RegExp][] = [
    ['1,2\n-3,4\n', /w.csv: record 2 at byte 4: field 0 is not a key: "-3"/],
    ['1,2\n18446744073709551616,4\n', /is not a key: "18446744073709551616"/],
    ['-3,4\n1,2\n', /w.csv: record 1 at byte 0: field 0 is not a key: "-3"/],
    [',4\n1,2\n', /is not a key: ""/],
    ['1,2\n1.0,4\n', /is not a key: "1.0"/],
    ['1,2\n,4\n', /is not a key: ""/],
    ['1,2,3\n4,5\n', /record 2 at byte 6: 2 fields, but the first record has 3/],
    ['1,2,3\n4,5,x\n', /field 2 is not a number: "x"/],
    ['1,2,3\n4,5,\n', /field 2 is not a number: ""/],
    ['1,2,3\n4,5,0x10\n', /is not a number: "0x10"/],
    ['1,2 3\n4,5\n', /a row of 1 numbers; expected 2 as in the first row or --dim/],
    ['1,[2 3\n', /field 1: element 0 is not a number/],
    ['1,[]\n', /has no number/],
    ['1,"2\n3,4\n', /byte 0: the closing quote of a field is missing/],
    ['1,"2"x\n', /the closing quote of a field is missing or not followed/],
    ['key\n1\n', /no column for the row besides the key/],
  ];
  for (const [text, pattern] of cases) assert.match(await refusal('w.csv', text), pattern, text);
  assert.match(
    await refusal('w.csv', 'a,b\n1,2\n', { keyColumn: 'c' }),
    /no column "c"; the columns are a, b/,
  );
  assert.match(await refusal('w.csv', '', {}), /no row in .*--dim/);
  assert.match(
    await refusal('w.csv', '1,2', { valueFormat: 'bytes' }),
    /--value-format bytes is not possible/,
  );
  assert.match(await refusal('w.csv', '1,2', { dim: 3 }), /a row of 1 numbers; expected 3/);
});

test('JSON lines: string and integer keys, rows, base64 and Python’s NaN are read', async () => {
  const text = [
    '{"key": 0, "row": [1, 2]}',
    '',
    '{"row": [NaN, -Infinity], "key": "18446744073709551615", "more": {"x": [1]}}',
    '{"key": 9007199254740991, "value": "AACAPwAAAEA="}',
  ].join('\n');
  const max = 2n ** 64n - 1n;
  assert.deepEqual(await read('j.jsonl', text), [
    '0: 1 2',
    `${max}: NaN -Infinity`,
    '9007199254740991: 1 2',
  ]);
  const bytes = '{"key": 1, "value": ""}\n{"key": 2, "value": "/+8="}\n';
  const source = await openOne({ paths: [file('b.jsonl', bytes)], valueFormat: 'bytes' });
  assert.deepEqual(
    (await readValues(source)).map(([key, value]) => [key, [...value]]),
    [
      [1n, []],
      [2n, [255, 239]],
    ],
  );
  const fields = { keyColumn: 'id', valueColumns: ['emb'] };
  assert.deepEqual(await read('f.jsonl', '{"id": 3, "emb": [4]}', fields), ['3: 4']);
});

test('JSON lines: errors name file, line and byte', async () => {
  const row = (key: string): string => `{"key": 1, "row": [1]}\n{"key": ${key}, "row": [1]}`;
  const keys = [
    '9007199254740992',
    '9007199254740993',
    '1e300',
    '-1',
    '1.5',
    '"-1"',
    '"1e3"',
    'null',
  ];
  for (const key of [...keys, '"18446744073709551616"', '""', '[1]']) {
    assert.match(
      await refusal('w.jsonl', row(key)),
      /line 2 at byte 23: "key" is .*below 2\^53/,
      key,
    );
  }
  const cases: [string, RegExp][] = [
    ['{"key": 1, "row": [1, "x"]}', /element 1 of the row is "x", not a number/],
    ['{"key": 1, "row": [1, null]}', /element 1 of the row is null/],
    ['{"key": 1, "row": []}', /a row of 0 numbers/],
    ['{"key": 1}', /expected a "row" of numbers/],
    ['{"key": 1, "value": "%%%%"}', /not base64/],
    ['{"key": 1, "value": "AAA"}', /not base64/],
    ['{"key": 1, "deleted": "yes"}', /"deleted" must be/],
    ['{"key": 1, "row": [1]', /not JSON/],
    ['[1, 2]', /not a JSON object/],
    ['{"key": 1, "row": [1]}\n{"key": 1, "row": [1, 2]}', /line 2 at byte 23: a row of 2/],
  ];
  for (const [text, pattern] of cases) assert.match(await refusal('w.jsonl', text), pattern, text);
});

test('rows and deletions apply in the order of the file', async () => {
  const lines = fc.array(
    fc.record({ key: fc.integer({ min: 0, max: 4 }), deleted: fc.boolean() }),
    { minLength: 1, maxLength: 30 },
  );
  await fc.assert(
    fc.asyncProperty(lines, async (edits) => {
      const text = edits.map(({ key, deleted }, i) =>
        deleted ? `{"key": ${key}, "deleted": true}` : `{"key": ${key}, "row": [${i}]}`,
      );
      const expected = new Map<bigint, number>();
      edits.forEach(({ key, deleted }, i) => {
        if (deleted) expected.delete(BigInt(key));
        else expected.set(BigInt(key), i);
      });
      const source = await openOne({ paths: [file('d.jsonl', text.join('\n'))], dim: 1 });
      const got = new Map<bigint, number>();
      for await (const batch of source.batches()) {
        assert.ok('rows' in batch);
        for (let i = 0; i < batch.count; i++) got.set(keyToBigint(batch.keys, i), batch.rows[i]!);
        const deleted = batch.deletedKeys ?? new Uint32Array(0);
        for (let i = 0; 2 * i < deleted.length; i++) got.delete(keyToBigint(deleted, i));
      }
      assert.deepEqual(got, expected);
    }),
    { numRuns: 60 },
  );
});

async function readKeys(path: string, slot?: number): Promise<Uint32Array> {
  const words: number[] = [];
  for await (const batch of (await openKeys(path, slot))())
    for (const word of batch) words.push(word);
  return Uint32Array.from(words);
}

test('a list of keys is read from text, .npy and .npz', async () => {
  const keys = [0n, 5n, 2n ** 64n - 1n];
  const asText = (words: Uint32Array): bigint[] =>
    Array.from({ length: words.length / 2 }, (_, i) => keyToBigint(words, i));
  const text = ' 0\r\n\n5\n18446744073709551615';
  assert.deepEqual(asText(await readKeys(file('keys.txt', text))), keys);
  assert.deepEqual(asText(await readKeys(file('keys.txt.gz', gzipSync(text)))), keys);
  assert.deepEqual(
    asText(await readKeys(file('k.npy', encodeNpy('u8', [3], encodeKeys(keys))))),
    keys,
  );
  assert.deepEqual(asText(await readKeys(file('empty.txt', ''))), []);
  const many = Array.from({ length: 200_000 }, (_, i) => BigInt(i) * 10n ** 13n);
  assert.deepEqual(asText(await readKeys(file('many.txt', many.join('\n')))), many);
  const signed = ['7', 'a,b', ' c\td', 'é'];
  const features = `${signed[0]}\n${signed[1]}\r\n\n${signed.slice(2).join('\n')}`;
  assert.deepEqual(
    asText(await readKeys(file('features.txt', features), 14)),
    signed.map((feature) => xxh64(Buffer.from(`14${feature}`))),
  );
  assert.deepEqual(
    asText(await readKeys(file('k.npy', encodeNpy('u8', [3], encodeKeys(keys))), 14)),
    keys,
  );
  await assert.rejects(readKeys(file('bad.txt', '1\n-2\n')), /bad.txt: byte 2: "-2" is not a key/);
  await assert.rejects(
    readKeys(file('bad.npy', encodeNpy('f4', [1], Buffer.alloc(4)))),
    /f4 of shape/,
  );
});

test('decimal keys are exact, and other texts are refused', () => {
  const words = new Uint32Array(2);
  const parse = (text: string): bigint | undefined => {
    const bytes = Buffer.from(text);
    return parseKey(bytes, 0, bytes.length, words) ? keyToBigint(words, 0) : undefined;
  };
  fc.assert(
    fc.property(fc.bigInt({ min: 0n, max: 2n ** 66n }), (key) => {
      assert.equal(parse(String(key)), key < 2n ** 64n ? key : undefined);
    }),
  );
  for (const text of ['', ' ', '+1', '-0', '1e3', '1_000', '٣'])
    assert.equal(parse(text), undefined);
});

test('decimal floats are parsed like in JavaScript, bit for bit', () => {
  const parse = (text: string): number | undefined => {
    const bytes = Buffer.from(` ${text}\t`);
    return parseFloatBytes(bytes, 0, bytes.length);
  };
  const texts = fc.oneof(
    fc.double().map(String),
    fc.float().map(String),
    fc
      .tuple(fc.double({ noNaN: true, noDefaultInfinity: true }), fc.nat(20))
      .map(([x, n]) => x.toExponential(n)),
    fc.stringMatching(/^[+-]?\d{0,22}\.?\d{0,22}([eE][+-]?\d{1,3})?$/),
  );
  fc.assert(
    fc.property(texts, (text) => {
      const isNumber = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^-?Infinity$|^NaN$/.test(text);
      assert.equal(parse(text), isNumber ? Number(text) : undefined, text);
    }),
    { numRuns: 3000 },
  );
  for (const text of ['', '-', '.', 'e5', '1e', '1 2', '0x1', 'infinit', '1__0', 'true']) {
    assert.equal(parse(text), undefined, text);
  }
  assert.deepEqual(['nan', '-INF', '+inf', 'Infinity'].map(parse), [
    Number.NaN,
    -1 / 0,
    1 / 0,
    1 / 0,
  ]);
});

test('records are found with any chunk size', async () => {
  const field = fc.stringMatching(/^[ab",\n\r]{0,6}$/);
  const quoted = (text: string): string => `"${text.replaceAll('"', '""')}"`;
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.array(field, { minLength: 1, maxLength: 4 }), { maxLength: 6 }),
      fc.boolean(),
      async (records, crlf) => {
        const text = records
          .map((fields) => fields.map(quoted).join(',') + (crlf ? '\r\n' : '\n'))
          .join('');
        const bytes = Buffer.from(text);
        const pieces = async function* (): AsyncGenerator<Uint8Array> {
          for (const byte of bytes) yield Uint8Array.of(byte);
        };
        const reader = new ByteReader('t', pieces());
        const scanner = new RecordScanner(44);
        const got: string[][] = [];
        for (;;) {
          const next = scanner.scan(reader.bytes, reader.start, reader.end, reader.hasEnded);
          if (next === -1 || reader.available === 0) {
            if (!(await reader.ensure(reader.available + 1)) && reader.available === 0) break;
            continue;
          }
          assert.notEqual(next, -2);
          got.push(
            Array.from({ length: scanner.count }, (_, i) =>
              reader.bytes
                .toString('utf8', scanner.starts[i], scanner.ends[i])
                .replaceAll('""', '"'),
            ),
          );
          reader.start = next;
        }
        assert.deepEqual(got, records);
      },
    ),
    { numRuns: 200 },
  );
});

test('flipped bits and truncations of text give rows or a CubeError', async () => {
  for (const [name, text] of [
    ['f.csv', 'key,row\n12,"0.5 1.5"\n34,"2 -1e1"\n'],
    ['f.jsonl', '{"key": 12, "row": [0.5, 1.5]}\n{"key": "34", "value": "AACAPwAAAEA="}\n'],
  ] as const) {
    for (let at = 0; at < text.length; at++) {
      const bytes = Buffer.from(text);
      bytes[at]! ^= 1 << (at % 8);
      await readOutcome({ paths: [file(name, bytes)] });
      await readOutcome({ paths: [file(name, text.slice(0, at))] });
    }
  }
});

test('batches are bounded, and a large table is read completely', async () => {
  const count = 150_000;
  const lines = Array.from({ length: count }, (_, i) => `${i},${i % 7},${i / 8}`);
  const [source] = await openSources({ paths: [file('big.csv', lines.join('\n'))] });
  let rows = 0;
  for await (const batch of source!.batches()) {
    assert.ok(batch.count <= 65_536);
    assert.ok('rows' in batch);
    for (let i = 0; i < batch.count; i++, rows++) {
      assert.equal(batch.keys[2 * i], rows);
      assert.equal(batch.rows[2 * i + 1], rows / 8);
    }
  }
  assert.equal(rows, count);
  assert.equal((await readRows(source!)).length, count);
});
