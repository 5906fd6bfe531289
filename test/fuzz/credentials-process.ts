/**
 * Part of `npm run fuzz`: invalid, damaged and oversized credentials to every protocol of serving,
 * while a caller with a key is answered. None of them opens anything, none is written to a file.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { Client, credentials, Metadata, status } from '@grpc/grpc-js';
import { createCtrRequest } from '../../lib/client/ctr-rows.ts';
import { CTR_PREDICT, CTR_SERVICE, encodeCtrRequest } from '../../proto/ctr.ts';
import { mutate, SeededRandom } from '../rpc/support/fuzz.ts';
import { ROWS, ServedToy } from '../serving/support/served-toy.ts';
import { BUNDLE, toTsv } from '../serving/support/toy-bundle.ts';
import { readFuzzOptions } from '../support/fuzz-options.ts';

const ATTACKERS = 4;
const NAMES = ['authorization', 'Authorization', 'x-api-key', 'X-API-KEY', 'proxy-authorization'];
const SCHEMES = ['', 'Bearer ', 'bearer ', 'Bearer  ', 'Basic ', 'Bearer Bearer ', 'hck_', '\t'];

const { seconds, seed } = readFuzzOptions();
const ends: (() => unknown)[] = [];
const after = (end: () => unknown): unknown => ends.push(end);

/** Marks every credential that is sent, so that it is found in a file. */
const MARK = 'hck_ZmFrZQ';

function createCredential(random: SeededRandom, key: string): string {
  const body = random.pick([
    () => key.slice(0, random.below(key.length)),
    () => mutate(random, Buffer.from(key)).toString('latin1'),
    () => MARK + random.bytes(random.below(60)).toString('base64url'),
    () => MARK + 'x'.repeat(random.below(6_000)),
    () => random.bytes(random.below(80)).toString('latin1'),
    () => '',
  ])();
  return random.pick(SCHEMES) + body;
}

/** Whether it is the key itself, which some damage leaves as it is. */
function isKey(credential: string, key: string): boolean {
  return credential.replace(/^\s*bearer\s+/i, '').trim() === key;
}

/** @returns the status line of the answer; '' when the connection was closed without one */
function sendHttp(port: number, head: string, body: string): Promise<string> {
  return new Promise((resolve) => {
    let answer = '';
    const socket = connect(port, '127.0.0.1', () => {
      socket.write(Buffer.concat([Buffer.from(head, 'latin1'), Buffer.from(body)]));
    });
    socket.on('data', (bytes) => {
      answer += bytes.toString('latin1');
      if (answer.includes('\r\n')) socket.destroy();
    });
    socket.on('error', () => undefined);
    socket.on('close', () => resolve(answer.split('\r\n', 1)[0] ?? ''));
  });
}

async function attackHttp(served: ServedToy, random: SeededRandom, key: string): Promise<void> {
  const lines = Array.from({ length: 1 + random.below(3) }, () => {
    const credential = createCredential(random, key);
    return isKey(credential, key) ? 'x-other: 1' : `${random.pick(NAMES)}: ${credential}`;
  });
  // A credential that ends the line would make a header of its own.
  if (lines.some((line) => line.includes(key))) return;
  const body = toTsv(ROWS);
  const path = random.pick(['/v1/ctr:predict', '/metrics', '/v1/status', '/v2/models']);
  const [method, length] = path === '/v1/ctr:predict' ? ['POST', body.length] : ['GET', 0];
  const head =
    `${method} ${path} HTTP/1.1\r\nhost: x\r\ncontent-type: text/tab-separated-values\r\n` +
    `content-length: ${length}\r\n${lines.join('\r\n')}\r\n\r\n`;
  const line = await sendHttp(served.port, head, length === 0 ? '' : body);
  assert.match(line, /^$|^HTTP\/1\.1 (400|401|403|431) /, `seed ${seed}: ${line} for ${head}`);
}

async function attackGrpc(client: Client, random: SeededRandom, key: string): Promise<void> {
  const metadata = new Metadata();
  try {
    const credential = createCredential(random, key);
    if (isKey(credential, key)) return;
    metadata.set(random.pick(NAMES), credential);
  } catch {
    // The client refuses what is no metadata.
    return;
  }
  const same = (bytes: Buffer): Buffer => bytes;
  const request = Buffer.from(encodeCtrRequest(createCtrRequest(toTsv(ROWS), {})));
  const path = `/${CTR_SERVICE}/${CTR_PREDICT}`;
  const code = await new Promise((resolve) => {
    client.makeUnaryRequest(path, same, same, request, metadata, (error) => resolve(error?.code));
  });
  const refusals: unknown[] = [
    status.UNAUTHENTICATED,
    // A header that is too large, or that the transport refuses.
    status.RESOURCE_EXHAUSTED,
    status.INTERNAL,
    status.UNAVAILABLE,
  ];
  assert.ok(refusals.includes(code), `seed ${seed}: gRPC ${code}`);
}

async function attackBaidu(served: ServedToy, random: SeededRandom, key: string): Promise<void> {
  const credential = createCredential(random, key);
  if (isKey(credential, key)) return;
  const code = await served.predictByBaidu(credential);
  assert.ok(code === 1004 || code === -1, `seed ${seed}: baidu_std ${code}`);
}

process.stdout.write(`${seconds} s, seed ${seed}\n`);
try {
  let key = '';
  const served = await ServedToy.start(
    { after } as Parameters<typeof ServedToy.start>[0],
    (toy) => {
      key = toy.keys.add('ads', '--scope', `predict:${BUNDLE}`);
      return {};
    },
  );
  const endMs = performance.now() + seconds * 1_000;
  let hostile = 0;
  let answered = 0;
  const attack = async (random: SeededRandom): Promise<void> => {
    const client = new Client(served.address, credentials.createInsecure());
    while (performance.now() < endMs) {
      hostile++;
      const kind = random.below(3);
      if (kind === 0) await attackHttp(served, random, key);
      else if (kind === 1) await attackGrpc(client, random, key);
      else await attackBaidu(served, random, key);
    }
    client.close();
  };
  const call = async (): Promise<void> => {
    while (performance.now() < endMs) {
      assert.equal(await served.predict({ authorization: `Bearer ${key}` }), '200');
      answered++;
    }
  };
  const attackers = Array.from({ length: ATTACKERS }, (_, i) => attack(new SeededRandom(seed + i)));
  await Promise.all([...attackers, call()]);
  for (const file of ['audit.jsonl', 'serving.log']) {
    const text = readFileSync(`${served.folder}/${file}`, 'latin1');
    assert.ok(!text.includes(MARK) && !text.includes(key), `${file} has a credential`);
  }
  process.stdout.write(`${hostile} invalid credentials refused, ${answered} valid ones answered\n`);
} finally {
  for (const end of ends.reverse()) await end();
}
