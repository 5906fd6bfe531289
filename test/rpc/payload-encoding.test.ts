import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { deflateSync, gzipSync } from 'node:zlib';
import fc from 'fast-check';
import snappy from 'snappyjs';
import { compress, decompress } from '../../lib/rpc/compression.ts';
import { crc32c, maskCrc } from '../../lib/rpc/crc32c.ts';
import { WireReader } from '../../proto/wire.ts';
import { getErrorCode } from '../support/errors.ts';
import { type EchoServer, RawConnection, startEchoServer } from './support/echo-server.ts';

const TYPES = { snappy: 1, gzip: 2, zlib: 3, lz4: 4 };
const INFLATED_MAX = 100_000;
const bytes = (text: string): Uint8Array => Buffer.from(text, 'latin1');

/** The definition of the checksum, bit by bit. */
function slowCrc32c(data: Uint8Array): number {
  let crc = 0xffff_ffff;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0x82f6_3b78 : 0);
  }
  return ~crc >>> 0;
}

test("crc32c matches its check value, its definition and brpc's mask", () => {
  assert.equal(crc32c(bytes('123456789'), 0, 9), 0xe306_9283);
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 70 }), fc.nat(20), (data, skipped) => {
      const start = Math.min(skipped, data.length);
      assert.equal(crc32c(data, start, data.length), slowCrc32c(data.subarray(start)));
    }),
  );
  assert.equal(maskCrc(0), 0xa282_ead8);
  assert.equal(maskCrc(0xffff_ffff), 0xa282_ead7);
});

test("every compression round-trips, and decodes other encoders' output", () => {
  const words = fc.array(fc.constantFrom('key', 'embedding', '0', '\u00ff', 'aaaaaaaaaaaaaaaa'), {
    maxLength: 2000,
  });
  const data = fc.oneof(
    fc.uint8Array({ maxLength: 3000 }),
    words.map((parts) => bytes(parts.join(''))),
  );
  fc.assert(
    fc.property(data, (original) => {
      for (const type of Object.values(TYPES)) {
        const again = decompress(type, compress(type, original), original.length);
        assert.ok(Buffer.from(original).equals(again), `type ${type}`);
      }
    }),
  );
  const original = bytes('a text that repeats, repeats, repeats, repeats itself'.repeat(50));
  assert.ok(Buffer.from(original).equals(decompress(1, snappy.compress(original), 1e6)));
  // The output of liblz4: literals "abc", a match that overlaps itself, five last literals.
  const lz4 = Buffer.concat([
    Buffer.from('0e 32 616263 0300 50'.replaceAll(' ', ''), 'hex'),
    bytes('VWXYZ'),
  ]);
  assert.equal(Buffer.from(decompress(4, lz4, 99)).toString(), 'abcabcabcVWXYZ');
});

test('a decompression bomb is rejected before it uses memory', () => {
  const zeros = new Uint8Array(50 << 20);
  for (const [name, packed] of [
    ['gzip', gzipSync(zeros)],
    ['zlib', deflateSync(zeros)],
  ] as const) {
    const before = process.memoryUsage().arrayBuffers;
    assert.equal(
      getErrorCode(() => decompress(TYPES[name], packed, INFLATED_MAX)),
      'TOO_LARGE',
    );
    assert.ok(process.memoryUsage().arrayBuffers - before < 10 << 20);
  }
  const announced = Buffer.from('ffffffff0f00', 'hex');
  for (const type of [1, 4]) {
    assert.equal(
      getErrorCode(() => decompress(type, announced, INFLATED_MAX)),
      'TOO_LARGE',
    );
  }
});

test('corrupted and random bytes decode to the original or one clear error', () => {
  const original = bytes('some words, some words and some more words '.repeat(20));
  const damage = fc.record({
    type: fc.constantFrom(...Object.values(TYPES)),
    at: fc.nat(),
    value: fc.nat(255),
    cut: fc.nat(30),
    random: fc.option(fc.uint8Array({ maxLength: 40 })),
  });
  fc.assert(
    fc.property(damage, ({ type, at, value, cut, random }) => {
      const packed = compress(type, original).slice();
      packed[at % packed.length] = value;
      const hostile = random ?? packed.subarray(0, packed.length - cut);
      const outcome = getErrorCode(() => {
        assert.ok(decompress(type, hostile, INFLATED_MAX).length <= INFLATED_MAX);
      });
      assert.ok(['no error', 'INVALID_ARGUMENT', 'TOO_LARGE'].includes(outcome), outcome);
    }),
    { numRuns: 3000 },
  );
});

let echo: EchoServer;
before(async () => {
  echo = await startEchoServer({ inflatedBytes: INFLATED_MAX });
});
after(() => echo.server.stop());

interface Sent {
  readonly compressType?: number;
  /** undefined: no checksum. */
  readonly checksum?: Uint8Array;
  readonly withAttachment?: boolean;
  readonly payload: Uint8Array;
  readonly attachment?: Uint8Array;
}

/** Builds a frame as brpc 1.17 does: the meta by hand, the payload already encoded. */
function coded({ compressType = 0, checksum, withAttachment, payload, attachment }: Sent): Buffer {
  const target = [0x0a, 9, ...bytes('test.Echo'), 0x12, 4, ...bytes('echo')];
  const meta = [0x0a, target.length, ...target, 0x18, compressType, 0x20, 0x07];
  if (attachment !== undefined) meta.push(0x28, attachment.length);
  if (checksum !== undefined) meta.push(0x58, 1, 0x62, checksum.length, ...checksum);
  if (withAttachment) meta.push(0x68, 1);
  const head = Buffer.alloc(12);
  const body = Buffer.concat([Buffer.from(meta), payload, attachment ?? new Uint8Array(0)]);
  head.write('PRPC');
  head.writeUInt32BE(body.length, 4);
  head.writeUInt32BE(meta.length, 8);
  return Buffer.concat([head, body]);
}

