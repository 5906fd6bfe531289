import assert from 'node:assert/strict';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { EncryptionKey, processKeys, setSealingKey } from '../../lib/platform/encryption-keys.ts';
import { checkLayerFile, verifyLayerFile } from '../../lib/store/layer-check.ts';
import { readLayerRows } from '../../lib/store/layer-file.ts';
import { LoadProgress } from '../../lib/store/load-progress.ts';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import {
  createManifest as createClearManifest,
  createLayerPath,
  expectedLookup,
  getLoadedTable,
  lookup,
  type TestTable,
  tableRef,
  temporaryFolder,
  writeTable,
} from './support/layers.ts';

const KEY = Buffer.alloc(32, 5);
const TABLE: TestTable = {
  name: 'users',
  dim: 32,
  shardIndex: 0,
  shardNum: 1,
  keys: Array.from({ length: 20_000 }, (_, i) => BigInt(i * i)),
};

const createManifest = (...content: Parameters<typeof createClearManifest>): Manifest => {
  return {
    ...createClearManifest(...content),
    encryption: { keyId: new EncryptionKey(KEY).keyId },
  };
};

function useKeys(key: EncryptionKey | undefined): void {
  processKeys.clear();
  if (key === undefined) return;
  processKeys.use({ name: 'test', stamp: () => undefined, read: () => [key] });
}

afterEach(() => {
  setSealingKey(undefined);
  useKeys(undefined);
});

/** Writes the table sealed; the process then has the key to read it. */
function writeSealed(folder: string, salt = 0): ReturnType<typeof writeTable> {
  const key = new EncryptionKey(KEY);
  setSealingKey(key);
  const written = writeTable(folder, TABLE, { salt });
  setSealingKey(undefined);
  useKeys(key);
  return written;
}

async function refusal(load: Promise<unknown>): Promise<string> {
  const error = await load.then(
    () => assert.fail('was not refused'),
    (thrown: unknown) => thrown,
  );
  assert.ok(error instanceof CubeError, String(error));
  return error.code;
}

test('a sealed layer has the identity and the rows of the clear one', (context) => {
  const [clearFolder, sealedFolder] = [temporaryFolder(context), temporaryFolder(context)];
  const clear = writeTable(clearFolder, TABLE, { salt: 0 });
  const sealed = writeSealed(sealedFolder);
  assert.equal(sealed.contentId, clear.contentId);
  assert.notEqual(sealed.sha256, clear.sha256);
  const rows = (path: string): Buffer[] =>
    [...readLayerRows(path)].flatMap((batch) => [
      Buffer.from(batch.keys.buffer, batch.keys.byteOffset, batch.keys.byteLength),
      Buffer.from(batch.rows),
    ]);
  assert.deepEqual(rows(sealed.path), rows(clear.path));
  verifyLayerFile(sealed.path, { deep: true });
  const { sha256, faults, header } = checkLayerFile(sealed.path, { deep: true });
  assert.deepEqual([sha256, faults, header?.contentId], [sealed.sha256, [], clear.contentId]);
  // Nothing else was written, and no row is on the disk.
  const row = readFileSync(clear.path).subarray(8192, 8192 + 64);
  const names = readdirSync(sealedFolder, { recursive: true, withFileTypes: true });
  for (const entry of names.filter((one) => one.isFile())) {
    assert.equal(readFileSync(join(entry.parentPath, entry.name)).indexOf(row), -1, entry.name);
  }
});

test('writing equal rows again keeps the file; clear and sealed files do not mix', (context) => {
  const folder = temporaryFolder(context);
  const first = writeSealed(folder);
  const bytes = readFileSync(first.path);
  assert.deepEqual(writeSealed(folder), first);
  setSealingKey(new EncryptionKey(Buffer.alloc(32, 6)));
  assert.deepEqual(writeTable(folder, TABLE, { salt: 0 }), first, 'another key shares the layer');
  assert.deepEqual(readFileSync(first.path), bytes);
  setSealingKey(undefined);
  assert.throws(() => writeTable(folder, TABLE, { salt: 0 }), /an encrypted version has published/);
  const clearFolder = temporaryFolder(context);
  writeTable(clearFolder, TABLE, { salt: 0 });
  assert.throws(() => writeSealed(clearFolder), /a version without encryption has published/);
});

