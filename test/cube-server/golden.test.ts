import assert from 'node:assert/strict';
import { connect as connectHttp2 } from 'node:http2';
import { connect } from 'node:net';
import { after, before, test } from 'node:test';
import type { CubeServer } from '../../cube-server/server.ts';
import { createServer } from './support/create-server.ts';
import { DataFolder } from './support/data-folder.ts';
import { control } from './support/server-process.ts';

/**
 * Exchanges recorded from a C++ Cube server (brpc 1.17) and replayed over a socket; responses must
 * be equal byte for byte, except for rows.
 */
const folder = new DataFolder();
const value = (key: bigint, j: number): number => Math.fround(Number(key) + j / 10);
let server: CubeServer;
let address: string;

before(async () => {
  const keys = Array.from({ length: 1000 }, (_, i) => BigInt(i));
  const tables = [{ name: 'test_dict', dim: 10, keys, value }];
  folder.write({ bundle: 'cube', version: '1', shardNum: 1, tables });
  server = createServer(folder.path);
  address = await server.listen({ host: '127.0.0.1', port: 0 });
  for (const call of ['load', 'activate']) {
    const reply = await control(address, call, { bundle: 'cube', version: '1' });
    assert.equal(reply.status, 200, JSON.stringify(reply.body));
  }
});

after(async () => {
  await server.stop();
  folder.remove();
});

const port = (): number => Number(address.slice(address.lastIndexOf(':') + 1));
const hex = (digits: string): string => digits.replaceAll(/\s/g, '');
const text = (words: string): string => Buffer.from(words).toString('hex');
const row = (key: number): string => {
  const floats = Float32Array.from({ length: 10 }, (_, j) => value(BigInt(key), j));
  return Buffer.from(floats.buffer).toString('hex');
};

/** Sends bytes and returns as many as expected, in hex. */
async function exchange(
  request: string,
  responseBytes: number,
  pieceBytes = 1 << 20,
): Promise<string> {
  const bytes = Buffer.from(hex(request), 'hex');
  const socket = connect({ port: port(), host: '127.0.0.1', noDelay: true });
  for (let at = 0; at < bytes.length; at += pieceBytes) {
    socket.write(bytes.subarray(at, at + pieceBytes));
    if (pieceBytes < bytes.length) await new Promise(setImmediate);
  }
  const received: Buffer[] = [];
  let length = 0;
  for await (const chunk of socket) {
    received.push(chunk);
    length += chunk.length;
    if (length >= responseBytes) break;
  }
  return Buffer.concat(received).toString('hex');
}

/** A frame of a meta and the bytes after it, in hex. */
function frame(meta: string, rest: string): string {
  const metaBytes = hex(meta).length / 2;
  const u32 = (n: number): string => n.toString(16).padStart(8, '0');
  const bodyBytes = metaBytes + hex(rest).length / 2;
  return `50525043${u32(bodyBytes)}${u32(metaBytes)}${hex(meta)}${hex(rest)}`;
}

/** Fields that brpc 1.17 added to every meta: content_type, checksum_type, checksum_value. */
const ZEROS = '5000 5800 6200';
const service = text('rec.mcube.DictService');
const seek = `0a1d0a15${service}1204${text('seek')}`;
const hit = (key: number): string => `0a2c08001228${row(key)}`;
const miss = '0a0808ffffffff0f1200';
const captured = `50525043 00000029 00000021 0a1d0a157265632e6d637562652e4469637453657276696365
  12047365656b 2007 0801080508 80897a`;

test('seek: two hits and a miss', async () => {
  const expected = frame(`12020800 1800 2007 ${ZEROS}`, hit(1) + hit(5) + miss);
  assert.ok(expected.startsWith('50525043000000740000000e1202080018002007500058006200'));
  assert.equal(await exchange(captured, expected.length / 2), expected);
});

