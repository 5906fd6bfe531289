import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs, {
  fstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import {
  copyFileIfAbsent,
  movePath,
  putFileIfAbsent,
  RandomAccessReader,
  RandomAccessWriter,
  readFile,
  replaceFile,
} from '../../lib/platform/files.ts';
import { FolderLock } from '../../lib/platform/folder-lock.ts';
import { PartialFile } from '../../lib/platform/partial-file.ts';
import { AppendWriter } from '../../lib/platform/spill-file.ts';
import { StreamWriter } from '../../lib/platform/stream-writer.ts';

const folder = mkdtempSync(join(tmpdir(), 'hypercube-files-'));
after(() => rmSync(folder, { recursive: true, force: true }));
const path = (name: string): string => join(folder, name);

function failure(action: () => unknown): CubeError {
  try {
    action();
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return error;
  }
  assert.fail('did not throw');
}

test('a file is put once: the second writer learns it, the first bytes stay', () => {
  assert.equal(putFileIfAbsent(path('log/1.json'), 'first'), true);
  assert.equal(putFileIfAbsent(path('log/1.json'), 'second'), false);
  assert.equal(readFileSync(path('log/1.json'), 'utf8'), 'first');
  assert.deepEqual(readdirSync(path('log')), ['1.json'], 'nothing temporary stays');
});

test('a writer that aborts leaves nothing, one that commits leaves the whole file', () => {
  const aborted = new RandomAccessWriter(path('random/a'));
  aborted.writeAt(new Uint8Array([1, 2, 3]), 5);
  aborted.abort();
  assert.deepEqual(readdirSync(path('random')), []);
  const committed = new RandomAccessWriter(path('random/b'));
  committed.writeAt(new Uint8Array([4]), 1);
  committed.writeAt(new Uint8Array([3]), 0);
  committed.commit();
  assert.deepEqual([...readFile(path('random/b'))], [3, 4]);
});

test('a file whose flush fails is not left open', (t) => {
  writeFileSync(path('source'), 'a');
  const partial = new PartialFile(path('partial'));
  partial.append(new Uint8Array(3));
  const { openSync, closeSync } = fs;
  const open = new Set<number>();
  t.mock.method(fs, 'openSync', (...args: Parameters<typeof openSync>) => {
    const file = openSync(...args);
    open.add(file);
    return file;
  });
  const close = t.mock.method(fs, 'closeSync', (file: number) => {
    open.delete(file);
    closeSync(file);
  });
  t.mock.method(fs, 'fsyncSync', () => {
    throw Object.assign(new Error('full'), { code: 'EDQUOT' });
  });
  syncBuiltinESMExports();
  t.after(() => {
    t.mock.restoreAll();
    syncBuiltinESMExports();
  });
  assert.match(failure(() => copyFileIfAbsent(path('copy'), path('source'))).message, /quota/);
  assert.deepEqual([...open], []);
  close.mock.resetCalls();
  assert.match(failure(() => partial.commit()).message, /quota/);
  assert.equal(close.mock.callCount(), 1);
});

test('a folder on a read-only file system fails with that reason', (t) => {
  writeFileSync(path('movable'), 'x');
  const writer = new RandomAccessWriter(path('writable'));
  // Node reports a read-only file system so only without `recursive`.
  t.mock.method(fs, 'mkdirSync', (_: string, options?: { recursive?: boolean }) => {
    const code = options?.recursive === true ? 'ENOENT' : 'EROFS';
    throw Object.assign(new Error(code), { code });
  });
  syncBuiltinESMExports();
  t.after(() => {
    t.mock.restoreAll();
    syncBuiltinESMExports();
  });
  const target = path('read-only/a/b');
  for (const write of [
    () => new FolderLock(target),
    () => new PartialFile(target),
    () => new AppendWriter(target, 0),
    () => movePath(path('movable'), target),
    () => putFileIfAbsent(target, 'x'),
    () => writer.commit(target),
  ]) {
    const { code, message } = failure(write);
    assert.match(
      message,
      /^cannot make the folder .*read-only\/a.*: the file system is read-only$/,
    );
    assert.equal(code, 'IO');
  }
  writer.abort();
});

test('a partial file whose commit failed closes no other file', () => {
  mkdirSync(path('occupied/inside'), { recursive: true });
  const partial = new PartialFile(path('occupied'));
  failure(() => partial.commit());
  const other = fs.openSync(path('occupied.part'), 'r');
  partial.close();
  assert.equal(fstatSync(other).size, 0);
  fs.closeSync(other);
  partial.discard();
  assert.deepEqual(
    readdirSync(folder).filter((name) => name.startsWith('occupied')),
    ['occupied'],
  );
});

test('a failed commit reports the reason and can be aborted', () => {
  mkdirSync(path('taken/file'), { recursive: true });
  writeFileSync(path('taken/file/inside'), '');
  const writer = new RandomAccessWriter(path('taken/file'));
  writer.writeAt(new Uint8Array(4), 0);
  const error = failure(() => writer.commit());
  assert.match(error.message, /cannot write .*taken\/file/);
  writer.abort();
  assert.deepEqual(readdirSync(path('taken')), ['file']);
});

test('errors name the file and what to do', () => {
  assert.match(
    failure(() => readFile(path('absent'))).message,
    /cannot read .*absent: no such file/,
  );
  replaceFile(path('plain'), 'text');
  assert.match(failure(() => replaceFile(path('plain/below'), '')).message, /plain/);
  const big = failure(() => readFile(path('plain'), 3));
  assert.equal(big.code, 'TOO_LARGE');
});

test('reading past the end of a file is an error, not zeros', () => {
  replaceFile(path('short'), 'abc');
  const reader = new RandomAccessReader(path('short'));
  const error = failure(() => reader.readInto(new Uint8Array(4), 0));
  reader.close();
  assert.equal(error.code, 'CORRUPT');
  assert.match(error.message, /short: ends at byte 3/);
});

test('a large stream leaks no listeners, and the file appears atomically', async () => {
  const warnings: Error[] = [];
  const onWarning = (warning: Error): number => warnings.push(warning);
  process.on('warning', onWarning);
  const writer = new StreamWriter(path('stream'));
  const piece = 'x'.repeat(100_000);
  for (let i = 0; i < 50; i++) await writer.write(piece);
  await writer.finish();
  process.off('warning', onWarning);
  assert.equal(readFile(path('stream')).length, 5_000_000);
  assert.deepEqual(warnings, []);
});

test('a stream replaces no link, pipe or folder', async () => {
  const [link, pipe, file] = [path('link'), path('pipe'), path('target')];
  writeFileSync(file, 'old');
  symlinkSync(file, link);
  execFileSync('mkfifo', [pipe]);
  for (const other of [link, pipe, folder]) {
    assert.throws(() => new StreamWriter(other), { code: 'INVALID_ARGUMENT' }, other);
  }
  const writer = new StreamWriter(file);
  await writer.write('new');
  await writer.finish();
  assert.deepEqual([readFileSync(file, 'utf8'), readFileSync(link, 'utf8')], ['new', 'new']);
});
