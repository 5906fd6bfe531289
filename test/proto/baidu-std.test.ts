import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  beginResponse,
  type Frame,
  FrameDecoder,
  finishFrame,
  hasIntactError,
  readCorrelationId,
  readLogId,
  readRequestId,
  writeErrorResponse,
} from '../../proto/baidu-std.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import { RequestEncoder } from '../../proto/request-encoder.ts';
import { getErrorCode } from '../support/errors.ts';

const hex = (text: string): Uint8Array => Buffer.from(text.replaceAll(/\s/g, ''), 'hex');

/** What a brpc 1.17 stub sent: ten zero fields included. */
const BRPC_REQUEST = hex(`50525043 00000036 0000002e 0a1d0a15
  ${Buffer.from('rec.mcube.DictService').toString('hex')}
  1204 ${Buffer.from('seek').toString('hex')}
  1800 20828080808020 5000 5800 6200 08f0f015089bf22c`);

interface Copied {
  service: string;
  method: string;
  correlation: number;
  payload: string;
  attachment: string;
  timeoutMs: number;
}

function copy(frame: Frame): Copied {
  const { bytes, service, method, timeoutMs } = frame;
  const text = (from: number, to: number): string =>
    Buffer.from(bytes.slice(from, to)).toString('hex');
  return {
    service,
    method,
    timeoutMs,
    correlation: readCorrelationId(frame),
    payload: text(frame.payloadStart, frame.payloadEnd),
    attachment: text(frame.attachmentStart, frame.attachmentEnd),
  };
}

function decodeAll(decoder: FrameDecoder, chunks: readonly Uint8Array[]): Copied[] {
  const frames: Copied[] = [];
  for (const chunk of chunks) {
    decoder.push(chunk);
    while (decoder.next()) frames.push(copy(decoder.frame));
  }
  return frames;
}

test('a request of a brpc client decodes', () => {
  const [frame] = decodeAll(new FrameDecoder(), [BRPC_REQUEST]);
  assert.deepEqual(frame, {
    service: 'rec.mcube.DictService',
    method: 'seek',
    correlation: 2 + 2 ** 40,
    payload: '08f0f015089bf22c',
    attachment: '',
    timeoutMs: 0,
  });
});

test('our seek request equals the captured one byte for byte', () => {
  const output = new OutputBuffer(1);
  const payload = hex('0801080508 80897a');
  new RequestEncoder('rec.mcube.DictService', 'seek').write(output, {
    correlation: 7,
    timeoutMs: 0,
    payload,
    attachment: new Uint8Array(0),
  });
  const golden = hex(`5052504300000029000000210a1d0a157265632e6d637562652e4469637453657276
    6963651204 7365656b2007 080108050880897a`);
  assert.deepEqual(Buffer.from(output.writtenBytes()), golden);
});

test('frames split at any byte decode', () => {
  const two = Buffer.concat([BRPC_REQUEST, BRPC_REQUEST]);
  const expected = decodeAll(new FrameDecoder(), [BRPC_REQUEST])[0];
  for (let at = 0; at <= two.length; at++) {
    const frames = decodeAll(new FrameDecoder(), [two.subarray(0, at), two.subarray(at)]);
    assert.deepEqual(frames, [expected, expected], `split at ${at}`);
  }
  const bytes = Array.from(two, (byte) => Uint8Array.of(byte));
  assert.deepEqual(decodeAll(new FrameDecoder(), bytes), [expected, expected]);
});

test('encoded frames decode at any size and split', () => {
  const call = fc.record({
    correlation: fc.integer({ min: 1, max: 2 ** 40 }),
    timeoutMs: fc.integer({ min: 0, max: 100_000 }),
    payload: fc.uint8Array({ maxLength: 300 }),
    attachment: fc.uint8Array({ maxLength: 300 }),
  });
  fc.assert(
    fc.property(
      fc.array(call, { minLength: 1, maxLength: 8 }),
      fc.infiniteStream(fc.nat(200)),
      (calls, cuts) => {
        const output = new OutputBuffer(16);
        const target = new RequestEncoder('a.Service', 'method');
        for (const each of calls) target.write(output, each);
        const chunks: Uint8Array[] = [];
        for (let at = 0; at < output.length; ) {
          const length = 1 + cuts.next().value!;
          chunks.push(output.writtenBytes().slice(at, at + length));
          at += length;
        }
        const frames = decodeAll(new FrameDecoder(), chunks);
        const expected = calls.map(({ correlation, timeoutMs, payload, attachment }) => ({
          service: 'a.Service',
          method: 'method',
          correlation,
          timeoutMs,
          payload: Buffer.from(payload).toString('hex'),
          attachment: Buffer.from(attachment).toString('hex'),
        }));
        assert.deepEqual(frames, expected);
      },
    ),
  );
});