test('seek split at every byte', async () => {
  const expected = frame(`12020800 1800 2007 ${ZEROS}`, hit(1) + hit(5) + miss);
  assert.equal(await exchange(captured, expected.length / 2, 1), expected);
});

test('seek with the version', async () => {
  const expected = frame(`12020800 1800 2009 ${ZEROS}`, `${hit(1)}1201${text('1')}`);
  assert.equal(await exchange(frame(`${seek}2009`, '08011001'), expected.length / 2), expected);
});

test('a brpc 1.17 request with explicit zero fields', async () => {
  const meta = `${seek} 1800 20828080808020 5000 5800 6200`;
  const request = `50525043 00000036 0000002e ${meta} 08f0f015089bf22c`;
  const expected = frame(`12020800 1800 20828080808020 ${ZEROS}`, miss + miss);
  assert.equal(await exchange(request, expected.length / 2), expected);
});

test('the bare service name is accepted; an empty request has an empty answer', async () => {
  const meta = `0a13 0a0b${text('DictService')}1204${text('seek')} 1800 200e`;
  const expected = frame(`12020800 1800 200e ${ZEROS}`, '');
  assert.equal(expected, '505250430000000e0000000e120208001800200e500058006200');
  assert.equal(await exchange(frame(meta, ''), expected.length / 2), expected);
});

test('packed keys are accepted', async () => {
  const expected = frame(`12020800 1800 2007 ${ZEROS}`, hit(1) + hit(5) + miss);
  assert.equal(
    await exchange(frame(`${seek}2007`, '0a05010580897a'), expected.length / 2),
    expected,
  );
});

test('an unknown method', async () => {
  const meta = `0a1e0a15${service}1205${text('seekk')}200b`;
  const message = `[127.0.0.1:${port()}][E1002]Fail to find method=rec.mcube.DictService/seekk`;
  const inner = `08ea0712${message.length.toString(16)}${text(message)}`;
  const expected = frame(`12${(inner.length / 2).toString(16)}${inner}1800200b${ZEROS}`, '');
  assert.equal(await exchange(frame(meta, ''), expected.length / 2), expected);
});

test('an invalid payload', async () => {
  const answer = Buffer.from(await exchange(frame(`${seek}200d`, 'ffffff'), 60), 'hex');
  assert.equal(answer.readUInt32BE(4), answer.readUInt32BE(8), 'an error has no payload');
  const expected =
    /\[E1003\]Fail to parse request=rec\.mcube\.DictRequest, ContentType=pb, request_size=3/;
  assert.match(answer.toString('latin1'), expected);
});

test('a JSON request in a frame gets a JSON response', async () => {
  const expected = frame(
    '12020800 1800 2007 5001 5800 6200',
    text('{"values":[{"status":4294967295,"value":""}],"version":"1"}'),
  );
  const request = frame(`${seek}2007 5001`, text('{"keys":["2000000"],"version_required":true}'));
  assert.equal(await exchange(request, expected.length / 2), expected);
});

test('other content types and streams are refused with a reason', async () => {
  const refusals: [string, string, RegExp][] = [
    [`${seek}2007 5002`, '7b7d', /\[E1003\]content_type 2 \(proto-json\) is not supported by rec/],
    [`${seek}2007 5063`, '7b7d', /\[E1003\]content_type 99 is unknown/],
    [`${seek}2007 42020801`, '0801', /\[E1002\]streams \(stream_settings\) are not supported/],
    [`${seek}2007 1807`, '0801', /\[E1003\]compress_type 7 is unknown/],
    [`${seek}2007 2805`, '0801', /\[E1003\]attachment_size=5 is larger than request_size=2/],
  ];
  for (const [meta, payload, expected] of refusals) {
    const answer = await exchange(frame(meta, payload), 60);
    assert.match(Buffer.from(answer, 'hex').toString('latin1'), expected);
  }
});

