import assert from 'node:assert/strict';
import { createServer } from 'node:net';
import { after, test } from 'node:test';
import { DataFolder } from './data-folder.ts';
import { control, killServers, ServerProcess } from './server-process.ts';

const folder = new DataFolder();
const flags = ['--shard-num', '4', '--data-dir', folder.path, '--memory', '16MiB'];

after(() => {
  killServers();
  folder.remove();
});

interface Shard {
  readonly pid: number;
  readonly shardIndex: number;
}

/** Waits until the shard's process answers, and is not the one that was killed. */
async function shardAt(address: string, otherThan = 0): Promise<Shard> {
  for (;;) {
    const reply = await control(address, 'status').catch(() => undefined);
    if (reply !== undefined && reply.body.pid !== otherThan) return reply.body;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

function canListen(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.on('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}

/** The first of three free ports, below those that the system gives away itself. */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 9000);
    const free = await Promise.all([port, port + 1, port + 2].map(canListen));
    if (free.every((one) => one)) return port;
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

test('a process for each shard, restarted when killed, drained and stopped together', async () => {
  const port = await freePort();
  const run = ['--shard', '1-2,0', ...flags, '--port', String(port)];
  const supervisor = new ServerProcess(run);
  await supervisor.logged(/all shards listening/);
  const addresses = [0, 1, 2].map((i) => `127.0.0.1:${port + i}`);
  let shards = await Promise.all(addresses.map((address) => shardAt(address)));
  assert.deepEqual(
    shards.map(({ shardIndex }) => shardIndex),
    [0, 1, 2],
  );
  for (let kill = 0; kill < 3; kill++) {
    process.kill(shards[1]!.pid, 'SIGKILL');
    shards = [shards[0]!, await shardAt(addresses[1]!, shards[1]!.pid), shards[2]!];
  }
  const [first] = await Promise.all(addresses.map((address) => shardAt(address)));
  assert.equal(first?.pid, shards[0]!.pid, 'the others were left alone');
  supervisor.child.kill('SIGHUP');
  for (const address of addresses) {
    while ((await control(address, 'status')).body.draining !== true);
  }
  const exit = await supervisor.stop();
  assert.equal(exit.code, 0, exit.stderr);
  for (const { pid } of shards) assert.equal(isAlive(pid), false);
  assert.match(exit.stderr, /^\{"shard":1,"level":"info".*"msg":"listening"\}$/m);
  const waits = [...exit.stderr.matchAll(/"shard":1,.*"waitMs":(\d+)/g)].map(([, ms]) =>
    Number(ms),
  );
  assert.deepEqual(waits, [200, 400, 800]);
});

test('shards end when their supervisor is killed', async () => {
  const supervisor = new ServerProcess(['--shard', '0,1', ...flags, '--port', '0']);
  const address = await supervisor.logged(/"shard":1,"address":"([^"]+)"/);
  const { pid } = await shardAt(address);
  supervisor.child.kill('SIGKILL');
  while (isAlive(pid)) await new Promise((resolve) => setTimeout(resolve, 20));
});

test('a shard that cannot start ends all of them, exit 1', async () => {
  const blocker = createServer();
  const port = await freePort();
  await new Promise<void>((resolve) => blocker.listen(port + 1, '127.0.0.1', resolve));
  const supervisor = new ServerProcess(['--shard', '0-1', ...flags, '--port', String(port)]);
  const { pid } = await shardAt(`127.0.0.1:${port}`);
  const exit = await supervisor.exited;
  blocker.close();
  assert.equal(exit.code, 1);
  assert.match(exit.stderr, /shard 1: cube-server: cannot listen on/);
  assert.match(exit.stderr, /^cube-server: shard 1 does not start \(exit 1\)$/m);
  assert.equal(isAlive(pid), false);
  const usage = await new ServerProcess(['--shard', '0-1', ...flags, '--port', '65535']).exited;
  assert.equal(usage.code, 2);
});
