/**
 * What every backend must do, and what a repository must do over every backend. A backend's own
 * test file calls `backendConformance` with a way to open an empty one.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { Backend } from '../../../lib/repository/backend.ts';
import {
  intentsFolder,
  layerPath,
  manifestPath,
  versionFilePath,
} from '../../../lib/repository/layout.ts';
import { Repository } from '../../../lib/repository/repository.ts';
import { channelConformance } from './channel-conformance.ts';
import {
  getBaseLayer,
  makeBytes,
  makeVersion,
  requireCompleteVersions,
  sha256,
  temporaryFolder,
} from './fixtures.ts';
import { readerConformance } from './reader-conformance.ts';

export type OpenBackend = (t: TestContext) => Promise<Backend>;

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const text = (content: Uint8Array): string => new TextDecoder().decode(content);
const by = { by: 'test', reason: 'because' };

export function backendConformance(name: string, open: OpenBackend): void {
  objectTests(name, open);
  publishTests(name, open);
  repairTests(name, open);
  refusalTests(name, open);
  channelTests(name, open);
  raceTests(name, open);
  channelConformance(name, open);
  readerConformance(name, async (t) => {
    const backend = await open(t);
    return { reader: backend, writer: backend };
  });
}

function objectTests(name: string, open: OpenBackend): void {
  test(`${name}: an object is put once and read back whole and in ranges`, async (t) => {
    const backend = await open(t);
    assert.equal(await backend.size('b/x'), undefined);
    assert.equal(await backend.putIfAbsent('b/x', bytes('first')), true);
    assert.equal(await backend.putIfAbsent('b/x', bytes('second')), false);
    assert.equal(text(await backend.read('b/x', 100)), 'first');
    assert.equal(text(await backend.readRange('b/x', 1, 3)), 'irs');
    assert.equal(await backend.size('b/x'), 5);
    await assert.rejects(backend.readRange('b/x', 3, 3), { code: 'CORRUPT' });
    await assert.rejects(backend.read('b/x', 4), { code: 'TOO_LARGE' });
    await assert.rejects(backend.read('b/y', 4), { code: 'NOT_FOUND' });
  });

  test(`${name}: a local file is put once and stays where it is`, async (t) => {
    const backend = await open(t);
    const source = join(temporaryFolder(t), 'source');
    const content = makeBytes('big', 5 << 20);
    writeFileSync(source, content);
    assert.equal(await backend.putFileIfAbsent('b/big', source), true);
    assert.equal(await backend.putFileIfAbsent('b/big', source), false);
    writeFileSync(source, 'changed later');
    assert.equal(sha256(await backend.read('b/big', 8 << 20)), sha256(content));
  });

  test(`${name}: a listing is sorted, one level, and empty for an absent folder`, async (t) => {
    const backend = await open(t);
    for (const path of ['b/2', 'b/10', 'b/c/d', 'a/x'])
      await backend.putIfAbsent(path, bytes(path));
    assert.deepEqual(await backend.list('b'), ['10', '2', 'c']);
    assert.deepEqual(await backend.list('none'), []);
  });

  test(`${name}: of many writers of one object one wins`, async (t) => {
    const backend = await open(t);
    const requests = Array.from({ length: 20 }, (_, i) => String(i));
    const won = await Promise.all(
      requests.map((request) => backend.putIfAbsent('b/x', bytes(request))),
    );
    assert.equal(won.filter(Boolean).length, 1);
    assert.equal(text(await backend.read('b/x', 10)), String(won.indexOf(true)));
  });
}

function publishTests(name: string, open: OpenBackend): void {
  test(`${name}: what is published is listed, read and fetched`, async (t) => {
    const folder = temporaryFolder(t);
    const repository = new Repository(await open(t));
    const publication = makeVersion(folder, { version: '1' });
    const outcome = await repository.publish(publication);
    assert.deepEqual(outcome, { published: true, restored: 0 });
    assert.deepEqual(await repository.listBundles(), ['ctr']);
    assert.deepEqual(await repository.readManifest('ctr', '1'), publication.manifest);
    assert.equal(text(await repository.readVersionFile('ctr', '1', 'model.onnx')), 'graph of 1');
    const target = join(folder, 'fetched', 'layer.cube');
    const layer = getBaseLayer(publication.manifest, 1);
    await repository.fetchLayer('ctr', 't', layer, target);
    assert.equal(await repository.hasLayer('ctr', 't', layer), true);
  });

  test(`${name}: versions are those with a manifest, in numeric order`, async (t) => {
    const backend = await open(t);
    const repository = new Repository(backend);
    for (const version of ['10', '9', '2024-01-01']) {
      await repository.publish(makeVersion(temporaryFolder(t), { version }));
    }
    await backend.putIfAbsent(versionFilePath('ctr', '11', 'model.onnx'), bytes('unfinished'));
    assert.deepEqual(await repository.listVersions('ctr'), ['9', '10', '2024-01-01']);
    await assert.rejects(repository.readManifest('ctr', '11'), /version 11 of ctr has no manifest/);
    await assert.rejects(repository.readManifest('ctr', '12'), {
      code: 'NOT_FOUND',
      message: /has no version 12 of ctr \(it has: 9, 10, 2024-01-01\)/,
    });
    await assert.rejects(
      repository.readManifest('other', '1'),
      /has no bundle other \(it has: ctr\)/,
    );
  });

  test(`${name}: the same content again is fine, other content is CONFLICT`, async (t) => {
    const repository = new Repository(await open(t));
    const folder = temporaryFolder(t);
    await repository.publish(makeVersion(folder, { version: '1' }));
    const again = await repository.publish(makeVersion(folder, { version: '1' }));
    assert.deepEqual(again, { published: false, restored: 0 });
    for (const change of [{ graph: 'other' }, { table: 'b' }, { shardNum: 3 }]) {
      await assert.rejects(repository.publish(makeVersion(folder, { version: '1', ...change })), {
        code: 'CONFLICT',
        message: /version 1 of ctr is published .* with other content/,
      });
    }
    assert.equal(text(await repository.readVersionFile('ctr', '1', 'model.onnx')), 'graph of 1');
  });
}

function repairTests(name: string, open: OpenBackend): void {
  test(`${name}: publishing again restores what is missing, and reports damage`, async (t) => {
    const backend = await open(t);
    const repository = new Repository(backend);
    const publication = makeVersion(temporaryFolder(t), { version: '1' });
    const keys = new Map([['keys.0123456789abcdef.json', bytes('wrapped')]]);
    const withKeys = { ...publication, readKeyFiles: async () => keys };
    await repository.publish(withKeys);
    const graph = versionFilePath('ctr', '1', 'model.onnx');
    const layer = layerPath('ctr', 't', getBaseLayer(publication.manifest, 1).contentId);
    const keyFile = versionFilePath('ctr', '1', 'keys.0123456789abcdef.json');
    for (const path of [graph, layer, keyFile]) await backend.deleter?.remove(path);
    assert.deepEqual(await repository.publish(withKeys), { published: false, restored: 3 });
    assert.equal(text(await backend.read(keyFile, 100)), 'wrapped');
    await requireCompleteVersions(t, repository);
    assert.deepEqual(await backend.list(intentsFolder('ctr')), []);

    for (const [path, content] of [
      [graph, bytes('grapH of 1')],
      [layer, makeBytes('too short', 10)],
    ] as const) {
      const good = await backend.read(path, 1 << 20);
      await backend.deleter?.remove(path);
      await backend.putIfAbsent(path, content);
      await assert.rejects(repository.publish(publication), {
        code: 'CORRUPT',
        message: new RegExp(`${path} .*remove this .*publish again`),
      });
      const present = await backend.read(path, 1 << 20);
      assert.equal(sha256(present), sha256(content), 'nothing is replaced');
      await backend.deleter?.remove(path);
      await repository.publish(publication);
      assert.equal(sha256(await backend.read(path, 1 << 20)), sha256(good));
    }
  });
}

function refusalTests(name: string, open: OpenBackend): void {
  test(`${name}: a manifest with missing layers or files is refused`, async (t) => {
    const repository = new Repository(await open(t));
    const publication = makeVersion(temporaryFolder(t), { version: '1' });
    await assert.rejects(repository.publish({ ...publication, layers: [] }), { code: 'NOT_FOUND' });
    const files = new Map([...publication.files, ['model.onnx', bytes('other')] as const]);
    await assert.rejects(repository.publish({ ...publication, files }), {
      code: 'INVALID_ARGUMENT',
      message: /model\.onnx/,
    });
    assert.deepEqual(await repository.listVersions('ctr'), []);
  });

  test(`${name}: a published manifest that is damaged or misplaced is CORRUPT`, async (t) => {
    const backend = await open(t);
    const repository = new Repository(backend);
    await backend.putIfAbsent(manifestPath('ctr', '1'), bytes('{"format":1,'));
    await assert.rejects(repository.readManifest('ctr', '1'), { code: 'CORRUPT' });
    await repository.publish(makeVersion(temporaryFolder(t), { version: '2' }));
    const copy = bytes(await repository.readManifestText('ctr', '2'));
    await backend.putIfAbsent(manifestPath('ctr', '3'), copy);
    await assert.rejects(repository.readManifest('ctr', '3'), /copied to a wrong path/);
  });
}

async function withVersions(
  t: TestContext,
  open: OpenBackend,
  ...versions: string[]
): Promise<Repository> {
  const repository = new Repository(await open(t));
  for (const version of versions) {
    await repository.publish(makeVersion(temporaryFolder(t), { version }));
  }
  return repository;
}

function channelTests(name: string, open: OpenBackend): void {
  test(`${name}: a channel remembers who pointed it where and why`, async (t) => {
    const repository = await withVersions(t, open, '1', '2');
    assert.equal((await repository.readChannel('ctr', 'stable')).pointer, undefined);
    await repository.activate('ctr', 'stable', { version: '1', by: 'ann', reason: 'first' });
    await repository.activate('ctr', 'stable', { version: '2', by: 'bob', reason: 'retrained' });
    const { pointer, previous, history } = await repository.readChannel('ctr', 'stable');
    assert.equal(pointer?.version, '2');
    assert.equal(previous?.version, '1');
    assert.deepEqual(
      history.map(({ seq, version, by, reason }) => ({ seq, version, by, reason })),
      [
        { seq: 1, version: '1', by: 'ann', reason: 'first' },
        { seq: 2, version: '2', by: 'bob', reason: 'retrained' },
      ],
    );
    assert.deepEqual(await repository.listChannels('ctr'), ['stable']);
  });

  test(`${name}: activating the active version adds nothing`, async (t) => {
    const repository = await withVersions(t, open, '1');
    const first = await repository.activate('ctr', 'stable', { version: '1', ...by });
    assert.deepEqual(await repository.activate('ctr', 'stable', { version: '1', ...by }), first);
    await assert.rejects(repository.activate('ctr', 'stable', { version: '2', ...by }), {
      code: 'NOT_FOUND',
    });
  });

  test(`${name}: rolling back quarantines and returns to the newest good version`, async (t) => {
    const repository = await withVersions(t, open, '1', '2', '3');
    for (const version of ['1', '2', '3']) {
      await repository.activate('ctr', 'stable', { version, ...by });
    }
    assert.equal((await repository.rollback('ctr', 'stable', 'ann', 'bad')).version, '2');
    assert.deepEqual([...(await repository.listQuarantined('ctr'))], ['3']);
    const state = await repository.readChannel('ctr', 'stable');
    assert.equal(state.previous?.version, '1');
    await assert.rejects(repository.activate('ctr', 'stable', { version: '3', ...by }), {
      code: 'CONFLICT',
      message: /version 3 of ctr is quarantined/,
    });
    assert.equal((await repository.rollback('ctr', 'stable', 'ann', 'bad too')).version, '1');
    await assert.rejects(repository.rollback('ctr', 'stable', 'ann', 'again'), {
      code: 'CONFLICT',
      message: /no previous version to roll back to/,
    });
    assert.deepEqual([...(await repository.listQuarantined('ctr'))], ['2', '3']);
    await assert.rejects(
      repository.rollback('ctr', 'new', 'ann', 'x'),
      /does not point to a version yet/,
    );
  });
}

/**
 * `backend`; the first listing of `folder` is taken, then `meanwhile` runs, then the listing
 * arrives.
 */
