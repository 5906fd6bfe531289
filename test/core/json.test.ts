import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { findNearestName } from '../../lib/core/nearest-name.ts';

const message = (read: () => unknown): string => {
  try {
    read();
  } catch (error) {
    assert.ok(error instanceof CubeError);
    assert.equal(error.code, 'INVALID_ARGUMENT');
    return error.message;
  }
  return 'did not throw';
};

test('an error names the document, the location and the value', () => {
  const json = JsonReader.parse('{"tables":[{"dim":1},{"dim":"x"}]}', 'manifest.json');
  const dim = json.field('tables').items()[1]?.field('dim');
  assert.equal(
    message(() => dim?.integer(1)),
    'manifest.json: tables[1].dim: expected an integer ≥ 1, got "x"',
  );
});

test('an unsafe 64-bit JSON number is refused, never rounded', () => {
  const u64 = (text: string): bigint => JsonReader.parse(text, 'k').u64();
  assert.equal(u64('"18446744073709551615"'), 2n ** 64n - 1n);
  assert.equal(u64('9007199254740991'), 2n ** 53n - 1n);
  for (const text of [
    '9007199254740993',
    '18446744073709551615',
    '-1',
    '1.5',
    '"x"',
    '"18446744073709551616"',
  ]) {
    assert.match(
      message(() => u64(text)),
      /an integer in 0\.\.2\^64 - 1|a decimal string, because numbers above 2\^53 are rounded/,
    );
  }
});

test('a field named like an Object method is not found by accident', () => {
  assert.ok(JsonReader.parse('{}', 'x').field('constructor').isMissing);
});

test('an unknown field is named with the nearest known one', () => {
  const json = JsonReader.of({ slots: [{ name: 'C1', sclae: 1 }] }, 'features.json');
  const slot = json.field('slots').item(0);
  assert.equal(
    message(() => slot.rejectUnknownFields(['name', 'shift', 'scale'])),
    'features.json: slots[0]: unknown field "sclae" (did you mean "scale"?)',
  );
  assert.equal(
    message(() => json.rejectUnknownFields(['format', 'dense'])),
    'features.json: unknown field "slots" (known here: format, dense)',
  );
  json.rejectUnknownFields(['slots']);
  const near = (name: string): string | undefined =>
    findNearestName(name, ['modulo', 'separator', 'model_dir', 'missing']);
  assert.deepEqual(
    ['modulus', 'seperator', 'modelDir', 'Missing', 'msising', 'mean', ''].map(near),
    ['modulo', 'separator', 'model_dir', 'missing', 'missing', undefined, undefined],
  );
});

test('JSON nested deeper than the stack is refused with a normal error', () => {
  const deep = JsonReader.parse('['.repeat(200_000) + ']'.repeat(200_000), 'deep.json');
  assert.throws(() => deep.field('x'), {
    code: 'INVALID_ARGUMENT',
    message: 'deep.json: expected an object, got something nested too deeply',
  });
});