test('an unknown service without a package', async () => {
  const meta = `0a0e 0a06${text('Nobody')}1204${text('seek')} 200e`;
  const answer = await exchange(frame(meta, ''), 60);
  assert.match(
    Buffer.from(answer, 'hex').toString('latin1'),
    /\[E1001\]Fail to find service=Nobody/,
  );
});

test('what the C++ server accepts over HTTP: PUT, doubled slashes, texts for true', async () => {
  const ask = async (method: string, path: string, body?: string): Promise<[number, string]> => {
    const init = body === undefined ? { method } : { method, body };
    const response = await fetch(`http://${address}${path}`, init);
    return [response.status, await response.text()];
  };
  const missing = '{"values":[{"status":4294967295,"value":""}],"version":"1"}';
  const seekBody = '{"keys":[2000000],"version_required":"true"}';
  assert.deepEqual(await ask('PUT', '/DictService/seek', seekBody), [200, missing]);
  assert.deepEqual(await ask('POST', '//DictService//seek', seekBody), [200, missing]);
  const status = '{"cmd":"status"}';
  assert.equal((await ask('PUT', '/ControlService/cmd', status))[0], 200);
  assert.match(
    (await ask('GET', '/status'))[1],
    /^version: cube-server \d.*\npid: \d+\nready: yes/,
  );
  assert.match((await ask('GET', '/version'))[1], /^cube-server \d/);
  assert.deepEqual(await ask('GET', '/health'), [200, 'OK\n']);
});

test('a JSON seek may be as long as a frame, over HTTP and in a frame', async () => {
  const keys = Array.from({ length: 300_000 }, (_, i) => String(2n ** 63n + BigInt(i)));
  const body = JSON.stringify({ keys: [...keys, 7] });
  assert.ok(body.length > 6_000_000);
  const spaces = ' '.repeat(12 << 20);
  const padded = `${body.slice(0, -2)}${spaces}]}`;
  const response = await fetch(`http://${address}/DictService/seek`, {
    method: 'POST',
    body: padded,
  });
  assert.equal(response.status, 200);
  const answer = await response.text();
  const { values } = JSON.parse(answer) as { values: { status: number }[] };
  assert.deepEqual([values.length, values.at(-1)?.status], [keys.length + 1, 0]);
  const expected = frame('12020800 1800 2007 5001 5800 6200', text(answer));
  const received = await exchange(frame(`${seek}2007 5001`, text(body)), expected.length / 2);
  assert.ok(received === expected, 'the same answer in a frame');
});

test('a seek over plain HTTP/2, as brpc sends it with the protocol h2', async () => {
  const session = connectHttp2(`http://${address}`);
  const stream = session.request({
    ':method': 'POST',
    ':path': '/rec.mcube.DictService/seek',
    'content-type': 'application/proto',
  });
  stream.end(Buffer.from(hex('0801 0805 0880897a'), 'hex'));
  const pieces: Buffer[] = [];
  for await (const piece of stream) pieces.push(piece as Buffer);
  session.close();
  assert.equal(Buffer.concat(pieces).toString('hex'), hex(hit(1) + hit(5) + miss));
});

test('packed lookup: a recorded exchange, byte for byte', async () => {
  const meta = `0a210a17${text('hypercube.LookupService')}1206${text('lookup')} 2007 2818`;
  const head = `0a04${text('cube')} 1201${text('1')} 1800 2001 2a0d0a09${text('test_dict')}1003`;
  const keys = '0100000000000000 0500000000000000 80841e0000000000';
  const group = '120e 0800 1028 1803 208280808000 2878';
  const rows = `0300000000000000 ${row(1)} ${row(5)} ${'00'.repeat(40)}`;
  const expected = frame(`12020800 1800 2007 288001 ${ZEROS}`, `0a01${text('1')} ${group} ${rows}`);
  assert.equal(await exchange(frame(meta, head + keys), expected.length / 2), expected);
});
