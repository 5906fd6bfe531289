import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import type { CubeError } from '../../lib/core/errors.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { freePort } from '../platform/support/free-port.ts';
import { DataFolder } from './support/data-folder.ts';
import { lookup } from './support/lookups.ts';
import { control, killServers, ServerProcess } from './support/server-process.ts';

const folder = new DataFolder();
const flags = ['--shard', '0', '--shard-num', '1', '--data-dir', folder.path, '--memory', '64MiB'];
const version = { bundle: 'cube', version: '1' };

before(() => {
  const keys = [0n, 1n, 5n, 2n ** 53n + 1n, 2n ** 64n - 1n];
  const value = (key: bigint, j: number): number => Number(key % 100n) + j;
  const tables = [
    { name: 'dict', dim: 2, keys, value },
    { name: 'other', dim: 1, keys, value },
  ];
  folder.write({ ...version, shardNum: 1, tables });
});

after(() => {
  killServers();
  folder.remove();
});

async function ready(server: ServerProcess): Promise<void> {
  for (const call of ['load', 'activate']) {
    const reply = await server.control(call, version);
    assert.equal(reply.status, 200, JSON.stringify(reply.body));
  }
}

const base64 = (...floats: number[]): string =>
  Buffer.from(Float32Array.of(...floats).buffer).toString('base64');

test('seek over HTTP: JSON and protobuf, exact 64-bit keys', async () => {
  const server = await ServerProcess.start([...flags, '--cube-table', 'cube/dict']);
  const seek = (body: string, type = 'application/json', path = 'DictService') =>
    fetch(`http://${server.address}/${path}/seek`, {
      method: 'POST',
      headers: { 'content-type': type },
      body,
    });
  assert.equal((await seek('{"keys":[1]}')).status, 503);
  await ready(server);
  const answer = await seek('{"keys":[1,5,2000000]}');
  assert.equal(answer.headers.get('content-type'), 'application/json');
  const miss = '{"status":4294967295,"value":""}';
  const hit = (...floats: number[]) => `{"status":0,"value":"${base64(...floats)}"}`;
  assert.equal(await answer.text(), `{"values":[${hit(1, 2)},${hit(5, 6)},${miss}]}`);
  const large = await seek(
    '{"keys":[18446744073709551615,"18446744073709551615",' +
      '9007199254740993,9007199254740992,0],"version_required":true}',
    'application/json',
    'rec.mcube.DictService',
  );
  const all = [hit(15, 16), hit(15, 16), hit(93, 94), miss, hit(0, 1)].join(',');
  assert.equal(await large.text(), `{"values":[${all}],"version":"1"}`);
  assert.equal(await (await fetch(`http://${server.address}/DictService/seek`)).text(), '{}');
  assert.equal(await (await seek('')).text(), '{}');
  const proto = await seek('\x08\x01', 'application/proto');
  assert.equal(
    Buffer.from(await proto.arrayBuffer()).toString('hex'),
    '0a0c080012080000803f00000040',
  );
  const deep = `{"keys":${'['.repeat(200_000)}${']'.repeat(200_000)}}`;
  const wrong = ['{"keys":[1', '{"keys":[-1]}', '[]', '{"keys":[18446744073709551616]}', deep];
  for (const bad of wrong) {
    const refused = await seek(bad);
    assert.equal(refused.status, 400, bad);
    assert.equal(refused.headers.get('x-bd-error-code'), '1003');
    const expected =
      /^\[127\.0\.0\.1:\d+\]\[E1003\]Fail to parse http json body as rec\.mcube\.DictRequest: /;
    const text = await refused.text();
    assert.match(text, expected);
    assert.match(text, /DictRequest: Invalid json/);
  }
  const tooLarge = await seek(`{"keys":[${'1,'.repeat(1 << 20)}1]}`);
  assert.deepEqual([tooLarge.status, tooLarge.headers.get('x-bd-error-code')], [413, '1003']);
  const many = Array.from({ length: 1000 }, (_, i) => BigInt(i));
  const { values } = (await (await seek(`{"keys":[${many}]}`)).json()) as {
    values: { status: number }[];
  };
  assert.equal(values.length, 1000);
  assert.deepEqual(
    values.flatMap(({ status }, i) => (status === 0 ? [i] : [])),
    [0, 1, 5],
  );
  assert.equal((await server.stop()).code, 0);
});

