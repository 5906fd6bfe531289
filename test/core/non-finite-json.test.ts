/** JSON as Python's json writes it: NaN, Infinity and -Infinity besides JSON's own numbers. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { parseNonFiniteJson } from '../../lib/core/non-finite-json.ts';

/** Formats a value as Python does: json.dumps(value). */
function formatAsPython(value: unknown): string {
  if (typeof value === 'number' && !Number.isFinite(value)) return String(value);
  if (Array.isArray(value)) return `[${value.map(formatAsPython).join(', ')}]`;
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  const fields = Object.entries(value).map(
    ([name, inner]) => `${JSON.stringify(name)}: ${formatAsPython(inner)}`,
  );
  return `{${fields.join(', ')}}`;
}

test('numbers that are not finite are read wherever a value may be, and never in strings', () => {
  const number = fc.oneof(fc.double(), fc.constantFrom(Number.NaN, Number.POSITIVE_INFINITY));
  const text = fc.oneof(fc.string(), fc.constantFrom('NaN', '"NaN', '\\', 'Infinity', '-Infinity'));
  const { tree } = fc.letrec((tie) => ({
    tree: fc.oneof(
      { maxDepth: 4 },
      number,
      text,
      fc.constant(null),
      fc.array(tie('tree')),
      fc.dictionary(text, tie('tree')),
    ),
  }));
  fc.assert(
    fc.property(tree, (value) => {
      const read = parseNonFiniteJson(formatAsPython(value));
      assert.equal(formatAsPython(read), formatAsPython(value));
    }),
  );
});

test('values may be nested deeply, and other invalid text is refused', () => {
  const depth = 100_000;
  const deep = `${'['.repeat(depth)}NaN${']'.repeat(depth)}`;
  assert.doesNotThrow(() => parseNonFiniteJson(deep));
  for (const text of ['NaNa', '[-NaN]', 'Nan', '[Inf]', '{"a":NaN', 'NaN NaN', '[1,,NaN]', '']) {
    assert.throws(() => parseNonFiniteJson(text), SyntaxError, text);
  }
});

test('errors show the text of the caller', () => {
  const explain = (parse: (text: string) => unknown, text: string): string => {
    try {
      return `accepted ${JSON.stringify(parse(text))}`;
    } catch (error) {
      return (error as Error).message;
    }
  };
  for (const text of ['{"a": NaN, "b" 1}', '[-NaN]', '[NaN, 1,]', '[Infinity, x]']) {
    assert.equal(explain(parseNonFiniteJson, text), explain(JSON.parse, text));
  }
});
