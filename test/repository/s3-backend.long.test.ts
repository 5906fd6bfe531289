/**
 * A repository in S3, with the real client library against a stand-in, which is tested itself
 * first.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { openRepository } from '../../lib/repository/repository.ts';
import { S3Backend } from '../../lib/repository/s3-backend.ts';
import { parseS3Url } from '../../lib/repository/s3-client.ts';
import { backendConformance } from './support/conformance.ts';
import { FakeS3Server } from './support/fake-s3-server.ts';
import { makeBytes, makeVersion, sha256, temporaryFolder } from './support/fixtures.ts';

process.env['AWS_ACCESS_KEY_ID'] = 'test';
process.env['AWS_SECRET_ACCESS_KEY'] = 'test';

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

async function open(t: TestContext): Promise<{ store: FakeS3Server; backend: S3Backend }> {
  const store = await FakeS3Server.start(t);
  return { store, backend: new S3Backend(store.url) };
}

backendConformance('s3', async (t) => (await open(t)).backend);

test('the stand-in honours what S3 promises', async (t) => {
  const { endpoint } = await FakeS3Server.start(t);
  const put = (headers: Record<string, string>) =>
    fetch(`${endpoint}/bucket/x`, { method: 'PUT', body: 'abcdef', headers });
  const once = { 'if-none-match': '*' };
  assert.equal((await put(once)).status, 200);
  assert.equal((await put(once)).status, 412);
  assert.equal((await put({})).status, 200);
  const get = (headers: Record<string, string>) => fetch(`${endpoint}/bucket/x`, { headers });
  const range = await get({ range: 'bytes=2-3' });
  assert.deepEqual([range.status, await range.text()], [206, 'cd']);
  assert.equal(range.headers.get('content-range'), 'bytes 2-3/6');
  assert.equal((await get({ range: 'bytes=6-7' })).status, 416);
  assert.equal((await get({ 'if-match': '"other"' })).status, 412);
  assert.equal((await fetch(`${endpoint}/bucket/y`)).status, 404);
  assert.match(await (await fetch(`${endpoint}/other/y`)).text(), /NoSuchBucket/);
});

test('a write whose answer was lost is known as our own when it is tried again', async (t) => {
  const { store, backend } = await open(t);
  await backend.putIfAbsent('b/first', bytes('x'));
  store.faults.loseAnswers = 1;
  assert.equal(await backend.putIfAbsent('b/x', bytes('mine')), true);
  store.faults.loseAnswers = 1;
  const source = join(temporaryFolder(t), 'source');
  writeFileSync(source, makeBytes('large', 9 << 20));
  assert.equal(await backend.putFileIfAbsent('b/large', source), true);
  assert.equal(await backend.putIfAbsent('b/x', bytes('mine')), false);
});

test('a conflict with a write in progress is tried again', async (t) => {
  const { store, backend } = await open(t);
  await backend.putIfAbsent('b/first', bytes('x'));
  store.faults.conflicts = 3;
  assert.equal(await backend.putIfAbsent('b/x', bytes('mine')), true);
});

test('a large file goes in parts, once, and leaves no unfinished upload', async (t) => {
  const { store, backend } = await open(t);
  const source = join(temporaryFolder(t), 'source');
  const content = makeBytes('large', 20 << 20);
  writeFileSync(source, content);
  let told = 0;
  const tell = (count: number): void => {
    told += count;
  };
  const race = [backend, new S3Backend(store.url), new S3Backend(store.url)].map((writer, i) =>
    writer.putFileIfAbsent('b/large', source, i === 0 ? tell : undefined),
  );
  assert.equal((await Promise.all(race)).filter(Boolean).length, 1);
  assert.equal(told, content.length);
  assert.equal(store.uploads.size, 0);
  assert.equal(sha256(await backend.read('b/large', 32 << 20)), sha256(content));
});

test('uploads that nobody completed are given up after a while', async (t) => {
  const { store, backend } = await open(t);
  for (const [id, startedMs] of [
    ['old', 0],
    ['new', Date.now()],
  ] as const) {
    store.uploads.set(id, { key: `models/b/${id}`, writer: id, startedMs, parts: new Map() });
  }
  store.uploads.set('other', { key: 'elsewhere/x', writer: 'x', startedMs: 0, parts: new Map() });
  // More than a page of a listing, and several of one object.
  for (let i = 0; i < 7; i++) {
    const upload = { key: `models/b/${i >> 1}`, writer: 'x', startedMs: 0, parts: new Map() };
    store.uploads.set(`many-${i}`, upload);
  }
  await backend.removeUnfinishedWrites('b', 3_600_000);
  assert.deepEqual([...store.uploads.keys()], ['new', 'other']);
});

test('a store that ignores If-None-Match is read-only to us', async (t) => {
  const { store, backend } = await open(t);
  await backend.putIfAbsent('b/x', bytes('before'));
  store.faults.ignoresIfNoneMatch = true;
  const other = new S3Backend(store.url);
  const refused = {
    code: 'UNSUPPORTED',
    message: /does not honour If-None-Match.*publish to a folder/,
  };
  await assert.rejects(other.putIfAbsent('b/y', bytes('y')), refused);
  const source = join(temporaryFolder(t), 'source');
  writeFileSync(source, 'y');
  await assert.rejects(other.putFileIfAbsent('b/y', source), refused);
  assert.equal(new TextDecoder().decode(await other.read('b/x', 10)), 'before');
  assert.equal(await other.size('b/y'), undefined);
});

test('what is cut is gone on with; what changes between two pieces is noticed', async (t) => {
  const { store, backend } = await open(t);
  const content = makeBytes('x', 200_000);
  await backend.putIfAbsent('b/x', content);
  await backend.size('b/x');
  store.faults.cut = 2;
  assert.equal(sha256(await backend.readRange('b/x', 0, 200_000)), sha256(content));
  await fetch(`${store.endpoint}/bucket/models/b/x`, { method: 'PUT', body: 'other' });
  await assert.rejects(backend.readRange('b/x', 0, 3), { code: 'CORRUPT', message: /has changed/ });
});

test('names that a store makes up never become paths', async (t) => {
  const { store, backend } = await open(t);
  const keys = [
    'models/ctr/versions/../../../etc/passwd',
    'models/ctr/versions/..',
    'models/ctr/versions/.hidden',
    'models/ctr/versions/',
    '/etc/passwd',
    'elsewhere/x',
    'models/ctr/versions/a\\b',
    'models/ctr/versions/good',
  ];
  const items = keys.map((key) => `<Contents><Key>${key}</Key></Contents>`).join('');
  store.faults.list =
    `<ListBucketResult>${items}<CommonPrefixes><Prefix>../</Prefix></CommonPrefixes>` +
    '</ListBucketResult>';
  assert.deepEqual(await backend.list('ctr/versions'), ['good']);
  store.faults.list = '<ListBucketResult><Contents><Key>models/ctr';
  assert.deepEqual(await backend.list('ctr/versions').catch(() => []), []);
  const bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>';
  store.faults.list =
    `${bomb}<ListBucketResult><Contents><Key>models/ctr/versions/&b;</Key></Contents>` +
    '</ListBucketResult>';
  const listed = await backend.list('ctr/versions').catch(() => []);
  assert.ok(listed.every((name) => name.length < 100));
});

test('refusals say what to do', async (t) => {
  const { store, backend } = await open(t);
  store.faults.status = 403;
  await assert.rejects(backend.size('b/x'), { code: 'DENIED', message: /credentials/ });
  store.faults.status = undefined;
  const elsewhere = new S3Backend(store.url.replace('bucket', 'other'));
  await assert.rejects(elsewhere.list('b'), { code: 'NOT_FOUND', message: /no such bucket/ });
  const away = new S3Backend('s3://bucket/x?endpoint=http://127.0.0.1:1');
  await assert.rejects(away.read('b/x', 1), { code: 'UNAVAILABLE' });
  for (const url of [
    's3://',
    's3://B/x',
    's3://bucket/x?endpoint=ftp://h',
    's3://bucket/x?endpoint=http://u:p@h',
    's3://bucket/x?key=secret',
    's3://user:pw@bucket/x',
  ]) {
    assert.throws(() => new S3Backend(url), { code: 'INVALID_ARGUMENT' }, url);
  }
  assert.equal(parseS3Url('s3://bucket').prefix, '');
  assert.equal(parseS3Url('s3://bucket/a//b/').prefix, 'a/b/');
});

test('an interrupted publication sends only what is missing', async (t) => {
  const { store } = await open(t);
  const publication = makeVersion(temporaryFolder(t), { version: '1', shardNum: 4 });
  const [first, ...others] = publication.layers;
  assert.ok(first !== undefined);
  await assert.rejects(openRepository(store.url).publish({ ...publication, layers: [first] }), {
    code: 'NOT_FOUND',
  });
  store.requests.length = 0;
  await openRepository(store.url).publish(publication);
  const sent = store.requests.filter((line) => /^PUT .*\.cube/.test(line));
  assert.equal(sent.length, others.length);
});
