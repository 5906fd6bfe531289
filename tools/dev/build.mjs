/**
 * Builds `dist/`: the WebAssembly kernels, the TypeScript and the page of the console at the same
 * time, then the bundled programs and their code caches. `--programs` builds nothing that only libraries, tests and
 * benchmarks need; `--checked` also checks types, which takes most of the time.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const kernels = join(root, 'lib', 'core', 'kernels');
const assembly = join(kernels, 'assembly');
const generated = join(kernels, 'generated');
const digestFile = join(generated, '.built-from');
const CONSOLE_ONLY = '--console-only';

/** Digest of what the kernels are compiled from. */
function computeKernelsDigest() {
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));
  const hash = createHash('sha256').update(lock.packages['node_modules/assemblyscript'].version);
  const names = readdirSync(assembly).sort();
  for (const path of [...names.map((name) => join(assembly, name)), join(kernels, 'params.ts')]) {
    hash.update('\0').update(readFileSync(path));
  }
  return hash.digest('hex');
}

/**
 * Compiles assembly/kernels.ts to a module that exports its bytes as base64, so that lib/core needs
 * no I/O. The TypeScript compiler runs beside it and sees the module without the bytes.
 * @param compiling resolves when the TypeScript compiler has ended
 */
async function buildKernels(digest, compiling) {
  console.error('• compiling the WebAssembly kernels');
  const { default: asc } = await import('assemblyscript/asc');
  const { error, stderr } = await asc.main([
    join(assembly, 'kernels.ts'),
    '--outFile',
    join(generated, 'kernels.wasm'),
    '--config',
    join(assembly, 'asconfig.json'),
  ]);
  if (error) throw new Error(`kernels: ${error.message}\n${stderr}`);
  const bytes = readFileSync(join(generated, 'kernels.wasm')).toString('base64');
  await compiling;
  writeFileSync(join(generated, 'kernels.ts'), formatKernels(bytes, ': string'));
  const output = join(root, 'dist', 'lib', 'core', 'kernels', 'generated');
  mkdirSync(output, { recursive: true });
  writeFileSync(join(output, 'kernels.js'), formatKernels(bytes, ''));
  writeFileSync(digestFile, digest);
}

function formatKernels(bytes, type) {
  return [
    '// Generated from lib/core/kernels/assembly by tools/dev/build.mjs.',
    `export const KERNELS_WASM_BASE64${type} =\n  '${bytes}';`,
    '',
  ].join('\n');
}

/**
 * An unchecked build removes the incremental state, which would not describe the outputs any more:
 * the next checked build compiles every file.
 */
async function compileTypeScript(isChecked) {
  console.error(`• compiling TypeScript${isChecked ? ' and checking types' : ''}`);
  if (!isChecked) rmSync(join(root, 'dist', '.tsbuildinfo'), { force: true });
  const unchecked = ['--noCheck', '--incremental', 'false', '--tsBuildInfoFile', 'null'];
  await runCompiler(['-p', root, ...(isChecked ? [] : unchecked)]);
}

async function runCompiler(args) {
  const tsc = join(root, 'node_modules', 'typescript-native', 'bin', 'tsc');
  const compiler = spawn(process.execPath, [tsc, ...args], { cwd: root, stdio: 'inherit' });
  const [status] = await once(compiler, 'exit');
  if (status !== 0) process.exit(1);
}

const consoleSources = join(root, 'console');
const consoleOutput = join(root, 'dist', 'console');
const consoleDigestFile = join(root, 'dist', '.console-built-from');

/** Digest of what the page is built from. */
function computeConsoleDigest() {
  const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));
  const hash = createHash('sha256');
  for (const name of ['vite', 'preact', 'uplot']) {
    hash.update(lock.packages[`node_modules/${name}`].version);
  }
  const entries = readdirSync(consoleSources, { recursive: true, withFileTypes: true });
  const files = entries.filter((entry) => entry.isFile());
  for (const path of files.map((entry) => join(entry.parentPath, entry.name)).sort()) {
    hash.update('\0').update(path.slice(root.length)).update('\0').update(readFileSync(path));
  }
  return hash.digest('hex');
}

