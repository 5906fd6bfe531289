import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { EncryptionKey, KeyRing } from '../../lib/platform/encryption-keys.ts';
import {
  openMaybeSealed,
  openSealedBytes,
  readSealedHeader,
  sealBytes,
} from '../../lib/platform/sealed-file.ts';
import { readSealed } from './support/sealed-reader.ts';

const MIB = 1 << 20;
const BLOCK = MIB + 16;
const HEADER = 128;
const secret = Buffer.alloc(32, 7);
const key = new EncryptionKey(secret);
const ring = new KeyRing([key]);
const folder = mkdtempSync(join(tmpdir(), 'hypercube-sealed-'));
after(() => rmSync(folder, { recursive: true }));

/** Bytes that differ from block to block. */
function makeClear(length: number, seed = 1): Uint8Array {
  const bytes = new Uint8Array(length);
  let state = seed;
  for (let i = 0; i < length; i++) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    bytes[i] = state >>> 24;
  }
  return bytes;
}

function describe(clear: Uint8Array): { contentId: string; sha256: string } {
  const sha256 = createHash('sha256').update(clear).digest('hex');
  return { contentId: sha256.slice(0, 32), sha256 };
}

function seal(clear: Uint8Array, with_ = key): Uint8Array {
  return sealBytes(clear, describe(clear), with_);
}

function refusal(sealed: Uint8Array, keys = ring): string {
  try {
    openSealedBytes(sealed, 'file', keys);
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return error.code;
  }
  return 'opened';
}

test('files of any size open to what was sealed, in both readers', () => {
  const sizes = [0, 1, 15, 16, 4096, MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 77];
  for (const size of sizes) {
    const clear = makeClear(size);
    const sealed = seal(clear);
    assert.equal(Buffer.compare(openSealedBytes(sealed, 'file', ring), clear), 0, `${size} bytes`);
    assert.equal(Buffer.compare(readSealed(Buffer.from(sealed), secret), clear), 0, `${size}`);
  }
});

test('equal content and key give equal files, another key other bytes', () => {
  const clear = makeClear(3 * MIB);
  assert.deepEqual(seal(clear), seal(clear));
  const other = seal(clear, new EncryptionKey(randomBytes(32)));
  assert.notDeepEqual(other.subarray(HEADER), seal(clear).subarray(HEADER));
});

test('the test vectors of the format open, and sealing gives them again', () => {
  const path = new URL('../../../docs/sealed-vectors.json', import.meta.url);
  const {
    key: hex,
    keyId,
    files,
  } = JSON.parse(readFileSync(path, 'utf8')) as {
    key: string;
    keyId: string;
    files: { clear: string; repeat: number; contentId: string; sealed?: string; sha256: string }[];
  };
  const vectorKey = new EncryptionKey(Buffer.from(hex, 'hex'));
  assert.equal(vectorKey.keyId, keyId);
  assert.equal(files.length, 3);
  for (const file of files) {
    const clear = Buffer.alloc(Buffer.from(file.clear, 'hex').length * file.repeat);
    if (clear.length > 0) clear.fill(file.clear, 'hex');
    const sealed = seal(clear, vectorKey);
    assert.equal(describe(clear).contentId, file.contentId);
    assert.equal(createHash('sha256').update(sealed).digest('hex'), file.sha256);
    if (file.sealed !== undefined) assert.equal(Buffer.from(sealed).toString('hex'), file.sealed);
    const opened = readSealed(Buffer.from(sealed), Buffer.from(hex, 'hex'));
    assert.equal(Buffer.compare(opened, clear), 0);
  }
});

test('a flipped bit anywhere is refused', () => {
  const sealed = seal(makeClear(2 * MIB + 100));
  const anyPlace = fc.oneof(
    fc.integer({ min: 0, max: HEADER - 1 }),
    fc.integer({ min: 0, max: sealed.length - 1 }),
    fc.constantFrom(HEADER + MIB, HEADER + BLOCK - 1, sealed.length - 1, sealed.length - 16),
  );
  fc.assert(
    fc.property(anyPlace, fc.integer({ min: 0, max: 7 }), (at, bit) => {
      const damaged = Uint8Array.from(sealed);
      damaged[at]! ^= 1 << bit;
      assert.match(refusal(damaged), /^(CORRUPT|UNSUPPORTED)$/);
    }),
    { numRuns: 60 },
  );
});

