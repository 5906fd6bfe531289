/** The trace of a call over baidu_std: whole for our processes, the low halves for brpc's. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { formatTraceparent, parseTraceparent } from '../../lib/core/trace-span.ts';
import { FrameDecoder, readCorrelationId } from '../../proto/baidu-std.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import { RequestEncoder } from '../../proto/request-encoder.ts';
import { encodeTraceFields, readTraceparent } from '../../proto/trace-fields.ts';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const SPAN = '00f067aa0ba902b7';

function decode(traceFields: Uint8Array, checksumType = 0): FrameDecoder {
  const output = new OutputBuffer();
  const payload = Uint8Array.of(1, 2, 3);
  const attachment = Uint8Array.of(4);
  const call = { correlation: 77, timeoutMs: 5, payload, attachment, checksumType, traceFields };
  new RequestEncoder('a.Service', 'method').write(output, call);
  const decoder = new FrameDecoder();
  decoder.push(output.writtenBytes());
  assert.ok(decoder.next());
  return decoder;
}

function makeId(digits: number): fc.Arbitrary<string> {
  const digit = fc.integer({ min: 0, max: 15 }).map((value) => value.toString(16));
  return fc
    .array(digit, { minLength: digits, maxLength: digits })
    .map((all) => all.join(''))
    .filter((id) => /[^0]/.test(id));
}

test('a traceparent passes through the meta of a call, which stays readable', () => {
  const ids = fc.record({
    traceId: makeId(32),
    spanId: makeId(16),
    traceFlags: fc.integer({ min: 0, max: 255 }),
  });
  fc.assert(
    fc.property(ids, fc.constantFrom(0, 1, 100), (given, checksumType) => {
      const text = formatTraceparent(given);
      assert.deepEqual(parseTraceparent(text), { ...given });
      const { frame } = decode(encodeTraceFields(text), checksumType);
      assert.equal(readTraceparent(frame), text);
      const { service, method, timeoutMs, bytes, payloadStart, payloadEnd } = frame;
      assert.deepEqual([service, method, timeoutMs], ['a.Service', 'method', 5]);
      assert.equal(readCorrelationId(frame), 77);
      assert.deepEqual([...bytes.subarray(payloadStart, payloadEnd)], [1, 2, 3]);
      assert.equal(bytes[frame.attachmentStart], 4);
    }),
  );
});

test('the ids of a brpc caller have 64 bits each', () => {
  const own = encodeTraceFields(`00-${TRACE}-${SPAN}-01`);
  // The second field is ours alone.
  const request = own.subarray(0, 2 + own[1]!);
  const low = TRACE.slice(16);
  assert.equal(readTraceparent(decode(request).frame), `00-0000000000000000${low}-${SPAN}-01`);
});

test('a call without a trace, or with an invalid one, has none', () => {
  assert.equal(readTraceparent(decode(new Uint8Array(0)).frame), undefined);
  for (const text of [
    '',
    'x',
    `00-${TRACE}-${SPAN}`,
    `ff-${TRACE}-${SPAN}-01`,
    `00-${TRACE}-${SPAN}-01-more`,
    `00-${'0'.repeat(32)}-${SPAN}-01`,
    `00-${TRACE}-${'0'.repeat(16)}-01`,
    `00-${TRACE.toUpperCase()}-${SPAN}-01`,
  ]) {
    assert.equal(parseTraceparent(text), undefined, text);
    assert.deepEqual(encodeTraceFields(text), new Uint8Array(0), text);
  }
  assert.ok(parseTraceparent(`01-${TRACE}-${SPAN}-01-more`));
});
