/**
 * Makes a checkout ready to run with Node and npm alone: installs when node_modules is missing or
 * older than the lock file, and builds when a source changed since the last build. With `--programs`
 * tests and benchmarks are left out, and the packages that only they need; with `--checked` types
 * are checked too. Uses Node built-ins
 * only, because it runs before anything is installed. A second run does nothing.
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  existsSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeDemoPackage } from './demo-packages.mjs';

const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
/** Exists when only the demo's packages are installed. */
const demoMark = join(root, 'node_modules', '.demo-only');
const sourceFolders = [
  'lib',
  'proto',
  'cube-server',
  'cube-agent',
  'serving',
  'tools',
  'console',
  'test',
  'bench',
];
const sourceFiles = ['package.json', 'package-lock.json', 'tsconfig.json'];

function requireNode() {
  const [major, minor] = process.versions.node.split('.').map(Number);
  if (major > 20 || (major === 20 && minor >= 19)) return;
  console.error(`hypercube needs Node 20.19 or newer; this is ${process.version}.`);
  process.exit(1);
}

function run(title, command, args, cwd = root) {
  const result = spawnSync(command, args, {
    cwd,
    stdio: ['ignore', process.stderr, process.stderr],
    shell: process.platform === 'win32' && command === 'npm',
  });
  if (result.status === 0) return;
  console.error(`✗ ${title}: failed (${result.error?.message ?? `exit ${result.status}`})`);
  process.exit(1);
}

/** @param isWhole packages that the demo does not need are asked for too */
function installIsCurrent(isWhole) {
  const mark = join(root, 'node_modules', '.package-lock.json');
  const lock = join(root, 'package-lock.json');
  if (!existsSync(mark) || statSync(mark).mtimeMs < statSync(lock).mtimeMs) return false;
  return !isWhole || !existsSync(demoMark);
}

function install(isWhole) {
  const args = ['ci', '--no-audit', '--no-fund', '--loglevel=error'];
  if (isWhole) {
    console.error('• installing packages (npm ci)');
    run('installing packages (npm ci)', 'npm', args);
    return;
  }
  console.error('• installing the packages that the demo needs (npm ci)');
  const folder = join(root, '.install');
  rmSync(folder, { recursive: true, force: true });
  writeDemoPackage(root, folder);
  run('installing packages (npm ci)', 'npm', args, folder);
  rmSync(join(root, 'node_modules'), { recursive: true, force: true });
  renameSync(join(folder, 'node_modules'), join(root, 'node_modules'));
  rmSync(folder, { recursive: true });
  writeFileSync(demoMark, '');
}

/**
 * Digest of every source file's path and bytes: a checkout that only touched mtimes is not stale. It
 * has the version of Node too, to which the code caches belong.
 */
function sourceDigest() {
  const hash = createHash('sha256').update(process.version);
  const add = (path) =>
    hash
      .update(path)
      .update('\0')
      .update(readFileSync(join(root, path)));
  const walk = (folder) => {
    const entries = readdirSync(join(root, folder), { withFileTypes: true });
    entries.sort((a, b) => (a.name < b.name ? -1 : 1));
    for (const entry of entries) {
      const path = `${folder}/${entry.name}`;
      if (entry.name === 'generated') continue;
      if (entry.isDirectory()) walk(path);
      else if (/\.(ts|tsx|mjs|json|proto|html|css|svg)$/.test(entry.name)) add(path);
    }
  };
  for (const file of sourceFiles) add(file);
  for (const folder of sourceFolders) if (existsSync(join(root, folder))) walk(folder);
  return hash.digest('hex');
}

const startMs = performance.now();
requireNode();
/** What a build contains; each contains the one before. Its stamp has the digest of its sources. */
const levels = ['programs', 'built', 'checked'];
const isAsked = (name) => process.argv.includes(`--${name}`);
const level = isAsked('checked') ? 2 : isAsked('programs') ? 0 : 1;
const stamps = levels.map((name) => join(root, 'dist', `.${name}-from`));
if (!installIsCurrent(level > 0)) install(level > 0);
const digest = sourceDigest();
const stamp = stamps[level];
if (!existsSync(stamp) || readFileSync(stamp, 'utf8') !== digest) {
  // A build that fails or is stopped half-way leaves a mixture, which no stamp may describe.
  for (const path of stamps) rmSync(path, { force: true });
  const build = join(root, 'tools', 'dev', 'build.mjs');
  run('building', process.execPath, [build, `--${levels[level]}`]);
  for (const path of stamps.slice(0, level + 1)) writeFileSync(path, digest);
  console.error(`• prepared in ${((performance.now() - startMs) / 1000).toFixed(1)} s`);
}
