import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { getCubeStatus, seekFloat, sendCubeCommand } from './support/cube-commands.ts';
import { DataFolder } from './support/data-folder.ts';
import { killServers, ServerProcess } from './support/server-process.ts';

/**
 * Cube's commands over the data folder of an agent: four versions of one table, the third damaged.
 */
const folder = new DataFolder();
const damaged: { path: string; good: Uint8Array }[] = [];
let server: ServerProcess;

function write(version: string, keys: readonly bigint[]): void {
  const value = (key: bigint): number => Number(key) + 1000 * Number(version);
  const tables = [{ name: 'dict', dim: 4, keys, value }];
  const manifest = folder.write({ bundle: 'cube', version, shardNum: 1, tables });
  if (version !== '3') return;
  const path = folder.layerFile('cube', 'dict', manifest.tables[0]!.shards[0]![0]!.contentId);
  const good = readFileSync(path);
  damaged.push({ path, good });
  const bad = Buffer.from(good);
  bad[4200]! ^= 1;
  writeFileSync(path, bad);
}

before(async () => {
  for (const version of ['1', '2', '3', '4']) write(version, [1n, 5n, 77n]);
  const flags = ['--shard', '0', '--shard-num', '1', '--data-dir', folder.path];
  server = await ServerProcess.start([...flags, '--memory', '64MiB']);
});

after(async () => {
  await server.stop();
  killServers();
  folder.remove();
});

const run = (body: unknown) => sendCubeCommand(server.address, body);
const status = () => getCubeStatus(server.address);

test('an empty server has empty version names, and nothing to switch to', async () => {
  assert.deepEqual(await status(), ['', '', 0]);
  for (const command of [{ cmd: 'bg_switch' }, { cmd: 'enable', version: '1' }]) {
    const { status: code, text } = await run(command);
    assert.deepEqual([code, text], [500, 'null']);
  }
  assert.equal((await run({ cmd: 'bg_unload' })).status, 200);
  const patch = await run({ cmd: 'reload_patch', version_path: '/1' });
  assert.equal(patch.status, 500);
  assert.match(patch.reason, /a patch extends the current version/);
});

test('an agent of Cube can load, enable, switch back and unload', async () => {
  assert.deepEqual(await run({ cmd: 'bg_load_base', version_path: '/1' }), {
    status: 200,
    text: 'null',
    reason: '',
  });
  assert.deepEqual(await status(), ['', '1', 0]);
  assert.equal((await run({ cmd: 'enable', version: '1' })).status, 200);
  assert.deepEqual(await status(), ['1', '', 0]);
  assert.equal((await run({ cmd: 'enable', version: '1' })).status, 200);
  assert.equal((await run({ cmd: 'bg_load_base', version_path: '/2' })).status, 200);
  assert.equal(await seekFloat(server.address, 5), 1005);
  assert.equal((await run({ cmd: 'bg_switch' })).status, 200);
  assert.deepEqual(await status(), ['2', '1', 0]);
  assert.equal(await seekFloat(server.address, 5), 2005);
  assert.equal((await run({ cmd: 'enable', version: '1' })).status, 200);
  assert.equal(await seekFloat(server.address, 5), 1005);
  assert.equal((await run({ cmd: 'bg_switch' })).status, 200);
  assert.equal((await run({ cmd: 'bg_unload' })).status, 200);
  assert.deepEqual(await status(), ['2', '', 0]);
  const { body } = await server.control('status');
  assert.deepEqual(
    body.bundles[0].versions.map((held: { version: string }) => held.version),
    ['2'],
  );
  assert.equal((await run({ cmd: 'enable', version: '1' })).status, 500);
});

