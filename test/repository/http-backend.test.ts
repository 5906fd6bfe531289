/** A repository behind a server of static files, and what servers and networks do wrong. */
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { ByteRateLimiter } from '../../lib/platform/byte-rate-limiter.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';
import { HttpBackend } from '../../lib/repository/http-backend.ts';
import { openRepository, Repository } from '../../lib/repository/repository.ts';
import {
  getBaseLayer,
  makeBytes,
  makeVersion,
  sha256,
  temporaryFolder,
} from './support/fixtures.ts';
import { readerConformance } from './support/reader-conformance.ts';
import { StaticServer } from './support/static-server.ts';

readerConformance('http', async (t) => {
  const folder = temporaryFolder(t);
  const server = await StaticServer.start(t, folder);
  return { reader: new HttpBackend(server.url), writer: new FolderBackend(folder) };
});

readerConformance('http without HEAD', async (t) => {
  const folder = temporaryFolder(t);
  const server = await StaticServer.start(t, folder);
  server.faults.ignoresHead = true;
  return { reader: new HttpBackend(server.url), writer: new FolderBackend(folder) };
});

async function withObject(
  t: TestContext,
  content: Uint8Array,
): Promise<{ server: StaticServer; backend: HttpBackend; file: string }> {
  const folder = temporaryFolder(t);
  mkdirSync(join(folder, 'b'));
  const file = join(folder, 'b', 'x');
  writeFileSync(file, content);
  const server = await StaticServer.start(t, folder);
  return { server, backend: new HttpBackend(server.url, { idleMs: 200 }), file };
}

const content = makeBytes('x', 300_000);

test('what is cut, stands still or fails for a while is gone on with', async (t) => {
  const { server, backend } = await withObject(t, content);
  assert.equal(await backend.size('b/x'), content.length);
  server.faults.cut = 3;
  server.faults.fail = 2;
  server.faults.stall = 1;
  assert.equal(sha256(await backend.readRange('b/x', 0, content.length)), sha256(content));
  server.faults.fail = 1000;
  await assert.rejects(backend.size('b/x'), { code: 'UNAVAILABLE', message: /HTTP 500/ });
  server.faults.fail = 0;
  server.faults.stall = 1000;
  await assert.rejects(backend.readRange('b/x', 0, 10), { code: 'UNAVAILABLE' });
});

test('a log with a missing entry says which one and what to do', async (t) => {
  const folder = temporaryFolder(t);
  const root = join(folder, 'repository');
  const repository = openRepository(root, { create: true });
  for (const version of ['1', '2', '3', '4']) {
    await repository.publish(makeVersion(folder, { version }));
    await repository.activate('ctr', 'stable', { version, by: 'ann', reason: 'new' });
  }
  rmSync(join(root, 'ctr/channels/stable/0000000002.json'));
  const server = await StaticServer.start(t, root);
  const reader = new Repository(new HttpBackend(server.url));
  await assert.rejects(reader.readChannel('ctr', 'stable'), {
    code: 'CORRUPT',
    message: /stable\/0000000002\.json: entry 2 is missing, .* restore it from a copy/,
  });
});

test('a stalled source is an error, and a stop signal ends a read at once', async (t) => {
  const { server, backend } = await withObject(t, content);
  await backend.size('b/x');
  server.faults.drips = true;
  const slow = { code: 'UNAVAILABLE', message: /only \d+ bytes arrived in 200 ms/ };
  await assert.rejects(backend.readRange('b/x', 0, content.length), slow);
  await assert.rejects(backend.read('b/x', 1 << 20), slow);
  const patient = new HttpBackend(server.url, { idleMs: 3_600_000 });
  const stop = new AbortController();
  const reading = patient.readRange('b/x', 0, content.length, stop.signal);
  setImmediate(() => stop.abort());
  await assert.rejects(reading, { code: 'STOPPING' });
});

test('an object that changes between two pieces is noticed', async (t) => {
  const { server, backend, file } = await withObject(t, content);
  await backend.size('b/x');
  await backend.readRange('b/x', 0, 1000);
  writeFileSync(file, makeBytes('y', content.length));
  await assert.rejects(backend.readRange('b/x', 1000, 1000), {
    code: 'CORRUPT',
    message: /changed/,
  });
  server.faults.etag = () => '"other"';
  await assert.rejects(backend.readRange('b/x', 0, 1000), { code: 'CORRUPT', message: /changed/ });
});

