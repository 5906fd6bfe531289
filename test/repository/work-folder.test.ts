/**
 * Where versions are built before they exist: kept while somebody may go on, gone a week after
 * everybody stopped.
 */
import assert from 'node:assert/strict';
import fs, { existsSync, mkdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { FolderLock, isFolderLocked } from '../../lib/platform/folder-lock.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { temporaryFolder } from './support/fixtures.ts';

const WEEK_MS = 7 * 24 * 3_600_000;
const SPILL = 'a'.repeat(32);
/** No process has a number this high. */
const NOBODY = 2 ** 30;

test('work that nobody touched for a week goes, unless a living process is in it', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(folder);
  const old = new Date(Date.now() - 2 * WEEK_MS);
  const place = (version: string, pid: number | undefined, at: Date): string => {
    const { path } = repository.workFolder('b', version);
    const spill = join(path, `spill-${SPILL}`);
    mkdirSync(spill, { recursive: true });
    if (pid !== undefined) {
      writeFileSync(join(spill, 'owner.json'), JSON.stringify({ host: hostname(), pid }));
    }
    utimesSync(path, at, at);
    return path;
  };
  const dead = place('dead', NOBODY, old);
  const nobodys = place('nobodys', undefined, old);
  const living = place('living', process.ppid, old);
  const recent = place('recent', NOBODY, new Date());
  await repository.removeLeftovers('b');
  assert.deepEqual(
    [dead, nobodys, living, recent].map((path) => existsSync(path)),
    [false, false, true, true],
  );
});

test('work that is done with goes at once, also what a removal that was killed left', async (t) => {
  const folder = temporaryFolder(t);
  const repository = openRepository(folder);
  const work = repository.workFolder('b', '1');
  work.putPart('t', 0, '{}');
  work.remove();
  work.remove();
  assert.equal(existsSync(join(folder, 'b', '.work')), false);
  mkdirSync(join(folder, 'b', '.work', '.removed-0123', 'parts'), { recursive: true });
  await repository.removeLeftovers('b');
  assert.equal(existsSync(join(folder, 'b', '.work')), false);
});

test('a claimed folder is one process’s until it is gone', (t) => {
  const folder = join(temporaryFolder(t), 'spill');
  const owner = join(folder, 'owner.json');
  mkdirSync(folder);
  const write = (host: string, pid: number): void =>
    writeFileSync(owner, JSON.stringify({ host, pid }));
  write(hostname(), process.ppid);
  assert.throws(() => new FolderLock(folder), /is in use by process \d+ of host/);
  write('elsewhere', 1);
  assert.throws(() => new FolderLock(folder), /process 1 of host elsewhere/);
  const silent = new Date(Date.now() - 120_000);
  utimesSync(owner, silent, silent);
  assert.equal(isFolderLocked(folder), false);
  new FolderLock(folder).release();
  for (const left of [() => write(hostname(), NOBODY), () => writeFileSync(owner, 'not JSON')]) {
    left();
    const claim = new FolderLock(folder);
    claim.release();
    assert.equal(existsSync(owner), false);
  }
});

test('one of two processes takes over a claimed folder, and only it releases it', (t) => {
  const folder = join(temporaryFolder(t), 'spill');
  const owner = join(folder, 'owner.json');
  const write = (pid: number): string => {
    const text = JSON.stringify({ host: hostname(), pid });
    writeFileSync(owner, text);
    return text;
  };
  mkdirSync(folder);
  write(NOBODY);
  const { renameSync } = fs;
  let other = '';
  // Another process takes over between the look at the dead owner and what follows it.
  t.mock.method(fs, 'renameSync', (from: string, to: string) => {
    if (other === '' && [from, to].includes(owner)) other = write(process.ppid);
    renameSync(from, to);
  });
  syncBuiltinESMExports();
  t.after(() => {
    t.mock.restoreAll();
    syncBuiltinESMExports();
  });
  assert.throws(() => new FolderLock(folder), /is in use by process \d+ of host/);
  assert.equal(readFileSync(owner, 'utf8'), other);
  write(NOBODY);
  const claim = new FolderLock(folder);
  other = write(process.ppid);
  claim.release();
  assert.equal(readFileSync(owner, 'utf8'), other);
  assert.deepEqual(fs.readdirSync(folder), ['owner.json']);
});

test('plans and files are what their names say, or are refused', (t) => {
  const work = openRepository(temporaryFolder(t)).workFolder('b', '1');
  const digest = work.putPlan('{"a":1}');
  assert.equal(work.readPlan(digest), '{"a":1}');
  writeFileSync(join(work.path, 'plans', `${digest}.json`), '{"a":2}');
  assert.throws(() => work.readPlan(digest), /is damaged; build the shards of this plan again/);
  assert.throws(() => work.readPlan('../../x'), /is not a SHA-256/);
  assert.equal(work.readPart('t', 3), undefined);
  work.putPart('t', 3, 'text');
  assert.deepEqual(
    [work.listTables(), work.listShards('t'), work.readPart('t', 3)],
    [['t'], [3], 'text'],
  );
  work.remove();
  assert.equal(existsSync(work.path), false);
});