function slowListing(backend: Backend, folder: string, meanwhile: () => Promise<unknown>): Backend {
  let pending = true;
  return new Proxy(backend, {
    get(target, name: keyof Backend) {
      const member = target[name];
      if (typeof member !== 'function') return member;
      if (name !== 'list') return member.bind(target);
      return async (path: string): Promise<string[]> => {
        const names = await target.list(path);
        if (path !== folder || !pending) return names;
        pending = false;
        await meanwhile();
        return names;
      };
    },
  });
}

function raceTests(name: string, open: OpenBackend): void {
  for (const slow of ['ctr/quarantine', 'ctr/channels/stable']) {
    test(`${name}: a rollback during activation (${slow}) leaves no bad pointer`, async (t) => {
      const backend = await open(t);
      const other = new Repository(backend);
      for (const version of ['1', '2']) {
        await other.publish(makeVersion(temporaryFolder(t), { version }));
        await other.activate('ctr', 'stable', { version, ...by });
      }
      const rollback = () => other.rollback('ctr', 'stable', 'ann', 'bad');
      const repository = new Repository(slowListing(backend, slow, rollback));
      await repository.activate('ctr', 'stable', { version: '2', ...by }).catch(() => undefined);
      const { pointer, history } = await other.readChannel('ctr', 'stable');
      assert.deepEqual([pointer?.version, history.length], ['1', 3]);
    });
  }

  test(`${name}: of racing publishers of different contents one gets through whole`, async (t) => {
    const backend = await open(t);
    for (const version of ['1', '2', '3']) {
      const publications = ['x', 'y', 'z'].map((graph) =>
        makeVersion(join(temporaryFolder(t), graph), { version, graph, table: graph }),
      );
      const outcomes = await Promise.allSettled(
        publications.map((publication) => new Repository(backend).publish(publication)),
      );
      const winners = outcomes.flatMap((o, i) => (o.status === 'fulfilled' ? [i] : []));
      assert.equal(winners.length, 1);
      for (const outcome of outcomes) {
        if (outcome.status === 'rejected') assert.equal(outcome.reason.code, 'CONFLICT');
      }
      const repository = new Repository(backend);
      const manifest = await repository.readManifest('ctr', version);
      assert.deepEqual(manifest, publications[winners[0] ?? 0]?.manifest);
      await repository.readVersionFile('ctr', version, 'model.onnx');
    }
  });

  test(`${name}: of concurrent activations one wins, and the others learn who`, async (t) => {
    const repository = await withVersions(t, open, '1', '2', '3', '4');
    const outcomes = await Promise.allSettled(
      ['1', '2', '3', '4'].map((version) =>
        repository.activate('ctr', 'stable', { version, by: `by ${version}`, reason: 'race' }),
      ),
    );
    const { history } = await repository.readChannel('ctr', 'stable');
    const won = outcomes.filter((outcome) => outcome.status === 'fulfilled');
    assert.equal(won.length, history.length);
    for (const outcome of outcomes) {
      if (outcome.status === 'fulfilled') continue;
      assert.equal(outcome.reason.code, 'CONFLICT');
      assert.match(outcome.reason.message, /wrote entry \d+ first/);
    }
  });
}
