/** Values that are read from files again when they change. */
import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { readText } from '../../lib/platform/files.ts';
import { RereadValue } from '../../lib/platform/reread-value.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

test('changed files are read at most once per interval; the last valid value stays', (t) => {
  const folder = temporaryFolder(t);
  const paths = ['a', 'b'].map((name) => join(folder, name));
  const [first = '', second = ''] = paths;
  const events: string[] = [];
  let nowMs = 0;
  const open = (): RereadValue<string> =>
    new RereadValue({
      paths,
      read: () => {
        events.push('read');
        return `${readText(first, 100)} ${readText(second, 100)}`;
      },
      intervalMs: 10,
      clock: { nowMs: () => nowMs },
      onChange: (value) => events.push(`now ${value}`),
      onInvalid: ({ code }) => events.push(code),
    });
  assert.throws(open, { code: 'NOT_FOUND' });
  for (const path of paths) writeFileSync(path, '1');
  const value = open();
  events.length = 0;
  writeFileSync(second, '22');
  assert.equal(value.current, '1 1');
  nowMs = 10;
  assert.equal(value.current, '1 22');
  rmSync(first);
  assert.equal(value.current, '1 22');
  nowMs = 20;
  assert.equal(value.current, '1 22');
  nowMs = 30;
  assert.equal(value.current, '1 22', 'a missing file is tried once');
  writeFileSync(first, '333');
  nowMs = 40;
  assert.equal(value.current, '333 22');
  nowMs = 50;
  assert.equal(value.current, '333 22');
  const expected = ['read', 'now 1 22', 'read', 'NOT_FOUND', 'read', 'now 333 22'];
  assert.deepEqual(events, expected);
});
