/**
 * Control calls by certificate over each protocol: who may make them; all others get lookups only.
 */

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { request } from 'node:https';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { connect } from 'node:tls';
import { credentials } from '@grpc/grpc-js';
import type { CubeServer } from '../../cube-server/server.ts';
import { CONTROL_STATUS } from '../../proto/control.ts';
import {
  CertificateAuthority,
  type IdentityFiles,
  toTlsFlags,
} from '../rpc/support/certificates.ts';
import { encodeRequestFrame, RawConnection } from '../rpc/support/echo-server.ts';
import { RawGrpcClient } from '../rpc/support/grpc-client.ts';
import { createServer } from './support/create-server.ts';
import { DataFolder } from './support/data-folder.ts';
import { control, killServers, ServerProcess } from './support/server-process.ts';

const GRPC_OK = 0;
const GRPC_DENIED = 7;
const BRPC_DENIED = 1004;
const folder = new DataFolder();
const authority = new CertificateAuthority(folder.path, 'authority');
const TOKEN = 'a token beside certificates';

/** All callers trust the server's `ca`, whatever certificate they present. */
const callers = {
  good: authority.issue({ name: 'operator', use: ['clientAuth'] }),
  stranger: new CertificateAuthority(folder.path, 'other').issue({ name: 'stranger' }),
  late: authority.issue({ name: 'late', toMs: Date.now() - 3_600_000 }),
  server: authority.issue({ name: 'only a server', use: ['serverAuth'] }),
  nobody: undefined,
} as const;
type Caller = keyof typeof callers;
const names = Object.keys(callers) as Caller[];

interface Options {
  readonly ca: Buffer;
  readonly cert?: Buffer;
  readonly key?: Buffer;
}

function createOptions(caller: Caller): Options {
  const ca = readFileSync(authority.path);
  const identity: IdentityFiles | undefined = callers[caller];
  if (identity === undefined) return { ca };
  return { ca, cert: readFileSync(identity.cert), key: readFileSync(identity.key) };
}

interface Answer {
  readonly status: number;
  readonly text: string;
}

function ask(
  port: number,
  path: string,
  caller: Caller,
  headers: Record<string, string> = {},
): Promise<Answer> {
  const where = { host: '127.0.0.1', port, path, agent: false, headers };
  return new Promise((resolve, reject) => {
    request({ ...where, ...createOptions(caller) }, (response) => {
      let text = '';
      response.on('data', (piece) => {
        text += piece;
      });
      response.on('end', () => resolve({ status: response.statusCode ?? 0, text }));
    })
      .on('error', reject)
      .end();
  });
}

function makeServer(controlTokenFile?: string): CubeServer {
  const identity = authority.issue({ name: 'server' });
  return createServer(folder.path, { controlTokenFile, tls: identity });
}

const readPort = (address: string): number => Number(address.slice(address.lastIndexOf(':') + 1));
let server: CubeServer;
let port: number;

before(async () => {
  server = makeServer();
  port = readPort(await server.listen({ host: '127.0.0.1', port: 0 }));
});
after(async () => {
  killServers();
  await server.stop();
  folder.remove();
});

