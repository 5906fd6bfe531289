/** TLS on the port of serving: protocols, our clients, settings, renewal, half-open handshakes. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { copyFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { type ConnectionOptions, connect as connectTls } from 'node:tls';
import { CtrClient } from '../../lib/client/ctr-client.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { type CredentialFiles, Credentials } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';
import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import { CertificateAuthority, type IdentityFiles } from '../rpc/support/certificates.ts';
import { waitUntil } from '../rpc/support/echo-server.ts';
import { encodeRequest } from './support/paddle-client.ts';
import { createPaddleRequest } from './support/protocol-clients.ts';
import { ROWS, ServedToy } from './support/served-toy.ts';
import { BUNDLE, toTsv } from './support/toy-bundle.ts';

const HALF_OPEN = 300;

interface Place {
  readonly served: ServedToy;
  readonly authority: CertificateAuthority;
  readonly identity: IdentityFiles;
}

async function start(t: TestContext, settings: object = {}): Promise<Place> {
  const made: { authority?: CertificateAuthority; identity?: IdentityFiles } = {};
  const served = await ServedToy.start(t, ({ folder }) => {
    made.authority = new CertificateAuthority(folder, 'authority');
    made.identity = made.authority.issue({ name: 'server' });
    const { cert, key } = made.identity;
    return { keyFile: undefined as never, tlsCert: cert, tlsKey: key, ...settings };
  });
  const { authority, identity } = made;
  assert.ok(authority && identity);
  return { served, authority, identity };
}

async function predict(url: string, files: CredentialFiles): Promise<string> {
  const client = new CtrClient({ url, credentials: new Credentials(files), timeoutMs: 30_000 });
  try {
    const { probabilities } = await client.predict(toTsv(ROWS));
    return `${probabilities.length} scores`;
  } catch (error) {
    return CubeError.from(error).code;
  } finally {
    client.close();
  }
}

/** @returns the number of bytes of the response, or the error code */
async function predictByBaidu(address: string, files: CredentialFiles): Promise<number | string> {
  const channel = new Channel(address, {}, new Credentials(files));
  try {
    const request = encodeRequest(createPaddleRequest(ROWS));
    const none = new Uint8Array(0);
    const args = [GENERAL_MODEL_SERVICE, 'inference', request, none, 30_000] as const;
    return (await channel.call(...args)).payload.length;
  } catch (error) {
    return CubeError.from(error).code;
  } finally {
    channel.close();
  }
}

test('our clients predict over TLS by every protocol, and in clear on the same port', async (t) => {
  const { served, authority } = await start(t);
  const tls = { ca: authority.path };
  const { address } = served;
  for (const [url, files] of [
    [`https://${address}`, { tls }],
    [`grpcs://${address}`, { tls }],
    [`http://${address}`, {}],
    [`grpc://${address}`, {}],
  ] as const) {
    assert.equal(await predict(url, files), '3 scores', url);
  }
  for (const files of [{ tls }, {}]) {
    assert.ok(Number(await predictByBaidu(address, files)) > 0);
  }
  const other = { ca: new CertificateAuthority(served.folder, 'other').path };
  for (const url of [`https://${address}`, `grpcs://${address}`]) {
    assert.equal(await predict(url, { tls: other }), 'UNAVAILABLE', url);
    assert.equal(await predict(url, { tls, tlsServerName: 'a.example' }), 'UNAVAILABLE', url);
  }
});

test('a client certificate can be required', async (t) => {
  const { served, authority } = await start(t);
  const { cert, key } = authority.issue({ name: 'strict server' });
  const second = new CertificateAuthority(served.folder, 'second');
  const required = await ServedToy.start(t, () => ({
    keyFile: undefined as never,
    tlsCert: cert,
    tlsKey: key,
    tlsCa: authority.path,
    tlsClientCertificate: 'required',
  }));
  const caller = authority.issue({ name: 'caller' });
  const url = `https://${required.address}`;
  assert.equal(await predict(url, { tls: caller }), '3 scores');
  assert.equal(await predict(url, { tls: { ca: authority.path } }), 'UNAVAILABLE');
  const stranger = { ...second.issue({ name: 'stranger' }), ca: authority.path };
  assert.equal(await predict(url, { tls: stranger }), 'UNAVAILABLE');
});

