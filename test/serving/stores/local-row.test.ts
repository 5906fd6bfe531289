/**
 * The bytes of the LOCAL store against a second, plain implementation of
 * docs/formats/local-store.md.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  CHECKSUM_BYTES,
  LOCAL_KEY_BYTES,
  readLocalRow,
  writeLocalKey,
  writeLocalRow,
} from '../../../serving/stores/local-row.ts';

/** MurmurHash3_x86_32 as published, over whole words. */
function murmur3(bytes: Uint8Array, seed: number): number {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  let h = seed;
  for (let at = 0; at < bytes.length; at += 4) {
    let k = view.getUint32(at, true);
    k = Math.imul(k, 0xcc9e2d51);
    k = (k << 15) | (k >>> 17);
    k = Math.imul(k, 0x1b873593);
    h ^= k;
    h = (h << 13) | (h >>> 19);
    h = (Math.imul(h, 5) + 0xe6546b64) | 0;
  }
  h ^= bytes.length;
  h ^= h >>> 16;
  h = Math.imul(h, 0x85ebca6b);
  h ^= h >>> 13;
  h = Math.imul(h, 0xc2b2ae35);
  return (h ^ (h >>> 16)) >>> 0;
}

const word = fc.integer({ min: 0, max: 0xffff_ffff });
const row = fc.record({
  layer: word,
  low: word,
  high: word,
  bits: fc.array(word, { minLength: 1, maxLength: 20 }),
});

test('the reference implementation gives the published values of MurmurHash3', () => {
  assert.equal(murmur3(new Uint8Array(0), 0), 0);
  assert.equal(murmur3(new Uint8Array(0), 1), 0x514e28b7);
  assert.equal(murmur3(new TextEncoder().encode('test'), 0), 0xba6bd213);
  assert.equal(murmur3(Uint8Array.of(0x21, 0x43, 0x65, 0x87), 0x5082edee), 0x2362f9de);
});

test('a database key is layer and key, big-endian, so that bytes sort like keys', () => {
  const bytes = new Uint8Array(LOCAL_KEY_BYTES + 2);
  writeLocalKey(bytes, 1, 0x01020304, 0x0c0d0e0f, 0x08090a0b);
  assert.deepEqual([...bytes], [0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 0]);
});

test('a value is the row and the checksum over key and row', () => {
  fc.assert(
    fc.property(row, ({ layer, low, high, bits }) => {
      const words = Uint32Array.from(bits);
      const source = new Uint8Array(words.buffer);
      const value = new Uint8Array(source.length + CHECKSUM_BYTES);
      writeLocalRow(value, 0, source, 0, words.length, layer, low, high);
      const keyed = new Uint8Array(Uint32Array.of(low, high, ...bits).buffer);
      const stored = new DataView(value.buffer).getUint32(source.length, true);
      assert.equal(stored, murmur3(keyed, layer));
      const read = new Uint32Array(words.length + 2);
      assert.equal(readLocalRow(value, read, 1, words.length, layer, low, high), true);
      assert.deepEqual([...read], [0, ...bits, 0]);
    }),
  );
});

test('a flipped bit, another key or another length is rejected', () => {
  fc.assert(
    fc.property(row, fc.nat(), ({ layer, low, high, bits }, flip) => {
      const words = Uint32Array.from(bits);
      const dim = words.length;
      const source = new Uint8Array(words.buffer);
      const value = new Uint8Array(source.length + CHECKSUM_BYTES);
      writeLocalRow(value, 0, source, 0, dim, layer, low, high);
      const read = new Uint32Array(dim);
      assert.equal(readLocalRow(value, read, 0, dim, layer, low ^ 1, high), false);
      assert.equal(readLocalRow(value, read, 0, dim, layer, low, high ^ 1), false);
      assert.equal(readLocalRow(value.subarray(1), read, 0, dim, layer, low, high), false);
      const bit = flip % (8 * value.length);
      value[bit >>> 3]! ^= 1 << (bit & 7);
      assert.equal(readLocalRow(value, read, 0, dim, layer, low, high), false);
    }),
  );
});
