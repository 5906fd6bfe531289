/** Code caches of bundled programs: used when valid, else ignored. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  cpSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import nodeModule from 'node:module';
import { dirname, join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { BundleLoader, findCodeCache } from '../../lib/platform/bundle-loader.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

const DIST = join(import.meta.dirname, '..', '..');
const LOADER = join(DIST, 'lib', 'platform', 'bundle-loader.js');

const MAIN = `"use strict";
const part = require("./part.cjs");
console.log(part.name, typeof require("node:fs").statSync);
Promise.resolve().then(() => require("./lazy.cjs")).then((lazy) => lazy.fail());
`;
const PART = 'exports.name = "first";\n';
const LAZY = `exports.fail = async function fail() {
  const { basename } = require("node:path");
  console.log(basename(__filename), /\\w+\\.cjs:\\d+/.exec(new Error().stack)[0]);
};
`;

interface Bundle {
  readonly main: string;
  readonly cache: string;
}

/** The code is compiled by another process: that of the tests has other V8 flags. */
function makeBundle(t: TestContext): Bundle {
  const folder = join(temporaryFolder(t), 'dist', 'chunks');
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'main.cjs'), MAIN);
  writeFileSync(join(folder, 'part.cjs'), PART);
  writeFileSync(join(folder, 'lazy.cjs'), LAZY);
  const main = join(folder, 'main.cjs');
  const cache = findCodeCache(main);
  const script = `
    const { BundleLoader } = await import(${JSON.stringify(LOADER)});
    const loader = new BundleLoader(${JSON.stringify(folder)});
    loader.compile('main.cjs');
    loader.compile('part.cjs');
    loader.writeCodeCache(${JSON.stringify(cache)});`;
  const file = join(folder, 'make.mjs');
  writeFileSync(file, script);
  const { stderr, status } = spawnSync(process.execPath, [file], { encoding: 'utf8' });
  assert.equal(status, 0, stderr);
  return { main, cache };
}

interface Started {
  readonly lines: string[];
  /** Whether a code cache was valid: else Node loads the files. */
  readonly usesCache: boolean;
}

function start({ main }: Bundle, ...flags: string[]): Started {
  const script = `
    const { startProgram } = await import(${JSON.stringify(LOADER)});
    startProgram(${JSON.stringify(main)});
    const { createRequire } = await import('node:module');
    console.log(JSON.stringify(Object.keys(createRequire(${JSON.stringify(main)}).cache)));`;
  const args = [...flags, '--input-type=module', '-e', script];
  const env = { ...process.env, NODE_DISABLE_COMPILE_CACHE: '1' };
  const { stdout, stderr, status } = spawnSync(process.execPath, args, { encoding: 'utf8', env });
  assert.equal(status, 0, stderr);
  const lines = stdout.trim().split('\n');
  const isList = (line: string): boolean => line.startsWith('[');
  const loaded = JSON.parse(lines.find(isList) ?? '[]') as string[];
  return { lines: lines.filter((line) => !isList(line)), usesCache: !loaded.includes(main) };
}

const expectLines = (name = 'first'): string[] => [`${name} function`, 'lazy.cjs lazy.cjs:3'];

test('a program runs with its code cache and without, with the same stack traces', (t) => {
  const bundle = makeBundle(t);
  assert.deepEqual(start(bundle), { lines: expectLines(), usesCache: true });
  renameSync(bundle.cache, `${bundle.cache}.old`);
  assert.deepEqual(start(bundle), { lines: expectLines(), usesCache: false });
});

test('V8 accepts the code of a cache', (t) => {
  const { main, cache } = makeBundle(t);
  const script = `
    import vm from 'node:vm';
    import { syncBuiltinESMExports } from 'node:module';
    const { Script } = vm;
    vm.Script = class extends Script {
      constructor(...args) {
        super(...args);
        console.log(this.cachedDataRejected);
      }
    };
    syncBuiltinESMExports();
    const { startProgram } = await import(${JSON.stringify(LOADER)});
    startProgram(${JSON.stringify(main)});`;
  // From a file: with `-e`, Node 22 has other flags.
  const file = join(dirname(main), 'count.mjs');
  writeFileSync(file, script);
  const run = (...flags: string[]): string[] => {
    const { stdout } = spawnSync(process.execPath, [...flags, file], { encoding: 'utf8' });
    return stdout.split('\n').filter((line) => /^(true|false|undefined)$/.test(line));
  };
  // The file that is loaded lazily is not in the cache.
  assert.deepEqual(run(), ['false', 'false', 'undefined'], cache);
  assert.deepEqual(run('--no-lazy'), ['true', 'true', 'undefined'], cache);
});

test('a damaged, shortened or foreign code cache is ignored', (t) => {
  const bundle = makeBundle(t);
  const bytes = readFileSync(bundle.cache);
  const expected = { lines: expectLines(), usesCache: false };
  for (const at of [0, 5, 20, bytes.length >> 1, bytes.length - 1]) {
    const damaged = Buffer.from(bytes);
    damaged[at]! ^= 0x10;
    writeFileSync(bundle.cache, damaged);
    assert.deepEqual(start(bundle), expected, `byte ${at}`);
  }
  for (const length of [0, 3, bytes.length - 1]) {
    writeFileSync(bundle.cache, bytes.subarray(0, length));
    assert.deepEqual(start(bundle), expected, `${length} bytes`);
  }
});

