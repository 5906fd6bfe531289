/** `npm run bench`, `soak`, `fuzz` and `simulate`: help, wrong usage, and interrupted runs. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { onTestEnd, temporaryFolder } from '../repository/support/fixtures.ts';
import { runCommand } from '../support/commands.ts';
import { waitFor } from '../support/processes.ts';

const DIST = join(import.meta.dirname, '..', '..');
const PROGRAMS = [
  ['bench/main.js', 'lookup-kernel'],
  ['test/soak/main.js', 'kills'],
  ['test/fuzz/main.js', '--seconds <n>'],
  ['test/simulation/simulate-process.js', '--events <list>'],
] as const;

for (const [script, text] of PROGRAMS) {
  test(`${script} --help prints help, and unknown arguments are refused`, async () => {
    const help = await runCommand(script, '--help');
    assert.equal(help.code, 0, help.stderr);
    assert.match(help.stdout, /^Usage: npm run \w+ -- \[options\]/);
    assert.ok(help.stdout.includes(text), help.stdout);
    for (const argument of ['--nope', 'nope']) {
      const refused = await runCommand(script, argument);
      assert.equal(refused.code, 2, `${argument}: ${refused.stdout}`);
      assert.equal(refused.stdout, '');
    }
  });
}

test('an option that no chosen program takes is refused', async () => {
  const { code, stderr } = await runCommand('bench/main.js', 'codecs', '--rounds', '3');
  assert.equal(code, 2);
  assert.match(stderr, /--rounds has no effect on codecs/);
});

for (const [script, suffix] of [
  ['bench', '.bench.js'],
  ['test/soak', '.soak.js'],
] as const) {
  test(`the help of ${script} lists every file`, async () => {
    const { stdout } = await runCommand(`${script}/main.js`, '--help');
    const files = readdirSync(join(DIST, script)).filter((name) => name.endsWith(suffix));
    assert.ok(files.length > 0);
    for (const file of files) assert.match(stdout, new RegExp(`^  ${file.split('.')[0]} `, 'm'));
  });
}

test('the help of bench says how long each program takes', async () => {
  const { stdout } = await runCommand('bench/main.js', '--help');
  const programs = stdout.slice(stdout.indexOf('\nPrograms:\n')).trim().split('\n').slice(1);
  assert.ok(programs.length > 20, stdout);
  for (const program of programs) assert.match(program, /\(about \d+ min\)$/);
});

test('bench scale refuses an unknown curve and names the known ones', async () => {
  const { code, stderr } = await runCommand('bench/main.js', 'scale', '--curve', 'nope');
  assert.equal(code, 2);
  assert.match(stderr, /rows, shards, tables, versions, deltas, batch, connections/);
});

interface StartedRun {
  readonly folder: string;
  readonly child: ReturnType<typeof spawn>;
  readonly exit: Promise<unknown[]>;
}

/** Starts a script whose temporary files are in a folder of the test. */
function startRun(t: TestContext, script: string, ...args: string[]): StartedRun {
  const folder = temporaryFolder(t);
  const child = spawn(process.execPath, [join(DIST, script), ...args], {
    stdio: ['ignore', 'pipe', 'ignore'],
    env: { ...process.env, TMPDIR: folder },
  });
  onTestEnd(t, () => child.kill('SIGKILL'));
  return { folder, child, exit: once(child, 'exit') };
}

/** Command lines that name the folder, from Linux's /proc. */
function listProcesses(folder: string): string[] {
  const ids = readdirSync('/proc').filter((name) => /^\d+$/.test(name));
  return ids.map(readCommandLine).filter((line) => line.includes(folder));
}

function readCommandLine(id: string): string {
  try {
    return readFileSync(`/proc/${id}/cmdline`, 'utf8');
  } catch {
    return '';
  }
}

const skip = process.platform === 'linux' ? false : 'needs /proc';

for (const signal of ['SIGINT', 'SIGTERM', 'SIGPIPE'] as const) {
  test(`${signal} leaves no process and no folder`, { skip }, async (t) => {
    const { folder, child, exit } = startRun(t, 'test/integration/support/runner-process.js');
    await once(child.stdout!, 'data');
    assert.equal(listProcesses(folder).length, 1);
    if (signal === 'SIGPIPE') child.stdout?.destroy();
    else child.kill(signal);
    const [code] = await exit;
    assert.equal(code, { SIGINT: 130, SIGTERM: 143, SIGPIPE: 141 }[signal]);
    assert.deepEqual(listProcesses(folder), []);
    assert.deepEqual(readdirSync(folder), []);
  });
}

test('what a script leaves when it ends is removed before the next one', { skip }, async (t) => {
  const { folder, child, exit } = startRun(t, 'test/integration/support/runner-process.js', 'end');
  let output = '';
  child.stdout?.on('data', (chunk) => {
    output += chunk;
  });
  assert.deepEqual(await exit, [0, null]);
  assert.match(output, /^\d+\n\n# next\n\n\d+\n$/);
  assert.deepEqual(listProcesses(folder), []);
  assert.deepEqual(readdirSync(folder), []);
});

test('an interrupted benchmark leaves no cube-server and no folder', { skip }, async (t) => {
  const { folder, child, exit } = startRun(t, 'bench/main.js', 'ten-shards');
  await waitFor('a cube-server runs', () => listProcesses(folder).length > 0);
  child.kill('SIGINT');
  assert.deepEqual(await exit, [130, null]);
  assert.deepEqual(listProcesses(folder), []);
  assert.deepEqual(readdirSync(folder), []);
});
