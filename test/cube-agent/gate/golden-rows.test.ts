/** Golden files: invalid lines are named, and large files are sampled deterministically. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { NO_LABEL, readGoldenFile, readGoldenText } from '../../../cube-agent/gate/golden-rows.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';

const refusal = async (work: Promise<unknown>): Promise<CubeError> => {
  try {
    await work;
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return error;
  }
  throw new assert.AssertionError({ message: 'it was taken' });
};

test('rows with features, keys or no label are read; empty lines are skipped', async () => {
  const text = [
    '{"label":1,"dense":[1,null],"categorical":["a",null]}\r',
    '',
    '{"scaled":[0.5],"keys":["17"],"label":null}',
    '{"C1":"x","label":0}',
  ].join('\n');
  const { rows, total } = await readGoldenText(text, 'golden.jsonl', { rowsMax: 10 });
  assert.equal(total, 3);
  assert.deepEqual(
    rows.map(({ line, label, isKeyed }) => [line, label, isKeyed]),
    [
      [1, 1, false],
      [3, NO_LABEL, true],
      [4, 0, false],
    ],
  );
});

test('one error names several invalid lines, and no row of the file is used', async (t) => {
  const path = join(temporaryFolder(t), 'golden.jsonl');
  writeFileSync(path, '{"C1":"a"}\nnot JSON\n{"C1":"b"}\n[1]\n{"label":2}\n{"C1":"c"');
  const { code, message } = await refusal(readGoldenFile(path, { rowsMax: 10 }));
  assert.equal(code, 'INVALID_ARGUMENT');
  for (const line of [2, 4, 5, 6])
    assert.match(message, new RegExp(`golden\\.jsonl, line ${line}: `));
});

test('an overlong line, a file without rows and a missing file are refused', async (t) => {
  const path = join(temporaryFolder(t), 'golden.jsonl');
  writeFileSync(path, `{"C1":"a"}\n{"C1":"${'x'.repeat(300_000)}"}\n`);
  const long = await refusal(readGoldenFile(path, { rowsMax: 10 }));
  assert.deepEqual(
    [long.code, /line 2: more than 262144 bytes/.test(long.message)],
    ['TOO_LARGE', true],
  );
  assert.match(
    (await refusal(readGoldenText('\n \n', 'empty', { rowsMax: 10 }))).message,
    /empty: no rows/,
  );
  assert.equal((await refusal(readGoldenFile(`${path}.none`, { rowsMax: 10 }))).code, 'NOT_FOUND');
});

test('a large file is sampled deterministically, evenly and in file order', async () => {
  const text = Array.from({ length: 5_000 }, (_, i) => `{"C1":"f${i}"}`).join('\n');
  const { rows, total } = await readGoldenText(text, 'golden.jsonl', { rowsMax: 500 });
  assert.deepEqual([rows.length, total], [500, 5_000]);
  const lines = rows.map(({ line }) => line);
  assert.deepEqual(
    lines,
    [...new Set(lines)].sort((a, b) => a - b),
  );
  for (let part = 0; part < 5; part++) {
    const inPart = lines.filter((line) => Math.floor((line - 1) / 1_000) === part).length;
    assert.ok(inPart > 60 && inPart < 140, `${inPart} of part ${part}`);
  }
  const again = await readGoldenText(text, 'golden.jsonl', { rowsMax: 500 });
  assert.deepEqual(
    again.rows.map(({ line }) => line),
    lines,
  );
});

test('arbitrary text is parsed or refused with a CubeError', async () => {
  const hostile = fc.oneof(
    fc.string({ maxLength: 200 }),
    fc.constantFrom(
      '['.repeat(20_000),
      '{"a":'.repeat(20_000),
      '{"__proto__":{"label":1}}',
      '\u0000',
      '{}',
    ),
  );
  await fc.assert(
    fc.asyncProperty(hostile, async (text) => {
      try {
        const { rows } = await readGoldenText(text, 'x', { rowsMax: 5 });
        assert.ok(rows.length > 0 && rows.every(({ label }) => label <= NO_LABEL));
      } catch (error) {
        assert.ok(error instanceof CubeError, String(error));
      }
    }),
  );
});
