/** Parsing in slices gives what JSON.parse gives, and fails where JSON.parse fails. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader, quoteLongIntegers } from '../../lib/core/json.ts';
import { parseJsonInSlices, runAtOnce } from '../../lib/core/json-slices.ts';
import { parseNonFiniteJson } from '../../lib/core/non-finite-json.ts';

/** More than one slice. */
const PADDING = 'p'.repeat(70_000);

function getFailure(action: () => unknown): CubeError {
  try {
    action();
  } catch (error) {
    return CubeError.from(error);
  }
  return assert.fail('it did not fail');
}

test('large documents are parsed as JSON.parse does', () => {
  const value = fc.record({
    items: fc.array(fc.jsonValue({ maxDepth: 4 }), { minLength: 1, maxLength: 30 }),
    copies: fc.integer({ min: 1, max: 3_000 }),
    indent: fc.constantFrom(undefined, 1, '\t'),
    name: fc.string(),
  });
  fc.assert(
    fc.property(value, ({ items, copies, indent, name }) => {
      const rows = Array.from({ length: copies }, (_, i) => items[i % items.length]);
      const document = { [name]: rows, ['__proto__']: items, last: [[rows], PADDING] };
      const text = JSON.stringify(document, undefined, indent);
      assert.deepEqual(runAtOnce(parseJsonInSlices(text, 'body')), JSON.parse(text));
    }),
    { numRuns: 60 },
  );
});

test('a large document takes many slices, each of a limited length', () => {
  const rows = Array.from({ length: 20_000 }, (_, i) => ({ dense: [i, null], text: 'a,]}"\\' }));
  const text = JSON.stringify({ rows });
  let slices = 0;
  let longest = 0;
  const parse = (slice: string): unknown => {
    slices++;
    longest = Math.max(longest, slice.length);
    return JSON.parse(slice);
  };
  assert.deepEqual(runAtOnce(parseJsonInSlices(text, 'body', parse)), { rows });
  assert.ok(slices >= text.length / 65_536, `${slices} slices`);
  assert.ok(longest <= 65_536 + 2, `${longest} characters`);
  const steps = [...parseJsonInSlices(text, 'body')];
  assert.ok(steps.length >= text.length / 65_536);
});

test('invalid documents fail wherever the fault is', () => {
  const rows = '{"a":[1,"x"]},'.repeat(10_000);
  const faults = ['1 2', '}', ']', '', '"', '{', '[', ',', '1,', 'x', '{"a"}', '{"a":1,}', 'tru'];
  const frames = [
    (fault: string) => `[${rows}${fault}]`,
    (fault: string) => `{"rows":[${rows}${fault}]}`,
    (fault: string) => `{"rows":[${rows}1]${fault}}`,
    (fault: string) => `{"rows":[${rows}1]}${fault}`,
    (fault: string) => `{${fault} "rows":[${rows}1]}`,
  ];
  for (const frame of frames) {
    for (const fault of faults) {
      const text = frame(fault);
      const isInvalid = ((): boolean => {
        try {
          JSON.parse(text);
          return false;
        } catch {
          return true;
        }
      })();
      const parse = (): unknown => runAtOnce(parseJsonInSlices(text, 'body'));
      if (isInvalid) {
        const { code, message } = getFailure(parse);
        assert.equal(code, 'INVALID_ARGUMENT', fault);
        assert.match(message, /^body: not JSON: from character \d+ on: /);
        assert.ok(message.length < 250, message);
      } else assert.deepEqual(parse(), JSON.parse(text), fault);
    }
  }
});

test('deeply nested documents neither overflow the stack nor take long', () => {
  for (const text of ['['.repeat(200_000), `${'['.repeat(100_000)}${']'.repeat(100_000)}1`]) {
    assert.equal(
      getFailure(() => runAtOnce(parseJsonInSlices(text, 'body'))).code,
      'INVALID_ARGUMENT',
    );
  }
});

test('long integers and NaN of every slice stay exact', () => {
  const ids = Array.from({ length: 10_000 }, (_, i) => (2n ** 63n - BigInt(i)).toString());
  const text = `{"ids":[${ids.join(',')}],"missing":[${'NaN,'.repeat(50_000)}1]}`;
  const parse = (slice: string): unknown => parseNonFiniteJson(quoteLongIntegers(slice));
  const json = runAtOnce(JsonReader.parseInSlices(text, 'body', parse));
  assert.deepEqual(json.field('ids').list({ max: 10_000 }), ids);
  assert.deepEqual(json.field('missing').list().filter(Number.isNaN).length, 50_000);
});

test('strings with escaped quotes and backslashes end where JSON.parse ends them', () => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom('\\', '"', '1', 'x'), { maxLength: 12 }), (pieces) => {
      const long = '9'.repeat(18);
      const text = JSON.stringify([pieces.join(''), long]);
      // The digits of a string stay as they are; those of a number are quoted.
      assert.equal(quoteLongIntegers(text), text);
      const [first] = text.split(`,"${long}"`);
      assert.equal(quoteLongIntegers(`${first},${long}]`), text);
    }),
  );
  assert.equal(quoteLongIntegers('["open'), '["open');
});