test('a server without ranges or with wrong ranges is refused with a remedy', async (t) => {
  const { server, backend } = await withObject(t, content);
  server.faults.ignoresRange = true;
  await assert.rejects(backend.readRange('b/x', 0, 10), /does not honour Range/);
  server.faults.ignoresRange = false;
  server.faults.headers = { 'content-encoding': 'gzip' };
  await assert.rejects(backend.read('b/x', 1 << 20), /content-encoding gzip/);
});

test('redirects are limited, never from https to http, and without credentials', async (t) => {
  const { server, backend } = await withObject(t, content);
  const other = await StaticServer.start(t, temporaryFolder(t));
  server.faults.redirect = (path) => `${server.url}${path}`;
  await assert.rejects(backend.read('b/x', 1 << 20), /redirected more than 5 times/);
  for (const target of ['ftp://host/x', 'file:///etc/passwd', 'javascript:x', 'http://[']) {
    server.faults.redirect = () => target;
    await assert.rejects(backend.read('b/x', 1 << 20), { code: 'UNSUPPORTED' });
  }
  server.faults.redirect = (path) => `${other.url.replace('//', '//evil:pw@')}${path}`;
  const secret = new HttpBackend(server.url.replace('//', '//ann:s3cret@'));
  await assert.rejects(secret.read('b/x', 10), (error: Error) => !error.message.includes('s3cret'));
  assert.match(server.requests.at(-1)?.authorization ?? '', /^Basic /);
  assert.deepEqual(
    other.requests.map(({ authorization }) => authorization),
    [undefined],
  );
  assert.ok(!secret.location.includes('s3cret'));
});

test('HTTP cannot write or list, and an unreachable server is UNAVAILABLE', async (t) => {
  const { server, backend } = await withObject(t, content);
  const readOnly = { code: 'UNSUPPORTED', message: /read-only over HTTP/ };
  await assert.rejects(backend.putIfAbsent(), readOnly);
  const repository = openRepository(`${server.url}/`);
  const publication = makeVersion(temporaryFolder(t), { version: '1' });
  await assert.rejects(repository.publish(publication), readOnly);
  await assert.rejects(repository.listVersions('ctr'), /cannot be listed over HTTP/);
  await assert.rejects(openRepository('http://127.0.0.1:1').readManifest('ctr', '1'), {
    code: 'UNAVAILABLE',
  });
  assert.throws(() => openRepository('http://host/x?token=1'), { code: 'INVALID_ARGUMENT' });
});

test('a server that answers to every name is no repository', async (t) => {
  const { server, backend } = await withObject(t, content);
  server.faults.redirect = undefined;
  const all = new Proxy(backend, {
    get: (target, member: keyof HttpBackend) => {
      if (member === 'size') return async () => 5;
      const value = target[member];
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  await assert.rejects(new Repository(all).readChannel('ctr', 'stable'), /respond to every name/);
});

test('a fetch that was cut off goes on where it stopped', async (t) => {
  const folder = temporaryFolder(t);
  const server = await StaticServer.start(t, folder);
  const publication = makeVersion(temporaryFolder(t), { version: '1', layerBytes: 2_000_000 });
  await openRepository(folder).publish(publication);
  const layer = getBaseLayer(publication.manifest, 0);
  const target = join(folder, 'copy.cube');
  const repository = new Repository(new HttpBackend(server.url, { idleMs: 200 }));
  const told: number[] = [];
  const options = {
    rate: new ByteRateLimiter(4_000_000, systemClock),
    onBytes: (bytes: number) => {
      told.push(bytes);
      server.faults.fail = 1000;
    },
  };
  await assert.rejects(repository.fetchLayer('ctr', 't', layer, target, options), {
    code: 'UNAVAILABLE',
  });
  server.faults.fail = 0;
  const again: number[] = [];
  const onBytes = (bytes: number): unknown => again.push(bytes);
  await repository.fetchLayer('ctr', 't', layer, target, { onBytes });
  assert.equal(
    again[0],
    told.reduce((sum, bytes) => sum + bytes, 0),
  );
  assert.equal(sha256(readFileSync(target)), layer.sha256);
});
