/** Stopping the demo at any step: every process ends, and all files are removed. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

const main = join(import.meta.dirname, '..', '..', '..', 'tools', 'demo', 'main.js');
const folder = mkdtempSync(join(tmpdir(), 'hypercube-stop-'));
after(() => rmSync(folder, { recursive: true, force: true }));

/** Starts the demo, sends `signals` after it printed `after`, and waits until it exits. */
async function interruptDemo(
  after: string,
  signals: readonly NodeJS.Signals[],
): Promise<{ code: number | null; stdout: string; stderr: string }> {
  const env = { ...process.env, TMPDIR: folder };
  const child = spawn(process.execPath, [main, '--once'], { env });
  let stdout = '';
  let stderr = '';
  let sent = false;
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
    if (sent || !stdout.includes(after)) return;
    sent = true;
    for (const signal of signals) child.kill(signal);
  });
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, stdout, stderr };
}

const cases: readonly (readonly [string, string, readonly NodeJS.Signals[]])[] = [
  ['while versions are built', '[2/9]', ['SIGINT']],
  ['while the agent starts', '[4/9]', ['SIGTERM', 'SIGINT']],
  ['under load', '[8/9]', ['SIGINT']],
];
for (const [name, step, signals] of cases) {
  test(`${signals.join(', ')} ${name}`, async () => {
    const { code, stdout, stderr } = await interruptDemo(step, signals);
    assert.equal(code, 1, stdout + stderr);
    assert.match(stderr, /^npm start --: stopped before the report\n$/);
    assert.deepEqual(readdirSync(folder), [], 'the working folder is removed');
  });
}

test('it stops when its parent process has ended', async () => {
  const env = { ...process.env, TMPDIR: folder };
  // A parent like npm: it starts the demo and exits on SIGTERM without forwarding it.
  const args = `[${JSON.stringify(main)}, '--once']`;
  const spawnDemo = `spawn(process.execPath, ${args}, { stdio: 'inherit' })`;
  const start = `require('node:child_process').${spawnDemo};`;
  const parent = spawn(process.execPath, ['-e', start], { env });
  let stdout = '';
  let stderr = '';
  parent.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  parent.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
    if (stdout.includes('[2/9]')) parent.kill('SIGTERM');
  });
  // The pipes close after the demo has closed its ends too.
  await once(parent, 'close');
  assert.equal(stderr, 'npm start --: stopped before the report\n');
  assert.deepEqual(readdirSync(folder), []);
});
