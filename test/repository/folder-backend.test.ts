import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';
import { channelEntryPath, layerPath, seqOf } from '../../lib/repository/layout.ts';
import { openRepository, Repository } from '../../lib/repository/repository.ts';
import { backendConformance } from './conformance.ts';
import { makeVersion, temporaryFolder } from './fixtures.ts';

backendConformance('folder', async (t) => new FolderBackend(temporaryFolder(t)));

test('a layer written to its place is published without another copy', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(folder);
  const publication = makeVersion(join(folder, 'ctr', 'layers', 't'), { version: '1' });
  const [first] = publication.layers;
  assert.equal(repository.layerTarget('ctr', 't', first?.contentId ?? ''), first?.path);
  await repository.publish(publication);
  assert.equal(readdirSync(join(folder, 'ctr', 'layers', 't')).length, 2);
});

test('a damaged layer is not published', async (t) => {
  const folder = temporaryFolder(t);
  const publication = makeVersion(join(folder, 'ctr', 'layers', 't'), { version: '1' });
  writeFileSync(publication.layers[1]?.path ?? '', new Uint8Array(1000));
  const repository = openRepository(folder);
  await assert.rejects(repository.publish(publication), {
    code: 'CORRUPT',
    message: /remove this/,
  });
  assert.deepEqual(await repository.versions('ctr'), []);
});

test('what is left of an unfinished publication with other content is named, not overwritten', async (t) => {
  const folder = temporaryFolder(t);
  const backend = new FolderBackend(folder);
  const content = new TextEncoder().encode('of a publisher that died');
  await backend.putIfAbsent('ctr/versions/1/model.onnx', content);
  const publish = new Repository(backend).publish(
    makeVersion(temporaryFolder(t), { version: '1' }),
  );
  await assert.rejects(publish, { code: 'CONFLICT', message: /did not finish or is under way/ });
});

test('what is no repository is refused in one sentence', (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'file'), '');
  assert.throws(() => openRepository(join(folder, 'file')), /is a file; a repository is a folder/);
  assert.throws(() => openRepository(join(folder, 'none')), { code: 'NOT_FOUND' });
  assert.throws(() => openRepository('s3://bucket/models'), { code: 'UNSUPPORTED' });
});

test('stray files and folders in a repository are not taken for its own', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(folder);
  await repository.publish(makeVersion(temporaryFolder(t), { version: '1' }));
  writeFileSync(join(folder, 'README'), 'notes');
  mkdirSync(join(folder, 'lost+found'));
  writeFileSync(join(folder, 'ctr', 'versions', 'notes.txt'), '');
  mkdirSync(join(folder, 'ctr', 'channels', 'stable'), { recursive: true });
  writeFileSync(join(folder, 'ctr', 'channels', 'stable', 'old.json'), '');
  assert.deepEqual(await repository.bundles(), ['ctr']);
  assert.deepEqual(await repository.versions('ctr'), ['1']);
  assert.equal((await repository.channel('ctr', 'stable')).pointer, undefined);
});

test('no name leaves the repository', () => {
  for (const name of ['..', '.', '', 'a/b', 'a\\b', '.hidden', 'x'.repeat(129), 'ü', 'a\0']) {
    assert.throws(() => layerPath(name, 't', '0'.repeat(32)), { code: 'INVALID_ARGUMENT' });
    assert.throws(() => layerPath('b', name, '0'.repeat(32)), { code: 'INVALID_ARGUMENT' });
    assert.throws(() => layerPath('b', 't', name), { code: 'INVALID_ARGUMENT' });
  }
  assert.equal(channelEntryPath('b', 'c', 42), 'b/channels/c/0000000042.json');
  assert.throws(() => channelEntryPath('b', 'c', 0), { code: 'INVALID_ARGUMENT' });
  assert.equal(seqOf('0000000042.json'), 42);
  for (const name of ['42.json', '0000000000.json', '0000000042.json.tmp', 'x']) {
    assert.equal(seqOf(name), undefined);
  }
});
