/**
 * Ten thousand half-open TLS handshakes against a serving process, while honest callers predict
 * over TLS and in clear. Run by `npm run soak`.
 */
import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { CtrClient } from '../../lib/client/ctr-client.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import { Credentials } from '../../lib/rpc/credentials.ts';
import { CertificateAuthority } from '../rpc/support/certificates.ts';
import { waitUntil } from '../rpc/support/echo-server.ts';
import { ServingProcess } from '../serving/support/serving-process.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from '../serving/support/toy-bundle.ts';
import { ToyRepository } from '../serving/support/toy-service.ts';

const HALF_OPEN = 10_000;
/** Connections that the server closes are opened again, so that the attack goes on. */
const ATTACK_MS = 30_000;
/** A pause before that: attacker and callers share this process. */
const REOPEN_MS = 2_000;
const ROWS = toTsv(toyRows(3));

/** Keeps a number of connections open whose handshakes never continue. */
class HalfOpenAttack {
  readonly #port: number;
  readonly #open = new Set<Socket>();
  #isOver = false;
  opened = 0;

  constructor(port: number, count: number) {
    this.#port = port;
    for (let i = 0; i < count; i++) this.#connect();
  }

  stop(): void {
    this.#isOver = true;
    for (const socket of this.#open) socket.destroy();
  }

  #connect(): void {
    if (this.#isOver) return;
    const socket = connect(this.#port, '127.0.0.1', () => {
      this.opened++;
      // The header of a record and the beginning of a handshake, and nothing after it.
      socket.write(Buffer.of(0x16, 3, 1, 2, 0, 1, 0, 1));
    });
    this.#open.add(socket);
    socket.resume();
    socket.on('error', () => undefined);
    socket.on('close', () => {
      this.#open.delete(socket);
      setTimeout(() => this.#connect(), REOPEN_MS).unref();
    });
  }
}

async function start(t: TestContext): Promise<{ serving: ServingProcess; ca: string }> {
  const toys = new ToyRepository(t);
  await toys.publish(new ToyBundle({ version: '1', seed: 5 }));
  await toys.activate('1');
  const authority = new CertificateAuthority(toys.folder, 'authority');
  const { cert, key } = authority.issue({ name: 'server' });
  const flags = toArguments({
    repository: toys.location,
    bundle: BUNDLE,
    store: 'memory',
    instances: 1,
    tlsCert: cert,
    tlsKey: key,
  });
  const serving = await ServingProcess.start(t, flags, { isProcess: true });
  await serving.waitFor('/readyz', ({ status }) => status === 200);
  return { serving, ca: authority.path };
}

/** Predicts with a new connection each time. @returns milliseconds of each call */
async function callUntil(url: string, ca: string | undefined, endMs: number): Promise<number[]> {
  const tookMs: number[] = [];
  while (performance.now() < endMs) {
    const credentials = new Credentials(ca === undefined ? {} : { tls: { ca } });
    const client = new CtrClient({ url, credentials, timeoutMs: 10_000 });
    const startMs = performance.now();
    try {
      const { probabilities } = await client.predict(ROWS);
      assert.equal(probabilities.length, 3);
    } finally {
      client.close();
    }
    tookMs.push(performance.now() - startMs);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return tookMs.sort((a, b) => a - b);
}

test('ten thousand half-open handshakes do not stop honest callers', async (t) => {
  const { serving, ca } = await start(t);
  const { host, port } = new URL(serving.url);
  const attack = new HalfOpenAttack(Number(port), HALF_OPEN);
  t.after(() => attack.stop());
  await waitUntil(() => attack.opened >= HALF_OPEN);
  const endMs = performance.now() + ATTACK_MS;
  const [secure, clear] = await Promise.all([
    callUntil(`https://${host}`, ca, endMs),
    callUntil(`http://${host}`, undefined, endMs),
  ]);
  attack.stop();
  for (const [name, tookMs] of Object.entries({ secure, clear })) {
    assert.ok(tookMs.length > 20, `${name}: ${tookMs.length} calls`);
    const at = (share: number): string =>
      (tookMs[Math.floor(tookMs.length * share)] ?? 0).toFixed();
    t.diagnostic(
      `${name}: ${tookMs.length} calls, none failed; p50 ${at(0.5)}, p99 ${at(0.99)} ms`,
    );
  }
  t.diagnostic(`${attack.opened} half-open connections in all`);
  await serving.waitFor('/readyz', ({ status }) => status === 200);
});
