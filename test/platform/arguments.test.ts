import assert from 'node:assert/strict';
import { test } from 'node:test';
import { toArguments, toFlag } from '../../lib/platform/arguments.ts';

test('options become flags with values', () => {
  assert.deepEqual(toArguments({ repository: '/r', retireGraceMs: 200 }), [
    '--repository',
    '/r',
    '--retire-grace-ms',
    '200',
  ]);
  assert.equal(toFlag('tlsCa'), '--tls-ca');
});

test('a list repeats its flag, true stands alone, false and undefined are left out', () => {
  const options = { server: ['a:1', 'b:2'], json: true, wait: false, adminPort: undefined };
  assert.deepEqual(toArguments(options), ['--server', 'a:1', '--server', 'b:2', '--json']);
  assert.deepEqual(toArguments({ server: [] }), []);
});
