/** Lines of a body that comes in pieces of any size, in bounded memory. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { readLineBatches } from '../../serving/protocols/line-batches.ts';

const LIMITS = { lineBytes: 1 << 20, batchLines: 64, batchBytes: 1 << 20 };

/** Each piece keeps the whole chunk that it came in. */
async function* splitBody(text: string, sizes: readonly number[], chunkBytes = 0) {
  const bytes = Buffer.from(text);
  let i = 0;
  for (let at = 0; at < bytes.length; i++) {
    const size = sizes[i % sizes.length]!;
    const piece = bytes.subarray(at, at + size);
    const chunk = Buffer.alloc(Math.max(chunkBytes, piece.length));
    piece.copy(chunk);
    yield chunk.subarray(0, piece.length);
    at += size;
  }
}

async function readLines(body: AsyncIterable<Uint8Array>): Promise<unknown[]> {
  const found: unknown[] = [];
  for await (const { lines } of readLineBatches(body, LIMITS)) found.push(...lines);
  return found;
}

test('lines are the same in pieces of any size', async () => {
  const line = fc.string({ unit: 'grapheme', maxLength: 60 }).map((s) => s.replaceAll('\n', ' '));
  const sizes = fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 6 });
  await fc.assert(
    fc.asyncProperty(fc.array(line, { minLength: 1, maxLength: 8 }), sizes, async (all, sizes) => {
      const text = `${all.join('\n')}\n`;
      assert.deepEqual(await readLines(splitBody(text, sizes)), all);
    }),
  );
});

test('a long line in pieces of one byte does not hold the chunks that they came in', async () => {
  const line = 'x'.repeat(300_000);
  const before = process.memoryUsage().arrayBuffers;
  let most = 0;
  async function* watch(): AsyncGenerator<Uint8Array> {
    for await (const piece of splitBody(line, [1], 4_096)) {
      yield piece;
      most = Math.max(most, process.memoryUsage().arrayBuffers - before);
    }
  }
  assert.deepEqual(await readLines(watch()), [line]);
  // All chunks together are 1.2 GB.
  assert.ok(most < 600 << 20, `${most} bytes`);
});

test('other work has a turn after each batch, whatever the lines are', async () => {
  const batches = 100;
  const text = '\n'.repeat(batches * LIMITS.batchLines);
  let turns = 0;
  const count = (): void => {
    turns++;
    timer = setImmediate(count);
  };
  let timer = setImmediate(count);
  const lines = await readLines(splitBody(text, [text.length]));
  clearImmediate(timer);
  assert.equal(lines.length, text.length);
  assert.ok(turns >= batches - 1, `${turns} turns`);
});
