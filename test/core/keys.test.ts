import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { computeShard, keyToBigint, mixKey, multiplyHigh, setKey } from '../../lib/core/keys.ts';

const u64 = fc.oneof(
  fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  fc.constantFrom(0n, 1n, 2n ** 32n - 1n, 2n ** 32n, 2n ** 63n, 2n ** 64n - 1n),
);
const u32 = fc.oneof(
  fc.integer({ min: 0, max: 2 ** 32 - 1 }),
  fc.constantFrom(0, 1, 2 ** 31, 2 ** 32 - 1),
);

test('the shard of a key is the unsigned remainder, exactly', () => {
  const shardNum = fc.oneof(
    fc.integer({ min: 1, max: 100 }),
    fc.integer({ min: 1, max: 2 ** 32 }),
    fc.constantFrom(1, 2, 65_535, 65_536, 65_537, 2 ** 32),
  );
  const keys = new Uint32Array(2);
  fc.assert(
    fc.property(u64, shardNum, (key, shards) => {
      setKey(keys, 0, key);
      assert.equal(computeShard(keys[0]!, keys[1]!, shards), Number(key % BigInt(shards)));
    }),
    { numRuns: 2000 },
  );
});

test('a key is the same after a round trip through two words', () => {
  const keys = new Uint32Array(6);
  fc.assert(
    fc.property(u64, (key) => {
      setKey(keys, 1, key);
      assert.equal(keyToBigint(keys, 1), key);
      assert.deepEqual([keys[0], keys[1], keys[4], keys[5]], [0, 0, 0, 0]);
    }),
  );
});

test('multiplyHigh is the high word of the product', () => {
  fc.assert(
    fc.property(u32, u32, (a, b) => {
      assert.equal(multiplyHigh(a, b), Number((BigInt(a) * BigInt(b)) >> 32n));
    }),
    { numRuns: 1000 },
  );
});

test('mixKey follows format version 1', () => {
  const mask = 2n ** 64n - 1n;
  const words = new Uint32Array(2);
  const mixed = new Uint32Array(2);
  fc.assert(
    fc.property(u64, (key) => {
      let x = key ^ (key >> 32n);
      x = (x * 0x9e3779b97f4a7c15n) & mask;
      x ^= x >> 32n;
      x = (x * 0xd6e8feb86659fd93n) & mask;
      x ^= x >> 32n;
      setKey(words, 0, key);
      mixKey(words[0]!, words[1]!, mixed, 0);
      assert.equal(keyToBigint(mixed, 0), x);
    }),
    { numRuns: 1000 },
  );
});
