/** Programs on a terminal: readable log lines, and an end when the terminal is closed. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { waitFor } from '../support/processes.ts';

const dist = join(import.meta.dirname, '..', '..');
/** The terminal is the one of util-linux's `script`. */
const skip = spawnSync('script', ['--version']).error === undefined ? false : 'there is no script';

interface Terminal {
  readonly process: ChildProcess;
  /** Everything shown so far. */
  text(): string;
}

/** Runs a program on a terminal of its own, with an own folder for temporary files. */
function openTerminal(context: TestContext, folder: string, args: readonly string[]): Terminal {
  const command = ['exec', process.execPath, ...args].map((part) => `'${part}'`).join(' ');
  const terminal = spawn('script', ['-qfec', command.replace("'exec'", 'exec'), '/dev/null'], {
    env: { ...process.env, TMPDIR: folder },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  let text = '';
  terminal.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    text += chunk;
  });
  context.after(() => {
    terminal.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  });
  return { process: terminal, text: () => text };
}

const canConnect = (address: string): Promise<boolean> =>
  fetch(`http://${address}/livez`).then(
    () => true,
    () => false,
  );

test('a supervisor logs lines of text, and ends with its terminal', { skip }, async (context) => {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-terminal-'));
  const flags = ['--shard', '0-1', '--shard-num', '2', '--port', '0', '--data-dir', folder];
  const server = join(dist, 'cube-server', 'main.js');
  const terminal = openTerminal(context, folder, [server, ...flags]);
  await waitFor('both shards listen', () => terminal.text().includes('all shards listening'));
  assert.match(terminal.text(), /\[\d\d:\d\d:\d\d\] .*INFO.*all shards listening/);
  assert.doesNotMatch(terminal.text(), /^\{"/m, 'no line is JSON');
  const addresses = [...terminal.text().matchAll(/shard listening.*"(127[\d.]+:\d+)"/g)].map(
    ([, address]) => String(address),
  );
  assert.equal(addresses.length, 2);
  for (const address of addresses) assert.ok(await canConnect(address));
  terminal.process.kill('SIGKILL');
  await waitFor('no server listens any more', async () => {
    const open = await Promise.all(addresses.map(canConnect));
    return !open.includes(true);
  });
});

test('the demo stops everything when its terminal is closed', { skip }, async (context) => {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-terminal-'));
  const demo = join(dist, 'tools', 'demo', 'main.js');
  const terminal = openTerminal(context, folder, [demo, '--once']);
  await waitFor('the second step has begun', () => terminal.text().includes('[2/9]'));
  terminal.process.kill('SIGKILL');
  await waitFor('its files are removed', () => readdirSync(folder).length === 0);
});