test('versions load into memory, equal layers once', async (context) => {
  const folder = temporaryFolder(context);
  const store = new ResidentStore({ budgetBytes: 64 << 20 });
  context.after(() => store.close());
  const load = (version: string, salt: number) => {
    const manifest = createManifest(version, [tableRef(TABLE, writeSealed(folder, salt))]);
    return store.load({ manifest, shardIndex: 0, layerPath: createLayerPath(folder) });
  };
  assert.equal((await load('1', 0)).layersLoaded, 1);
  assert.equal((await load('2', 0)).layersShared, 1);
  assert.equal((await load('3', 7)).layersLoaded, 1);
  const answers = lookup(getLoadedTable(store, '3', 'users'), TABLE.keys);
  assert.deepEqual(answers, expectedLookup(TABLE, [], TABLE.keys, 7));
});

test('without the key, on disk, or damaged: the old version stays', async (context) => {
  const folder = temporaryFolder(context);
  const store = new ResidentStore({ budgetBytes: 64 << 20 });
  context.after(() => store.close());
  const layerPath = createLayerPath(folder);
  const old = createManifest('1', [tableRef(TABLE, writeSealed(folder, 0))]);
  await store.load({ manifest: old, shardIndex: 0, layerPath });
  const written = writeSealed(folder, 1);
  const manifest = createManifest('2', [tableRef(TABLE, written)]);
  const request = { manifest, shardIndex: 0, layerPath };
  useKeys(undefined);
  assert.equal(await refusal(store.load(request)), 'DENIED');
  useKeys(new EncryptionKey(Buffer.alloc(32, 6)));
  assert.equal(await refusal(store.load(request)), 'DENIED');
  useKeys(new EncryptionKey(KEY));
  assert.equal(await refusal(store.load({ ...request, rowsOnDisk: true })), 'DENIED');
  const intact = readFileSync(written.path);
  const damaged = Buffer.from(intact);
  damaged[damaged.length >> 1]! ^= 1;
  writeFileSync(written.path, damaged);
  assert.equal(await refusal(store.load(request)), 'CORRUPT');
  const { faults } = checkLayerFile(written.path, { deep: false });
  assert.ok(faults.length >= 1 && faults.every(({ error }) => error.code === 'CORRUPT'));
  assert.equal(store.version('b', '2') ?? undefined, undefined);
  const answers = lookup(getLoadedTable(store, '1', 'users'), TABLE.keys);
  assert.deepEqual(answers, expectedLookup(TABLE, [], TABLE.keys, 0));
  writeFileSync(written.path, intact);
  assert.equal((await store.load(request)).layersLoaded, 1);
});

test('a large layer is opened by several threads', async (context) => {
  const folder = temporaryFolder(context);
  const store = new ResidentStore({ budgetBytes: 1 << 30 });
  context.after(() => store.close());
  const keys = Array.from({ length: 300_000 }, (_, i) => BigInt(i * 3));
  const large: TestTable = { ...TABLE, dim: 128, keys };
  const key = new EncryptionKey(KEY);
  setSealingKey(key);
  const written = writeTable(folder, large, { salt: 4 });
  setSealingKey(undefined);
  useKeys(key);
  assert.ok(written.bytes > 128 << 20);
  const manifest = createManifest('1', [tableRef(large, written)]);
  const progress = new LoadProgress();
  const request = { manifest, shardIndex: 0, layerPath: createLayerPath(folder), progress };
  await store.load({ ...request, bytesPerSecond: Number.POSITIVE_INFINITY });
  assert.ok(progress.totalBytes > 128 << 20);
  assert.equal(progress.loadedBytes, progress.totalBytes);
  const some = keys.filter((_, i) => i % 97 === 0);
  const answers = lookup(getLoadedTable(store, '1', 'users'), some);
  assert.deepEqual(answers, expectedLookup(large, [], some, 4));
  // A damaged block in the part of another thread.
  const bytes = readFileSync(written.path);
  bytes[bytes.length - 5_000_000]! ^= 1;
  writeFileSync(written.path, bytes);
  const other = new ResidentStore({ budgetBytes: 1 << 30 });
  context.after(() => other.close());
  assert.equal(await refusal(other.load({ ...request, progress: new LoadProgress() })), 'CORRUPT');
});
