/** Lookups with API keys over TLS: CubeClient against a cube-server that requires both. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { CubeServer } from '../../cube-server/server.ts';
import { CubeClient } from '../../lib/client/cube-client.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { type CredentialFiles, Credentials } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';
import { CONTROL_ACTIVATE, CONTROL_LOAD } from '../../proto/control.ts';
import { KeyCommands } from '../access/support/key-commands.ts';
import { createServer } from '../cube-server/support/create-server.ts';
import { DataFolder } from '../cube-server/support/data-folder.ts';
import { CertificateAuthority } from '../rpc/support/certificates.ts';
import { waitUntil } from '../rpc/support/echo-server.ts';

const CONTENT = {
  bundle: 'ctr',
  version: '1',
  shardNum: 1,
  tables: [{ name: 'embedding', dim: 2, keys: [7n], value: () => 0.5 }],
};

class Place {
  readonly folder = new DataFolder();
  readonly keys: KeyCommands;
  readonly authority: CertificateAuthority;
  readonly manifest: Manifest;
  address = '';

  private constructor() {
    this.keys = new KeyCommands(join(this.folder.path, 'keys.json'));
    this.authority = new CertificateAuthority(this.folder.path, 'authority');
    this.manifest = this.folder.write(CONTENT);
  }

  static async start(t: TestContext, more: object = {}, threads = 1): Promise<Place> {
    const place = new Place();
    place.keys.add('operator', '--scope', 'control', '--key-out', place.path('operator.key'));
    place.keys.add('serving', '--scope', 'tables', '--key-out', place.path('serving.key'));
    const server: CubeServer = createServer(place.folder.path, {
      tls: place.authority.issue({ name: 'server', hosts: ['127.0.0.1', 'shard.example'] }),
      access: { keyFile: place.keys.file },
      threads,
      ...more,
    });
    t.after(async () => {
      await server.stop();
      place.folder.remove();
    });
    place.address = await server.listen({ host: '127.0.0.1', port: 0 });
    return place;
  }

  path(name: string): string {
    return join(this.folder.path, name);
  }

  /** @returns `hits: n`, or the error */
  async lookup(credentials: CredentialFiles): Promise<string> {
    const shards = [[{ data: this.address }]];
    const fleet = { bundles: new Map([['ctr', [{ shardNum: 1, shards }]]]) };
    const client = new CubeClient({
      fleet: () => fleet as never,
      credentials: new Credentials(credentials),
      policy: { retryMax: 0, backupRequest: 'never' },
    });
    const keys = Uint32Array.of(7, 0);
    const group = {
      table: 'embedding',
      keys,
      count: 1,
      rows: new Float32Array(2),
      outcomes: new Uint8Array(1),
    };
    try {
      await client.lookup(this.manifest, [group], 30_000);
      return `row: ${group.rows}, outcome ${group.outcomes}`;
    } catch (error) {
      const { code, message } = CubeError.from(error);
      return `${code}: ${message}`;
    } finally {
      client.close();
    }
  }
}

async function control(place: Place, path: string, key: string): Promise<number> {
  const { ca } = place.authority.issue({ name: 'caller' });
  const credentials = new Credentials({ tokenFile: place.path(key), tls: { ca } });
  const peer = { address: place.address, credentials, role: 'cube-server' };
  try {
    await callJson(peer, path, { body: { bundle: 'ctr', version: '1' }, timeoutMs: 30_000 });
    return 200;
  } catch (error) {
    return CubeError.from(error).status.http;
  }
}

test('lookups need a key with the scope tables; control calls one with control', async (t) => {
  const place = await Place.start(t);
  const { ca } = place.authority.issue({ name: 'caller' });
  assert.equal(await control(place, CONTROL_LOAD, 'serving.key'), 403);
  assert.equal(await control(place, CONTROL_LOAD, 'operator.key'), 200);
  assert.equal(await control(place, CONTROL_ACTIVATE, 'operator.key'), 200);
  const tls = { ca };
  const tokenFile = place.path('serving.key');
  assert.match(await place.lookup({ tokenFile, tls }), /^row: 0.5,0.5/);
  const asOther = await place.lookup({ tokenFile, tls, tlsServerName: 'shard.example' });
  assert.match(asOther, /^row: 0.5,0.5/);
  assert.match(await place.lookup({ tls }), /^UNAUTHENTICATED/);
  assert.match(await place.lookup({ tls, tokenFile: place.path('operator.key') }), /^DENIED/);
  assert.match(await place.lookup({ tls, token: 'x'.repeat(40) }), /^UNAUTHENTICATED/);
  const other = new CertificateAuthority(place.folder.path, 'other').path;
  for (const [files, message] of [
    [{ tls, tlsServerName: 'other.example' }, /altnames/],
    [{ tls: { ca: other } }, /certificate|self-signed/],
  ] as const) {
    const channel = new Channel(place.address, {}, new Credentials({ tokenFile, ...files }));
    const call = channel.call('any', 'method', new Uint8Array(0), new Uint8Array(0), 30_000);
    await assert.rejects(call, message);
    channel.close();
    assert.match(await place.lookup({ tokenFile, ...files }), /outcome 2$/, 'unavailable');
  }
});

test('a changed key file of a caller is used for the next call', async (t) => {
  const place = await Place.start(t);
  await control(place, CONTROL_LOAD, 'operator.key');
  await control(place, CONTROL_ACTIVATE, 'operator.key');
  const { ca } = place.authority.issue({ name: 'caller' });
  const tokenFile = place.path('current.key');
  writeFileSync(tokenFile, 'not a key of this server');
  assert.match(await place.lookup({ tokenFile, tls: { ca } }), /^UNAUTHENTICATED/);
  writeFileSync(tokenFile, place.keys.run('rotate', '--id', 'serving').at(-1) ?? '');
  const found = async (): Promise<boolean> =>
    (await place.lookup({ tokenFile, tls: { ca } })).startsWith('row');
  // The server looks at its file four times a second.
  await waitUntil(found);
});

test('a client certificate allows everything that no key restricts', async (t) => {
  const place = await Place.start(t);
  await control(place, CONTROL_LOAD, 'operator.key');
  await control(place, CONTROL_ACTIVATE, 'operator.key');
  const { cert, key, ca } = place.authority.issue({ name: 'serving 1' });
  assert.match(await place.lookup({ tls: { cert, key, ca } }), /^row/);
  const tokenFile = place.path('operator.key');
  const restricted = await place.lookup({ tokenFile, tls: { cert, key, ca } });
  assert.match(restricted, /^DENIED: .*key operator lacks the scope tables/);
});
