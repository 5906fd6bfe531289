/** Memory of request bodies is used again, and never while a body in it is still needed. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { DEFAULT_SERVER_LIMITS } from '../../lib/core/limits.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { HttpServer } from '../../lib/rpc/http-server.ts';
import { OnePortServer } from '../../lib/rpc/one-port-server.ts';
import { DIRECT_TYPE, encodePost, exchange } from './support/direct-servers.ts';

const PIECE_BYTES = 50_000;

interface HashServer {
  readonly port: number;
  /** The memory of all bodies so far. */
  readonly memory: Set<ArrayBufferLike>;
}

/** Answers each body with its hash. */
async function startHashServer(t: TestContext): Promise<HashServer> {
  const [limits, logger] = [DEFAULT_SERVER_LIMITS, createLogger('test', { level: 'silent' })];
  const http = new HttpServer(limits, logger);
  const memory = new Set<ArrayBufferLike>();
  http.directRoutes.add({
    path: '/named/:name/do',
    contentTypes: [DIRECT_TYPE],
    readsBodyAtOnce: true,
    handler: async ({ body }) => {
      memory.add((body as Buffer).buffer);
      return { type: 'text/plain', body: hash(body as Buffer) };
    },
  });
  const server = new OnePortServer({ http, limits, logger });
  t.after(() => server.stop());
  const port = Number((await server.listen('127.0.0.1', 0)).split(':').at(-1));
  return { port, memory };
}

function hash(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

function split(bytes: Buffer): Buffer[] {
  const pieces: Buffer[] = [];
  for (let at = 0; at < bytes.length; at += PIECE_BYTES) {
    pieces.push(bytes.subarray(at, at + PIECE_BYTES));
  }
  return pieces;
}

test('bodies that arrive at once on several connections keep their own bytes', async (t) => {
  const { port } = await startHashServer(t);
  // Around the lengths at which memory of the pool is used.
  const length = fc.oneof(
    fc.integer({ min: 1, max: 300_000 }),
    fc.constantFrom((16 << 10) - 1, 16 << 10, 256 << 10, (256 << 10) + 1),
  );
  const connections = fc.array(fc.array(length, { minLength: 1, maxLength: 4 }), {
    minLength: 2,
    maxLength: 6,
  });
  await fc.assert(
    fc.asyncProperty(connections, fc.integer(), async (lengths, seed) => {
      let value = seed;
      const send = async (lengthsOfOne: readonly number[]): Promise<void> => {
        const bodies = lengthsOfOne.map((count) => Buffer.alloc(count, `${value++} body `));
        const bytes = Buffer.concat(bodies.map((body) => encodePost('body', body)));
        const answers = (await exchange(port, split(bytes))).match(/[0-9a-f]{64}/g);
        assert.deepEqual(answers, bodies.map(hash));
      };
      await Promise.all(lengths.map(send));
    }),
    { numRuns: 25 },
  );
});

test('the memory of large bodies is used again', async (t) => {
  const { port, memory } = await startHashServer(t);
  for (let i = 0; i < 20; i++) {
    await exchange(port, split(encodePost('body', Buffer.alloc(100_000, `${i} body `))));
  }
  assert.equal(memory.size, 1);
});