test('over HTTP a trusted certificate allows control; others get a reason', async () => {
  const why: Readonly<Record<Caller, RegExp>> = {
    good: /"shardIndex":0/,
    stranger: /the one of \\"CN=stranger\\" is not trusted \(UNABLE_TO_/,
    late: /the one of \\"CN=late\\" is not trusted \(CERT_HAS_EXPIRED\)/,
    server: /the one of \\"CN=only a server\\" is not trusted \(INVALID_PURPOSE\)/,
    nobody: /control calls need a client certificate: the caller presented none/,
  };
  for (const caller of names) {
    const { status, text } = await ask(port, CONTROL_STATUS, caller);
    assert.deepEqual([status, caller], [caller === 'good' ? 200 : 403, caller]);
    assert.match(text, why[caller]);
    assert.equal((await ask(port, '/healthz', caller)).status, 200);
  }
  const forged = { 'x-hypercube-inner-certificate': '{"subject":"CN=x","validUntilMs":9e15}' };
  const page = { origin: 'https://evil.example' };
  assert.equal((await ask(port, CONTROL_STATUS, 'nobody', forged)).status, 403);
  assert.equal((await ask(port, CONTROL_STATUS, 'good', page)).status, 403);
  // The local host needs a certificate too.
  const plain = await control(`127.0.0.1:${port}`, 'status', undefined, forged);
  assert.deepEqual([plain.status, plain.body.code], [403, 'DENIED']);
  assert.equal((await fetch(`http://127.0.0.1:${port}/healthz`)).status, 200);
});

test('over gRPC and baidu_std the same callers are allowed', async () => {
  const command = encodeRequestFrame(1, new Uint8Array(0), {
    service: 'rec.mcube.ControlService',
    method: 'cmd',
    attachment: Buffer.from('{"cmd":"status"}'),
  });
  for (const caller of names) {
    const options = createOptions(caller);
    const { ca, key = null, cert = null } = options;
    const grpc = new RawGrpcClient(port, credentials.createSsl(ca, key, cert));
    const path = '/hypercube.ControlService/status';
    const { code } = await grpc.call(path, new Uint8Array(0), 30_000);
    grpc.close();
    assert.deepEqual([code, caller], [caller === 'good' ? GRPC_OK : GRPC_DENIED, caller]);
    const connection = new RawConnection(port, connect({ port, host: '127.0.0.1', ...options }));
    connection.send(command);
    const [answer] = await connection.receive(1);
    connection.socket.destroy();
    assert.deepEqual([answer?.errorCode, caller], [caller === 'good' ? 0 : BRPC_DENIED, caller]);
  }
});

test('a token or a certificate is enough; over TLS the token works too', async () => {
  const tokenFile = join(folder.path, 'token');
  writeFileSync(tokenFile, TOKEN);
  const both = makeServer(tokenFile);
  const at = readPort(await both.listen({ host: '127.0.0.1', port: 0 }));
  try {
    const bearer = { authorization: `Bearer ${TOKEN}` };
    assert.equal((await ask(at, CONTROL_STATUS, 'good')).status, 200);
    assert.equal((await ask(at, CONTROL_STATUS, 'nobody', bearer)).status, 200);
    assert.equal((await ask(at, CONTROL_STATUS, 'stranger', bearer)).status, 200);
    assert.equal((await control(`127.0.0.1:${at}`, 'status', undefined, bearer)).status, 200);
    const { status, text } = await ask(at, CONTROL_STATUS, 'late');
    assert.equal(status, 403);
    assert.match(text, /need .*Bearer.* with the token, or a client certificate/);
    assert.doesNotMatch(text, /wrong/);
    const wrong = await ask(at, CONTROL_STATUS, 'late', { authorization: `Bearer ${TOKEN}x` });
    assert.equal(wrong.status, 403);
    assert.match(wrong.text, /the token is wrong; control calls need .* a client certificate/);
  } finally {
    await both.stop();
  }
});

test('flags or variables set up TLS; refused callers are logged without secrets', async () => {
  const base = ['--shard', '0', '--shard-num', '1', '--data-dir', folder.path];
  const identity = authority.issue({ name: 'process' });
  const flags = [...base, ...toTlsFlags(identity)];
  const running = await ServerProcess.start([...flags, '--admin-port', '0']);
  const admin = readPort(await running.logged(/"adminAddress":"([^"]+)"/));
  assert.equal((await ask(admin, CONTROL_STATUS, 'good')).status, 200);
  const bearer = { authorization: 'Bearer a secret that must not be told' };
  assert.equal((await ask(admin, CONTROL_STATUS, 'late', bearer)).status, 403);
  await running.logged(
    /"remoteAddress":"127.0.0.1","certificate":"CN=late".*"control call denied"/,
  );
  const onData = await ask(running.port, CONTROL_STATUS, 'good');
  assert.match(onData.text, /answered on the admin port/);
  const metrics = await ask(admin, '/metrics', 'nobody');
  assert.match(metrics.text, /hypercube_connections_refused_total\{.*reason="tls"\} 0/);
  const { code, stderr } = await running.stop();
  assert.equal(code, 0);
  assert.ok(!stderr.includes('secret'));
  const half = await new ServerProcess([...base, ...toTlsFlags(identity).slice(0, 2)]).exited;
  assert.equal(half.code, 2);
  assert.match(half.stderr, /TLS needs tls-cert, tls-key and tls-ca: tls-key and tls-ca missing/);
});