test('SIGTERM under load: every call is answered or redirected, exit code 0', async () => {
  const server = await ServerProcess.start(flags);
  await ready(server);
  const channel = new Channel(server.address);
  const outcomes = new Map<string, number>();
  let running = true;
  const groups = [{ table: 'dict', keys: [1n, 5n, 2n ** 64n - 1n] }];
  const worker = async (): Promise<void> => {
    while (running) {
      const outcome = await lookup(channel, { bundle: 'cube', version: '1', groups }).then(
        ({ groups: [group] }) => `hits ${group?.hits}`,
        (error: CubeError) => error.code,
      );
      outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1);
      if (outcome === 'UNAVAILABLE') running = false;
    }
  };
  const workers = Array.from({ length: 16 }, worker);
  await server.until(() => (outcomes.get('hits 3') ?? 0) > 100 || undefined);
  const exit = await server.stop();
  await Promise.all(workers);
  channel.close();
  assert.deepEqual([exit.code, exit.signal], [0, null], exit.stderr);
  assert.match(exit.stderr, /"msg":"stopping"[\s\S]*"msg":"stopped"/);
  const known = new Set(['hits 3', 'STOPPING', 'UNAVAILABLE']);
  for (const outcome of outcomes.keys()) assert.ok(known.has(outcome), outcome);
  assert.ok((outcomes.get('STOPPING') ?? 0) > 0);
});

test('a port in use gives one clear line and exit code 1', async () => {
  const first = await ServerProcess.start(flags);
  const second = await new ServerProcess([...flags, '--port', String(first.port)]).exited;
  assert.equal(second.code, 1);
  assert.equal(second.stdout, '');
  assert.match(
    second.stderr,
    /^cube-server: cannot listen on 127\.0\.0\.1:\d+: it is in use by another process; .*\n$/,
  );
  assert.match(second.stderr, /; stop that one or choose another --port\n$/);
  assert.equal((await first.stop()).code, 0);
});

test('an unusable data folder gives one clear line and exit code 1', async () => {
  const inTheWay = ['--data-dir', import.meta.filename];
  const { code, stderr } = await new ServerProcess([...flags, ...inTheWay]).exited;
  assert.equal(code, 1);
  assert.match(stderr, /^cube-server: cannot make the folder .*a file of that name exists\n$/);
});

test('wrong flags give a reason and exit code 2', async () => {
  const wrong: [string[], RegExp][] = [
    [[], /required option '--shard <index>'/],
    [
      ['--shard', '4', '--shard-num', '4', '--data-dir', 'x'],
      /--shard 4 must be less than --shard-num 4/,
    ],
    [['--shard', '-1', '--shard-num', '4', '--data-dir', 'x'], /Expected a shard such as 3/],
    [[...flags, '--memory', 'lots'], /Expected bytes, such as 1048576/],
    [[...flags, '--cube-table', 'x'], /Expected bundle\/table/],
    [[...flags, '--port', '70000'], /Expected an integer from 0 to 65535/],
    [[...flags, '--cube-table', 'a/../b'], /--cube-table/],
    [[...flags, '--limit', 'nonsense=1'], /the names are frameBytes, /],
    [[...flags, '--limit', 'idleMs=soon'], /idleMs: expected a whole number/],
    [
      [...flags, '--limit', 'frameBytes=3GiB'],
      /frameBytes: expected a whole number in 1\.\.2147483647/,
    ],
    [[...flags, '--limit', 'drainMs=99999999999'], /drainMs: expected a whole number in 1\.\./],
    [[...flags, '--limit', 'grpcStreams=99999999999'], /grpcStreams: expected a whole number/],
    [[...flags, '--shard', '3-1'], /Expected a shard such as 3, a range/],
    [[...flags, '--shard', '0-4'], /--shard 1 must be less than --shard-num 1/],
    [[...flags, '--nonsense'], /unknown option '--nonsense'/],
  ];
  const exits = await Promise.all(wrong.map(([args]) => new ServerProcess(args).exited));
  exits.forEach(({ code, stderr }, i) => {
    assert.match(stderr, wrong[i]![1]);
    assert.equal(code, 2, stderr);
  });
  const help = await new ServerProcess(['--help']).exited;
  assert.equal(help.code, 0);
  assert.match(help.stdout, /Examples:[\s\S]*cube-server --shard 0 --shard-num 4/);
  assert.match(help.stdout, /^ {2}keysPerRequest +1048576 {2}Keys of one lookup/m);
  assert.match(help.stdout, /^ {2}frameBytes +64MiB /m);
});

