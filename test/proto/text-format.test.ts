/** Protobuf's text format: every construct that configurations use, places in errors, and any text at all. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { parseTextFormat, type TextMessage } from '../../proto/text-format.ts';

const parse = (text: string): TextMessage => parseTextFormat(text, 'conf/a.prototxt');

it('reads every construct', () => {
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
  assert.equal(first!.string('name'), 'abc\nAA');
  assert.deepEqual(
    [...first!.strings('workflows'), ...second!.strings('workflows')],
    [...['one', 'two', 'three', 'four']],
  );
  assert.deepEqual([message.boolean('flag'), message.boolean('other')], [true, false]);
  assert.deepEqual([message.integer('last', 0, 9), message.word('type')], [2, 'Sequence']);
  assert.equal(message.integer('[ext.name]', -9, 9), -5);
  assert.equal(message.integer('hex', 0, 99), 16);
  assert.deepEqual(message.messages('empty')[0]!.names, []);
  assert.equal(message.string('absent'), undefined);
  assert.equal(message.placeOfField('services'), 'conf/a.prototxt:5');
});

it('says file, line and column of what is wrong', () => {
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
  assert.throws(() => message.string('name'), /:1:11: name: expected a string in quotes/);
  assert.throws(() => message.messages('m'), /m: expected \{ … \}, got 1/);
  assert.throws(() => message.boolean('flag'), /expected true or false, got "maybe"/);
});

it('any strings come back as they were written, and any text ends in a message or one error', () => {
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
