import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import {
  formatManifest,
  formatOlderManifest,
  getTablesDigest,
  type Manifest,
  parseManifest,
} from '../../lib/core/manifest.ts';
import { manifestPath } from '../../lib/repository/layout.ts';
import { openRepository } from '../../lib/repository/repository.ts';
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

test('a manifest with any changed byte is refused or means the same', (t) => {
  const { manifest } = makeVersion(temporaryFolder(t), { version: '1' });
  const intact = Buffer.from(formatManifest(manifest));
  let refused = 0;
  for (let at = 0; at < intact.length; at++) {
    for (const bit of [1, 4, 32]) {
      const damaged = Buffer.from(intact);
      damaged[at] = (damaged[at] ?? 0) ^ bit;
      try {
        assert.deepEqual(parseManifest(damaged.toString('latin1'), 'm'), manifest, `byte ${at}`);
      } catch (error) {
        assert.ok(error instanceof CubeError, String(error));
        refused++;
      }
    }
  }
  assert.ok(refused > intact.length);
});

test('a manifest without a checksum is read, and known when published again', async (t) => {
  const root = join(temporaryFolder(t), 'repository');
  const publication = makeVersion(temporaryFolder(t), { version: '1' });
  const { manifest } = publication;
  const older = formatOlderManifest(manifest);
  assert.deepEqual(parseManifest(older, 'm'), manifest);
  const repository = openRepository(root, { create: true });
  await repository.publish(publication);
  writeFileSync(join(root, manifestPath('ctr', '1')), older);
  const again = await repository.publish(publication);
  assert.deepEqual(again, { published: false, restored: 0 });
  assert.equal(await repository.readManifestText('ctr', '1'), older);
  const changed = { ...manifest, files: [] };
  writeFileSync(join(root, manifestPath('ctr', '1')), formatOlderManifest(changed));
  await assert.rejects(repository.publish(publication), { code: 'CONFLICT' });
});