test('a damaged version gives 500 with a reason, and the old version keeps serving', async () => {
  for (const name of ['bg_load_base', 'reload_base', 'reload_patch']) {
    const reply = await run({ cmd: name, version_path: '/3' });
    assert.deepEqual([reply.status, reply.text], [500, 'null']);
    assert.match(reply.reason, /checksum/);
    assert.deepEqual(await status(), ['2', '', 0]);
    assert.equal(await seekFloat(server.address, 5), 2005);
  }
  assert.equal((await run({ cmd: 'reload_base', version_path: '/9' })).status, 500);
  const [file] = damaged;
  assert.ok(file);
  writeFileSync(file.path, file.good);
  assert.equal((await run({ cmd: 'reload_base', version_path: '/3' })).status, 200);
  assert.deepEqual(await status(), ['3', '', 0]);
  assert.equal(await seekFloat(server.address, 77), 3077);
});

test('a second background replaces the first; reloading the current changes nothing', async () => {
  assert.equal((await run({ cmd: 'bg_load_base', version_path: '/1' })).status, 200);
  assert.equal((await run({ cmd: 'bg_load_base', version_path: '/4' })).status, 200);
  assert.deepEqual(await status(), ['3', '4', 0]);
  const { body } = await server.control('status');
  assert.equal(body.bundles[0].versions.length, 2);
  assert.equal((await run({ cmd: 'reload_base', version_path: '/3' })).status, 200);
  assert.deepEqual(await status(), ['3', '', 0]);
  assert.equal(await seekFloat(server.address, 1), 3001);
});

test('invalid bodies give 400, unknown commands 500, and nothing changes', async () => {
  const before = await status();
  const deep = `${'{"a":'.repeat(5000)}1${'}'.repeat(5000)}`;
  const bad = [
    '',
    '{',
    'null',
    '[]',
    '"status"',
    '{}',
    '{"cmd":1}',
    deep,
    `"${'x'.repeat(70_000)}"`,
    '{"cmd":"reload_base"}',
    '{"cmd":"enable"}',
    '{"cmd":"bg_load_base","version_path":7}',
    ...['/../../etc', '4', '//4', '/4/..', '/.', `/${'9'.repeat(200)}`].map((path) =>
      JSON.stringify({ cmd: 'bg_load_base', version_path: path }),
    ),
  ];
  for (const body of bad) {
    const reply = await run(body);
    assert.deepEqual([reply.status, reply.text], [400, ''], body.slice(0, 60));
  }
  for (const name of ['reload_model', 'pop', 'clear', 'toString', '__proto__', 'é\n']) {
    const reply = await run({ cmd: name });
    assert.deepEqual([reply.status, reply.text], [500, 'null'], name);
  }
  assert.deepEqual(await status(), before);
});

test('commands run one at a time; status is answered meanwhile', async (t) => {
  const big = new DataFolder();
  t.after(() => big.remove());
  const keys = Array.from({ length: 60_000 }, (_, i) => BigInt(i * i + 1));
  for (const version of ['1', '2']) {
    const value = (key: bigint): number => Number(key % 100n) + Number(version);
    const tables = [{ name: 'dict', dim: 8, keys, value }];
    big.write({ bundle: 'cube', version, shardNum: 1, tables });
  }
  const flags = ['--shard', '0', '--shard-num', '1', '--data-dir', big.path];
  const slow = await ServerProcess.start([...flags, '--load-rate', '2MiB']);
  assert.equal(
    (await sendCubeCommand(slow.address, { cmd: 'reload_base', version_path: '/1' })).status,
    200,
  );
  const load = sendCubeCommand(slow.address, { cmd: 'bg_load_base', version_path: '/2' });
  let state = await getCubeStatus(slow.address);
  while (state[2] === 0) state = await getCubeStatus(slow.address);
  assert.deepEqual(state, ['1', '', 1]);
  const second = await sendCubeCommand(slow.address, { cmd: 'bg_unload' });
  assert.equal(second.status, 500);
  assert.match(second.reason, /another command is running/);
  assert.equal(await seekFloat(slow.address, 1), 2);
  assert.equal((await load).status, 200);
  assert.deepEqual(await getCubeStatus(slow.address), ['1', '2', 0]);
  await slow.stop();
});