test('a frame view lies in the chunk itself when the chunk holds the whole frame', () => {
  const decoder = new FrameDecoder();
  decoder.push(BRPC_REQUEST);
  assert.ok(decoder.next());
  assert.equal(decoder.frame.bytes, BRPC_REQUEST);
  assert.equal(decoder.bufferedBytes, 0);
});

test('hostile headers are refused before anything is buffered', () => {
  const header = (magic: string, body: number, meta: number): Uint8Array => {
    const bytes = Buffer.alloc(12);
    bytes.write(magic, 'latin1');
    bytes.writeUInt32BE(body, 4);
    bytes.writeUInt32BE(meta, 8);
    return bytes;
  };
  const next = (bytes: Uint8Array) => () => {
    const decoder = new FrameDecoder();
    decoder.push(bytes);
    return decoder.next();
  };
  assert.equal(getErrorCode(next(header('PRPC', 100_000_000, 10))), 'TOO_LARGE');
  assert.equal(getErrorCode(next(header('PRPC', 0xffff_ffff, 10))), 'TOO_LARGE');
  assert.equal(getErrorCode(next(header('PRPC', 10, 11))), 'INVALID_ARGUMENT');
  assert.equal(getErrorCode(next(header('PRPC', 50_000_000, 300_000))), 'TOO_LARGE');
  assert.equal(getErrorCode(next(header('HULU', 10, 10))), 'INVALID_ARGUMENT');
  const decoder = new FrameDecoder();
  decoder.push(header('PRPC', 50_000_000, 10));
  assert.equal(decoder.next(), false);
  assert.ok(decoder.bufferedBytes <= 12);
});

test('a meta that is not protobuf is refused for any bytes', () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 60 }), (meta) => {
      const bytes = Buffer.concat([hex('50525043 00000000 00000000'), meta]);
      bytes.writeUInt32BE(meta.length, 4);
      bytes.writeUInt32BE(meta.length, 8);
      const decoder = new FrameDecoder();
      decoder.push(bytes);
      const result = getErrorCode(() => decoder.next());
      assert.ok(result === 'no error' || result === 'INVALID_ARGUMENT', result);
    }),
    { numRuns: 2000 },
  );
});

test('a well-delimited frame with unusable contents gets an error, and the stream goes on', () => {
  const frame = (meta: string, rest = ''): Uint8Array => {
    const bytes = Buffer.concat([hex('50525043 00000000 00000000'), hex(meta), hex(rest)]);
    bytes.writeUInt32BE(bytes.length - 12, 4);
    bytes.writeUInt32BE(hex(meta).length, 8);
    return bytes;
  };
  const request = '0a060a01611201622007';
  const defects = [
    [`${request} 1805`, /compress_type 5 is unknown/],
    [`${request} 5802`, /checksum_type 2 is unknown/],
    [`${request} 4200`, /stream_settings/],
    [`${request} 2805`, /attachment_size=5/],
    [`${request} 28ffffffffffffffffff01`, /attachment_size=-1/],
    [`${request} 5004`, /content_type 4 is unknown/],
  ] as const;
  for (const [meta, message] of defects) {
    const decoder = new FrameDecoder();
    decoder.push(Buffer.concat([frame(meta, 'aabb'), BRPC_REQUEST]));
    assert.ok(decoder.next());
    assert.equal(readCorrelationId(decoder.frame), 7);
    assert.match(decoder.frame.error?.message ?? '', message);
    assert.ok(decoder.next());
    assert.equal(decoder.frame.error, undefined);
    assert.equal(decoder.frame.service, 'rec.mcube.DictService');
  }
});

test('responses copy the correlation id byte for byte', () => {
  const decoder = new FrameDecoder();
  decoder.push(BRPC_REQUEST);
  decoder.next();
  const output = new OutputBuffer(4);
  const metaEnd = beginResponse(output, decoder.frame, 3);
  output.append(hex('0102'));
  output.append(hex('aabbcc'));
  finishFrame(output, 0, metaEnd);
  assert.deepEqual(
    Buffer.from(output.writtenBytes()),
    Buffer.from(
      hex('505250430000001a 00000015 12020800 1800 20828080808020 2803 500058006200 0102aabbcc'),
    ),
  );
});