test('the lowest version and the ciphers are settings', async (t) => {
  const { served } = await start(t, { tlsMinVersion: 'TLSv1.3' });
  const version = async (port: number, options: ConnectionOptions): Promise<string> => {
    const socket = connectTls({ port, host: '127.0.0.1', rejectUnauthorized: false, ...options });
    const result = await Promise.race([
      once(socket, 'secureConnect').then(
        () => `${socket.getProtocol()} ${socket.getCipher().name}`,
      ),
      once(socket, 'error').then(() => 'refused'),
    ]).catch(() => 'refused');
    socket.destroy();
    return result;
  };
  assert.match(await version(served.port, {}), /^TLSv1.3/);
  assert.equal(await version(served.port, { maxVersion: 'TLSv1.2' }), 'refused');
  const ciphers = 'ECDHE-ECDSA-AES256-GCM-SHA384';
  const { served: chosen } = await start(t, { tlsCiphers: ciphers });
  const options: ConnectionOptions = { maxVersion: 'TLSv1.2' };
  assert.equal(await version(chosen.port, options), `TLSv1.2 ${ciphers}`);
  const other = { ...options, ciphers: 'ECDHE-ECDSA-AES128-GCM-SHA256' };
  assert.equal(await version(chosen.port, other), 'refused');
});

test('renewed certificates serve new connections, and open ones go on', async (t) => {
  const { served, authority, identity } = await start(t);
  const open = connectTls({ port: served.port, host: '127.0.0.1', rejectUnauthorized: false });
  await once(open, 'secureConnect');
  const readSubject = async (): Promise<string> => {
    const socket = connectTls({ port: served.port, host: '127.0.0.1', rejectUnauthorized: false });
    await once(socket, 'secureConnect');
    const subject = socket.getPeerX509Certificate()?.subject ?? '';
    socket.destroy();
    return subject;
  };
  assert.equal(await readSubject(), 'CN=server');
  const renewed = authority.issue({ name: 'renewed' });
  copyFileSync(renewed.key, identity.key);
  copyFileSync(renewed.cert, identity.cert);
  await waitUntil(async () => (await readSubject()) === 'CN=renewed');
  open.write('GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n');
  const [answer] = await once(open, 'data');
  assert.match(String(answer), /^HTTP\/1.1 200/);
  open.destroy();
});

test('half-open handshakes do not stop honest callers', async (t) => {
  const { served, authority } = await start(t);
  const sockets: Socket[] = [];
  for (let i = 0; i < HALF_OPEN; i++) {
    const socket = connect(served.port, '127.0.0.1');
    socket.on('error', () => undefined);
    // The beginning of a handshake: a record header, and nothing after it.
    socket.write(Buffer.of(0x16, 3, 1, 2, 0, 1, 0, 1));
    sockets.push(socket);
  }
  await Promise.all(sockets.map((socket) => once(socket, 'connect').catch(() => undefined)));
  const tls = { ca: authority.path };
  assert.equal(await predict(`https://${served.address}`, { tls }), '3 scores');
  assert.equal(await predict(`http://${served.address}`, {}), '3 scores');
  for (const socket of sockets) socket.destroy();
});

test('with tls-only, connections in clear are closed', async (t) => {
  const { served, authority } = await start(t, { tlsOnly: true });
  const plain = connect(served.port, '127.0.0.1');
  plain.write('GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n');
  await once(plain, 'close');
  const tls = { ca: authority.path };
  assert.equal(await predict(`https://${served.address}`, { tls }), '3 scores');
});

test('certificate-scopes bind control calls too', async (t) => {
  const { authority, identity } = await start(t);
  const limited = await ServedToy.start(t, () => ({
    keyFile: undefined as never,
    tlsCert: identity.cert,
    tlsKey: identity.key,
    tlsCa: authority.path,
    certificateScopes: ['predict'],
  }));
  const all = await ServedToy.start(t, () => ({
    keyFile: undefined as never,
    tlsCert: identity.cert,
    tlsKey: identity.key,
    tlsCa: authority.path,
  }));
  const { cert, key } = authority.issue({ name: 'caller' });
  const credentials = new Credentials({ tls: { cert, key, ca: authority.path } });
  const load = (place: ServedToy): Promise<string> =>
    callJson(
      { address: place.address, credentials, role: 'serving' },
      `/v2/repository/models/${BUNDLE}/load`,
      { body: {}, timeoutMs: 30_000 },
    ).then(
      () => 'loaded',
      (error) => CubeError.from(error).code,
    );
  assert.equal(await load(limited), 'DENIED');
  assert.equal(await load(all), 'loaded');
});
