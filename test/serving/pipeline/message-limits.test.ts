/**
 * Messages above the 256 MiB that Pipeline Serving accepts are refused as soon as their length is
 * known, in the way of each protocol.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect as connectHttp2 } from 'node:http2';
import { connect, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { FrameDecoder } from '../../../proto/baidu-std.ts';
import { PIPELINE_SERVICE } from '../../../proto/pipeline.ts';
import { Op, RequestOp, ResponseOp } from '../../../serving/pipeline/op.ts';
import { servePipeline } from '../support/served-pipeline.ts';

const LIMIT = 256 << 20;
/** Sent of a message, so that a server that waits for its rest has something to keep. */
const SENT_BYTES = 1 << 20;
/** Far less than the messages declare. */
const GROWTH_BYTES_MAX = 48 << 20;
const RESOURCE_EXHAUSTED = '8';

function open(t: TestContext, address: string): Socket {
  const [host, port] = address.split(':');
  const socket = connect({ host: String(host), port: Number(port) });
  t.after(() => socket.destroy());
  // The server closes the connection before all is sent.
  socket.on('error', () => undefined);
  return socket;
}

async function readAll(socket: Socket): Promise<Buffer> {
  const pieces: Buffer[] = [];
  socket.on('data', (piece: Buffer) => pieces.push(piece));
  await once(socket, 'close');
  return Buffer.concat(pieces);
}

async function sendHttp(t: TestContext, address: string, path: string): Promise<void> {
  const socket = open(t, address);
  const lines = [`POST ${path} HTTP/1.1`, 'host: x', 'content-type: application/json'];
  socket.write(`${lines.join('\r\n')}\r\ncontent-length: ${LIMIT + 1}\r\n\r\n`);
  socket.write(Buffer.alloc(SENT_BYTES, 0x20));
  const answer = (await readAll(socket)).toString();
  assert.match(answer, /^HTTP\/1\.1 413 /);
  assert.match(answer, /"code":"TOO_LARGE"/);
}

async function sendBaidu(t: TestContext, address: string): Promise<void> {
  const socket = open(t, address);
  const head = Buffer.alloc(12);
  head.write('PRPC');
  head.writeUInt32BE(LIMIT + 1, 4);
  socket.write(head);
  socket.write(Buffer.alloc(SENT_BYTES));
  const bytes = await readAll(socket);
  const decoder = new FrameDecoder();
  decoder.push(bytes);
  assert.ok(decoder.next(), 'an answer came');
  assert.match(decoder.frame.errorText, /268435457|268435469|limit/);
}

async function sendGrpc(t: TestContext, address: string): Promise<void> {
  const session = connectHttp2(`http://${address}`);
  t.after(() => session.destroy());
  const stream = session.request({
    ':method': 'POST',
    ':path': `/${PIPELINE_SERVICE}/inference`,
    'content-type': 'application/grpc',
    te: 'trailers',
  });
  const prefix = Buffer.alloc(5);
  prefix.writeUInt32BE(LIMIT + 1, 1);
  stream.write(prefix);
  stream.write(Buffer.alloc(SENT_BYTES));
  stream.resume();
  const status = new Promise<unknown>((resolve) => {
    for (const event of ['response', 'trailers'] as const) {
      stream.on(event, (headers: Record<string, unknown>) => {
        if (headers['grpc-status'] !== undefined) resolve(headers['grpc-status']);
      });
    }
  });
  assert.equal(await status, RESOURCE_EXHAUSTED);
}

test('a message over the limit is refused from its head, without its memory', async (t) => {
  const op = new Op({ name: 'echo', inputs: [new RequestOp()] });
  const { address } = await servePipeline(t, { ops: new ResponseOp({ inputs: [op] }) });
  const measure = (): number => {
    const { arrayBuffers, heapUsed } = process.memoryUsage();
    return arrayBuffers + heapUsed;
  };
  const before = measure();
  await sendHttp(t, address, '/toy/prediction');
  await sendHttp(t, address, '/toy/other');
  await sendBaidu(t, address);
  await sendGrpc(t, address);
  const growth = measure() - before;
  assert.ok(growth < GROWTH_BYTES_MAX, `memory grew by ${growth} bytes`);
  const answer = await fetch(`http://${address}/toy/prediction`, { method: 'POST', body: '{}' });
  assert.equal(((await answer.json()) as { err_no: number }).err_no, 0);
});
