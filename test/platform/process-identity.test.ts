/**
 * A process that was killed is gone: also when another one has its pid, and when its parent has not
 * noticed.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { requireDefined } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { FolderLock, isFolderLocked } from '../../lib/platform/folder-lock.ts';
import {
  getProcessIdentity,
  getProcessLiveness,
  type ProcessIdentity,
  readProcessIdentity,
} from '../../lib/platform/process-identity.ts';

const skip = existsSync('/proc/self/stat') ? false : 'the system has no /proc';

/** Runs a shell script that writes one line, then waits. @returns the line */
async function startScript(t: TestContext, script: string): Promise<[ChildProcess, string]> {
  const child = spawn('sh', ['-c', script], { stdio: ['pipe', 'pipe', 'ignore'] });
  t.after(() => child.kill('SIGKILL'));
  const [line] = await once(child.stdout, 'data');
  return [child, String(line).trim()];
}

/** The start time by another way than the tested one: from the end, with the length of the name. */
function readStart(pid: number): number {
  const name = readFileSync(`/proc/${pid}/comm`, 'utf8').trimEnd();
  const rest = readFileSync(`/proc/${pid}/stat`, 'utf8').slice(`${pid} (${name}) `.length);
  return Number(requireDefined(rest.split(' ')[19], 'field 22'));
}

function identify(pid: number, more: Partial<ProcessIdentity> = {}): ProcessIdentity {
  return { ...getProcessIdentity(), pid, start: undefined, ...more };
}

test('a pid of another process, or of another boot, means that the process is gone', {
  skip,
}, async (t) => {
  const own = getProcessIdentity();
  assert.equal(getProcessLiveness(own), 'self');
  assert.deepEqual(readProcessIdentity(JsonReader.parse(JSON.stringify(own), 'own')), own);
  const earlier = { ...own, start: requireDefined(own.start, 'start') - 1 };
  assert.equal(getProcessLiveness(earlier), 'gone');
  assert.equal(getProcessLiveness({ ...own, boot: 'another' }), 'gone');
  assert.equal(getProcessLiveness({ ...own, boot: 'another', host: 'elsewhere' }), 'unknown');
  // A name that looks like the end of the name and a zombie's state.
  const script = 'printf "a) Z 1 (b" > /proc/$$/comm; echo ready; read line';
  const { pid = 0 } = (await startScript(t, script))[0];
  const start = readStart(pid);
  assert.equal(getProcessLiveness(identify(pid, { start })), 'lives');
  assert.equal(getProcessLiveness(identify(pid, { start: start - 1 })), 'gone');
  assert.equal(getProcessLiveness(identify(pid, { start, boot: 'another' })), 'gone');
});

test('a zombie is gone', { skip }, async (t) => {
  // The shell becomes another program, which does not wait for the shell's child.
  const [, line] = await startScript(t, 'sleep 0 & echo $!; exec sleep 60');
  const pid = Number(line);
  const deadlineMs = Date.now() + 10_000;
  while (!/\) Z /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))) {
    assert.ok(Date.now() < deadlineMs, 'the child ends');
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  process.kill(pid, 0);
  assert.equal(getProcessLiveness(identify(pid)), 'gone');
  assert.equal(getProcessLiveness({ ...identify(pid), boot: undefined }), 'gone');
});

test('claims of earlier versions, without boot and start, go by the pid', () => {
  const text = JSON.stringify({ host: hostname(), pid: process.ppid });
  const identity = readProcessIdentity(JsonReader.parse(text, 'claim'));
  assert.equal(getProcessLiveness(identity), 'lives');
  assert.equal(getProcessLiveness({ ...identity, pid: process.pid }), 'self');
  assert.equal(getProcessLiveness({ ...identity, pid: 2 ** 30 }), 'gone');
});

test('the lock of a killed process is taken over while another process has its pid', {
  skip,
}, (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'process-identity-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const owner = join(folder, 'owner.json');
  const write = (start: number): void =>
    writeFileSync(owner, JSON.stringify(identify(process.ppid, { start })));
  const start = readStart(process.ppid);
  write(start);
  assert.throws(() => new FolderLock(folder), /is in use by process \d+ of host/);
  write(start - 1);
  assert.equal(isFolderLocked(folder), false);
  const lock = new FolderLock(folder);
  assert.equal(JSON.parse(readFileSync(owner, 'utf8')).start, readStart(process.pid));
  lock.release();
  assert.equal(existsSync(owner), false);
});
