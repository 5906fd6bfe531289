/**
 * Writes `dist/code-cache/`: for each program and thread, the code that V8 compiled for it, with the
 * functions that a start needs (lib/platform/bundle-loader.ts). It starts each program once, and
 * works for the running version of Node. A program without a cache starts too, only slower.
 */
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, posix } from 'node:path';
import { fileURLToPath } from 'node:url';
import { setFlagsFromString } from 'node:v8';

const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const chunks = join(root, 'dist', 'chunks');
const RECORD = 'record';
/** Processes at a time. */
const CONCURRENCY = 2;
const TIMEOUT_MS = 60_000;
const END_SIGNAL = 'SIGUSR2';
const RUNS = /"msg":"(listening|running)"/;
/** The program that starts the threads of a folder without one. */
const OTHER_OWNERS = { 'lib/platform': 'cube-agent', 'lib/store': 'cube-server' };

/** Command lines that start what runs until it is stopped. The others print their help. */
function makeServerArguments(folder) {
  const channel = ['--repository', join(folder, 'repository'), '--bundle', 'ctr'];
  const data = ['--data-dir', join(folder, 'data')];
  return {
    'cube-server/main': ['--shard', '0', '--shard-num', '1', '--port', '0', ...data],
    'cube-agent/main': ['run', ...channel, ...data, '--server', '127.0.0.1:1'],
    'serving/main': [...channel, '--port', '0'],
  };
}

/** The main program that starts a thread or process: that of its folder or the nearest above. */
function findOwner(entry, mains) {
  let folder = posix.dirname(entry);
  folder = OTHER_OWNERS[folder] ?? folder;
  while (!mains.includes(`${folder}/main`)) {
    if (folder === '.')
      throw new Error(`${entry}: OTHER_OWNERS does not say which program starts it`);
    folder = posix.dirname(folder);
  }
  return `${folder}/main`;
}

/**
 * Starts a program, and stops it when it runs. Its process also compiles for its threads, because a
 * cache belongs to V8's flags.
 */
async function recordProgram(file, args, threads) {
  const options = { stdio: ['ignore', 'ignore', 'pipe'], timeout: TIMEOUT_MS };
  const request = JSON.stringify({ file, threads });
  const script = [fileURLToPath(import.meta.url), RECORD, request, ...args];
  const child = spawn(process.execPath, script, options);
  let log = '';
  child.stderr.setEncoding('utf8').on('data', (text) => {
    log += text;
    if (!child.killed && RUNS.test(log)) child.kill(END_SIGNAL);
  });
  const status = await new Promise((resolve) => child.once('close', resolve));
  if (status !== 0) throw new Error(`${file}: no code cache (exit ${status}): ${log}`);
}

/** @param entries what `bundlePrograms` returns */
export async function writeCodeCaches(entries) {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-code-'));
  mkdirSync(join(folder, 'repository'));
  const serverArguments = makeServerArguments(folder);
  const names = Object.keys(entries);
  const mains = names.filter((name) => posix.basename(name) === 'main');
  const threads = names.filter((name) => !mains.includes(name));
  const waiting = [...mains];
  const work = async () => {
    for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) {
      const own = threads.filter((thread) => findOwner(thread, mains) === name);
      const ownFiles = own.map((thread) => entries[thread]);
      await recordProgram(entries[name][0], serverArguments[name] ?? ['--help'], ownFiles);
    }
  };
  try {
    await Promise.all(Array.from({ length: CONCURRENCY }, work));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** In a process of its own: runs a program, and writes its cache when it ends. */
function record({ file, threads }) {
  const loaderFile = join(chunks, 'bundle-loader.cjs');
  const { BundleLoader, findCodeCache } = createRequire(loaderFile)(loaderFile);
  process.argv.splice(2, 2);
  const loader = new BundleLoader(chunks);
  // An orderly stop takes so long that V8 drops code.
  process.once(END_SIGNAL, () => process.exit(0));
  process.once('exit', () => {
    for (const files of threads) {
      const compiler = new BundleLoader(chunks);
      for (const one of files) compiler.compile(one);
      compiler.writeCodeCache(findCodeCache(join(chunks, files[0])));
    }
    // V8 refuses code of other flags. Servers set this one when all is loaded (heap-growth.ts).
    setFlagsFromString('--heap-growing-percent=0');
    loader.writeCodeCache(findCodeCache(join(chunks, file)));
  });
  loader.load(file);
}

if (process.argv[2] === RECORD) record(JSON.parse(process.argv[3]));
