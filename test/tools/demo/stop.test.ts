/** Ctrl-C in the middle: everything ends soon, nothing is left behind, and it does not look like success. */
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

/** Starts the demo, sends `signals` when it has printed `after`, and waits for its end. */
async function interrupted(
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
  ['while versions are built', '[2/8]', ['SIGINT']],
  ['while the agent starts', '[4/8]', ['SIGTERM', 'SIGINT']],
  ['under traffic', '[7/8]', ['SIGINT']],
];
for (const [name, step, signals] of cases) {
  test(`${signals.join(', ')} ${name}`, async () => {
    const { code, stdout, stderr } = await interrupted(step, signals);
    assert.equal(code, 1, stdout + stderr);
    assert.match(stderr, /^npm start --: stopped before the report\n$/);
    assert.deepEqual(readdirSync(folder), [], 'the working folder is removed');
  });
}

test('when the process that started it is gone, it stops', async () => {
  const env = { ...process.env, TMPDIR: folder };
  // A parent as npm's: it starts the demo and dies of a SIGTERM without handing it on.
  const start = `require('node:child_process').spawn(process.execPath, [${JSON.stringify(main)}, '--once'], { stdio: 'inherit' });`;
  const parent = spawn(process.execPath, ['-e', start], { env });
  let stdout = '';
  let stderr = '';
  parent.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  parent.stdout.setEncoding('utf8').on('data', (text: string) => {
    stdout += text;
    if (stdout.includes('[2/8]')) parent.kill('SIGTERM');
  });
  // Closed when the demo too has closed its ends of the pipes.
  await once(parent, 'close');
  assert.equal(stderr, 'npm start --: stopped before the report\n');
  assert.deepEqual(readdirSync(folder), []);
});
