/**
 * The demo as a newcomer runs it, with remote and embedded stores: it completes and removes its
 * files.
 */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

const main = join(import.meta.dirname, '..', '..', 'tools', 'demo', 'main.js');
const folder = mkdtempSync(join(tmpdir(), 'hypercube-demo-'));
after(() => rmSync(folder, { recursive: true, force: true }));

function demo(...args: string[]): { status: number | null; stdout: string; stderr: string } {
  const env = { ...process.env, TMPDIR: folder };
  return spawnSync(process.execPath, [main, ...args], { encoding: 'utf8', env });
}

function checkReport(stdout: string): void {
  const difference = Number(/largest difference +(\S+) from/.exec(stdout)?.[1]);
  assert.ok(difference <= 1e-5, stdout);
  assert.match(stdout, /4096 rows/);
  assert.match(stdout, /0 failed, 0 with mixed versions/);
  const auc = Number(/AUC +(\d\.\d+)/.exec(stdout)?.[1]);
  assert.ok(auc > 0.7, stdout);
}

test('npm start -- --once', () => {
  const { status, stdout, stderr } = demo('--once');
  assert.equal(status, 0, stdout + stderr);
  checkReport(stdout);
  assert.deepEqual(readdirSync(folder), [], 'the working folder is removed');
});

test('npm start -- --once --local --dir: the files stay, also when stdout closes', async () => {
  const kept = join(folder, 'kept');
  const env = { ...process.env, TMPDIR: folder };
  const child = spawn(process.execPath, [main, '--once', '--local', '--dir', kept], { env });
  let stdout = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
    // The last line of the report; the line with the folder follows.
    if (/rollout +\d+ requests.*\n/.test(stdout)) child.stdout.destroy();
  });
  const errors = child.stderr.toArray();
  const [code] = (await once(child, 'exit')) as [number | null];
  assert.equal(code, 0, String(Buffer.concat(await errors)));
  checkReport(stdout);
  assert.ok(existsSync(join(kept, 'predictions.tsv')));
  const again = demo('--once', '--dir', kept);
  assert.equal(again.status, 1);
  assert.match(again.stderr, /is not empty/);
  rmSync(kept, { recursive: true });
});

test('a port in use is reported, and all files are removed', async () => {
  const taken = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => taken.once('listening', resolve));
  const { port } = taken.address() as { port: number };
  const { status, stderr } = demo('--once', '--local', '--port', String(port));
  taken.close();
  assert.equal(status, 1);
  assert.match(stderr, new RegExp(`${port}.*in use`));
  assert.deepEqual(readdirSync(folder), []);
});
