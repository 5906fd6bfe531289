/**
 * The real cube-check process against a plain HTTP server of files, and against real cube-servers.
 */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { layerPath } from '../../../lib/repository/layout.ts';
import { killServers, ServerProcess } from '../../cube-server/support/server-process.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runCommand } from '../../support/commands.ts';
import { activate, makeKeys, makeRows, publish, type TableSpec } from '../publish-version.ts';

after(killServers);

const KEYS = makeKeys(200);
const USERS: TableSpec = { name: 'users', dim: 4, layers: [{ rows: makeRows(KEYS, 4) }] };

const check = (...args: string[]) => runCommand('tools/cube-check/main.js', ...args);

interface Site {
  readonly url: string;
  /** Paths asked for. */
  readonly asked: string[];
  /** What is answered instead of a file. */
  readonly instead: Map<string, { status: number; body?: Uint8Array; location?: string }>;
}

async function serveFiles(t: TestContext, root: string): Promise<Site> {
  const asked: string[] = [];
  const instead: Site['instead'] = new Map();
  const server = createServer((request, response) => {
    const path = decodeURIComponent(request.url ?? '/');
    asked.push(path);
    const other = instead.get(path);
    if (other !== undefined) {
      const headers = other.location === undefined ? {} : { location: other.location };
      response.writeHead(other.status, headers).end(other.body);
      return;
    }
    const file = join(root, path);
    const found = existsSync(file) && statSync(file).isFile();
    response.writeHead(found ? 200 : 404).end(found ? readFileSync(file) : 'nothing here');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => server.close());
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, asked, instead };
}

const copies = (): string[] => readdirSync(tmpdir()).filter((name) => /^cube-check-/.test(name));

test('over HTTP, damaged, missing, too long and redirected files are reported', async (t) => {
  const root = join(temporaryFolder(t), 'site', 'repo');
  const manifest = await publish(root, { version: '1', shardNum: 2, tables: [USERS] });
  await activate(root, '1');
  const site = await serveFiles(t, join(root, '..'));
  const before = copies();
  const url = `${site.url}/repo/b/versions/1/manifest.json`;
  const sound = await check(url, '--deep');
  assert.equal(sound.code, 0, sound.stdout + sound.stderr);
  assert.match(sound.stdout, /^sound: checked 1 version, 2 layers, 1 file/m);
  const channel = await check(`${site.url}/repo/`, '--bundle', 'b');
  assert.equal(channel.code, 0, channel.stdout + channel.stderr);
  assert.match(channel.stdout, /1 version, 2 layers, 2 files, 1 channel/);
  assert.ok(site.asked.every((path) => path.startsWith('/repo/b/')));

  const [one, other] = manifest.tables[0]!.shards.map(
    ([layer]) => `/repo/${layerPath('b', 'users', layer!.contentId)}`,
  );
  assert.ok(one && other);
  const bytes = readFileSync(join(root, '..', one));
  bytes[5000]! ^= 1;
  site.instead.set(one, { status: 200, body: bytes });
  site.instead.set(other, { status: 302, location: `${site.url}/elsewhere` });
  site.instead.set('/repo/b/versions/1/model.onnx', { status: 200, body: new Uint8Array(1 << 20) });
  const damaged = await check(url);
  assert.equal(damaged.code, 1);
  assert.match(damaged.stdout, /the block of 1 MiB at byte 4096 is damaged/);
  assert.ok(damaged.stdout.includes(`${site.url}${one}: the block`), damaged.stdout);
  assert.match(damaged.stdout, /redirects elsewhere \(HTTP 302\)/);
  assert.match(damaged.stdout, /model\.onnx: the response exceeds the expected \d+ bytes/);
  assert.ok(!site.asked.includes('/elsewhere'));

  site.instead.clear();
  site.instead.set(one, { status: 404 });
  const missing = await check(url);
  assert.equal(missing.code, 1);
  assert.ok(missing.stdout.includes(`${site.url}${one} is missing`), missing.stdout);
  assert.deepEqual(copies(), before, 'copies are removed');
});

test('a running server is compared with the repository', async (t) => {
  const root = join(temporaryFolder(t), 'repository');
  const other = join(temporaryFolder(t), 'other');
  await publish(root, { version: '1', shardNum: 1, tables: [USERS] });
  const salted = { ...USERS, layers: [{ rows: makeRows(KEYS, 4, 7) }] };
  await publish(other, { version: '1', shardNum: 1, tables: [salted] });
  const flags = ['--shard', '0', '--shard-num', '1', '--data-dir', root];
  const server = await ServerProcess.start(flags);
  const idle = await check(server.address);
  assert.equal(idle.code, 1);
  assert.match(idle.stdout, /not ready/);
  const version = { bundle: 'b', version: '1' };
  assert.equal((await server.control('load', version)).status, 200);
  assert.equal((await server.control('activate', version)).status, 200);
  const right = await check(server.address, '--repository', root);
  assert.equal(right.code, 0, right.stdout);
  assert.match(right.stdout, /has loaded b 1, active, shard 0 of 1, 200 rows;/);
  assert.match(right.stdout, /; its tables are those of the manifest$/m);
  const wrong = await check(server.address, '--repository', other, '--json');
  assert.equal(wrong.code, 1);
  assert.match(
    JSON.parse(wrong.stdout).problems[0].message,
    /its tables have digest \w+, but those of the manifest in/,
  );
  writeFileSync(join(other, 'b', 'versions', '1', 'manifest.json'), '{');
  assert.match((await check(server.address, '--repository', other)).stdout, /problem .*not JSON/);
  await server.control('load', { bundle: 'b', version: '9' });
  assert.match((await check(server.address)).stdout, /failed to load b 9: NOT_FOUND/);
  await server.stop();
  const gone = await check(server.address);
  assert.equal(gone.code, 1);
  assert.match(gone.stdout, /no cube-server answers at .*ECONNREFUSED/);
});
