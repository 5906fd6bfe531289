/** What a start does not load. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';

const DIST = join(import.meta.dirname, '..', '..');

function runNode(args: readonly string[]): string {
  const { stdout, stderr, status } = spawnSync(process.execPath, args, { encoding: 'utf8' });
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
