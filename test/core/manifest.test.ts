import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Manifest } from '../../lib/core/manifest.ts';
import { getTablesDigest } from '../../lib/core/manifest.ts';
import { makeVersion, temporaryFolder } from '../repository/support/fixtures.ts';

test('equal rows have equal digests under any version name; other rows differ', (t) => {
  const folder = temporaryFolder(t);
  const { manifest } = makeVersion(folder, { version: '1', table: 'a' });
  const same = makeVersion(folder, { version: '2', table: 'a', graph: 'another' }).manifest;
  assert.match(getTablesDigest(manifest), /^[0-9a-f]{16}$/);
  assert.equal(getTablesDigest(same), getTablesDigest(manifest));
  const table = manifest.tables[0]!;
  const others: Manifest[] = [
    makeVersion(folder, { version: '1', table: 'b' }).manifest,
    makeVersion(folder, { version: '1', table: 'a', shardNum: 3 }).manifest,
    { ...manifest, tables: [{ ...table, defaultRow: [0, 0, 0, 1] }] },
    { ...manifest, tables: [{ ...table, name: 'u' }] },
    { ...manifest, tables: [{ ...table, shards: [...table.shards].reverse() }] },
    { ...manifest, tables: [] },
  ];
  const digests = new Set([manifest, ...others].map(getTablesDigest));
  assert.equal(digests.size, others.length + 1);
});
