/**
 * Versions onto servers that know Cube's commands alone: a stand-in that lies as the original does,
 * and ours.
 */
import assert from 'node:assert/strict';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { CubeConf } from '../../../lib/client/cube-conf.ts';
import { CubeDictClient } from '../../../lib/client/dict-client.ts';
import { packKeys } from '../../../lib/client/pack-keys.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { readCubeDict } from '../../../lib/store/cube-dict.ts';
import { killServers, ServerProcess } from '../../cube-server/support/server-process.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand, runCommand } from '../../support/commands.ts';
import { type CommandResult, RunningProcess } from '../../support/processes.ts';
import {
  encodeFloats,
  encodeSequenceFile,
} from '../../tools/cube-builder/sources/support/writers.ts';
import { OriginalServer, type ServerFault } from './support/original-server.ts';
import { makeTransferConf } from './support/transfer-conf.ts';

const ROWS = 2000;

interface Site {
  readonly folder: string;
  readonly config: string;
}

const builder = async (...args: string[]): Promise<void> => {
  const { code, stderr } = await runCommand('tools/cube-builder/main.js', ...args);
  assert.equal(code, 0, stderr);
};

/** Writes sequence files and builds a version of them: key → value. */
async function build(
  version: string,
  rows: Map<bigint, Uint8Array>,
  ...flags: string[]
): Promise<void> {
  const input = join(built, `input-${version}`);
  mkdirSync(input);
  writeFileSync(join(input, 'part-0'), encodeSequenceFile([...rows]));
  const place = ['--output-path', repository, '--bundle', 'test_dict', '--dict-name', 'dict'];
  await builder('--input', input, ...place, '--cur-version', version, ...flags);
}

const makeRow = (key: number, version: number): Uint8Array =>
  encodeFloats(Float32Array.of(key, version, key * version));

function makeRows(version: number, keys: readonly number[]): Map<bigint, Uint8Array> {
  return new Map(keys.map((key) => [BigInt(key), makeRow(key, version)]));
}

const allKeys = Array.from({ length: ROWS }, (_, key) => key);

const built = mkdtempSync(join(tmpdir(), 'hypercube-test-'));
const repository = join(built, 'repository');
let building: Promise<void> | undefined;

after(() => {
  killServers();
  rmSync(built, { recursive: true, force: true });
});

/** Version 1, and 1_2 that changes keys 3 and 6 and every tenth key and deletes key 4. */
async function buildVersions(): Promise<void> {
  await build('1', makeRows(1, allKeys), '--shard-num', '2', '--value-format', 'f32');
  const gone = join(built, 'gone.txt');
  writeFileSync(gone, '4\n');
  const changed = allKeys.filter((key) => key % 10 === 1 || key === 6 || key === 3);
  const flags = ['--job-mode', 'delta', '--depend-version', '1', '--value-format', 'f32'];
  await build('1_2', makeRows(2, changed), ...flags, '--deletes', gone);
}

/** The versions, built once, and a folder of the test's own. */
async function makeSite(t: TestContext): Promise<Site> {
  building ??= buildVersions();
  await building;
  const folder = temporaryFolder(t);
  return { folder, config: join(folder, 'transfer.conf') };
}

async function originals(t: TestContext, site: Site): Promise<OriginalServer[]> {
  const folders = ['a', 'b'].map((name) => join(site.folder, name));
  for (const folder of folders) mkdirSync(join(folder, 'data'), { recursive: true });
  const servers = await Promise.all(folders.map((folder) => new OriginalServer(folder).listen(t)));
  const addresses = servers.map(({ address }) => address);
  writeFileSync(site.config, makeTransferConf({ servers: addresses, deployPaths: folders }));
  return servers;
}

function deploy({ config }: Site, version: string, ...more: string[]): Promise<CommandResult> {
  const place = ['--config', config, '--repository', repository, '--version', version];
  return runAgentCommand('deploy-cube', ...place, ...more);
}

