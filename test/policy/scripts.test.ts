/** The npm scripts prepare what they run themselves, because .npmrc turns hooks off. */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { temporaryFolder } from '../repository/support/fixtures.ts';

/** Complaints about the scripts of a package.json. */
function checkScripts(scripts: Readonly<Record<string, string>>): string[] {
  return Object.entries(scripts).flatMap(([name, command]) => {
    const isHook = /^(pre|post)/.test(name);
    const isUnprepared =
      /\bdist\/|\btest\.mjs|\bpack\b/.test(command) &&
      !command.startsWith('node tools/dev/prepare.mjs');
    return [
      ...(isHook ? [`${name} is a hook`] : []),
      ...(isUnprepared ? [`${name} runs what may not be built`] : []),
    ];
  });
}

test('packages are installed without their scripts, and our scripts need no hooks', () => {
  // onnxruntime-node's script downloads CUDA libraries, and fails where there is no network.
  assert.match(readFileSync('.npmrc', 'utf8'), /^ignore-scripts=true$/m);
  const { scripts } = JSON.parse(readFileSync('package.json', 'utf8'));
  assert.ok(Object.keys(scripts).includes('start'));
  assert.deepEqual(checkScripts(scripts), []);
});

test('hooks and scripts without a build are found', () => {
  const scripts = { prestart: 'x', start: 'node dist/main.js', format: 'biome check' };
  assert.deepEqual(checkScripts(scripts), [
    'prestart is a hook',
    'start runs what may not be built',
  ]);
});

test('npm start installs what programs load and what builds them, not checks', async (t) => {
  const folder = join(temporaryFolder(t), 'install');
  const module = pathToFileURL(resolve('tools/dev/demo-packages.mjs')).href;
  (await import(module)).writeDemoPackage('.', folder);
  const read = (...path: string[]) => JSON.parse(readFileSync(join(...path), 'utf8'));
  const manifest = read(folder, 'package.json');
  const { packages } = read(folder, 'package-lock.json');
  const whole = read('package-lock.json').packages;
  const { devDependencies, optionalDependencies, ...root } = whole[''];
  assert.deepEqual(packages['']['dependencies'], root.dependencies);
  assert.deepEqual(packages['']['devDependencies'], manifest.devDependencies);
  const directs = { ...manifest.dependencies, ...manifest.devDependencies };
  for (const name of Object.keys(directs)) {
    const path = `node_modules/${name}`;
    assert.deepEqual(packages[path], whole[path]);
  }
  assert.ok(
    Object.keys(packages).some((path) => path.startsWith('node_modules/@rolldown/binding')),
  );
  for (const name of ['typescript', 'knip', ...Object.keys(optionalDependencies)]) {
    assert.equal(packages[`node_modules/${name}`], undefined, name);
  }
  assert.ok(Object.keys(devDependencies).includes('rolldown'));
});

const listUnknownTests = (names: readonly string[]): string[] =>
  names.filter((name) => !existsSync(join('test', `${name}.test.ts`)));

test('test-seconds.json names test files that exist', () => {
  const seconds = JSON.parse(readFileSync('tools/dev/test-seconds.json', 'utf8'));
  assert.deepEqual(listUnknownTests(Object.keys(seconds)), []);
  assert.deepEqual(listUnknownTests(['policy/scripts', 'policy/gone']), ['policy/gone']);
});

test('long test files run with --all or by name, and unknown options are refused', (t) => {
  const folder = temporaryFolder(t);
  cpSync('tools/dev', join(folder, 'tools', 'dev'), { recursive: true });
  mkdirSync(join(folder, 'dist', 'test'), { recursive: true });
  const source = "import { test } from 'node:test';\ntest('passes', () => undefined);\n";
  for (const name of ['quick.test.js', 'slow.long.test.js']) {
    writeFileSync(join(folder, 'dist', 'test', name), source);
  }
  writeFileSync(join(folder, 'package.json'), '{"type":"module"}');
  // Without it, the runner would take itself for a file of this run.
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const runTests = (...args: string[]): string => {
    const options = { cwd: folder, env, encoding: 'utf8' } as const;
    const { stdout, stderr } = spawnSync(
      process.execPath,
      ['tools/dev/test.mjs', ...args],
      options,
    );
    return stdout + stderr;
  };
  const listFiles = (output: string): string[] =>
    ['quick', 'slow'].filter((name) => new RegExp(`^ok \\d - dist/test/${name}`, 'm').test(output));
  assert.deepEqual(listFiles(runTests()), ['quick']);
  assert.deepEqual(listFiles(runTests('--all')), ['quick', 'slow']);
  assert.deepEqual(listFiles(runTests('slow')), ['slow']);
  assert.match(runTests('--slow'), /^unknown option --slow; options: --all/);
});

test('npm start says what it installs before the installation ends', async (t) => {
  const folder = temporaryFolder(t);
  cpSync('tools/dev', join(folder, 'tools', 'dev'), { recursive: true });
  for (const file of ['.npmrc', 'package.json', 'package-lock.json', 'tsconfig.json']) {
    copyFileSync(file, join(folder, file));
  }
  // An npm that installs for as long as the test wants, and then fails.
  const programs = join(folder, 'programs');
  mkdirSync(programs);
  const endless = '#!/bin/sh\nwhile [ ! -e ../end ]; do sleep 0.05; done\nexit 1\n';
  writeFileSync(join(programs, 'npm'), endless, { mode: 0o755 });
  const env = { ...process.env, PATH: `${programs}:${process.env['PATH']}` };
  const args = ['tools/dev/prepare.mjs', '--programs'];
  const child = spawn(process.execPath, args, { cwd: folder, env });
  const lines = child.stderr.setEncoding('utf8')[Symbol.asyncIterator]();
  const { value } = await lines.next();
  assert.equal(value, '• installing the packages that the demo needs (npm ci)\n');
  assert.equal(child.exitCode, null, 'npm is still installing');
  writeFileSync(join(folder, 'end'), '');
  assert.match((await lines.next()).value ?? '', /^✗ installing packages \(npm ci\): failed/);
  if (child.exitCode === null) await once(child, 'exit');
  assert.equal(child.exitCode, 1);
});
