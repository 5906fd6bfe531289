/**
 * A start loads only what it needs: the bundled files, and none of the packages that most processes
 * never use, such as gRPC, Redis, S3 and onnxruntime.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { DIST } from '../support/processes.ts';

const folder = mkdtempSync(join(tmpdir(), 'hypercube-starts-'));
after(() => rmSync(folder, { recursive: true, force: true }));

const HOOK = `
  import { appendFileSync } from 'node:fs';
  export async function load(url, context, next) {
    appendFileSync(process.env.LOADED_FILES, url + '\\n');
    return next(url, context);
  }`;
/**
 * Writes the URLs of modules as they are loaded; and at the first listener those of required ones,
 * and of files that the loader of bundles has read.
 */
const PROBE = `
  import fs, { appendFileSync } from 'node:fs';
  import { createRequire, register, syncBuiltinESMExports } from 'node:module';
  import { Server } from 'node:net';
  import { pathToFileURL } from 'node:url';
  const { listen } = Server.prototype;
  const { readFileSync } = fs;
  const read = [];
  fs.readFileSync = (path, ...args) => {
    if (/\\.cjs$/.test(path)) read.push(path);
    return readFileSync(path, ...args);
  };
  syncBuiltinESMExports();
  const write = () => {
    const paths = [...read, ...Object.keys(createRequire('/').cache)];
    const urls = paths.map((path) => pathToFileURL(path).href);
    appendFileSync(process.env.LOADED_FILES, urls.concat('end', '').join('\\n'));
  };
  if (process.env.LOADED_UNTIL === 'exit') process.once('exit', write);
  else Server.prototype.listen = function (...args) {
    Server.prototype.listen = listen;
    write();
    return listen.apply(this, args);
  };
  register('data:text/javascript,' + encodeURIComponent(${JSON.stringify(HOOK)}));`;

/**
 * Starts a program, and stops it when it runs.
 * @param until the first call of `listen`, or the end of the process
 * @returns paths of the files loaded by then
 */
async function listLoadedFiles(
  program: string,
  args: readonly string[],
  until: 'listen' | 'exit',
): Promise<string[]> {
  const list = join(mkdtempSync(join(folder, program)), 'loaded.txt');
  const probe = `data:text/javascript,${encodeURIComponent(PROBE)}`;
  const child = spawn(
    process.execPath,
    ['--import', probe, join(DIST, program, 'main.js'), ...args],
    {
      stdio: ['ignore', 'ignore', 'pipe'],
      env: { ...process.env, LOADED_FILES: list, LOADED_UNTIL: until },
    },
  );
  const exit = once(child, 'exit');
  let log = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    log += text;
    // A second signal would kill.
    if (!child.killed && /"msg":"(listening|running)"/.test(log)) child.kill('SIGTERM');
  });
  assert.deepEqual(await exit, [0, null], log);
  const lines = readFileSync(list, 'utf8').split('\n');
  return lines
    .slice(0, lines.indexOf('end'))
    .filter((url) => url.startsWith('file:'))
    .map((url) => fileURLToPath(url));
}

const repository = ['--repository', folder, '--bundle', 'ctr', '--data-dir', join(folder, 'data')];
interface Start {
  readonly args: readonly string[];
  readonly until: 'listen' | 'exit';
  readonly bytesMax: number;
}

const programs: Record<string, Start> = {
  'cube-server': {
    args: ['--shard', '0', '--shard-num', '1', '--port', '0', '--data-dir', join(folder, 'shard')],
    until: 'listen',
    bytesMax: 1_700_000,
  },
  'cube-agent': {
    args: ['run', ...repository, '--server', '127.0.0.1:1'],
    until: 'exit',
    bytesMax: 800_000,
  },
  serving: { args: [...repository, '--port', '0'], until: 'listen', bytesMax: 2_320_000 },
};

for (const [program, { args, until, bytesMax }] of Object.entries(programs)) {
  test(`a start of ${program} loads its bundled files and no package`, async () => {
    const files = await listLoadedFiles(program, args, until);
    assert.ok(files.includes(join(DIST, program, 'main.js')), files.join('\n'));
    const others = files.filter((file) => relative(DIST, file).startsWith('..'));
    assert.deepEqual(others, []);
    const bytes = [...new Set(files)].reduce((sum, file) => sum + statSync(file).size, 0);
    assert.ok(bytes < bytesMax, `${bytes} bytes in ${files.length} files`);
  });
}

test('the probe finds a package that a start loads', async () => {
  const args = ['--repository', folder, '--bundle', 'ctr', '--port', '0'];
  const local = ['--store', 'local', '--data-dir', join(folder, 'local')];
  const files = await listLoadedFiles('serving', [...args, ...local], 'exit');
  assert.ok(
    files.some((file) => file.includes('classic-level')),
    files.join('\n'),
  );
});
