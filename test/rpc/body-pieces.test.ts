/** Small chunks of a body are joined, and nothing of it is lost. */
import assert from 'node:assert/strict';
import { Readable } from 'node:stream';
import { test } from 'node:test';
import fc from 'fast-check';
import { addPiece, joinChunks } from '../../lib/rpc/body-pieces.ts';

const sizes = fc.array(fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 50_000 })), {
  minLength: 1,
  maxLength: 60,
});

function createChunks(lengths: readonly number[]): Buffer[] {
  return lengths.map((length, i) => Buffer.alloc(length, i));
}

test('pieces of a body stay in order, and there are few small ones', () => {
  fc.assert(
    fc.property(sizes, (lengths) => {
      const pieces: Uint8Array[] = [];
      const chunks = createChunks(lengths);
      for (const chunk of chunks) addPiece(pieces, chunk);
      assert.deepEqual(Buffer.concat(pieces), Buffer.concat(chunks));
    }),
  );
  const pieces: Uint8Array[] = [];
  for (let i = 0; i < 100_000; i++) addPiece(pieces, Buffer.of(i));
  assert.ok(pieces.length < 30, String(pieces.length));
});

test('a body in chunks of any size has the same bytes in larger chunks', async () => {
  await fc.assert(
    fc.asyncProperty(sizes, async (lengths) => {
      const chunks = createChunks(lengths);
      const joined: Buffer[] = [];
      for await (const chunk of joinChunks(Readable.from(chunks))) joined.push(chunk);
      assert.deepEqual(Buffer.concat(joined), Buffer.concat(chunks));
    }),
    { numRuns: 40 },
  );
  const bytes = Array.from({ length: 4_000 }, () => Buffer.of(7));
  let count = 0;
  for await (const _ of joinChunks(Readable.from(bytes))) count++;
  assert.equal(count, 1);
});

test('a body of very many tiny chunks is refused, and the rest is not read', async () => {
  let sent = 0;
  const endless = Readable.from(
    (function* () {
      for (;;) {
        sent++;
        yield Buffer.of(7);
      }
    })(),
  );
  await assert.rejects(
    async () => {
      for await (const _ of joinChunks(endless));
    },
    { code: 'INVALID_ARGUMENT', message: /chunks of 1\.0 bytes on average; send larger ones/ },
  );
  assert.ok(sent < 10_000, String(sent));
  const larger = Array.from({ length: 10_000 }, () => Buffer.alloc(16));
  let bytes = 0;
  for await (const chunk of joinChunks(Readable.from(larger))) bytes += chunk.length;
  assert.equal(bytes, 160_000);
});

test('a body that breaks off fails its reader, or nobody when that has gone', async () => {
  const breaking = (): Readable =>
    Readable.from(
      (async function* () {
        yield Buffer.of(1);
        throw new Error('the connection broke');
      })(),
    );
  await assert.rejects(async () => {
    for await (const _ of joinChunks(breaking()));
  }, /the connection broke/);
  joinChunks(breaking()).resume();
  await new Promise((resolve) => setImmediate(resolve));
});