test('control needs the local host or the token', async () => {
  const tokenFile = join(folder.path, 'token');
  writeFileSync(tokenFile, 'correct horse battery staple\n');
  const guarded = await ServerProcess.start([...flags, '--control-token-file', tokenFile]);
  const bearer = (token: string) => ({ authorization: `Bearer ${token}` });
  for (const headers of [{}, bearer('wrong'), bearer('correct horse battery stapl')]) {
    const reply = await guarded.control('load', version, headers as Record<string, string>);
    assert.deepEqual([reply.status, reply.body.code], [403, 'DENIED']);
  }
  assert.equal((await guarded.control('status')).status, 403);
  const allowed = bearer('correct horse battery staple');
  assert.equal((await guarded.control('load', version, allowed)).status, 200);
  await guarded.stop();
  writeFileSync(tokenFile, 'short');
  const refused = await new ServerProcess([...flags, '--control-token-file', tokenFile]).exited;
  assert.match(refused.stderr, /at least 16 characters/);
});

test('another host may make lookups but not control calls', async (t) => {
  const outside = Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .find(({ family, internal }) => family === 'IPv4' && !internal);
  if (outside === undefined) {
    t.diagnostic('this machine has no address but loopback');
    return;
  }
  const server = await ServerProcess.start([...flags, '--host', '0.0.0.0']);
  const address = `${outside.address}:${server.port}`;
  const denied = await control(address, 'load', version);
  assert.deepEqual([denied.status, denied.body.code], [403, 'DENIED']);
  assert.equal((await fetch(`http://${address}/healthz`)).status, 200);
  assert.equal((await control(`127.0.0.1:${server.port}`, 'load', version)).status, 200);
  await server.stop();
});

test('a restarted server is empty and not ready, and can load again', async () => {
  const withPort = [...flags, '--port', String(await freePort())];
  const first = await ServerProcess.start(withPort);
  await ready(first);
  first.child.kill('SIGKILL');
  assert.equal((await first.exited).signal, 'SIGKILL');
  const second = await ServerProcess.start(withPort);
  assert.equal((await fetch(`http://${second.address}/readyz`)).status, 503);
  await ready(second);
  assert.equal((await fetch(`http://${second.address}/readyz`)).status, 200);
  await second.stop();
});

test('forty loads and unloads do not grow the memory', async () => {
  const server = await ServerProcess.start(flags);
  const keys = Array.from({ length: 100_000 }, (_, i) => BigInt(i * i + 1));
  const table = { name: 'dict', dim: 16, keys, value: (key: bigint) => Number(key % 7n) };
  folder.write({ bundle: 'cube', version: 'big', shardNum: 1, tables: [table] });
  const residentBytes = async (): Promise<number> => {
    const text = await (await fetch(`http://${server.address}/metrics`)).text();
    return Number(/^process_resident_memory_bytes (\S+)/m.exec(text)?.[1]);
  };
  let early = 0;
  for (let i = 1; i <= 40; i++) {
    for (const call of ['load', 'unload']) {
      const reply = await server.control(call, { bundle: 'cube', version: 'big' });
      assert.equal(reply.status, 200, JSON.stringify(reply.body));
    }
    if (i === 10) early = await residentBytes();
  }
  const growth = (await residentBytes()) - early;
  assert.ok(growth < 32 << 20, `grew by ${growth} bytes over 30 loads of 9 MB`);
  const { body } = await server.control('status');
  assert.equal(body.memory.usedBytes, 0);
  await server.stop();
});

test('SIGTERM during a load fails the load and stops the server', async () => {
  const server = await ServerProcess.start(flags);
  const load = server.control('load', { bundle: 'cube', version: 'big' }).then(
    ({ status }) => status,
    () => 'connection ended',
  );
  const exit = await server.stop();
  assert.equal(exit.code, 0, exit.stderr);
  assert.ok([200, 503, 'connection ended'].includes(await load));
});

test('connections over their limit are refused', async () => {
  const server = await ServerProcess.start([...flags, '--limit', 'connections=1']);
  const first = new Channel(server.address);
  const second = new Channel(server.address);
  const refusal = (channel: Channel): Promise<string> =>
    lookup(channel, { bundle: 'cube', groups: [] }).then(
      () => 'answered',
      (error: CubeError) => error.code,
    );
  assert.equal(await refusal(first), 'NOT_READY');
  assert.equal(await refusal(second), 'UNAVAILABLE');
  assert.equal(await refusal(first), 'NOT_READY');
  for (const channel of [first, second]) channel.close();
  await server.stop();
});