test('a version is deployed to C++ servers, and back; repeating changes nothing', async (t) => {
  const site = await makeSite(t);
  const servers = await originals(t, site);
  const dry = await deploy(site, '1', '--dry-run');
  assert.match(dry.stdout, /would get shard 1 of 1 in .*b\/data\/1/);
  const plan = JSON.parse((await deploy(site, '1', '--dry-run', '--json')).stdout);
  assert.deepEqual([plan.servers.length, plan.servers[1].shard, plan.dryRun], [2, 1, true]);
  assert.deepEqual(readdirSync(join(site.folder, 'a/data')), []);
  const first = await deploy(site, '1', '--host', '127.0.0.1');
  assert.equal(first.code, 0, first.stderr);
  const second = await deploy(site, '1_2');
  assert.equal(second.code, 0, second.stderr);
  assert.deepEqual(servers[0]?.commands, [
    'bg_load_base /1',
    'enable 1',
    'bg_load_base /1_2',
    'enable 1_2',
  ]);
  const { keys, valueBytes } = readCubeDict(join(site.folder, 'a/data/1_2'));
  assert.deepEqual([keys.length / 2, valueBytes], [ROWS / 2 - 1, 12]);
  assert.equal(servers[0]?.current.values.has(4n), false);
  assert.deepEqual(Buffer.from(servers[0]?.current.values.get(6n) ?? []), makeRow(6, 2));
  assert.deepEqual(Buffer.from(servers[1]?.current.values.get(5n) ?? []), makeRow(5, 1));
  assert.equal(readFileSync(join(site.folder, 'b/data/VERSION'), 'utf8'), '1_2\n');
  const again = await deploy(site, '1_2');
  assert.equal(again.code, 0, again.stderr);
  assert.equal(servers[0]?.commands.length, 4, 'nothing was loaded again');
  assert.equal((await deploy(site, '1')).code, 0);
  assert.deepEqual(
    servers.map(({ current }) => current.version),
    ['1', '1'],
  );
});

test('what the server says is not believed: each lie is noticed, and it goes back', async (t) => {
  const site = await makeSite(t);
  const [server, second] = await originals(t, site);
  assert.ok(server && second);
  assert.equal((await deploy(site, '1')).code, 0);
  const lies: readonly [ServerFault, RegExp][] = [
    ['empty', /returned nothing for key \d+ of version 1_2/],
    ['shifted', /returned another value for key \d+ of version 1_2/],
    ['ignored', /returned (another|a deleted) value for key \d+ of version 1_2/],
    ['stuck', /serves 1, not 1_2/],
    ['broken', /"enable","version":"1_2"\} failed with HTTP 500/],
  ];
  for (const [lie, message] of lies) {
    server.lie = lie;
    const { code, stderr } = await deploy(site, '1_2');
    assert.equal(code, 1, lie);
    assert.match(stderr, message);
    assert.match(stderr, /it serves 1 again; the 1 servers after it were not changed/);
    assert.equal(server.current.version, '1');
    assert.deepEqual(Buffer.from(server.current.values.get(6n) ?? []), makeRow(6, 1));
    assert.equal(second.commands.length, 2, 'only version 1 ever');
    assert.equal(readFileSync(join(site.folder, 'a/data/VERSION'), 'utf8'), '1\n');
  }
  server.current = { version: '1_2', values: server.current.values };
  const already = await deploy(site, '1_2');
  assert.match(already.stderr, /1_2 was already active there, so deploy another version/);
  server.current = { version: '1', values: server.current.values };
  server.lie = 'none';
  assert.equal((await deploy(site, '1_2')).code, 0);
  const left = readdirSync(join(site.folder, 'a/data')).sort();
  assert.deepEqual(left, ['1', '1_2', 'VERSION']);
});