test('an error response equals that of brpc 1.17 byte for byte', () => {
  const decoder = new FrameDecoder();
  decoder.push(
    hex(
      '50525043 00000022 00000022 0a1e0a157265632e6d637562652e4469637453657276696365' +
        '1205 7365656b6b 200b',
    ),
  );
  assert.ok(decoder.next());
  const output = new OutputBuffer(4);
  const text = '[127.0.0.1:8027][E1002]Fail to find method=rec.mcube.DictService/seekk';
  writeErrorResponse(output, decoder.frame, 1002, text);
  const expected = Buffer.concat([
    hex('5052504300000057 00000057 124b08ea071246'),
    Buffer.from(text),
    hex('1800200b500058006200'),
  ]);
  assert.deepEqual(Buffer.from(output.writtenBytes()), expected);
});

test('a changed bit in an error of a request with xxh64 is noticed', () => {
  const encoder = new RequestEncoder('test.Echo', 'echo');
  const request = new OutputBuffer();
  const payload = Buffer.from('a payload');
  const none = new Uint8Array(0);
  encoder.write(request, {
    correlation: 77,
    timeoutMs: 0,
    payload,
    attachment: none,
    checksumType: 100,
  });
  const decoder = new FrameDecoder();
  decoder.push(request.writtenBytes());
  assert.ok(decoder.next());
  const output = new OutputBuffer();
  writeErrorResponse(output, decoder.frame, 1003, 'the key is not valid', 'DENIED', '{"a":1}');
  const intact = Buffer.from(output.writtenBytes());
  const read = (bytes: Uint8Array): unknown[] | undefined => {
    const reader = new FrameDecoder();
    reader.push(bytes);
    if (!reader.next()) return undefined;
    const { frame } = reader;
    if (!hasIntactError(frame)) return undefined;
    const { errorCode, errorText, errorName, errorDetails } = frame;
    return [readCorrelationId(frame), errorCode, errorText, errorName, errorDetails];
  };
  const expected = [77, 1003, 'the key is not valid', 'DENIED', '{"a":1}'];
  assert.deepEqual(read(intact), expected);
  let noticed = 0;
  for (let at = 12; at < intact.length; at++) {
    for (let bit = 1; bit < 256; bit *= 2) {
      const damaged = Buffer.from(intact);
      damaged[at] = (damaged[at] ?? 0) ^ bit;
      let found: unknown[] | undefined;
      try {
        found = read(damaged);
      } catch {
        // No protobuf any more.
      }
      // Without its correlation id it ends the connection, and is no answer of the call.
      if (found === undefined || found[0] !== 77) noticed++;
      else {
        // A length may hide the checksum, and with it what is before it: name and details.
        const hidden = found.map((value, i) => (i > 2 && value === '' ? expected[i] : value));
        assert.deepEqual(hidden, expected, `bit ${bit} of byte ${at}`);
      }
    }
  }
  assert.ok(noticed > 8 * 80, `${noticed} noticed`);
});

test('a request without correlation id is answered with 0, as brpc does', () => {
  const decoder = new FrameDecoder();
  decoder.push(hex('50525043 0000000a 0000000a 0a080a0361626312 0164'));
  assert.ok(decoder.next());
  const output = new OutputBuffer(4);
  finishFrame(output, 0, beginResponse(output, decoder.frame, 0));
  writeErrorResponse(output, decoder.frame, 1002, 'x');
  const expected = `505250430000000e0000000e 12020800 1800 2000 500058006200
    5052504300000012 00000012 120608ea07120178 1800 2000 500058006200`;
  assert.deepEqual(Buffer.from(output.writtenBytes()), hex(expected));
});

test('ids and credentials of callers are read; unknown fields are skipped', () => {
  const known = '0a1b 0a0161 120162 18f0ffffffffffffffff01 3a05 7265712d31 40e807';
  // chunk_info, authentication_data, user_fields, and fields of the future of every wire type
  const strange =
    '3202080a 3a0361626c 4a060a0161120162 f83f7f 81400102030405060708 82400201ff 8540 01020304';
  const meta = hex(`${known} ${strange} 2007`);
  const frame = Buffer.concat([hex('50525043 00000000 00000000'), meta, hex('0801')]);
  frame.writeUInt32BE(meta.length + 2, 4);
  frame.writeUInt32BE(meta.length, 8);
  const decoder = new FrameDecoder();
  decoder.push(frame);
  assert.ok(decoder.next());
  assert.equal(decoder.frame.error, undefined);
  assert.equal(readLogId(decoder.frame), -16n);
  assert.equal(readRequestId(decoder.frame), 'req-1');
  assert.deepEqual(copy(decoder.frame), {
    service: 'a',
    method: 'b',
    correlation: 7,
    timeoutMs: 1000,
    payload: '0801',
    attachment: '',
  });
  decoder.push(BRPC_REQUEST);
  assert.ok(decoder.next());
  assert.equal(readLogId(decoder.frame), 0n);
  assert.equal(readRequestId(decoder.frame), '');
});
