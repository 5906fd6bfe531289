/** TLS on the shared port: every protocol, trusted certificates, broken handshakes, and renewal. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { request } from 'node:https';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { type ConnectionOptions, connect as connectTls } from 'node:tls';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { type ChannelCredentials, credentials } from '@grpc/grpc-js';
import type { ServerLimits } from '../../lib/core/limits.ts';
import { Credentials, NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';
import { callJson } from '../../lib/rpc/json-call.ts';
import { TlsIdentity } from '../../lib/rpc/tls-identity.ts';
import { onTestEnd, temporaryFolder } from '../repository/support/fixtures.ts';
import { CertificateAuthority, type IdentityFiles } from './support/certificates.ts';
import { recordClientHello } from './support/client-hello.ts';
import {
  type EchoServer,
  encodeRequestFrame,
  RawConnection,
  startEchoServer,
} from './support/echo-server.ts';
import { RawGrpcClient } from './support/grpc-client.ts';

const TIMEOUT = { timeoutMs: 30_000 };

interface Place {
  readonly folder: string;
  readonly authority: CertificateAuthority;
  /** The server's own files. */
  readonly identity: IdentityFiles;
  readonly echo: EchoServer;
  readonly port: number;
}

async function start(t: TestContext, limits: Partial<ServerLimits> = {}): Promise<Place> {
  const folder = temporaryFolder(t);
  const authority = new CertificateAuthority(folder, 'authority');
  const identity = authority.issue({ name: 'server' });
  const tls = new TlsIdentity(identity);
  const addGrpc = (
    grpc: Parameters<NonNullable<Parameters<typeof startEchoServer>[3]>>[0],
  ): void => {
    grpc.addUnary('test.Who', 'who', (_request, call) =>
      Buffer.from(JSON.stringify(call.certificate ?? null)),
    );
  };
  const echo = await startEchoServer(limits, {}, 0, addGrpc, () => true, tls);
  onTestEnd(t, () => echo.server.stop());
  return { folder, authority, identity, echo, port: echo.port };
}

function tlsOptions({ cert, key, ca }: IdentityFiles): ConnectionOptions & { ca: Buffer } {
  return { cert: readFileSync(cert), key: readFileSync(key), ca: readFileSync(ca) };
}

/** Returns the server's view of the caller's certificate, or the error code of the call. */
function who(port: number, options: ConnectionOptions): Promise<string> {
  const url = { host: '127.0.0.1', port, path: '/who', agent: false };
  return new Promise((resolve) => {
    request({ ...url, ...options }, (response) => {
      let text = '';
      response.on('data', (piece) => {
        text += piece;
      });
      response.on('end', () => {
        const { certificate } = JSON.parse(text);
        resolve(certificate === undefined ? 'nobody' : (certificate.fault ?? certificate.subject));
      });
    })
      .on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message))
      .end();
  });
}

async function until(what: string, condition: () => unknown): Promise<void> {
  const endMs = performance.now() + 60_000;
  while (!(await condition())) {
    if (performance.now() > endMs) assert.fail(`not seen in time: ${what}`);
    await sleep(20);
  }
}

test('every protocol works with and without TLS on the same port', async (t) => {
  const { authority, port } = await start(t);
  const caller = tlsOptions(authority.issue({ name: 'caller' }));
  const { ca, cert, key } = caller as { ca: Buffer; cert: Buffer; key: Buffer };
  assert.equal(await who(port, caller), 'CN=caller');
  assert.equal(await who(port, { ca }), 'nobody');
  // As curl does, offer both protocols.
  assert.equal(await who(port, { ...caller, ALPNProtocols: ['h2', 'http/1.1'] }), 'CN=caller');
  assert.equal(await (await fetch(`http://127.0.0.1:${port}/hello`)).text(), 'hello');

  const byGrpc = async (channel: ChannelCredentials): Promise<string> => {
    const grpc = new RawGrpcClient(port, channel);
    const { bytes, details } = await grpc.call('/test.Who/who', new Uint8Array(0), 30_000);
    grpc.close();
    return bytes.toString() || details;
  };
  assert.match(await byGrpc(credentials.createSsl(ca, key, cert)), /"subject":"CN=caller"/);
  assert.equal(await byGrpc(credentials.createSsl(ca)), 'null');

  const socket = connectTls({ port, host: '127.0.0.1', ...caller });
  const calls = new RawConnection(port, socket);
  calls.send(encodeRequestFrame(7, Buffer.from('hi'), { attachment: Buffer.alloc(300_000, 'x') }));
  const [answer] = await calls.receive(1);
  assert.deepEqual([answer?.payload, answer?.attachment.length], ['hi', 300_000]);
  socket.destroy();
});

