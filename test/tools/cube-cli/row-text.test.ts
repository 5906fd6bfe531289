/** Numbers of rows as text: the shortest that is the same f32. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { formatF32 } from '../../../tools/cube-cli/row-text.ts';

test('a number has at most nine digits, and is the same f32 when it is read', () => {
  fc.assert(
    fc.property(fc.float({ noNaN: true, noDefaultInfinity: true }), (value) => {
      const text = formatF32(value);
      assert.ok(Object.is(Math.fround(Number(text)), value === 0 ? 0 : value), text);
      const [digits = ''] = text.replace('-', '').split('e');
      assert.ok(digits.replace('.', '').replace(/^0+|0+$/g, '').length <= 9, text);
    }),
    { numRuns: 2_000, examples: [[0.015559914521872997]] },
  );
});