test('a code cache of another version of Node is ignored', (t) => {
  const bundle = makeBundle(t);
  const { version } = process;
  Object.defineProperty(process, 'version', { value: 'v20.0.0', configurable: true });
  t.after(() => Object.defineProperty(process, 'version', { value: version }));
  new BundleLoader(join(bundle.main, '..')).writeCodeCache(bundle.cache);
  assert.deepEqual(start(bundle), { lines: expectLines(), usesCache: false });
});

test('a changed file runs as it is, also when its length is the same', (t) => {
  const bundle = makeBundle(t);
  writeFileSync(join(bundle.main, '..', 'part.cjs'), PART.replace('first', 'other'));
  assert.deepEqual(start(bundle), { lines: expectLines('other'), usesCache: true });
});

test('a program with other flags of V8 runs', (t) => {
  const bundle = makeBundle(t);
  assert.deepEqual(start(bundle, '--no-opt').lines, expectLines());
});

test('a start writes no code cache, and a cache is written whole', (t) => {
  const bundle = makeBundle(t);
  const folder = join(bundle.cache, '..');
  const before = readFileSync(bundle.cache);
  start(bundle);
  assert.deepEqual(readdirSync(folder), ['main.bin']);
  assert.ok(readFileSync(bundle.cache).equals(before));
});

/** A copy of the build whose code caches can be changed. */
function copyBuild(t: TestContext): string {
  const root = temporaryFolder(t);
  const dist = join(root, 'dist');
  mkdirSync(join(dist, 'cube-server'), { recursive: true });
  cpSync(join(DIST, '..', 'package.json'), join(root, 'package.json'));
  cpSync(join(DIST, 'code-cache'), join(dist, 'code-cache'), { recursive: true });
  symlinkSync(join(DIST, 'chunks'), join(dist, 'chunks'));
  cpSync(join(DIST, 'cube-server', 'main.js'), join(dist, 'cube-server', 'main.js'));
  return dist;
}

function printVersion(dist: string, env: NodeJS.ProcessEnv = {}): string {
  return runProgram([join(dist, 'cube-server', 'main.js'), '--version'], env);
}

function runProgram(args: readonly string[], env: NodeJS.ProcessEnv = {}): string {
  const options = { encoding: 'utf8', env: { ...process.env, ...env } } as const;
  const { stdout, stderr, status } = spawnSync(process.execPath, args, options);
  assert.equal(status, 0, stderr);
  return stdout;
}

test('cube-server starts with its code cache, without, and with a damaged one', (t) => {
  const dist = copyBuild(t);
  const version = printVersion(dist);
  assert.match(version, /^\d+\.\d+\.\d+\n$/);
  const cache = join(dist, 'code-cache', 'cube-server-main.bin');
  const bytes = readFileSync(cache);
  bytes.fill(0xff, bytes.length >> 1);
  writeFileSync(cache, bytes);
  assert.equal(printVersion(dist), version);
  writeFileSync(cache, readFileSync(join(DIST, 'code-cache', 'cube-agent-main.bin')));
  assert.equal(printVersion(dist), version);
  renameSync(cache, `${cache}.old`);
  assert.equal(printVersion(dist), version);
});

test('without a code cache, Node keeps compiled code in the cache folder of the account', (t) => {
  const dist = copyBuild(t);
  const folder = temporaryFolder(t);
  const env = { XDG_CACHE_HOME: folder, NODE_COMPILE_CACHE: undefined };
  printVersion(dist, env);
  assert.deepEqual(readdirSync(folder), []);
  renameSync(join(dist, 'code-cache'), join(dist, 'none'));
  printVersion(dist, env);
  const isKept = 'flushCompileCache' in nodeModule;
  assert.deepEqual(readdirSync(folder), isKept ? ['hypercube'] : []);
});

test('a program with a code cache imports another program', () => {
  const main = join(DIST, 'tools', 'hypercube', 'main.js');
  assert.match(runProgram([main, 'cube-server', '--help']), /^Usage: cube-server /);
});

test('a lazy module of Node is loaded at its first use, and is complete', () => {
  const script = `
    import { createRequire } from 'node:module';
    const { loadLazily } = await import(${JSON.stringify(LOADER)});
    const isLoaded = () => process.moduleLoadList.includes('NativeModule dgram');
    const lazy = loadLazily('node:dgram');
    const before = isLoaded();
    const socket = new lazy.Socket('udp4');
    const real = createRequire('/')('node:dgram');
    console.log(before, isLoaded(), socket instanceof real.Socket, 'createSocket' in lazy,
      JSON.stringify(Object.keys(lazy)) === JSON.stringify(Object.keys(real)),
      ({ ...lazy }).Socket === real.Socket);
    socket.close();`;
  const output = runProgram(['--input-type=module', '-e', script]);
  assert.equal(output, 'false true true true true true\n');
});

test('every program and thread has a code cache', () => {
  const entries = readdirSync(join(DIST, 'chunks')).filter((name) =>
    /-(main|worker|verification-process)\.cjs$/.test(name),
  );
  assert.ok(entries.length > 20);
  const caches = readdirSync(join(DIST, 'code-cache'));
  const expected = entries.map((name) => name.replace(/\.cjs$/, '.bin'));
  assert.deepEqual(caches.sort(), expected.sort());
});
