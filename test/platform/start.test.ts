/** What a start does not load, and the cache of compiled code. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import nodeModule from 'node:module';
import { join } from 'node:path';
import { test } from 'node:test';
import { temporaryFolder } from '../repository/support/fixtures.ts';

const DIST = join(import.meta.dirname, '..', '..');

function runNode(args: readonly string[], env: NodeJS.ProcessEnv = {}): string {
  const options = { encoding: 'utf8', env: { ...process.env, ...env } } as const;
  const { stdout, stderr, status } = spawnSync(process.execPath, args, options);
  assert.equal(status, 0, stderr);
  return stdout;
}

for (const program of ['cube-server', 'serving']) {
  test(`${program} starts without the gRPC packages`, () => {
    const script = `
      import { createRequire } from 'node:module';
      await import(${JSON.stringify(join(DIST, program, 'server.js'))});
      const loaded = Object.keys(createRequire(${JSON.stringify(`${DIST}/`)}).cache);
      const isGrpc = (path) => /node_modules\\/(@grpc|grpc-)/.test(path);
      console.log(JSON.stringify(loaded.filter(isGrpc)));
    `;
    assert.deepEqual(JSON.parse(runNode(['--input-type=module', '-e', script])), []);
  });
}

test('the gRPC packages are loaded in the background only while a server is not ready', () => {
  for (const isReady of [true, false]) {
    const script = `
      import { createRequire } from 'node:module';
      const { GrpcServer } = await import(${JSON.stringify(join(DIST, 'lib/rpc/grpc-server.js'))});
      globalThis.setTimeout = (run) => {
        setImmediate(run);
        return { unref() {} };
      };
      const options = { limits: {}, protoFiles: [], isReady: () => ${isReady} };
      new GrpcServer(options).start();
      setImmediate(() => setImmediate(() => {
        const loaded = Object.keys(createRequire(${JSON.stringify(`${DIST}/`)}).cache);
        console.log(loaded.some((path) => path.includes('@grpc')));
        process.exit();
      }));
    `;
    assert.equal(runNode(['--input-type=module', '-e', script]), `${!isReady}\n`);
  }
});

test('compiled code is kept in the cache folder of the account', (t) => {
  const folder = temporaryFolder(t);
  runNode([join(DIST, 'cube-server', 'main.js'), '--version'], {
    XDG_CACHE_HOME: folder,
    NODE_COMPILE_CACHE: undefined,
  });
  const isKept = 'flushCompileCache' in nodeModule;
  assert.deepEqual(readdirSync(folder), isKept ? ['hypercube'] : []);
});
