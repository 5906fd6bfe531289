/**
 * Protobuf's text format: every construct that configurations use, locations in errors, and random
 * text.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { parseTextFormat, type TextMessage } from '../../proto/text-format.ts';

const parse = (text: string): TextMessage => parseTextFormat(text, 'conf/a.prototxt');

test('reads every construct', () => {
  const message = parse(`
    # a comment; with: everything {
    port: 8010, services { name: "a" 'b'  # joined
      "c\\n\\x41\\101" workflows: 'one'; workflows: "two" }
    services: < name : "d" workflows: ["three", "four"] >
    flag: true other: false last: 1 last: 2
    type: Sequence; [ext.name]: -5 hex: 0x10 empty {} list: []
  `);
  assert.equal(message.integer('port', 1, 65_535), 8010);
  const [first, second] = message.messages('services');
  assert.ok(first && second);
  assert.equal(first.string('name'), 'abc\nAA');
  assert.deepEqual(
    [...first.strings('workflows'), ...second.strings('workflows')],
    ['one', 'two', 'three', 'four'],
  );
  assert.deepEqual([message.boolean('flag'), message.boolean('other')], [true, false]);
  assert.deepEqual([message.integer('last', 0, 9), message.enumValue('type')], [2, 'Sequence']);
  assert.equal(message.integer('[ext.name]', -9, 9), -5);
  assert.equal(message.integer('hex', 0, 99), 16);
  assert.deepEqual(message.messages('empty')[0]?.names, []);
  assert.equal(message.string('absent'), undefined);
  assert.equal(message.getFieldLocation('services'), 'conf/a.prototxt:5');
});

test('escaped bytes are UTF-8, and repeated values are read in order', () => {
  const message = parse(
    'a: "\\303\\251\\xe2\\x82\\xac\\u00e9" n: [1, -0x2] n: 3 b: [true, false] e: [A, 2]',
  );
  assert.equal(message.string('a'), 'é€é');
  assert.deepEqual(message.integers('n', -9, 9), [1, -2, 3]);
  assert.deepEqual(message.booleans('b'), [true, false]);
  assert.deepEqual(message.words('e'), ['A', '2']);
  assert.deepEqual([message.count('n'), message.has('n'), message.has('z')], [3, true, false]);
  assert.throws(() => message.failField('n', 'no'), /a\.prototxt:1:\d+: no/);
});

test('names and paths need no quotes', () => {
  const message = parse('path: ./conf/a-b_1.d file: model_toolkit.prototxt, up: ../x; e: 1e-5');
  assert.equal(message.string('path'), './conf/a-b_1.d');
  assert.equal(message.string('file'), 'model_toolkit.prototxt');
  assert.equal(message.string('up'), '../x');
  assert.throws(() => parse('a: ./b c'), /:1:9: c: expected ":" or "\{"/);
});

test('errors name file, line and column', () => {
  const cases: [string, RegExp][] = [
    ['port 8010', /a\.prototxt:1:6: port: expected ":" or "\{", got "8010"/],
    ['a {\n  b: 1\n', /:1:3: this \{ is never closed by \}/],
    ['a: 1\n  b: }', /:2:6: b: expected a value, got "\}"/],
    ['a: "x\ny"', /:1:4: a: expected a value/],
    ['a: [1 2]', /:1:7: a: expected , or \]/],
    ['}', /:1:1: expected a field's name, got "\}"/],
    ['a {'.repeat(100), /more than 64 deep/],
  ];
  for (const [text, message] of cases) assert.throws(() => parse(text), message);
  const message = parse('port: "x" name: y m: 1 flag: maybe');
  assert.throws(
    () => message.integer('port', 0, 9),
    /:1:1: port: expected an integer in 0\.\.9, got "x"/,
  );
  assert.throws(() => message.string('m'), /:1:19: m: expected a string in quotes/);
  assert.throws(() => message.messages('m'), /m: expected \{ … \}, got 1/);
  assert.throws(() => message.boolean('flag'), /expected true or false, got "maybe"/);
});

test('strings are read as they were written, and any text gives a message or one error', () => {
  fc.assert(
    fc.property(fc.array(fc.string()), (strings) => {
      const quoted = strings.map((text) => `s: ${JSON.stringify(text)}`);
      assert.deepEqual(parse(quoted.join('\n')).strings('s'), strings);
    }),
  );
  const pieces = fc.constantFrom(
    'a',
    ':',
    '{',
    '}',
    '"',
    "'",
    '[',
    ']',
    '<',
    '>',
    '#',
    '\n',
    '1',
    '\\',
    ',',
  );
  fc.assert(
    fc.property(fc.array(pieces, { maxLength: 60 }), (parts) => {
      try {
        parse(parts.join(' '));
      } catch (error) {
        assert.ok(error instanceof CubeError, String(error));
        assert.match(error.message, /^conf\/a\.prototxt:\d+:\d+: /);
      }
    }),
  );
});