test('a mixed fleet: one replica of the original, one of ours, one cube.conf', async (t) => {
  const site = await makeSite(t);
  const folders = ['a', 'b'].map((name) => join(site.folder, name));
  for (const folder of folders) mkdirSync(join(folder, 'data'), { recursive: true });
  const original = await new OriginalServer(folders[0]!).listen(t);
  const ours = await ServerProcess.start([
    ...toArguments({
      shard: 1,
      shardNum: 2,
      dataDir: join(site.folder, 'work'),
      cubeData: join(folders[1]!, 'data'),
    }),
  ]);
  const servers = [original.address, ours.address];
  writeFileSync(site.config, makeTransferConf({ servers, deployPaths: folders }));
  for (const version of ['1', '1_2']) {
    const { code, stderr } = await deploy(site, version);
    assert.equal(code, 0, stderr);
  }
  const cubeConf = join(site.folder, 'cube.conf');
  assert.equal(
    (await runAgentCommand('transfer', '--config', site.config, '--cube-conf-out', cubeConf)).code,
    0,
  );
  const client = new CubeDictClient({ ...(await CubeConf.open(cubeConf)).routeOptions });
  const answer = await client.seek('test_dict', packKeys([4, 6, 3, 5]));
  client.close();
  assert.deepEqual([answer.versions, answer.mixed, answer.unseen], [['1_2'], false, 1]);
  const expected = Buffer.concat([makeRow(6, 2), makeRow(3, 2), makeRow(5, 1)]);
  assert.deepEqual(Buffer.from(answer.values.slice(0, answer.ends.at(-1))), expected);
  await ours.stop();
});

test('what the original would lose in silence is refused before anything is touched', async (t) => {
  const site = await makeSite(t);
  const servers = await originals(t, site);
  const long = new Map([0n, 1n].map((key) => [key, Buffer.alloc(1020 + 5 * Number(key))]));
  await build('7', long, '--shard-num', '2', '--value-format', 'bytes');
  await build('8', makeRows(8, [1, 3]), '--shard-num', '2', '--value-format', 'f32');
  await build('9', makeRows(9, [1, 2, 3]), '--shard-num', '3', '--value-format', 'f32');
  const cases: readonly [string, RegExp][] = [
    [
      '7',
      /key 1 has values of 1025 bytes; the C\+\+ server returns values over 1024 bytes as missing/,
    ],
    ['8', /shard 0 of 8 has no rows/],
    ['9', /version 9 has 3 shards, but .* has shard_num 2/],
    ['6', /has no version 6/],
  ];
  for (const [version, message] of cases) {
    const { code, stderr } = await deploy(site, version, '--server', servers[1]!.address);
    assert.equal(code, 1, version);
    assert.match(stderr, message);
  }
  assert.match((await deploy(site, '1', '--host', '10.9.9.9')).stderr, /no server on 10\.9\.9\.9/);
  assert.match(
    (await deploy(site, '1', '--server', '10.9.9.9:1')).stderr,
    /no server 10\.9\.9\.9:1/,
  );
  assert.deepEqual(
    servers.flatMap(({ commands }) => commands),
    [],
  );
  assert.deepEqual(readdirSync(join(site.folder, 'b/data')), []);
  writeFileSync(site.config, makeTransferConf({ servers: servers.map(({ address }) => address) }));
  assert.match((await deploy(site, '1')).stderr, /\/ssd2\/cube_open\/data: no such folder/);
  assert.equal(existsSync('/ssd2'), false);
});

test('a command that was killed between loading and switching is simply run again', async (t) => {
  const site = await makeSite(t);
  const [server] = await originals(t, site);
  assert.ok(server);
  assert.equal((await deploy(site, '1')).code, 0);
  const running = new RunningProcess(t, 'cube-agent/main.js', [
    'deploy-cube',
    ...toArguments({ config: site.config, repository, version: '1_2' }),
  ]);
  server.onCommand = () => running.child.kill('SIGKILL');
  await running.exit;
  assert.equal(server.current.version, '1');
  server.onCommand = () => undefined;
  const { code, stderr } = await deploy(site, '1_2');
  assert.equal(code, 0, stderr);
  assert.equal(server.current.version, '1_2');
});
