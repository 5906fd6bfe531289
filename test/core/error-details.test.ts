/** Details of errors, as every transport carries them. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  decodeErrorDetails,
  ERROR_DETAILS_CHARS_MAX,
  encodeErrorDetails,
  toErrorDetails,
} from '../../lib/core/error-details.ts';

test('details are decoded as they were encoded, in ASCII', () => {
  const details = {
    action: 'load',
    bundle: 'ads',
    version: '7',
    table: 'täglich',
    contentId: '0'.repeat(32),
    server: '10.0.0.1:8000',
    shard: 3,
    loadedVersions: ['5', '6'],
  };
  const text = encodeErrorDetails(details);
  assert.match(text, /^[\u0020-\u007e]+$/);
  assert.deepEqual(decodeErrorDetails(text), details);
  assert.equal(encodeErrorDetails({}), '');
  assert.deepEqual(decodeErrorDetails(''), {});
});

test('a list of versions that is too long is omitted', () => {
  const loadedVersions = Array.from({ length: 100 }, (_, i) => `${i}`.padStart(100, '0'));
  assert.deepEqual(decodeErrorDetails(encodeErrorDetails({ bundle: 'ads', loadedVersions })), {
    bundle: 'ads',
  });
});

test('unknown fields, wrong types and text that is not JSON are ignored', () => {
  assert.deepEqual(toErrorDetails({ bundle: 'ads', shard: 'x', table: 5, more: true }), {
    bundle: 'ads',
  });
  assert.deepEqual(toErrorDetails({ loadedVersions: ['1', 2] }), {});
  for (const text of ['{', 'null', '[]', `{"bundle":"${'a'.repeat(ERROR_DETAILS_CHARS_MAX)}"}`]) {
    assert.deepEqual(decodeErrorDetails(text), {});
  }
});
