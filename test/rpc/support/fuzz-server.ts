/** The fuzzed server, its checks during and after the run, and the frames that are mutated. */
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { encodeRequestFrame, startEchoServer } from './echo-server.ts';
import { fuzz } from './fuzz.ts';

const GOLDEN: readonly Buffer[] = [
  Buffer.from(
    encodeRequestFrame(7, Buffer.from('a payload'), { attachment: Buffer.from('attached') }),
  ),
  Buffer.from(
    encodeRequestFrame(2 ** 40, Buffer.from('later'), { method: 'later', timeoutMs: 50 }),
  ),
  Buffer.from(encodeRequestFrame(1, Buffer.from('nobody'), { service: 'Nobody' })),
  // As a brpc 1.17 client packs it.
  Buffer.from(
    '50525043000000240000001c0a110a09746573742e4563686f1204656368' +
      '6f180020075000580062000801080508897a',
    'hex',
  ),
];

export async function fuzzEchoServer(options: { seed: number; seconds: number }): Promise<{
  connections: number;
  answered: number;
}> {
  const { server, port, http, grpc } = await startEchoServer(
    { frameBytes: 1 << 20, inflatedBytes: 1 << 20, grpcPingMs: 300, drainMs: 500 },
    {
      later: (_frame, response) => {
        const deferred = response.defer();
        setTimeout(() => {
          deferred.begin(3);
          deferred.output.append(Buffer.from('abc'));
          deferred.finish();
        }, 5);
      },
    },
    0,
    (front) => front.addUnary('test.Echo', 'echo', (request) => request),
  );
  const before = process.memoryUsage().rss;
  const result = await fuzz({ port, golden: GOLDEN, ...options });
  const replay = `npm run fuzz -- --seed ${options.seed}`;
  for (let i = 0; i < 500 && server.connections > 0; i++) await sleep(10);
  assert.equal(server.connections, 0, replay);
  assert.equal(server.baidu.unfinishedFrameBytes, 0, replay);
  assert.equal(server.baidu.inputBufferBytes, 0, replay);
  assert.equal(server.baidu.callsInFlight, 0, replay);
  assert.equal(server.unsentBytes, 0, replay);
  assert.equal(http.requestsInFlight, 0, replay);
  assert.equal(grpc?.callsInFlight, 0, replay);
  const grownBytes = process.memoryUsage().rss - before;
  assert.ok(grownBytes < 512 << 20, `${grownBytes} bytes more than before; ${replay}`);
  await server.stop();
  return result;
}
