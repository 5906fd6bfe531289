/**
 * The npm packages as users get them: packed, unpacked into an empty folder beside the packages
 * that they declare, checked by the compiler, and used with a cube-server. Nothing is downloaded.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import type { CubeServer } from '../../cube-server/server.ts';
import { formatFleet, parseFleet } from '../../lib/core/fleet.ts';
import { formatManifest } from '../../lib/core/manifest.ts';
import { createServer } from '../cube-server/support/create-server.ts';
import { DataFolder } from '../cube-server/support/data-folder.ts';
import { control } from '../cube-server/support/server-process.ts';
import { RULES, toAnchor } from '../policy/docs.ts';

const execute = promisify(execFile);
const npm = process.platform === 'win32' ? 'npm.cmd' : 'npm';
const folder = mkdtempSync(join(tmpdir(), 'hypercube-package-'));
const data = new DataFolder();
const server: CubeServer = createServer(data.path);

interface PackageFile {
  readonly dependencies: Readonly<Record<string, string>>;
  readonly bin?: Readonly<Record<string, string>>;
}

/** An empty folder in which the package of a tarball is installed. */
class User {
  readonly path: string;
  readonly package: string;
  readonly #name: string;

  constructor(name: string) {
    this.#name = name;
    this.path = join(folder, name);
    this.package = join(this.path, 'node_modules', name);
  }

  /** Does what `npm install` of the tarball does, with the packages of this checkout. */
  async install(tarball: string): Promise<void> {
    mkdirSync(this.package, { recursive: true });
    await execute('tar', ['-xzf', tarball, '--strip-components=1', '-C', this.package]);
    const { dependencies, bin = {} } = this.readPackage();
    for (const name of [...Object.keys(dependencies), '@types/node', 'undici-types']) {
      this.#link(resolve('node_modules', name), name);
    }
    for (const [name, file] of Object.entries(bin)) {
      chmodSync(join(this.package, file), 0o755);
      this.#link(join(this.package, file), join('.bin', name));
    }
    writeFileSync(join(this.path, 'package.json'), '{"type":"module"}');
  }

  readPackage(): PackageFile {
    return JSON.parse(readFileSync(join(this.package, 'package.json'), 'utf8'));
  }

