/** Tokens in files: when a replaced file is looked at. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { Credentials } from '../../lib/rpc/credentials.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

const OLD = 'the old token of this test';
const NEW = 'the new token of this test, which is longer';

test('a token file is not looked at for every call, and a replaced one is found', (t) => {
  let nowMs = performance.now();
  t.mock.method(performance, 'now', () => nowMs);
  const tokenFile = join(temporaryFolder(t), 'token');
  writeFileSync(tokenFile, OLD);
  const credentials = new Credentials({ tokenFile });
  writeFileSync(tokenFile, NEW);
  assert.equal(credentials.token, OLD);
  nowMs += 250;
  assert.equal(credentials.token, NEW);
  writeFileSync(tokenFile, 'short');
  nowMs += 250;
  assert.equal(credentials.token, NEW, 'an invalid file changes nothing');
});