test('swapped, repeated, dropped, truncated and foreign blocks are refused', () => {
  const clear = makeClear(4 * MIB);
  const sealed = seal(clear);
  const block = (file: Uint8Array, i: number): Uint8Array =>
    file.subarray(HEADER + i * BLOCK, HEADER + (i + 1) * BLOCK);
  const arrange = (blocks: Uint8Array[], header = sealed.subarray(0, HEADER)): Uint8Array =>
    Buffer.concat([header, ...blocks]);
  const own = [0, 1, 2, 3].map((i) => block(sealed, i));
  assert.equal(refusal(arrange(own)), 'opened');
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 3 }), { maxLength: 5 }), (order) => {
      if (order.join() === '0,1,2,3') return;
      assert.equal(refusal(arrange(order.map((i) => own[i]!))), 'CORRUPT');
    }),
    { numRuns: 40 },
  );
  // A file of another content with the same key, and the same content with another key.
  const foreign = seal(makeClear(4 * MIB, 2));
  const rekeyed = seal(clear, new EncryptionKey(Buffer.alloc(32, 9)));
  for (const other of [foreign, rekeyed]) {
    assert.equal(refusal(arrange([block(other, 0), ...own.slice(1)])), 'CORRUPT');
    const header = other.subarray(0, HEADER);
    assert.notEqual(refusal(arrange(own, header)), 'opened');
  }
  // A header that says that the file ends earlier: its new last block was not sealed as the last.
  const shorter = seal(clear.subarray(0, 3 * MIB));
  assert.equal(refusal(arrange(own.slice(0, 3), shorter.subarray(0, HEADER))), 'CORRUPT');
  for (const length of [0, 7, HEADER, HEADER + 5, sealed.length - 1]) {
    assert.equal(refusal(sealed.subarray(0, length)), 'CORRUPT', `${length} bytes`);
  }
});

test('a file opens at any position, as often as it is read', () => {
  const clear = makeClear(3 * MIB + 5);
  const path = join(folder, 'positions');
  writeFileSync(path, seal(clear));
  const reader = openMaybeSealed(path, (header) => ring.openDataKey(header, path));
  assert.equal(reader.bytes, clear.length);
  fc.assert(
    fc.property(fc.nat(clear.length), fc.nat(MIB + 10), (from, length) => {
      const target = new Uint8Array(Math.min(length, clear.length - from));
      reader.readInto(target, from);
      assert.equal(Buffer.compare(target, clear.subarray(from, from + target.length)), 0);
    }),
    { numRuns: 40 },
  );
  assert.throws(() => reader.readInto(new Uint8Array(2), clear.length - 1), /ends at byte/);
  reader.close();
});

test('a block whose end cannot be read leaves no clear bytes', () => {
  const path = join(folder, 'shortened');
  writeFileSync(path, seal(makeClear(MIB)));
  const reader = openMaybeSealed(path, (header) => ring.openDataKey(header, path));
  truncateSync(path, HEADER + MIB);
  const target = new Uint8Array(MIB).fill(1);
  assert.throws(() => reader.readInto(target, 0), { code: 'CORRUPT' });
  assert.ok(target.every((byte) => byte === 0));
  reader.close();
});

test('a clear file is read as it is', () => {
  const path = join(folder, 'clear');
  writeFileSync(path, 'rows');
  const reader = openMaybeSealed(path, () => assert.fail('no key is needed'));
  const target = new Uint8Array(4);
  reader.readInto(target, 0);
  reader.close();
  assert.equal(Buffer.from(target).toString(), 'rows');
  assert.equal(readSealedHeader(path), undefined);
});

test('without the key, or with another, the error names the key that is missing', () => {
  const sealed = seal(makeClear(100));
  const other = new EncryptionKey(Buffer.alloc(32, 1));
  for (const keys of [new KeyRing(), new KeyRing([other])]) {
    assert.throws(
      () => openSealedBytes(sealed, 'model.onnx', keys),
      (error: CubeError) =>
        error.code === 'DENIED' &&
        error.message.includes(`model.onnx is encrypted with key ${key.keyId}`) &&
        error.message.includes('--decrypt-key-file') &&
        !error.message.includes(secret.toString('hex')),
    );
  }
});

test('a key that was wrapped again opens the file without the old key', () => {
  const sealed = seal(makeClear(100));
  const path = join(folder, 'rewrapped');
  writeFileSync(path, sealed);
  const header = readSealedHeader(path)!;
  const next = new EncryptionKey(Buffer.alloc(32, 3));
  const wrappedKey = next.wrap(ring.openDataKey(header, path));
  const { contentId, keyId: sealedBy } = header;
  const keys = new KeyRing([next]);
  assert.equal(refusal(sealed, keys), 'DENIED');
  keys.addRewrapped(next.keyId, [{ contentId, sealedBy, wrappedKey }]);
  assert.equal(refusal(sealed, keys), 'opened');
  const wrong = new KeyRing([next]);
  wrong.addRewrapped(next.keyId, [{ contentId, sealedBy, wrappedKey: Buffer.alloc(40, 1) }]);
  assert.equal(refusal(sealed, wrong), 'DENIED');
});
