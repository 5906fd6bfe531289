import assert from 'node:assert/strict';
import { connect, createServer } from 'node:net';
import { after, test } from 'node:test';
import { freePort } from '../platform/support/free-port.ts';
import { DataFolder } from './support/data-folder.ts';
import { control, killServers, ServerProcess } from './support/server-process.ts';

const folder = new DataFolder();
/** A private address: on 127.0.0.1 another process may take a free port before it is used. */
const host = process.platform === 'linux' ? ownAddress() : '127.0.0.1';
const flags = ['--shard-num', '4', '--data-dir', folder.path, '--memory', '16MiB', '--host', host];

after(() => {
  killServers();
  folder.remove();
});

interface Shard {
  readonly pid: number;
  readonly shardIndex: number;
}

/** Linux has all of 127.0.0.0/8: one address per running process. */
function ownAddress(): string {
  const { pid } = process;
  return `127.${1 + ((pid >> 16) & 63)}.${(pid >> 8) & 255}.${pid & 255}`;
}

/** Waits until the shard's new process answers, not the killed one. */
function shardAt(supervisor: ServerProcess, address: string, otherThan = 0): Promise<Shard> {
  return supervisor.until(async () => {
    const reply = await control(address, 'status').catch(() => undefined);
    return reply === undefined || reply.body.pid === otherThan ? undefined : reply.body;
  });
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

test('a killed shard process is restarted; all are drained and stopped together', async () => {
  const port = await freePort(3, host);
  const run = ['--shard', '1-2,0', ...flags, '--port', String(port)];
  const supervisor = new ServerProcess(run);
  await supervisor.logged(/all shards listening/);
  const addresses = [0, 1, 2].map((i) => `${host}:${port + i}`);
  let shards = await Promise.all(addresses.map((address) => shardAt(supervisor, address)));
  assert.deepEqual(
    shards.map(({ shardIndex }) => shardIndex),
    [0, 1, 2],
  );
  for (let kill = 0; kill < 3; kill++) {
    process.kill(shards[1]!.pid, 'SIGKILL');
    const restarted = await shardAt(supervisor, addresses[1]!, shards[1]!.pid);
    shards = [shards[0]!, restarted, shards[2]!];
  }
  const first = await shardAt(supervisor, addresses[0]!);
  assert.equal(first.pid, shards[0]!.pid, 'the others were left alone');
  supervisor.child.kill('SIGHUP');
  for (const address of addresses) {
    await supervisor.until(async () => {
      const { body } = await control(address, 'status');
      return body.draining || undefined;
    });
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
  const { pid } = await shardAt(supervisor, address);
  supervisor.child.kill('SIGKILL');
  while (isAlive(pid)) await new Promise((resolve) => setTimeout(resolve, 20));
});

test('a signal to all processes at once, as from a terminal, stops them gracefully', async () => {
  const run = ['--shard', '0,1', ...flags, '--port', '0'];
  const supervisor = new ServerProcess(run, process.execPath, { detached: true });
  await supervisor.logged(/all shards listening/);
  const address = await supervisor.logged(/"shard":1,"address":"([^"]+)"/);
  // The server waits for connections that have begun to send.
  const socket = connect(Number(address.split(':')[1]), host);
  await new Promise((resolve) => socket.write('PRPC', resolve));
  await shardAt(supervisor, address);
  process.kill(-supervisor.child.pid!, 'SIGINT');
  const exit = await supervisor.exited;
  socket.destroy();
  assert.equal(exit.code, 0, exit.stderr);
  for (const shard of [0, 1]) {
    assert.match(exit.stderr, new RegExp(`^\\{"shard":${shard},.*"msg":"stopped"`, 'm'));
  }
});

test('a shard that cannot start ends all shards with exit code 1', async () => {
  const blocker = createServer();
  const port = await freePort(3, host);
  await new Promise<void>((resolve) => blocker.listen(port + 1, host, resolve));
  const supervisor = new ServerProcess(['--shard', '0-1', ...flags, '--port', String(port)]);
  const { pid } = await shardAt(supervisor, `${host}:${port}`);
  const exit = await supervisor.exited;
  blocker.close();
  assert.equal(exit.code, 1);
  assert.match(exit.stderr, /shard 1: cube-server: cannot listen on/);
  assert.match(
    exit.stderr,
    /^cube-server: shard 1 did not start \(exit code 1\); see its log above$/m,
  );
  assert.equal(isAlive(pid), false);
});

test('ports that are out of range or overlap are wrong usage', async () => {
  for (const [shard, port, adminPort, reason] of [
    ['0-1', 65_535, 0, /ports up to 65536/],
    ['0-2', 8100, 8102, /overlap/],
    ['0-2', 8102, 8100, /overlap/],
    ['0', 8100, 8100, /same port/],
  ] as const) {
    const ports = ['--port', String(port), '--admin-port', String(adminPort)];
    const exit = await new ServerProcess(['--shard', shard, ...flags, ...ports]).exited;
    assert.equal(exit.code, 2, exit.stderr);
    assert.match(exit.stderr, reason);
  }
});
