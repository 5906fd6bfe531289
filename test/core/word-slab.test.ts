import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocateWords } from '../../lib/core/word-slab.ts';

test('words of a slab are zeroed, and no other array has them', () => {
  const arrays = Array.from({ length: 300 }, (_, i) => {
    const words = allocateWords(i);
    assert.equal(words.length, i);
    assert.ok(words.every((word) => word === 0));
    return words.fill(i);
  });
  arrays.forEach((words, i) => {
    assert.ok(words.every((word) => word === i));
  });
});

test('a long array has a buffer of its own', () => {
  assert.equal(allocateWords(1_000).buffer.byteLength, 4_000);
});
