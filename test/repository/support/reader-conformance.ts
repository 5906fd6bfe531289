/**
 * What every backend must give a reader, also one that cannot write: `writer` puts, `reader` sees
 * the same objects.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { Backend } from '../../../lib/repository/backend.ts';
import { channelEntryPath } from '../../../lib/repository/layout.ts';
import { Repository } from '../../../lib/repository/repository.ts';
import { getBaseLayer, makeBytes, makeVersion, sha256, temporaryFolder } from './fixtures.ts';

export interface ReaderAndWriter {
  readonly reader: Backend;
  readonly writer: Backend;
}

type OpenPair = (t: TestContext) => Promise<ReaderAndWriter>;

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const text = (content: Uint8Array): string => new TextDecoder().decode(content);
const ann = { by: 'ann', reason: 'test' };

export function readerConformance(name: string, open: OpenPair): void {
  objectTests(name, open);
  repositoryTests(name, open);
}

function objectTests(name: string, open: OpenPair): void {
  test(`${name}: an object is read whole and in ranges, or what is wrong is said`, async (t) => {
    const { reader, writer } = await open(t);
    assert.equal(await reader.size('b/x'), undefined);
    await writer.putIfAbsent('b/x', bytes('first'));
    assert.equal(await reader.size('b/x'), 5);
    assert.equal(text(await reader.read('b/x', 5)), 'first');
    assert.equal(text(await reader.readRange('b/x', 0, 5)), 'first');
    assert.equal(text(await reader.readRange('b/x', 1, 3)), 'irs');
    await assert.rejects(reader.readRange('b/x', 3, 3), { code: 'CORRUPT' });
    await assert.rejects(reader.readRange('b/x', 7, 1), { code: 'CORRUPT' });
    await assert.rejects(reader.readRange('b/y', 0, 1), { code: 'NOT_FOUND' });
    await assert.rejects(reader.read('b/x', 4), { code: 'TOO_LARGE' });
    await assert.rejects(reader.read('b/y', 4), { code: 'NOT_FOUND' });
  });

  test(`${name}: an empty object exists`, async (t) => {
    const { reader, writer } = await open(t);
    await writer.putIfAbsent('b/empty', new Uint8Array(0));
    assert.equal(await reader.size('b/empty'), 0);
    assert.equal((await reader.read('b/empty', 0)).length, 0);
  });

  test(`${name}: large objects come whole`, async (t) => {
    const { reader, writer } = await open(t);
    const content = makeBytes('big', 3 << 20);
    await writer.putIfAbsent('b/big', content);
    assert.equal(sha256(await reader.read('b/big', 4 << 20)), sha256(content));
    const range = await reader.readRange('b/big', 1_000_001, 2_000_003);
    assert.equal(sha256(range), sha256(content.subarray(1_000_001, 3_000_004)));
  });
}

function repositoryTests(name: string, open: OpenPair): void {
  test(`${name}: a reader fetches what is published, and sees half a version never`, async (t) => {
    const folder = temporaryFolder(t);
    const { reader, writer } = await open(t);
    const repository = new Repository(reader);
    const publication = makeVersion(folder, { version: '1', layerBytes: 100_000 });
    const manifest = (): Promise<unknown> => repository.readManifest('ctr', '1');
    await assert.rejects(manifest(), { code: 'NOT_FOUND' });
    await new Repository(writer).publish(publication);
    assert.deepEqual(await manifest(), publication.manifest);
    assert.equal(text(await repository.readVersionFile('ctr', '1', 'model.onnx')), 'graph of 1');
    const target = join(folder, 'fetched', 'layer.cube');
    const layer = getBaseLayer(publication.manifest, 1);
    await repository.fetchLayer('ctr', 't', layer, target);
    assert.equal(sha256(readFileSync(target)), layer.sha256);
    assert.equal(await repository.hasLayer('ctr', 't', layer), true);
  });

  test(`${name}: a reader follows a channel through moves, rollbacks and pins`, async (t) => {
    const { reader, writer } = await open(t);
    const repository = new Repository(reader);
    const other = new Repository(writer);
    const versions = ['1', '2', '3'];
    for (const version of versions) {
      await other.publish(makeVersion(temporaryFolder(t), { version }));
    }
    const sees = async (): Promise<unknown[]> => {
      const { pointer, previous, history } = await repository.readChannel('ctr', 'stable');
      const late = await new Repository(reader).readChannel('ctr', 'stable');
      assert.deepEqual(late.history, history);
      return [pointer?.version, previous?.version, history.length];
    };
    assert.deepEqual(await sees(), [undefined, undefined, 0]);
    for (const version of versions) {
      await other.activate('ctr', 'stable', { version, ...ann });
    }
    assert.deepEqual(await sees(), ['3', '2', 3]);
    await other.rollback('ctr', 'stable', 'ann', 'bad');
    assert.deepEqual(await sees(), ['2', '1', 4]);
    assert.deepEqual([...(await repository.readChannel('ctr', 'stable')).quarantined], ['3']);
    for (let i = 0; i < 5; i++) {
      await other.pin('ctr', 'stable', ann);
      await other.unpin('ctr', 'stable', ann);
    }
    assert.deepEqual(await sees(), ['2', '1', 14]);
  });

  test(`${name}: a damaged entry or manifest is CORRUPT`, async (t) => {
    const { reader, writer } = await open(t);
    const repository = new Repository(reader);
    await writer.putIfAbsent('ctr/versions/1/manifest.json', bytes('{"format":1,'));
    await assert.rejects(repository.readManifest('ctr', '1'), { code: 'CORRUPT' });
    await writer.putIfAbsent(channelEntryPath('ctr', 'stable', 1), bytes('{"version":"1"'));
    await assert.rejects(repository.readChannel('ctr', 'stable'), { code: 'CORRUPT' });
  });
}