function masked(data: Uint8Array): Buffer {
  const value = Buffer.alloc(4);
  value.writeUInt32BE(maskCrc(slowCrc32c(data)));
  return value;
}

/** Sends bytes and returns the parts of one raw response. */
async function exchange(request: Uint8Array): Promise<{
  compressType: number;
  checksumType: number;
  checksum: Buffer;
  withAttachment: boolean;
  payload: Buffer;
  attachment: Buffer;
  text: string;
}> {
  const connection = new RawConnection(echo.port);
  const raw = new Promise<Buffer>((resolve) => connection.socket.once('data', resolve));
  connection.send(request);
  const answer = await raw;
  connection.socket.destroy();
  const metaEnd = 12 + answer.readUInt32BE(8);
  const fields = new Map<number, number | Buffer>();
  const reader = new WireReader(answer, 12, metaEnd);
  while (reader.next()) {
    const value = reader.wireType === 0 ? Number(reader.uint64()) : Buffer.from(reader.view());
    fields.set(reader.field, value);
  }
  const attachmentBytes = Number(fields.get(5) ?? 0);
  return {
    compressType: Number(fields.get(3)),
    checksumType: Number(fields.get(11)),
    checksum: fields.get(12) as Buffer,
    withAttachment: fields.get(13) === 1,
    payload: answer.subarray(metaEnd, answer.length - attachmentBytes),
    attachment: answer.subarray(answer.length - attachmentBytes),
    text: answer.toString('latin1'),
  };
}

test('a compressed request gets a compressed response; attachments stay plain', async () => {
  const text = bytes('to be compressed '.repeat(40));
  const attachment = bytes('as it is');
  for (const type of Object.values(TYPES)) {
    const payload = compress(type, text);
    const answer = await exchange(coded({ compressType: type, payload, attachment }));
    assert.equal(answer.compressType, type);
    assert.ok(answer.payload.length < text.length / 2);
    assert.ok(Buffer.from(text).equals(decompress(type, answer.payload, 1e6)));
    assert.deepEqual(answer.attachment, Buffer.from(attachment));
    assert.equal(answer.checksumType, 0);
  }
});

test('a payload that grows when compressed does not overwrite the attachment', async () => {
  const attachment = bytes('0123456789'.repeat(12));
  for (const type of Object.values(TYPES)) {
    const payload = compress(type, bytes('ab'));
    const answer = await exchange(coded({ compressType: type, payload, attachment }));
    assert.equal(Buffer.from(decompress(type, answer.payload, 10)).toString(), 'ab');
    assert.deepEqual(answer.attachment, Buffer.from(attachment));
  }
});

test('an empty payload is compressed too, except with LZ4, which brpc rejects', async () => {
  for (const type of Object.values(TYPES)) {
    const payload = compress(type, new Uint8Array(0));
    const answer = await exchange(coded({ compressType: type, payload }));
    assert.equal(answer.compressType, type === TYPES.lz4 ? 0 : type);
    if (type === TYPES.lz4) assert.equal(answer.payload.length, 0);
    else assert.equal(decompress(type, answer.payload, 10).length, 0);
  }
});

test('a checksum covers the compressed payload, optionally the attachment', async () => {
  const attachment = bytes('attached');
  for (const compressType of [0, ...Object.values(TYPES)]) {
    const text = bytes('summed '.repeat(30));
    const payload = compressType === 0 ? text : compress(compressType, text);
    for (const withAttachment of [false, true]) {
      const covered = withAttachment ? Buffer.concat([payload, attachment]) : payload;
      const checksum = masked(covered);
      const sent = { compressType, checksum, withAttachment, payload, attachment };
      const answer = await exchange(coded(sent));
      assert.equal(answer.checksumType, 1, answer.text);
      assert.equal(answer.withAttachment, withAttachment);
      const returned = [answer.payload, ...(withAttachment ? [answer.attachment] : [])];
      assert.deepEqual(answer.checksum, masked(Buffer.concat(returned)));
      const damaged = Uint8Array.from(payload);
      damaged[5]! ^= 0x10;
      const refused = await exchange(coded({ ...sent, payload: damaged }));
      assert.match(refused.text, /\[E1003\]the crc32c of the message \(\d+ bytes\) does not match/);
    }
  }
  const payload = bytes('x');
  const none = await exchange(coded({ checksum: new Uint8Array(0), payload }));
  assert.match(none.text, /\[E1003\]checksum_value has 0 bytes, a crc32c has 4/);
});

test('an undecodable payload gets error 1003, and the connection continues', async () => {
  const connection = new RawConnection(echo.port);
  const garbage = bytes('\xff\xff\xff not compressed at all');
  const requests = Object.values(TYPES).map((compressType) =>
    coded({ compressType, payload: garbage }),
  );
  requests.push(coded({ compressType: 2, payload: gzipSync(new Uint8Array(INFLATED_MAX + 1)) }));
  requests.push(coded({ payload: bytes('still here') }));
  connection.send(Buffer.concat(requests));
  const answers = await connection.receive(6);
  for (const { errorCode, errorText } of answers.slice(0, 5)) {
    assert.equal(errorCode, 1003);
    assert.match(errorText, /Fail to decompress the payload, CompressType=(snappy|gzip|zlib|lz4)/);
  }
  assert.match(answers[4]!.errorText, /more than 100000 bytes when decompressed/);
  assert.equal(answers[5]?.payload, 'still here');
  connection.socket.destroy();
});