  #link(target: string, name: string): void {
    const path = join(this.path, 'node_modules', name);
    mkdirSync(dirname(path), { recursive: true });
    symlinkSync(target, path);
  }

  /** Compiles and runs a program that uses the package. @returns what it prints, parsed */
  async compileAndRun(source: string): Promise<unknown> {
    writeFileSync(join(this.path, 'main.ts'), source.replaceAll('PACKAGE', this.#name));
    const options = ['--strict', '--module', 'nodenext', '--target', 'es2023', '--types', 'node'];
    const compiler = resolve('node_modules/typescript-native/bin/tsc');
    const args = [compiler, ...options, '--ignoreConfig', 'main.ts'];
    const { stdout } = await execute(process.execPath, args, { cwd: this.path }).catch((error) => {
      throw new Error(error.stdout);
    });
    assert.equal(stdout, '');
    return this.run('main.js');
  }

  async run(script: string, ...args: string[]): Promise<unknown> {
    const { stdout } = await execute(process.execPath, [script, ...args], { cwd: this.path });
    return JSON.parse(stdout);
  }

  /** Complaints about links of the package's pages. */
  checkLinks(): string[] {
    const paths = new Set(
      readdirSync(this.package, { recursive: true, encoding: 'utf8' }).map((path) =>
        path.replaceAll('\\', '/'),
      ),
    );
    const read = (page: string): string => readFileSync(join(this.package, page), 'utf8');
    const anchors = (page: string): Set<string> =>
      new Set([...read(page).matchAll(/^#+ (.+)$/gm)].map(([, title = '']) => toAnchor(title)));
    const world = { paths, anchors, help: () => undefined };
    const pages = [...paths].filter((path) => path.endsWith('.md'));
    assert.ok(pages.includes('README.md'));
    return pages.flatMap((page) => RULES['links']!(page, read(page), world));
  }
}

const programs = new User('hypercube');
const client = new User('hypercube-client');
let clientTarball = '';

before(async () => {
  const flags = ['--ignore-scripts', '--silent', '--pack-destination', folder];
  const pack = async (command: string, args: string[]): Promise<string> =>
    resolve(folder, (await execute(command, args)).stdout.trim());
  const script = 'tools/dev/pack-client.mjs';
  const [first, second] = await Promise.all([
    pack(npm, ['pack', ...flags]),
    pack(process.execPath, [script, '--output', folder]),
  ]);
  clientTarball = second;
  await Promise.all([programs.install(first), client.install(second)]);
  await startServer();
});

after(async () => {
  rmSync(folder, { recursive: true, force: true });
  await server.stop();
  data.remove();
});

/** Starts a cube-server with one table, and tells both users where it is. */
async function startServer(): Promise<void> {
  const value = (key: bigint, j: number): number => Number(key) * 10 + j;
  const manifest = data.write({
    bundle: 'ctr',
    version: '1',
    shardNum: 1,
    tables: [{ name: 't', dim: 2, keys: [1n, 2n], value }],
  });
  const address = await server.listen({ host: '127.0.0.1', port: 0 });
  for (const call of ['load', 'activate']) {
    await control(address, call, { bundle: 'ctr', version: '1' });
  }
  const shards = [[{ data: address }]];
  const fleet = JSON.stringify({ format: 1, bundles: { ctr: [{ shardNum: 1, shards }] } });
  for (const { path } of [programs, client]) {
    writeFileSync(join(path, 'fleet.json'), formatFleet(parseFleet(fleet, 'fleet.json')));
    writeFileSync(join(path, 'manifest.json'), formatManifest(manifest));
  }
}

const SCRIPT = `
import { CtrClient, CubeClient, FleetFile, packKeys, OUTCOME_HIT, OUTCOME_UNSEEN, parseManifest } from 'PACKAGE';
import type { CtrRow, LookupGroup } from 'PACKAGE';
import { readFileSync } from 'node:fs';

const file = new FleetFile('fleet.json', { onInvalid: (error) => console.error(error.message) });
const client = new CubeClient({ fleet: () => file.current(), policy: { loadBalancer: 'la' } });
const manifest = parseManifest(readFileSync('manifest.json', 'utf8'), 'manifest.json');
const group: LookupGroup = {
  table: 't', keys: packKeys([1n, 2, 99]), count: 3,
  rows: new Float32Array(3 * 2), outcomes: new Uint8Array(3),
};
const { version, unseen } = await client.lookup(manifest, [group], 30_000);
const isRight = group.outcomes[0] === OUTCOME_HIT && group.outcomes[2] === OUTCOME_UNSEEN;
if (!isRight) throw new Error('outcomes');
console.log(JSON.stringify({ version, unseen, rows: [...group.rows] }));
client.close();
const row: CtrRow = { dense: [5, null], categorical: ['a', ['b', 'c']] };
for (const url of ['http://127.0.0.1:1', 'grpc://127.0.0.1:1']) {
  const ctr = new CtrClient({ url, retryMax: 0 });
  const code: string = await ctr.predict([row]).then(() => 'none', (error) => error.code);
  if (code !== 'UNAVAILABLE') throw new Error(code);
  ctr.close();
}
`;

const ANSWER = { version: '1', unseen: 1, rows: [10, 11, 20, 21, 0, 0] };

test('both packages serve a TypeScript program in an empty folder', async () => {
  const answers = await Promise.all([programs.compileAndRun(SCRIPT), client.compileAndRun(SCRIPT)]);
  assert.deepEqual(answers, [ANSWER, ANSWER]);
});

test('the client package is small and serves a JavaScript program', async () => {
  const kib = Math.ceil(statSync(clientTarball).size / 1024);
  assert.ok(kib < 300, `${kib} KiB`);
  const { dependencies } = client.readPackage();
  assert.deepEqual(Object.keys(dependencies), [
    '@grpc/grpc-js',
    'lz4js',
    'snappyjs',
    'xxhash-wasm',
  ]);
  const isTyped = /^import type .*$|: (CtrRow|LookupGroup|string)\b/gm;
  const source = SCRIPT.replaceAll(isTyped, '').replaceAll('PACKAGE', 'hypercube-client');
  writeFileSync(join(client.path, 'main.mjs'), source);
  assert.deepEqual(await client.run('main.mjs'), ANSWER);
});

test('the links of the pages in both packages lead to files of the package', () => {
  assert.deepEqual([...programs.checkLinks(), ...client.checkLinks()], []);
});

test('every installed command is a program, and npx runs it', async () => {
  const { bin = {} } = programs.readPackage();
  assert.ok(Object.keys(bin).length >= 10);
  for (const [name, file] of Object.entries(bin)) {
    const path = join(programs.package, file);
    assert.ok(existsSync(path), name);
    assert.match(readFileSync(path, 'utf8'), /^#!\/usr\/bin\/env node\n/, name);
  }
  const help = async (command: string, ...args: string[]): Promise<string> =>
    (await execute(command, args, { cwd: programs.path })).stdout;
  const npx = process.platform === 'win32' ? 'npx.cmd' : 'npx';
  assert.match(await help(npx, '--offline', 'hypercube', '--help'), /prune-model +Split/);
  const main = join(programs.path, 'node_modules', '.bin', 'hypercube');
  assert.match(await help(process.execPath, main, 'prune-model', '--help'), /--model <path>/);
});
