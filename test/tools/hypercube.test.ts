/** The one command that runs every program. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { PRODUCT_VERSION } from '../../lib/platform/version.ts';
import { runCommand } from '../support/commands.ts';
import { RunningProcess, waitFor } from '../support/processes.ts';

const root = join(import.meta.dirname, '..', '..', '..');
const main = 'tools/hypercube/main.js';

test('every installed command is a tool, and its help names it', async () => {
  const { bin } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const tools = Object.keys(bin).filter((name) => name !== 'hypercube');
  const { stdout, code } = await runCommand(main);
  assert.equal(code, 0);
  for (const tool of tools) assert.match(stdout, new RegExp(`^ {2}${tool} `, 'm'));
  const version = await runCommand(main, 'serving', '--version');
  assert.deepEqual(version, { code: 0, stdout: `${PRODUCT_VERSION}\n`, stderr: '' });
  const wrong = await runCommand(main, 'cube-agent', 'activate');
  assert.equal(wrong.code, 2);
  assert.match(wrong.stderr, /\(cube-agent activate --help shows the options\)/);
});

test('an unknown tool is refused', async () => {
  const { code, stderr } = await runCommand(main, 'prune-modle', '--help');
  assert.equal(code, 2);
  assert.match(stderr, /unknown tool "prune-modle".*\n\(hypercube --help shows the options\)/);
});

test('a supervisor starts its shards through it', async (context) => {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-tool-'));
  context.after(() => rmSync(folder, { recursive: true, force: true }));
  const flags = ['--shard', '0-1', '--shard-num', '2', '--port', '0', '--data-dir', folder];
  const supervisor = new RunningProcess(context, main, ['cube-server', ...flags]);
  await waitFor('both shards listen', () => supervisor.messages().includes('all shards listening'));
  supervisor.child.kill('SIGTERM');
  assert.equal(await supervisor.exit, 0);
});