test('only valid client certificates of the authority are trusted', async (t) => {
  const { folder, authority, port } = await start(t);
  const { path: ca } = authority;
  const hourMs = 3_600_000;
  const others: readonly (readonly [string, IdentityFiles])[] = [
    [
      'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
      new CertificateAuthority(folder, 'other').issue({ name: 'stranger' }),
    ],
    ['CERT_HAS_EXPIRED', authority.issue({ name: 'late', toMs: Date.now() - hourMs })],
    ['CERT_NOT_YET_VALID', authority.issue({ name: 'early', fromMs: Date.now() + hourMs })],
    ['INVALID_PURPOSE', authority.issue({ name: 'only a server', use: ['serverAuth'] })],
  ];
  for (const [fault, identity] of others) {
    assert.equal(await who(port, tlsOptions({ ...identity, ca })), fault);
  }
  const caller = tlsOptions(authority.issue({ name: 'caller' }));
  assert.equal(await who(port, { ...caller, maxVersion: 'TLSv1.2' }), 'CN=caller');
  // The name of the code depends on the version of Node.
  const refused = await who(port, { ...caller, minVersion: 'TLSv1', maxVersion: 'TLSv1.1' });
  assert.match(refused, /^(EPROTO|ERR_SSL_.*)$/);
});

test('no connection reuses the certificate of another one', async (t) => {
  const { authority, port } = await start(t);
  const caller = tlsOptions(authority.issue({ name: 'caller' }));
  for (const maxVersion of ['TLSv1.2', 'TLSv1.3'] as const) {
    const options = { port, host: '127.0.0.1', ...caller, maxVersion };
    const first = connectTls(options);
    await once(first, 'secureConnect');
    first.write('GET /hello HTTP/1.1\r\nhost: x\r\n\r\n');
    await once(first, 'data');
    const session = first.getSession();
    first.destroy();
    const second = connectTls({ ...options, ...(session === undefined ? {} : { session }) });
    await once(second, 'secureConnect');
    assert.equal(second.isSessionReused(), false, maxVersion);
    second.destroy();
  }
  const restless = connectTls({ port, host: '127.0.0.1', ...caller, maxVersion: 'TLSv1.2' });
  await once(restless, 'secureConnect');
  const refused = once(restless, 'error');
  restless.renegotiate({}, () => undefined);
  const [error] = await refused;
  assert.equal(error.code, 'ERR_SSL_NO_RENEGOTIATION');
  restless.destroy();
});

/** Resolves when the socket ends, also by a reset. */
function closed(socket: Socket): Promise<unknown> {
  return new Promise((resolve) => socket.once('close', resolve));
}

function rawSocket(port: number): Socket {
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.resume();
  return socket;
}

test('partial, slow and malformed handshakes end without affecting callers', async (t) => {
  const { authority, echo, port } = await start(t, { sniffMs: 1000 });
  const caller = tlsOptions(authority.issue({ name: 'caller' }));
  const hello = await recordClientHello();
  const beginnings = [hello, hello.subarray(0, 60), Buffer.of(0x16), Buffer.of(0x16, 3, 1)];
  const ended = beginnings.map((bytes) => {
    const socket = rawSocket(port);
    socket.write(bytes);
    return closed(socket);
  });
  // Each byte comes in time, but the handshake as a whole takes too long.
  const slow = rawSocket(port);
  let sent = 0;
  const drip = setInterval(() => slow.write(hello.subarray(sent, ++sent)), 100);
  onTestEnd(t, () => clearInterval(drip));
  const slowEnded = closed(slow);
  await until('a caller is answered', async () => (await who(port, caller)) === 'CN=caller');
  await Promise.all([...ended, slowEnded]);
  clearInterval(drip);

  const damaged = Buffer.from(hello);
  damaged.fill(0xff, 5, 40);
  for (const bytes of [damaged, Buffer.from('160301ffffdeadbeef', 'hex'), Buffer.alloc(99, 0x16)]) {
    const socket = rawSocket(port);
    const refused = closed(socket);
    socket.write(bytes);
    await refused;
  }
  assert.ok(echo.server.tlsRefused >= 5, String(echo.server.tlsRefused));
  await until('no connection is left', () => echo.server.connections === 0);
  await until('a caller is answered again', async () => (await who(port, caller)) === 'CN=caller');
});

