/** A version in a folder: which changes cause a reload, and which content is rejected. */
import assert from 'node:assert/strict';
import { rmSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { formatManifest } from '../../lib/core/manifest.ts';
import { Repository } from '../../lib/repository/repository.ts';
import type { Reload } from '../../serving/config/settings.ts';
import { FolderSource, VersionFolderBackend } from '../../serving/models/folder-source.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { BUNDLE, exportBundle, ToyBundle } from './support/toy-bundle.ts';

function writeVersion(folder: string, version: string, seconds: number, dim = 4): void {
  const tables = dim === 4 ? [] : [{ ...TABLE, dim }];
  const hash = { scheme: 'raw', seed: 0n, modulo: 0n } as const;
  const manifest = { bundle: 'ads', version, files: [], hash, slots: [], tables };
  const path = join(folder, 'manifest.json');
  writeFileSync(path, formatManifest(manifest));
  utimesSync(path, seconds, seconds);
}

const LAYER = {
  contentId: 'a'.repeat(32),
  kind: 'base',
  bytes: 1,
  sha256: 'b'.repeat(64),
  rows: 1,
};
const TABLE = {
  name: 't',
  dtype: 'f32' as const,
  dim: 4,
  rows: 1,
  defaultRow: [],
  shardNum: 1,
  shards: [[{ ...LAYER, kind: 'base' as const }]],
};

async function versionsSeen(folder: string, reload: Reload): Promise<(string | undefined)[]> {
  const source = new FolderSource({ folder, reload });
  const seen: (string | undefined)[] = [];
  const look = async (): Promise<void> => {
    seen.push((await source.read())?.target);
  };
  await look();
  writeVersion(folder, '1', 1_000);
  await look();
  writeVersion(folder, '2', 2_000);
  await look();
  // An older time, as after restoring a backup.
  writeVersion(folder, '3', 1_500);
  await look();
  // The same time with different content.
  writeVersion(folder, '4', 1_500);
  await look();
  rmSync(join(folder, 'manifest.json'));
  await look();
  return seen;
}

test('a folder is reloaded according to its reload setting', async (t) => {
  const expected: Record<Reload, (string | undefined)[]> = {
    timestamp_ne: [undefined, '1', '2', '3', '3', '3'],
    timestamp_gt: [undefined, '1', '2', '2', '2', '2'],
    md5sum: [undefined, '1', '2', '3', '4', '4'],
    none: [undefined, '1', '1', '1', '1', '1'],
  };
  for (const [reload, versions] of Object.entries(expected)) {
    assert.deepEqual(await versionsSeen(temporaryFolder(t), reload as Reload), versions, reload);
  }
});

test('the version stays while the manifest is unreadable or keeps its version', async (t) => {
  const folder = temporaryFolder(t);
  const source = new FolderSource({ folder, reload: 'timestamp_ne' });
  assert.match(await source.explainMissing(), /has no manifest\.json/);
  assert.throws(() => source.bundle, /no manifest has been read yet/);
  writeVersion(folder, '1', 1_000);
  assert.equal((await source.read())?.target, '1');
  writeFileSync(join(folder, 'manifest.json'), '{"format": 1, "bun');
  for (let poll = 0; poll < 2; poll++)
    await assert.rejects(source.read(), /manifest\.json: not JSON/);
  writeVersion(folder, '1', 3_000, 8);
  const changed = await source.read();
  assert.equal(changed?.target, '1');
  assert.match(changed?.problem ?? '', /content changed, but the version is still 1/);
  writeVersion(folder, '2', 4_000);
  assert.deepEqual([(await source.read())?.target, source.bundle], ['2', 'ads']);
});

test('is a read-only repository of one version, for every place of its layers', async (t) => {
  const toy = new ToyBundle({ version: '1', seed: 3 });
  for (const layers of ['layers/deep', 'deep', '.', '../../layers/deep']) {
    const folder = join(temporaryFolder(t), 'versions', '1');
    exportBundle(toy, folder, layers);
    const repository = new Repository(new VersionFolderBackend(folder));
    const manifest = await repository.readManifest(BUNDLE, '1');
    assert.ok((await repository.readVersionFile(BUNDLE, '1', 'model.onnx')).length > 0);
    for (const table of manifest.tables) {
      for (const [layer] of table.shards) {
        assert.ok(await repository.hasLayer(BUNDLE, table.name, layer!), layers);
      }
    }
    await assert.rejects(
      repository.activate(BUNDLE, 'stable', { version: '1', by: 'test', reason: 'test' }),
      /holds one version and is read-only/,
    );
    writeFileSync(join(folder, 'model.onnx'), 'cut');
    await assert.rejects(
      repository.readVersionFile(BUNDLE, '1', 'model.onnx'),
      /but the manifest says/,
    );
    await assert.rejects(repository.readManifest(BUNDLE, '2'), { name: 'CubeError' });
  }
});
