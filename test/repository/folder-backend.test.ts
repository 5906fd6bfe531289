import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';
import {
  channelEntryPath,
  isManifestSignature,
  layerPath,
  manifestSignaturePath,
  parseSeq,
} from '../../lib/repository/layout.ts';
import { openRepository, Repository } from '../../lib/repository/repository.ts';
import { backendConformance } from './support/conformance.ts';
import { makeVersion, temporaryFolder } from './support/fixtures.ts';

backendConformance('folder', async (t) => new FolderBackend(temporaryFolder(t)));

test('a layer written to its place is published without another copy', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(folder);
  const publication = makeVersion(join(folder, 'ctr', 'layers', 't'), { version: '1' });
  const [first] = publication.layers;
  assert.equal(repository.layerWritePath('ctr', 't', first?.contentId ?? ''), first?.path);
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
  assert.deepEqual(await repository.listVersions('ctr'), []);
});

test('files of an unfinished publication are reported, not overwritten', async (t) => {
  const folder = temporaryFolder(t);
  const backend = new FolderBackend(folder);
  const content = new TextEncoder().encode('of a publisher that died');
  await backend.putIfAbsent('ctr/versions/1/model.onnx', content);
  const publish = new Repository(backend).publish(
    makeVersion(temporaryFolder(t), { version: '1' }),
  );
  await assert.rejects(publish, {
    code: 'CONFLICT',
    message: /unfinished or concurrent publication/,
  });
});

test('what is no repository is refused in one sentence', (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'file'), '');
  assert.throws(() => openRepository(join(folder, 'file')), /is a file; a repository is a folder/);
  assert.throws(() => openRepository(join(folder, 'none')), { code: 'NOT_FOUND' });
  assert.throws(() => openRepository('ftp://host/models'), { code: 'UNSUPPORTED' });
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
  assert.deepEqual(await repository.listBundles(), ['ctr']);
  assert.deepEqual(await repository.listVersions('ctr'), ['1']);
  assert.equal((await repository.readChannel('ctr', 'stable')).pointer, undefined);
});

const by = { by: 'test', reason: 'test' };

test('a reader detects a recreated log and a rewritten newest entry', async (t) => {
  const folder = temporaryFolder(t);
  const reader = openRepository(folder);
  const writer = () => openRepository(folder);
  for (const version of ['1', '2', '3']) {
    await writer().publish(makeVersion(temporaryFolder(t), { version }));
  }
  for (const version of ['1', '2']) await writer().activate('ctr', 'stable', { version, ...by });
  assert.equal((await reader.readChannel('ctr', 'stable')).pointer?.version, '2');
  rmSync(join(folder, channelEntryPath('ctr', 'stable', 2)));
  assert.equal((await reader.readChannel('ctr', 'stable')).pointer?.version, '1');
  await writer().activate('ctr', 'stable', { version: '3', ...by });
  assert.equal((await reader.readChannel('ctr', 'stable')).pointer?.version, '3');
  rmSync(join(folder, 'ctr', 'channels'), { recursive: true });
  assert.equal((await reader.readChannel('ctr', 'stable')).pointer, undefined);
  for (const version of ['2', '1', '3']) {
    await writer().activate('ctr', 'stable', { version, ...by });
  }
  const { history } = await reader.readChannel('ctr', 'stable');
  assert.deepEqual(
    history.map(({ version }) => version),
    ['2', '1', '3'],
  );
});

test('no rollback to a version that was removed: nothing is quarantined for it', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(folder);
  for (const version of ['1', '2']) {
    await repository.publish(makeVersion(temporaryFolder(t), { version }));
    await repository.activate('ctr', 'stable', { version, ...by });
  }
  rmSync(join(folder, 'ctr', 'versions', '1'), { recursive: true });
  await assert.rejects(repository.rollback('ctr', 'stable', 'ann', 'bad'), {
    code: 'NOT_FOUND',
    message: /has no version 1 of ctr \(it has: 2\)/,
  });
  assert.equal((await repository.listQuarantined('ctr')).size, 0);
});

test('what killed writers left goes after an hour; what is being written stays', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(folder);
  await repository.publish(makeVersion(temporaryFolder(t), { version: '1' }));
  await repository.activate('ctr', 'stable', { version: '1', ...by });
  const places = ['layers/t', 'versions/1', 'channels/stable'].map((p) => join(folder, 'ctr', p));
  const anHourAgo = Date.now() / 1000 - 3700;
  for (const place of places) {
    for (const name of ['.old.0123456789ab.tmp', '.new.0123456789ab.tmp', 'not-ours.tmp']) {
      writeFileSync(join(place, name), 'half');
      if (!name.startsWith('.new')) utimesSync(join(place, name), anHourAgo, anHourAgo);
    }
  }
  await repository.removeLeftovers('ctr');
  for (const place of places) {
    const left = readdirSync(place).filter((name) => name.endsWith('.tmp'));
    assert.deepEqual(left, ['.new.0123456789ab.tmp', 'not-ours.tmp']);
  }
});

test('no name leaves the repository', () => {
  for (const name of ['..', '.', '', 'a/b', 'a\\b', '.hidden', 'x'.repeat(129), 'ü', 'a\0']) {
    assert.throws(() => layerPath(name, 't', '0'.repeat(32)), { code: 'INVALID_ARGUMENT' });
    assert.throws(() => layerPath('b', name, '0'.repeat(32)), { code: 'INVALID_ARGUMENT' });
    assert.throws(() => layerPath('b', 't', name), { code: 'INVALID_ARGUMENT' });
  }
  assert.equal(channelEntryPath('b', 'c', 42), 'b/channels/c/0000000042.json');
  assert.throws(() => channelEntryPath('b', 'c', 0), { code: 'INVALID_ARGUMENT' });
  const signature = manifestSignaturePath('b', '1', '0123456789abcdef').slice(
    'b/versions/1/'.length,
  );
  assert.ok(isManifestSignature(signature) && !isManifestSignature('manifest.json'));
  assert.equal(parseSeq('0000000042.json'), 42);
  for (const name of ['42.json', '0000000000.json', '0000000042.json.tmp', 'x']) {
    assert.equal(parseSeq(name), undefined);
  }
});

test('objects of the same time have the same age, in any number of folders', async (t) => {
  const folder = temporaryFolder(t);
  const time = new Date(Date.now() - 60_000);
  for (let i = 0; i < 2_000; i++) {
    const version = join(folder, 'ctr', 'versions', String(i));
    mkdirSync(version, { recursive: true });
    writeFileSync(join(version, 'manifest.json'), '');
    utimesSync(join(version, 'manifest.json'), time, time);
  }
  const objects = await new FolderBackend(folder).deleter.listObjects('ctr/versions');
  assert.equal(objects.length, 2_000);
  assert.equal(new Set(objects.map(({ ageMs }) => ageMs)).size, 1);
});
