/**
 * Part of `npm run fuzz`: damaged key files of both kinds, sealed files and rewrapped keys. What is
 * damaged is refused with a CubeError or is read unchanged; no error shows a key.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { formatKeyFile, generateKey, parseKeyFile } from '../../lib/access/api-keys.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { SealedHeader } from '../../lib/core/sealed-format.ts';
import { EncryptionKey, KeyRing, parseKeys } from '../../lib/platform/encryption-keys.ts';
import { makeTemporaryFolder, removePath } from '../../lib/platform/files.ts';
import { openMaybeSealed, openSealedBytes, sealBytes } from '../../lib/platform/sealed-file.ts';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';
import { rewrapVersion } from '../../lib/repository/rewrap.ts';
import { loadVersionKeys } from '../../lib/repository/version-keys.ts';
import { sha256 } from '../repository/support/fixtures.ts';
import { mutate, SeededRandom } from '../rpc/support/fuzz.ts';
import { readFuzzOptions } from '../support/fuzz-options.ts';

const KEY = 'ab'.repeat(32);
const SIZES = [0, 1, 127, 5_000, (1 << 20) - 1, (1 << 20) + 77];
/** Codes of refusals that name the damage; anything else is a defect. */
const REFUSALS = ['CORRUPT', 'DENIED', 'UNSUPPORTED', 'INVALID_ARGUMENT', 'TOO_LARGE'];

const { seconds, seed } = readFuzzOptions();
const random = new SeededRandom(seed);
const folder = makeTemporaryFolder('hypercube-fuzz-');
const key = new EncryptionKey(Buffer.from(KEY, 'hex'));
const ring = new KeyRing([key]);
const counts = { accepted: 0, refused: 0 };

/** Runs a reader of damaged bytes. @returns undefined when it was refused */
function read<T>(reader: () => T): T | undefined {
  try {
    const value = reader();
    counts.accepted++;
    return value;
  } catch (error) {
    assert.ok(error instanceof CubeError, `seed ${seed}: ${(error as Error).stack}`);
    assert.ok(REFUSALS.includes(error.code), `seed ${seed}: ${error.code} ${error.message}`);
    assert.ok(!error.message.includes(KEY.slice(4, 40)), `seed ${seed}: shows a key`);
    counts.refused++;
    return undefined;
  }
}

function fuzzEncryptionKeys(): void {
  const text = `# a comment\n${KEY}\r\n${'CD'.repeat(32)}\n`;
  const bytes = mutate(random, Buffer.from(text));
  read(() => parseKeys(bytes, 'keys'));
  assert.ok(
    bytes.every((byte) => byte === 0),
    'the text is overwritten',
  );
}

const { secret } = generateKey();
const apiKeys = formatKeyFile({
  keys: [
    {
      id: 'ads',
      ...secret,
      scopes: ['predict:ctr', 'metrics'],
      limits: { requestsPerSecond: 5, weight: 2 },
      createdAt: '2026-01-01T00:00:00Z',
      previous: { ...secret, sha256: 'f'.repeat(64), expiresAt: '2026-02-01T00:00:00Z' },
    },
  ],
});

function fuzzApiKeys(): void {
  const text = mutate(random, Buffer.from(apiKeys)).toString('latin1');
  const found = read(() => parseKeyFile(text, 'keys.json'));
  // A key file that the parser accepts stays the same when it is formatted and parsed again.
  if (found !== undefined) assert.deepEqual(parseKeyFile(formatKeyFile(found), 'again'), found);
}

interface SealedSample {
  readonly clear: Buffer;
  readonly sealed: Buffer;
}

const samples = SIZES.map((size): SealedSample => {
  const clear = Buffer.alloc(size, 'content of a file ');
  const digest = sha256(clear);
  const content = { contentId: digest.slice(0, 32), sha256: digest };
  return { clear, sealed: Buffer.from(sealBytes(clear, content, key)) };
});

function damage({ sealed }: SealedSample): Buffer {
  const kind = random.below(5);
  if (kind === 0) return mutate(random, sealed);
  if (kind === 1) return sealed.subarray(0, random.below(sealed.length + 1));
  const copy = Buffer.from(sealed);
  if (kind === 2) {
    // Parts of another file at the same place.
    const other = random.pick(samples).sealed;
    other.copy(copy, 0, 0, random.pick([8, 24, 40, 64, 128, 1_000]));
    return copy;
  }
  // The header, then anywhere.
  const at = random.below(kind === 3 ? 128 : copy.length);
  copy[at] = (copy[at] ?? 0) ^ (1 << random.below(8));
  return copy;
}

function fuzzSealed(): void {
  const sample = random.pick(samples);
  const damaged = damage(sample);
  const opened = read(() => openSealedBytes(damaged, 'file', ring));
  if (opened !== undefined) assert.ok(samples.some(({ clear }) => clear.equals(opened)));
  const path = join(folder, 'sealed');
  writeFileSync(path, damaged);
  read(() => {
    const getKey = (header: SealedHeader): Uint8Array => ring.openDataKey(header, path);
    const reader = openMaybeSealed(path, getKey);
    try {
      const start = random.below(reader.bytes + 1);
      const target = new Uint8Array(random.below(Math.min(reader.bytes - start, 2 << 20) + 1));
      reader.readInto(target, start);
      const intact = [...samples.map(({ clear }) => clear), damaged];
      const isKnown = intact.some((one) =>
        one.subarray(start, start + target.length).equals(target),
      );
      assert.ok(isKnown, `seed ${seed}: other bytes than were sealed`);
    } finally {
      reader.close();
    }
  });
}

const backend = new FolderBackend(join(folder, 'repository'));
const newKey = new EncryptionKey(Buffer.alloc(32, 9));
const keysPath = `b/versions/1/keys.${newKey.keyId}.json`;

/** @returns the object with the rewrapped key of a version with one file */
async function rewrap({ sealed }: SealedSample): Promise<Buffer> {
  await backend.putIfAbsent('b/versions/1/model.onnx', sealed);
  const file = { path: 'model.onnx', bytes: sealed.length, sha256: sha256(sealed) };
  const hash = { scheme: 'raw', seed: 0n, modulo: 0n } as const;
  const manifest = { bundle: 'b', version: '1', files: [file], hash, slots: [], tables: [] };
  assert.equal(await rewrapVersion(backend, manifest, ring, newKey), 1);
  return Buffer.from(await backend.read(keysPath, 1 << 20));
}

async function fuzzRewrapped(intact: Buffer, sample: SealedSample): Promise<void> {
  writeFileSync(join(folder, 'repository', keysPath), mutate(random, intact));
  const other = new KeyRing([newKey]);
  await loadVersionKeys(backend, { bundle: 'b', version: '1' }, other);
  const opened = read(() => openSealedBytes(sample.sealed, 'file', other));
  if (opened !== undefined) assert.ok(sample.clear.equals(opened));
}

process.stdout.write(`${seconds} s, seed ${seed}\n`);
try {
  const sample = samples[3];
  assert.ok(sample);
  const intact = await rewrap(sample);
  const endMs = performance.now() + seconds * 1_000;
  while (performance.now() < endMs) {
    for (let i = 0; i < 50; i++) {
      fuzzEncryptionKeys();
      fuzzApiKeys();
    }
    fuzzSealed();
    await fuzzRewrapped(intact, sample);
  }
  process.stdout.write(`${counts.refused} damaged inputs refused, ${counts.accepted} read\n`);
} finally {
  removePath(folder);
}
