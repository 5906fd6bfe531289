/**
 * Part of `npm run fuzz`: TLS handshakes that are damaged, cut, slow, half-open or renegotiated,
 * while honest callers handshake beside them and get every answer.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { type ConnectionOptions, connect as connectTls } from 'node:tls';
import { makeTemporaryFolder, removePath } from '../../lib/platform/files.ts';
import { TlsIdentity } from '../../lib/rpc/tls-identity.ts';
import { CertificateAuthority } from '../rpc/support/certificates.ts';
import { recordClientHello } from '../rpc/support/client-hello.ts';
import { encodeRequestFrame, RawConnection, startEchoServer } from '../rpc/support/echo-server.ts';
import { mutate, SeededRandom } from '../rpc/support/fuzz.ts';
import { resetSocket } from '../rpc/support/reset.ts';
import { readFuzzOptions } from '../support/fuzz-options.ts';

const ATTACKERS = 16;
/** How long a handshake may take. */
const SNIFF_MS = 1_000;

const { seconds, seed } = readFuzzOptions();
const folder = makeTemporaryFolder('hypercube-fuzz-');
const authority = new CertificateAuthority(folder, 'authority');
const limits = { sniffMs: SNIFF_MS, grpcPingMs: 300, drainMs: 500 };
const { server, port } = await startEchoServer(
  limits,
  {},
  0,
  (grpc) => grpc.addUnary('test.Echo', 'echo', (request) => request),
  () => true,
  new TlsIdentity(authority.issue({ name: 'server' })),
);
const caller = authority.issue({ name: 'caller' });
const secure: ConnectionOptions = {
  port,
  host: '127.0.0.1',
  ca: readFileSync(authority.path),
  cert: readFileSync(caller.cert),
  key: readFileSync(caller.key),
};

const hellos = await Promise.all(
  [{}, { maxVersion: 'TLSv1.2' as const }, { ALPNProtocols: ['h2', 'http/1.1'] }].map((more) =>
    recordClientHello({ ...secure, ...more }),
  ),
);

/** Records of every type: handshake, alert, change of cipher, data, and others. */
function createRecord(random: SeededRandom): Buffer {
  const body = random.bytes(random.below(300));
  const head = Buffer.alloc(5);
  head[0] = random.pick([0x14, 0x15, 0x16, 0x17, 0x18, random.below(256)]);
  head[1] = random.pick([3, 3, 3, random.below(256)]);
  head[2] = random.below(5);
  head.writeUInt16BE(random.pick([body.length, random.below(0x1_0000)]), 3);
  return Buffer.concat([head, body]);
}

function createHostileBytes(random: SeededRandom): Buffer {
  const hello = random.pick(hellos);
  switch (random.below(6)) {
    case 0:
      return mutate(random, hello);
    case 1:
      return hello.subarray(0, random.below(hello.length));
    case 2:
      return Buffer.concat([hello, createRecord(random)]);
    case 3:
      return Buffer.concat([hello, hello]);
    case 4:
      return Buffer.concat([Buffer.of(0x16), random.bytes(random.below(100))]);
    default:
      return createRecord(random);
  }
}

async function sendHostileBytes(random: SeededRandom): Promise<void> {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true });
  socket.on('error', () => undefined);
  socket.resume();
  const closed = new Promise((resolve) => socket.once('close', resolve));
  const bytes = createHostileBytes(random);
  const piece = random.pick([1, 7, 100, 1 << 20]);
  for (let at = 0; at < bytes.length && !socket.destroyed; at += piece) {
    socket.write(bytes.subarray(at, at + piece));
    if (piece < 100) await sleep(random.below(3));
  }
  const end = random.below(4);
  // A half-open handshake that the server has to end itself.
  if (end === 0) await closed;
  else if (end === 1) resetSocket(socket);
  else socket.destroySoon();
}

/** A complete handshake, and then an attempt to renegotiate, or garbage on the wire. */
async function misuseHandshake(random: SeededRandom): Promise<void> {
  const plain = connect({ port, host: '127.0.0.1' });
  plain.on('error', () => undefined);
  const socket = connectTls({ ...secure, socket: plain, maxVersion: 'TLSv1.2' });
  socket.on('error', () => undefined);
  const closed = new Promise((resolve) => socket.once('close', resolve));
  await Promise.race([once(socket, 'secureConnect').catch(() => undefined), closed]);
  if (random.below(2) === 0) socket.renegotiate({}, () => undefined);
  else plain.write(createHostileBytes(random));
  await Promise.race([closed, sleep(50)]);
  socket.destroy();
  plain.destroy();
}

process.stdout.write(`${seconds} s, seed ${seed}\n`);
const endMs = performance.now() + seconds * 1_000;
let hostile = 0;
let answered = 0;

async function attack(random: SeededRandom): Promise<void> {
  while (performance.now() < endMs) {
    hostile++;
    await (random.below(5) === 0 ? misuseHandshake(random) : sendHostileBytes(random));
  }
}

/** A new handshake for each call, over TLS 1.2 and 1.3 in turn. */
async function callHonestly(): Promise<void> {
  while (performance.now() < endMs) {
    const maxVersion = answered % 2 === 0 ? 'TLSv1.3' : 'TLSv1.2';
    const socket = connectTls({ ...secure, maxVersion });
    const connection = new RawConnection(port, socket);
    connection.send(encodeRequestFrame(1, Buffer.from(`call ${answered}`)));
    const [answer] = await connection.receive(1);
    assert.equal(answer?.payload, `call ${answered}`, `seed ${seed}`);
    answered++;
    socket.destroy();
  }
}

try {
  const attacks = Array.from({ length: ATTACKERS }, (_, i) => attack(new SeededRandom(seed + i)));
  await Promise.all([...attacks, callHonestly()]);
  for (let i = 0; i < 1_000 && server.connections > 0; i++) await sleep(10);
  assert.equal(server.connections, 0, `connections are left; seed ${seed}`);
  assert.ok(answered > 20, `${answered} honest calls`);
  const { tlsRefused } = server;
  process.stdout.write(
    `${hostile} hostile connections, ${tlsRefused} handshakes refused, ${answered} honest calls\n`,
  );
} finally {
  await server.stop();
  removePath(folder);
}