test('more half-open handshakes than connections shut out no caller', async (t) => {
  const { authority, echo, port } = await start(t, { connections: 64 });
  const caller = tlsOptions(authority.issue({ name: 'caller' }));
  const regular = connectTls({ port, host: '127.0.0.1', ...caller });
  await once(regular, 'secureConnect');
  const connection = new RawConnection(port, regular);
  connection.send(encodeRequestFrame(1, Buffer.from('call 1')));
  await connection.receive(1);
  const hello = await recordClientHello();
  for (let round = 2; round <= 6; round++) {
    const flood = Array.from({ length: 100 }, () => {
      const socket = rawSocket(port);
      socket.write(hello.subarray(0, 60));
      return socket;
    });
    await Promise.all(flood.map((socket) => once(socket, 'connect').catch(() => undefined)));
    assert.equal(await who(port, caller), 'CN=caller');
    connection.send(encodeRequestFrame(round, Buffer.from(`call ${round}`)));
    const answers = await connection.receive(round);
    assert.equal(answers[round - 1]?.payload, `call ${round}`);
  }
  assert.ok(echo.server.connections <= 64 && echo.server.connectionsEvicted > 300);
  assert.equal(echo.server.connectionsRefused, 0);
  regular.destroy();
});

test('connections that only begin a request shut out no caller', async (t) => {
  const { authority, echo, port } = await start(t, { connections: 64 });
  const caller = tlsOptions(authority.issue({ name: 'caller' }));
  const connection = new RawConnection(port);
  connection.send(encodeRequestFrame(1, Buffer.from('call 1')));
  await connection.receive(1);
  const emptySettings = Buffer.from('000000040000000000', 'hex');
  const beginnings = [
    'PRPC',
    'GET /who HTTP/1.1\r\nhost: here\r\n',
    'POST /echo HTTP/1.1\r\n',
    'POST /echo HTTP/1.1\r\nhost: here\r\ncontent-length: 1000\r\n\r\nbegun',
    Buffer.concat([Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'), emptySettings]),
  ];
  for (const [i, beginning] of beginnings.entries()) {
    const flood = Array.from({ length: 200 }, () => {
      const socket = rawSocket(port);
      socket.write(beginning);
      return socket;
    });
    await Promise.all(flood.map((socket) => once(socket, 'connect').catch(() => undefined)));
    assert.equal(await who(port, caller), 'CN=caller', String(beginning));
    connection.send(encodeRequestFrame(i + 2, Buffer.from('again')));
    assert.equal((await connection.receive(i + 2))[i + 1]?.payload, 'again', String(beginning));
  }
  assert.equal(echo.server.connectionsRefused, 0);
  connection.socket.destroy();
});

test('a thousand aborted handshakes leak nothing', async (t) => {
  const { authority, echo, port } = await start(t);
  const hello = await recordClientHello();
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const breakOff = async (): Promise<void> => {
    const socket = rawSocket(port);
    const ended = closed(socket);
    socket.write(hello);
    // The server has answered, so its part of the handshake is done.
    await Promise.race([new Promise((resolve) => socket.once('data', resolve)), ended]);
    socket.destroy();
    await ended;
  };
  const flood = async (rounds: number): Promise<number> => {
    for (let i = 0; i < rounds; i++) await Promise.all(Array.from({ length: 50 }, breakOff));
    await until('no connection is left', () => echo.server.connections === 0);
    await sleep(0);
    collect();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  const before = await flood(3);
  const grown = (await flood(20)) - before;
  // Each leaked handshake would keep about 50 KB.
  assert.ok(grown < 16 << 20, `${grown} bytes more`);
  const caller = tlsOptions(authority.issue({ name: 'caller' }));
  assert.equal(await who(port, caller), 'CN=caller');
});

test('a slow reader is closed over TLS as over a plain connection', async (t) => {
  const { echo, port, authority } = await start(t, { slowReaderMs: 300 });
  const socket = connectTls({ port, host: '127.0.0.1', ca: readFileSync(authority.path) });
  socket.on('error', () => undefined);
  onTestEnd(t, () => socket.destroy());
  await once(socket, 'secureConnect');
  socket.pause();
  socket.write('GET /large HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n');
  await until('it is closed', () => echo.server.slowReaders === 1);
  await until('nothing waits for it', () => echo.server.unsentBytes === 0);
});

test('certificates are renewed without a restart; invalid files change nothing', async (t) => {
  const { folder, authority, identity, port } = await start(t);
  const mine = authority.issue({ name: 'caller' });
  const caller = new Credentials({ tls: mine });
  const peer = { address: `127.0.0.1:${port}`, credentials: caller, role: 'server' };
  const seen = async (): Promise<string> => {
    const json = await callJson(peer, '/who', TIMEOUT);
    return json.field('certificate').field('subject').string();
  };
  assert.equal(await seen(), 'CN=caller');

  writeFileSync(identity.key, 'no key at all');
  const next = authority.issue({ name: 'renewed caller' });
  copyFileSync(next.key, mine.key);
  copyFileSync(next.cert, mine.cert);
  await until('renewed', async () => (await seen()) === 'CN=renewed caller');

  // Another authority takes over: callers of the old one no longer trust the server, nor it them.
  const other = new CertificateAuthority(folder, 'other');
  const renewed = other.issue({ name: 'renewed server' });
  for (const part of ['key', 'cert', 'ca'] as const) copyFileSync(renewed[part], identity[part]);
  const trusting = tlsOptions({ ...next, ca: renewed.ca });
  await until(
    'the server is of the other authority',
    async () => (await who(port, trusting)) === 'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
  );
});

test('callers check the authority and name of servers, and report problems', async (t) => {
  const { folder, authority, port } = await start(t);
  const mine = authority.issue({ name: 'caller' });
  const address = `127.0.0.1:${port}`;
  const call = (credentials: Credentials, at = address): Promise<unknown> =>
    callJson({ address: at, credentials, role: 'cube-server' }, '/who', TIMEOUT);
  await call(new Credentials({ tls: mine }));
  const other = new CertificateAuthority(folder, 'other');
  await assert.rejects(call(new Credentials({ tls: { ...mine, ca: other.path } })), {
    code: 'DENIED',
    message: /the certificate of cube-server at 127\.0\.0\.1:\d+ is not trusted \([A-Z_]+: /,
  });
  const named = new Credentials({ tls: mine, tlsServerName: 'shard-0.example' });
  await assert.rejects(call(named), { code: 'DENIED', message: /ERR_TLS_CERT_ALTNAME_INVALID/ });
  await assert.rejects(call(new Credentials({ tls: mine }), `localhost:${port}`), {
    code: 'DENIED',
    message: /ERR_TLS_CERT_ALTNAME_INVALID/,
  });
  const byName = authority.issue({ name: 'by name', hosts: ['shard-0.example'] });
  const second = await startEchoServer({}, {}, 0, undefined, () => true, new TlsIdentity(byName));
  onTestEnd(t, () => second.server.stop());
  await call(named, second.address);
  const plain = await startEchoServer();
  onTestEnd(t, () => plain.server.stop());
  await assert.rejects(call(new Credentials({ tls: mine }), plain.address), {
    code: 'UNAVAILABLE',
    message: /it does not use TLS/,
  });
  await call(NO_CREDENTIALS, plain.address);
});

test('invalid identity files are rejected with their name', (t) => {
  const folder = temporaryFolder(t);
  const authority = new CertificateAuthority(folder, 'authority');
  const good = authority.issue({ name: 'good' });
  const { key } = authority.issue({ name: 'another' });
  const empty = join(folder, 'empty.pem');
  const broken = join(folder, 'broken.pem');
  writeFileSync(empty, '');
  writeFileSync(broken, readFileSync(good.cert, 'utf8').replace(/\n.{64}\n/, '\n'));
  const faults: readonly (readonly [Partial<IdentityFiles>, RegExp])[] = [
    [{ key }, /another\.key is not the key.*good\.pem \(key values mismatch\)/],
    [{ key: good.cert }, /good\.pem is not the key/],
    [{ ca: empty }, /empty\.pem contains no certificate in PEM/],
    [{ cert: broken }, /broken\.pem: a certificate is malformed/],
    [{ ca: join(folder, 'absent') }, /absent: no such file/],
  ];
  for (const [part, message] of faults) {
    assert.throws(() => new TlsIdentity({ ...good, ...part }), { message });
  }
  // An invalid token is not printed.
  const token = join(folder, 'token');
  writeFileSync(token, 'secret of two\nlines, and long enough');
  assert.throws(
    () => new Credentials({ tokenFile: token }),
    ({ message }: Error) =>
      /printable ASCII on one line/.test(message) && !message.includes('secret'),
  );
});

test('a named pipe in place of a token or certificate blocks nothing', (t) => {
  const folder = temporaryFolder(t);
  const files = new CertificateAuthority(folder, 'authority').issue({ name: 'caller' });
  const tokenFile = join(folder, 'token');
  writeFileSync(tokenFile, 'a token of twenty-six bytes');
  const credentials = new Credentials({ tokenFile });
  assert.equal(credentials.token, 'a token of twenty-six bytes');
  for (const path of [tokenFile, files.cert, files.key, files.ca]) {
    rmSync(path);
    execFileSync('mkfifo', [path]);
  }
  assert.equal(credentials.token, 'a token of twenty-six bytes');
  assert.throws(() => new Credentials({ tokenFile }), /not a regular file/);
  assert.throws(() => new TlsIdentity(files), /not a regular file/);
});

test('a token in place of the name of its file is not shown', () => {
  for (const tokenFile of [`hck_${'A'.repeat(43)}`, '0123456789abcdef'.repeat(4)]) {
    assert.throws(
      () => new Credentials({ tokenFile }),
      ({ message }: Error) =>
        /tokens are never arguments/.test(message) && !message.includes('AAA'),
    );
  }
});
