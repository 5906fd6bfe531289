/** What garbage collection removes, what it never removes, and publishers that run beside it. */
import assert from 'node:assert/strict';
import { statSync, utimesSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import type { Backend } from '../../lib/repository/backend.ts';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';
import { HttpBackend } from '../../lib/repository/http-backend.ts';
import { collectionMarkPath, intentPath } from '../../lib/repository/layout.ts';
import { Repository } from '../../lib/repository/repository.ts';
import { selectRetainedVersions } from '../../lib/repository/retention.ts';
import { S3Backend } from '../../lib/repository/s3-backend.ts';
import { FakeS3Server } from './support/fake-s3-server.ts';
import { makeVersion, requireCompleteVersions, temporaryFolder } from './support/fixtures.ts';

process.env['AWS_ACCESS_KEY_ID'] = 'test';
process.env['AWS_SECRET_ACCESS_KEY'] = 'test';

const by = { by: 'test', reason: 'test' };
/** Everything that nobody needs goes at once. */
const strict = { keepVersions: 1, keepMs: -1 };
const run = { by: 'test', dryRun: false };

async function publish(t: TestContext, backend: Backend, version: string, table = version) {
  const publication = makeVersion(temporaryFolder(t), { version, table });
  await new Repository(backend).publish(publication);
  return publication;
}

const requireWhole = (t: TestContext, backend: Backend): Promise<string[]> =>
  requireCompleteVersions(t, new Repository(backend));

const stores: Record<string, (t: TestContext) => Promise<Backend>> = {
  folder: async (t) => new FolderBackend(temporaryFolder(t)),
  s3: async (t) => new S3Backend((await FakeS3Server.start(t)).url),
};

for (const [name, open] of Object.entries(stores)) {
  test(`${name}: what channels need stays with its layers, the rest goes`, async (t) => {
    const backend = await open(t);
    const repository = new Repository(backend);
    // Version 2 shares the table of 3; 4 is quarantined, 5 newest.
    const tables = { '1': '1', '2': 'shared', '3': 'shared', '4': '4', '5': '5' };
    for (const [version, table] of Object.entries(tables))
      await publish(t, backend, version, table);
    for (const version of ['1', '2', '3', '4']) {
      await repository.activate('ctr', 'stable', { version, ...by });
    }
    await repository.rollback('ctr', 'stable', 'test', 'bad');
    await repository.activate('ctr', 'canary', { version: '3', ...by });
    await repository.rolloutLog('ctr', '1').append(0, { state: 'seen', holder: 'x', reason: 'x' });
    const dry = await repository.collectGarbage('ctr', strict, { by: 'test', dryRun: true });
    assert.deepEqual(dry.versions, ['4']);
    assert.equal((await requireWhole(t, backend)).length, 5);
    assert.deepEqual(await repository.collectGarbage('ctr', strict, run), dry);
    assert.deepEqual(await requireWhole(t, backend), ['1', '2', '3', '5']);
    const left = (await backend.deleter?.listObjects('ctr')) ?? [];
    assert.equal(left.filter(({ path }) => path.startsWith('ctr/layers/')).length, 6);
    assert.deepEqual(
      left.filter(({ path }) => /versions\/4|ctr\/gc/.test(path)),
      [],
    );
    assert.deepEqual([...(await repository.listQuarantined('ctr'))], ['4']);
    assert.equal((await repository.collectGarbage('ctr', strict, run)).objects, 0);
  });

  test(`${name}: recent versions and layers are kept`, async (t) => {
    const backend = await open(t);
    await backend.putIfAbsent(`ctr/layers/t/${'0'.repeat(32)}.cube`, new Uint8Array(10));
    for (const version of ['1', '2']) await publish(t, backend, version);
    const policy = { keepVersions: 1, keepMs: 3_600_000 };
    const report = await new Repository(backend).collectGarbage('ctr', policy, run);
    assert.deepEqual([report.objects, report.versions], [0, []]);
    assert.equal(await backend.size(`ctr/layers/t/${'0'.repeat(32)}.cube`), 10);
  });

  test(`${name}: a publisher protects old layers from a concurrent collection`, async (t) => {
    const backend = await open(t);
    const repository = new Repository(backend);
    await publish(t, backend, 'old', 'x');
    await publish(t, backend, 'new', 'y');
    // Publishes the layers of `old` again, stopped before its manifest while the collection runs.
    let collected: Promise<unknown> | undefined;
    const slow = new Proxy(backend, {
      get(target, member: keyof Backend) {
        const value = target[member];
        if (typeof value !== 'function') return value;
        if (member !== 'putIfAbsent') return value.bind(target);
        return async (path: string, content: Uint8Array): Promise<boolean> => {
          if (path.endsWith('/model.onnx')) {
            collected = repository.collectGarbage('ctr', strict, run);
            await collected;
          }
          return target.putIfAbsent(path, content);
        };
      },
    });
    await publish(t, slow, 'again', 'x');
    await collected;
    assert.deepEqual(await requireWhole(t, backend), ['again', 'new']);
  });

  test(`${name}: a publisher waits for a collection that began before it`, async (t) => {
    const backend = await open(t);
    await backend.putIfAbsent(collectionMarkPath('ctr'), new Uint8Array(1));
    const published = publish(t, backend, '1');
    while ((await backend.list('ctr/publishing')).length === 0) await new Promise(setImmediate);
    assert.deepEqual(await new Repository(backend).listVersions('ctr'), []);
    await assert.rejects(new Repository(backend).collectGarbage('ctr', strict, run), {
      code: 'CONFLICT',
      message: /another garbage collection of ctr is running/,
    });
    await backend.deleter?.remove(collectionMarkPath('ctr'));
    await published;
    assert.deepEqual(await requireWhole(t, backend), ['1']);
  });
}

test('an unreadable manifest keeps only what it may name', async (t) => {
  const folder = temporaryFolder(t);
  const backend = new FolderBackend(folder);
  const repository = new Repository(backend);
  const countLayers = async (): Promise<number> =>
    (await backend.deleter.listObjects('ctr/layers')).length;
  const versions = ['1', '2', '3', '4'];
  for (const version of versions) await publish(t, backend, version);
  await repository.activate('ctr', 'stable', { version: '4', ...by });
  // Times as if each version had been published a day after the one before.
  for (const [day, version] of versions.entries()) {
    const at = Date.now() / 1_000 - (10 - day) * 86_400;
    const { tables } = await repository.readManifest('ctr', version);
    const layers = tables.flatMap(({ name, shards }) =>
      shards.flat().map(({ contentId }) => `ctr/layers/${name}/${contentId}.cube`),
    );
    const manifest = `ctr/versions/${version}/manifest.json`;
    for (const path of [...layers, manifest]) utimesSync(join(folder, path), at, at);
  }
  const damaged = join(folder, 'ctr/versions/2/manifest.json');
  const { mtimeMs } = statSync(damaged);
  writeFileSync(damaged, '{');
  utimesSync(damaged, mtimeMs / 1_000, mtimeMs / 1_000);
  const each = (await countLayers()) / 4;
  // A rollout in progress keeps version 2, which cannot be read.
  await repository.rolloutLog('ctr', '2').append(0, { state: 'seen', holder: 'x', reason: 'x' });
  const dry = await repository.collectGarbage('ctr', strict, { by: 'test', dryRun: true });
  const report = await repository.collectGarbage('ctr', strict, run);
  assert.deepEqual(report, { ...dry, unreadable: report.unreadable });
  assert.deepEqual(report.versions, ['1', '3']);
  assert.deepEqual(
    report.unreadable.map(({ version }) => version),
    ['2'],
  );
  // Layers of 1 and 2 were written before the manifest of 2; those of 3 were not.
  assert.equal(report.keptForUnreadable.layers, 2 * each);
  assert.equal(await countLayers(), 3 * each);

  await repository.quarantine('ctr', '2', by);
  const after = await repository.collectGarbage('ctr', strict, run);
  assert.deepEqual(after.unreadable, []);
  assert.equal(await countLayers(), each);
  await repository.readManifest('ctr', '4');
});

test('a collection killed at any removal is finished by the next one', async (t) => {
  for (let survived = 0; survived < 8; survived++) {
    const backend = new FolderBackend(temporaryFolder(t));
    for (const version of ['1', '2', '3']) await publish(t, backend, version);
    let left = survived;
    const remove = backend.deleter.remove;
    const dying = Object.assign(Object.create(backend) as FolderBackend, {
      deleter: {
        listObjects: backend.deleter.listObjects,
        remove: async (path: string) => {
          if (left-- <= 0) throw new Error('killed');
          await remove(path);
        },
      },
    });
    await new Repository(dying).collectGarbage('ctr', strict, run).catch(() => undefined);
    await requireWhole(t, backend);
    await remove(collectionMarkPath('ctr'));
    await new Repository(backend).collectGarbage('ctr', strict, run);
    assert.deepEqual(await requireWhole(t, backend), ['3']);
    const layers = await backend.deleter.listObjects('ctr/layers');
    assert.equal(layers.length, 2);
  }
});

test('a version that is activated while it is collected is restored', async (t) => {
  const backend = new FolderBackend(temporaryFolder(t));
  const repository = new Repository(backend);
  for (const version of ['1', '2', '3']) await publish(t, backend, version);
  const { listObjects, remove } = backend.deleter;
  const meanwhile = Object.assign(Object.create(backend) as FolderBackend, {
    deleter: {
      listObjects,
      remove: async (path: string) => {
        if (path === 'ctr/versions/1/manifest.json') {
          await repository.activate('ctr', 'stable', { version: '1', ...by });
        }
        await remove(path);
      },
    },
  });
  await new Repository(meanwhile).collectGarbage('ctr', strict, run);
  assert.equal((await repository.readChannel('ctr', 'stable')).pointer?.version, '1');
  assert.deepEqual(await requireWhole(t, backend), ['1', '3']);
});

test('activating a version that was just collected fails and the channel goes back', async (t) => {
  const backend = new FolderBackend(temporaryFolder(t));
  const repository = new Repository(backend);
  for (const version of ['1', '2', '3']) await publish(t, backend, version);
  await repository.activate('ctr', 'stable', { version: '3', ...by });
  let isCollected = false;
  const slow = Object.assign(Object.create(backend) as FolderBackend, {
    putIfAbsent: async (path: string, bytes: Uint8Array) => {
      if (!isCollected) await repository.collectGarbage('ctr', strict, run);
      isCollected = true;
      return backend.putIfAbsent(path, bytes);
    },
  });
  const late = new Repository(slow).activate('ctr', 'stable', { version: '1', ...by });
  await assert.rejects(late, { code: 'NOT_FOUND', message: /at the same time/ });
  const { pointer, history } = await repository.readChannel('ctr', 'stable');
  assert.deepEqual([pointer?.version, history.length], ['3', 3]);
});

test('nothing is collected where nothing can be removed', async () => {
  const repository = new Repository(new HttpBackend('http://127.0.0.1:1'));
  await assert.rejects(repository.collectGarbage('ctr', strict, run), { code: 'UNSUPPORTED' });
});

test('what a killed publisher told is forgotten after a week', async (t) => {
  const store = await FakeS3Server.start(t);
  const backend = new S3Backend(store.url);
  const { manifest } = await publish(t, backend, '1');
  const path = intentPath('ctr', 'attempt');
  const text = await new Repository(backend).readManifestText('ctr', '1');
  await backend.putIfAbsent(path, new TextEncoder().encode(text));
  const repository = new Repository(backend);
  await repository.collectGarbage('ctr', strict, run);
  assert.notEqual(await backend.size(path), undefined);
  store.age(8 * 24 * 3_600_000);
  await repository.collectGarbage('ctr', strict, run);
  assert.equal(await backend.size(path), undefined);
  assert.deepEqual(await repository.readManifest('ctr', '1'), manifest);
});

test('referenced, recent and the newest versions are always kept', () => {
  const versions = fc.uniqueArray(
    fc.record({ version: fc.integer({ min: 1, max: 30 }).map(String), ageMs: fc.nat(1000) }),
    { selector: ({ version }) => version, maxLength: 12 },
  );
  const some = fc.uniqueArray(fc.integer({ min: 1, max: 30 }).map(String), { maxLength: 5 });
  fc.assert(
    fc.property(
      versions,
      some,
      some,
      some,
      fc.integer({ min: 1, max: 5 }),
      fc.nat(1000),
      (...args) => {
        const [published, wanted, underWay, quarantined, keepVersions, keepMs] = args;
        const retained = selectRetainedVersions(published, {
          referenced: new Map(wanted.map((version) => [version, 'wanted'])),
          inProgress: new Set(underWay),
          quarantined: new Set(quarantined),
          keepVersions,
          keepMs,
        });
        for (const { version, ageMs } of published) {
          const mustStay =
            wanted.includes(version) || underWay.includes(version) || ageMs <= keepMs;
          if (mustStay) assert.ok(retained.has(version));
        }
        const good = published.filter(({ version }) => !quarantined.includes(version));
        const kept = good.filter(({ version }) => retained.has(version));
        assert.ok(kept.length >= Math.min(keepVersions, good.length));
      },
    ),
  );
});
