/** What garbage collection removes, what it never removes, and publishers that run beside it. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import type { Backend } from '../../lib/repository/backend.ts';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';
import { HttpBackend } from '../../lib/repository/http-backend.ts';
import { collectingPath, intentPath } from '../../lib/repository/layout.ts';
import { Repository } from '../../lib/repository/repository.ts';
import { retainVersions } from '../../lib/repository/retention.ts';
import { S3Backend } from '../../lib/repository/s3-backend.ts';
import { makeVersion, requireWholeVersions, temporaryFolder } from './fixtures.ts';
import { S3StandIn } from './s3-stand-in.ts';

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
  requireWholeVersions(t, new Repository(backend));

const stores: Record<string, (t: TestContext) => Promise<Backend>> = {
  folder: async (t) => new FolderBackend(temporaryFolder(t)),
  s3: async (t) => new S3Backend((await S3StandIn.start(t)).url),
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
    await repository.rollout('ctr', '1').append(0, { state: 'seen', holder: 'x', reason: 'x' });
    const dry = await repository.collectGarbage('ctr', strict, { by: 'test', dryRun: true });
    assert.deepEqual(dry.versions, ['4']);
    assert.equal((await requireWhole(t, backend)).length, 5);
    assert.deepEqual(await repository.collectGarbage('ctr', strict, run), dry);
    assert.deepEqual(await requireWhole(t, backend), ['1', '2', '3', '5']);
    const left = (await backend.eraser?.objects('ctr')) ?? [];
    assert.equal(left.filter(({ path }) => path.startsWith('ctr/layers/')).length, 6);
    assert.deepEqual(
      left.filter(({ path }) => /versions\/4|ctr\/gc/.test(path)),
      [],
    );
    assert.deepEqual([...(await repository.quarantined('ctr'))], ['4']);
    assert.equal((await repository.collectGarbage('ctr', strict, run)).objects, 0);
  });

  test(`${name}: what is young stays, also layers that no manifest names yet`, async (t) => {
    const backend = await open(t);
    await backend.putIfAbsent(`ctr/layers/t/${'0'.repeat(32)}.cube`, new Uint8Array(10));
    for (const version of ['1', '2']) await publish(t, backend, version);
    const policy = { keepVersions: 1, keepMs: 3_600_000 };
    const report = await new Repository(backend).collectGarbage('ctr', policy, run);
    assert.deepEqual([report.objects, report.versions], [0, []]);
    assert.equal(await backend.size(`ctr/layers/t/${'0'.repeat(32)}.cube`), 10);
  });

  test(`${name}: a publisher that comes upon old layers keeps them from a collection at the same time`, async (t) => {
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
    await backend.putIfAbsent(collectingPath('ctr'), new Uint8Array(1));
    const published = publish(t, backend, '1');
    while ((await backend.list('ctr/publishing')).length === 0) await new Promise(setImmediate);
    assert.deepEqual(await new Repository(backend).versions('ctr'), []);
    await assert.rejects(new Repository(backend).collectGarbage('ctr', strict, run), {
      code: 'CONFLICT',
      message: /another garbage collection of ctr runs/,
    });
    await backend.eraser?.remove(collectingPath('ctr'));
    await published;
    assert.deepEqual(await requireWhole(t, backend), ['1']);
  });
}

test('a collection stops at a manifest that it cannot read: nobody knows what that reaches', async (t) => {
  const backend = new FolderBackend(temporaryFolder(t));
  for (const version of ['1', '2']) await publish(t, backend, version);
  await backend.putIfAbsent('ctr/versions/3/manifest.json', new TextEncoder().encode('{'));
  const before = await backend.eraser.objects('ctr');
  const repository = new Repository(backend);
  await assert.rejects(repository.collectGarbage('ctr', strict, run), { code: 'CORRUPT' });
  assert.deepEqual((await backend.eraser.objects('ctr')).length, before.length);
});

test('a collection killed at any removal leaves whole versions, and the next one finishes', async (t) => {
  for (let survived = 0; survived < 8; survived++) {
    const backend = new FolderBackend(temporaryFolder(t));
    for (const version of ['1', '2', '3']) await publish(t, backend, version);
    let left = survived;
    const remove = backend.eraser.remove;
    const dying = Object.assign(Object.create(backend) as FolderBackend, {
      eraser: {
        objects: backend.eraser.objects,
        remove: async (path: string) => {
          if (left-- <= 0) throw new Error('killed');
          await remove(path);
        },
      },
    });
    await new Repository(dying).collectGarbage('ctr', strict, run).catch(() => undefined);
    await requireWhole(t, backend);
    await remove(collectingPath('ctr'));
    await new Repository(backend).collectGarbage('ctr', strict, run);
    assert.deepEqual(await requireWhole(t, backend), ['3']);
    const layers = await backend.eraser.objects('ctr/layers');
    assert.equal(layers.length, 2);
  }
});

test('what somebody points to while it is collected is put back, whole', async (t) => {
  const backend = new FolderBackend(temporaryFolder(t));
  const repository = new Repository(backend);
  for (const version of ['1', '2', '3']) await publish(t, backend, version);
  const { objects, remove } = backend.eraser;
  const meanwhile = Object.assign(Object.create(backend) as FolderBackend, {
    eraser: {
      objects,
      remove: async (path: string) => {
        if (path === 'ctr/versions/1/manifest.json') {
          await repository.activate('ctr', 'stable', { version: '1', ...by });
        }
        await remove(path);
      },
    },
  });
  await new Repository(meanwhile).collectGarbage('ctr', strict, run);
  assert.equal((await repository.channel('ctr', 'stable')).pointer?.version, '1');
  assert.deepEqual(await requireWhole(t, backend), ['1', '3']);
});

test('who points to what has just been collected is told so, and the channel stays where it was', async (t) => {
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
  await assert.rejects(late, { code: 'NOT_FOUND', message: /at the same moment/ });
  const { pointer, history } = await repository.channel('ctr', 'stable');
  assert.deepEqual([pointer?.version, history.length], ['3', 3]);
});

test('nothing is collected where nothing can be removed', async () => {
  const repository = new Repository(new HttpBackend('http://127.0.0.1:1'));
  await assert.rejects(repository.collectGarbage('ctr', strict, run), { code: 'UNSUPPORTED' });
});

test('what a killed publisher told is forgotten after a week', async (t) => {
  const store = await S3StandIn.start(t);
  const backend = new S3Backend(store.url);
  const { manifest } = await publish(t, backend, '1');
  const path = intentPath('ctr', 'attempt');
  const text = await new Repository(backend).manifestText('ctr', '1');
  await backend.putIfAbsent(path, new TextEncoder().encode(text));
  const repository = new Repository(backend);
  await repository.collectGarbage('ctr', strict, run);
  assert.notEqual(await backend.size(path), undefined);
  store.age(8 * 24 * 3_600_000);
  await repository.collectGarbage('ctr', strict, run);
  assert.equal(await backend.size(path), undefined);
  assert.deepEqual(await repository.manifest('ctr', '1'), manifest);
});

test('whatever the rules, wanted and young versions stay, and as many good ones as asked for', () => {
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
        const retained = retainVersions(published, {
          wanted: new Map(wanted.map((version) => [version, 'wanted'])),
          underWay: new Set(underWay),
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