/** Bundles the page. Vite is only loaded when its sources changed. */
async function buildConsole(isChecked) {
  if (isChecked) await runCompiler(['-p', consoleSources]);
  const digest = computeConsoleDigest();
  const isBuilt = existsSync(join(consoleOutput, 'index.html')) && existsSync(consoleDigestFile);
  if (isBuilt && readFileSync(consoleDigestFile, 'utf8') === digest) return;
  console.error('• bundling the console');
  rmSync(consoleDigestFile, { force: true });
  const { build } = await import('vite');
  await build({ configFile: join(consoleSources, 'vite.config.mjs') });
  writeFileSync(consoleDigestFile, digest);
}

/** Builds the page in a process of its own, while the main thread compiles the kernels. */
async function startConsoleBuild() {
  const args = [fileURLToPath(import.meta.url), ...process.argv.slice(2), CONSOLE_ONLY];
  const builder = spawn(process.execPath, args, { stdio: 'inherit' });
  const [status] = await once(builder, 'exit');
  if (status !== 0) process.exit(1);
}

async function bundlePrograms() {
  console.error('• bundling the programs');
  const { bundlePrograms } = await import('./bundle.mjs');
  const entries = await bundlePrograms();
  // An old cache would belong to other files.
  rmSync(join(root, 'dist', 'code-cache'), { recursive: true, force: true });
  return entries;
}

async function writeCodeCaches(entries) {
  console.error('• keeping compiled code');
  const { writeCodeCaches } = await import('./code-cache.mjs');
  await writeCodeCaches(entries);
}

/** gRPC's reflection reads the .proto files of what runs. */
function copyProtos() {
  const isProto = (name) => name.endsWith('.proto');
  const target = join(root, 'dist', 'proto');
  mkdirSync(target, { recursive: true });
  for (const name of readdirSync(target).filter(isProto)) rmSync(join(target, name));
  for (const name of readdirSync(join(root, 'proto')).filter(isProto)) {
    copyFileSync(join(root, 'proto', name), join(target, name));
  }
}

/** Removes outputs whose source is gone: a deleted test must not run from an old build. */
function removeOrphans(folder) {
  for (const entry of readdirSync(join(root, 'dist', folder), { withFileTypes: true })) {
    const path = join(folder, entry.name);
    // The bundlers empty these folders.
    if (['console', 'chunks', 'code-cache'].includes(path)) continue;
    if (entry.isDirectory()) {
      if (existsSync(join(root, path))) removeOrphans(path);
      else rmSync(join(root, 'dist', path), { recursive: true });
    } else if (/\.(js|js\.map|d\.ts)$/.test(entry.name)) {
      const source = path.replace(/\.(js|js\.map|d\.ts)$/, '.ts');
      if (!existsSync(join(root, source))) rmSync(join(root, 'dist', path));
    }
  }
}

async function build() {
  mkdirSync(generated, { recursive: true });
  mkdirSync(join(root, 'dist'), { recursive: true });
  const digest = computeKernelsDigest();
  const hasKernels = existsSync(digestFile) && readFileSync(digestFile, 'utf8') === digest;
  if (!hasKernels) {
    rmSync(digestFile, { force: true });
    writeFileSync(join(generated, 'kernels.ts'), formatKernels('', ': string'));
  }
  const hasOnlyPrograms = process.argv.includes('--programs');
  const page = startConsoleBuild();
  const compiling = hasOnlyPrograms ? undefined : compileTypeScript(isChecked);
  if (!hasKernels) await buildKernels(digest, compiling);
  await compiling;
  const entries = await bundlePrograms();
  await page;
  removeOrphans('.');
  copyProtos();
  await writeCodeCaches(entries);
}

const isChecked = process.argv.includes('--checked');
if (process.argv.includes(CONSOLE_ONLY)) await buildConsole(isChecked);
else await build();
