/** Every fault that doctor knows, made on purpose in a repository and a small fleet; a healthy one has no finding. */
import assert from 'node:assert/strict';
import { readFileSync, rmSync, truncateSync, utimesSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { Ajv } from 'ajv';
import { type DoctorWish, examine } from '../../cube-agent/doctor/doctor.ts';
import type { Finding } from '../../cube-agent/doctor/findings.ts';
import { checkServers, type SeenServer } from '../../cube-agent/doctor/server-checks.ts';
import { parseFleet } from '../../lib/core/fleet.ts';
import { layerPath, manifestPath, versionFilePath } from '../../lib/repository/layout.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { makeKeyPair, SigningKey, TrustedKeys } from '../../lib/repository/signatures.ts';
import { NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';
import type { ControlStatus } from '../../proto/control.ts';
import { freePort } from '../platform/free-port.ts';
import { atEnd, layerOf } from '../repository/fixtures.ts';
import { ControlServer } from './control-server.ts';
import { by, type Host, makeHost, publish, start } from './host.ts';
import { agent, until } from './processes.ts';

/** Version 1, which the channel points to, and 2; no servers. */
async function makeRepository(t: TestContext): Promise<Host> {
  const host = await makeHost(t, 2);
  await publish(host, { version: '1', table: 'one' });
  await publish(host, { version: '2', table: 'two' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  return host;
}

const look = (host: Host, wish: Partial<DoctorWish> = {}): Promise<Finding[]> =>
  examine({
    repository: host.repository,
    patient: { repository: host.location, bundle: 'ctr', channel: 'stable' },
    deep: false,
    staleMs: undefined,
    fleet: undefined,
    servings: [],
    toServers: NO_CREDENTIALS,
    toAgents: NO_CREDENTIALS,
    onBytes: () => undefined,
    ...wish,
  });

const checks = (findings: readonly Finding[]): string[] => findings.map(({ check }) => check);

async function expectOnly(
  host: Host,
  expected: string[],
  wish?: Partial<DoctorWish>,
): Promise<Finding> {
  const findings = await look(host, wish);
  assert.deepEqual([...new Set(checks(findings))], expected, JSON.stringify(findings));
  for (const { what, where, todo } of findings) assert.ok(what && where && todo);
  return findings[0]!;
}

test('a healthy repository has no finding; a bundle that is not there is an error naming those that are', async (t) => {
  const host = await makeRepository(t);
  assert.deepEqual(await look(host, { deep: true, staleMs: 3_600_000 }), []);
  const patient = { repository: host.location, bundle: 'other', channel: 'stable' };
  await assert.rejects(look(host, { patient }), /has no bundle other \(it has: ctr\)/);
});

test('layers, files and manifests that are damaged or gone are found', async (t) => {
  const host = await makeRepository(t);
  const manifest = await host.repository.manifest('ctr', '1');
  const layer = join(host.location, layerPath('ctr', 't', layerOf(manifest, 1).contentId));
  const whole = readFileSync(layer);
  const flipped = Uint8Array.from(whole, (byte, i) => (i === 5 ? byte ^ 1 : byte));
  rmSync(layer);
  writeFileSync(layer, flipped);
  assert.deepEqual(await look(host), [], 'sizes are right');
  const damaged = await expectOnly(host, ['layer-damaged'], { deep: true });
  assert.match(damaged.where, /version 1, table t, shard 1/);
  truncateSync(layer, 10);
  await expectOnly(host, ['layer-damaged']);
  rmSync(layer);
  writeFileSync(layer, whole);

  const graph = join(host.location, versionFilePath('ctr', '1', 'model.onnx'));
  const bytes = readFileSync(graph);
  rmSync(graph);
  writeFileSync(graph, 'other');
  await expectOnly(host, ['file-damaged']);
  rmSync(graph);
  writeFileSync(graph, bytes);

  const path = join(host.location, manifestPath('ctr', '1'));
  const text = readFileSync(path);
  rmSync(path);
  await expectOnly(host, ['version-absent']);
  writeFileSync(path, '{');
  assert.ok(checks(await look(host)).includes('manifest-damaged'));
  rmSync(path);
  writeFileSync(path, text);
  assert.deepEqual(await look(host), []);
});

test('a channel that is empty, damaged, pinned, stale or at a quarantined version is found', async (t) => {
  const host = await makeRepository(t);
  const { repository, location } = host;
  const patient = { repository: location, bundle: 'ctr', channel: 'canary' };
  await expectOnly(host, ['channel-empty'], { patient });
  await expectOnly(host, ['stale'], { staleMs: -1 });
  await repository.pin('ctr', 'stable', by);
  assert.equal((await expectOnly(host, ['channel-pinned'])).severity, 'note');
  await repository.unpin('ctr', 'stable', by);
  // Two channels at a bad version: one goes back, the other is left behind.
  await repository.activate('ctr', 'stable', { version: '2', ...by });
  await repository.activate('ctr', 'canary', { version: '2', ...by });
  await repository.rollback('ctr', 'stable', 'test', 'bad');
  assert.match((await expectOnly(host, ['pointer-quarantined'])).todo, /--channel canary --from 2/);
  writeFileSync(join(location, 'ctr/channels/canary/0000000001.json'), '{"version":');
  assert.ok(checks(await look(host)).includes('channel-damaged'));
});

test('garbage, rollouts that nobody drives, missing signatures and a repository that is away are found', async (t) => {
  const host = await makeRepository(t);
  const { repository, location } = host;
  const stray = join(location, layerPath('ctr', 't', '0'.repeat(32)));
  writeFileSync(stray, 'nobody names it');
  utimesSync(stray, 1e9, 1e9);
  assert.match((await expectOnly(host, ['garbage'])).todo, /^cube-agent gc/);
  rmSync(stray);

  const rollout = repository.rollout('ctr', '2');
  await rollout.append(0, { state: 'seen', holder: 'c1', reason: 'new' });
  assert.deepEqual(await look(host), [], 'somebody may be at it');
  const clock = {
    nowMs: () => 0,
    isoTime: () => '2020-01-01T00:00:00.000Z',
    sleep: async () => {},
  };
  const past = openRepository(location, { clock });
  await past.rollout('ctr', '2').append(1, { state: 'staging', holder: 'c1', reason: 'go' });
  assert.match((await expectOnly(host, ['rollout-idle'])).what, /is staging since 2020.*c1/);
  await past.rollout('ctr', '2').append(2, { state: 'failed', holder: 'c1', reason: 'x' });
  await past.rollout('ctr', '2').append(3, { state: 'quarantined', holder: 'c1', reason: 'x' });

  const key = join(host.folder, 'key.pem');
  const { privatePem, publicPem } = makeKeyPair();
  writeFileSync(key, privatePem);
  writeFileSync(`${key}.pub`, publicPem);
  const signing = openRepository(location, { keys: { signing: SigningKey.read(key) } });
  await signing.activate('ctr', 'signed', { version: '1', ...by });
  const trusting = openRepository(location, { keys: { trusted: TrustedKeys.read(`${key}.pub`) } });
  const patient = { repository: location, bundle: 'ctr', channel: 'signed' };
  const unsigned = checks(await look(host, { repository: trusting, patient }));
  for (const check of ['unsigned', 'channel-damaged', 'rollout-damaged']) {
    assert.ok(unsigned.includes(check), check);
  }

  const away = openRepository(`http://127.0.0.1:${await freePort()}/models`);
  const seen = await look(host, { repository: away });
  assert.deepEqual(checks(seen), ['repository-unreachable', 'repository-read-only']);
});

/** Two shards with a server each, a real agent that keeps them, and fleet.json. */
async function makeFleet(
  t: TestContext,
): Promise<{ host: Host; fleet: NonNullable<DoctorWish['fleet']>; agentAt: string }> {
  const host = await makeRepository(t);
  const agentAt = `127.0.0.1:${await freePort()}`;
  start(t, host, host.servers, '--listen', agentAt);
  await until('version 1', () => host.servers.every(({ active }) => active === '1'));
  const fleet = fleetOf(host, agentAt, host.servers);
  await until('settled', async () => (await look(host, { fleet })).length === 0);
  return { host, fleet, agentAt };
}

function fleetOf(
  host: Host,
  agentAt: string,
  servers: readonly { address: string }[],
): NonNullable<DoctorWish['fleet']> {
  const shards = servers.map(({ address }) => [{ data: address, agent: agentAt }]);
  const text = JSON.stringify({
    format: 1,
    bundles: { ctr: [{ shardNum: shards.length, shards }] },
  });
  const path = join(host.folder, 'fleet.json');
  writeFileSync(path, text);
  return { path, read: () => parseFleet(text, path) };
}

/** As docs/schemas says. */
function fits(name: string, value: unknown): boolean {
  const schema = JSON.parse(readFileSync(`docs/schemas/${name}.schema.json`, 'utf8'));
  const validate = new Ajv({ strict: true, allowUnionTypes: true }).compile(schema);
  const valid = validate(value);
  assert.deepEqual(validate.errors ?? [], []);
  return valid;
}

test('status shows shards, replicas and hosts with age and disk, for people and for programs', async (t) => {
  const { host, fleet, agentAt } = await makeFleet(t);
  const of = ['--repository', host.location, '--bundle', 'ctr', '--fleet', fleet.path];
  const { stdout } = await agent('status', ...of);
  const [first] = host.servers;
  assert.match(stdout, new RegExp(`0/2 +${first?.address} +ready +1 +1 +-`));
  assert.match(stdout, new RegExp(`${agentAt} +1 +yes +\\d+ s +- +[\\d.]+ [kMGT]?B +0\n`));
  const status = JSON.parse((await agent('status', ...of, '--json')).stdout);
  assert.ok(fits('status', status));
  assert.deepEqual([status.servers.length, status.hosts[0].channels[0].upToDate], [2, true]);
});

test('a fleet is looked at: servers, shards, agents; a healthy one has no finding', async (t) => {
  const { host, fleet, agentAt } = await makeFleet(t);
  assert.deepEqual(await look(host, { fleet }), []);
  const [first, second] = host.servers;
  const nobody = { address: `127.0.0.1:${await freePort()}` };
  const expect = async (
    expected: string[],
    given: Parameters<typeof fleetOf>[2],
    agents = agentAt,
  ) =>
    assert.deepEqual(
      [...new Set(checks(await look(host, { fleet: fleetOf(host, agents, given) })))].sort(),
      expected,
    );
  await expect(['server-down', 'shard-without-replica'], [first!, nobody]);
  await expect(['shard-without-replica', 'wrong-shard'], [second!, first!]);
  await expect(['agent-down'], host.servers, nobody.address);
  const place = { shardIndex: 1, shardNum: 2, dataDir: host.dataDir };
  const empty = await ControlServer.start(t, place);
  await expect(['not-ready', 'shard-without-replica'], [first!, empty]);
  const three = await ControlServer.start(t, { ...place, shardNum: 3 });
  assert.ok(
    checks(await look(host, { fleet: fleetOf(host, agentAt, [first!, second!, three]) })).includes(
      'shard-count-absent',
    ),
  );
  const path = join(host.folder, 'broken.json');
  const invalid = { path, read: () => parseFleet('{"format":2}', path) };
  assert.deepEqual(checks(await look(host, { fleet: invalid })), ['fleet-invalid']);
  const other = { path, read: () => parseFleet('{"format":1,"bundles":{}}', path) };
  assert.deepEqual(checks(await look(host, { fleet: other })), ['bundle-not-in-fleet']);
});

test('what an agent cannot do is told, and a version that does not arrive', async (t) => {
  const { host, fleet } = await makeFleet(t);
  const layer = layerOf(await host.repository.manifest('ctr', '2'), 0);
  rmSync(join(host.location, layerPath('ctr', 't', layer.contentId)));
  await host.repository.activate('ctr', 'stable', { version: '2', ...by });
  await until('the problem', async () =>
    checks(await look(host, { fleet })).includes('agent-problem'),
  );
  const seen = checks(await look(host, { fleet }));
  for (const check of ['layer-damaged', 'behind', 'shard-without-replica'])
    assert.ok(seen.includes(check), check);
});

test('an agent short of disk, with another clock, or without the bundle is found', async (t) => {
  const host = await makeRepository(t);
  const bundle = { bundle: 'ctr', channels: [], problems: [] };
  let bundles: unknown[] = [bundle];
  let at = () => new Date(Date.now() + 600_000);
  const agentAt = await serveJson(t, () => ({
    at: at().toISOString(),
    disk: { freeBytes: 1_000_000, keepFreeBytes: 999_999 },
    bundles,
    problems: [],
  }));
  const fleet = fleetOf(host, agentAt, host.servers);
  const ofAgent = async (): Promise<string[]> =>
    (await look(host, { fleet }))
      .filter(({ where }) => where === agentAt)
      .map(({ check }) => check);
  assert.deepEqual(await ofAgent(), ['disk-short', 'clock-skew']);
  bundles = [];
  at = () => new Date();
  assert.deepEqual(await ofAgent(), ['agent-without-bundle', 'disk-short']);
});

test('serving that is down or answers with another version is found', async (t) => {
  const host = await makeRepository(t);
  const model = { model: 'ctr', channel: 'stable', active: '2', failed: [] };
  const behind = await serveJson(t, () => ({ models: [model] }));
  const right = await serveJson(t, () => ({ models: [{ ...model, active: '1' }] }));
  const down = `127.0.0.1:${await freePort()}`;
  assert.deepEqual(await look(host, { servings: [right] }), []);
  const seen = await look(host, { servings: [right, behind, down] });
  assert.deepEqual(seen.map(({ check, where }) => [check, where.split(',')[0]]).sort(), [
    ['serving-behind', behind],
    ['serving-down', down],
  ]);
});

async function serveJson(t: TestContext, answer: () => unknown): Promise<string> {
  const server = createServer((_request, response) => response.end(JSON.stringify(answer())));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  atEnd(t, () => {
    server.closeAllConnections();
    server.close();
  });
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test('a server short of memory, draining, with a failed load or beside one of another version is found', () => {
  const version = (name: string) => ({ version: name, rows: 1, bytes: 600, idleMs: 0 });
  const well: ControlStatus = {
    ...{
      shardIndex: 0,
      shardNum: 1,
      ready: true,
      draining: false,
      pid: 1,
      loading: [],
      failed: [],
    },
    bundles: [{ bundle: 'ctr', active: '1', versions: [version('1')] }],
    memory: { budgetBytes: 2000, usedBytes: 600, pooledBytes: 0 },
  };
  const seen = (...statuses: Partial<ControlStatus>[]): string[] => {
    const findings: Finding[] = [];
    const servers: SeenServer[] = statuses.map((status, i) => ({
      place: { address: `h:${i + 1}`, shard: { index: 0, shardNum: 1 } },
      status: { ...well, ...status },
    }));
    const patient = { repository: 'r', bundle: 'ctr', channel: 'stable' };
    const manifest = { bundle: 'ctr', version: '1', files: [], slots: [], tables: [] } as never;
    checkServers({ patient, fleetFile: 'f', servers, manifest }, (f) => findings.push(f));
    return checks(findings);
  };
  assert.deepEqual(seen({}, {}), []);
  const memory = { ...well.memory, budgetBytes: 1000 };
  assert.deepEqual(seen({ memory }), ['memory-tight']);
  assert.deepEqual(seen({ draining: true, ready: false }, {}), ['draining']);
  const failed = [{ bundle: 'ctr', version: '2', code: 'CORRUPT', message: 'x' }];
  assert.deepEqual(seen({ failed }), ['load-failed']);
  const namesake = { ...version('1'), tablesDigest: '0123456789abcdef' };
  const others = [{ bundle: 'ctr', active: '1', versions: [namesake] }];
  assert.deepEqual(seen({ bundles: others }, {}), ['other-rows']);
  const two = [{ bundle: 'ctr', active: '2', versions: [version('2'), version('1')] }];
  assert.deepEqual(seen({ bundles: two, memory: { ...memory, budgetBytes: 9000 } }, {}), [
    'versions-mixed',
  ]);
});

test('the command prints findings with what to do, and its exit code tells', async (t) => {
  const host = await makeRepository(t);
  const of = ['--repository', host.location, '--bundle', 'ctr'];
  const well = await agent('doctor', ...of);
  assert.deepEqual([well.code, well.stdout], [0, 'nothing is wrong\n']);
  rmSync(join(host.location, manifestPath('ctr', '1')));
  const ill = await agent('doctor', ...of);
  assert.equal(ill.code, 1);
  assert.match(ill.stdout, /1 +error +version-absent +version 1/);
  assert.match(ill.stdout, /What to do:\n {2}1\. cube-agent publish --from/);
  const { code, stdout } = await agent('doctor', ...of, '--json');
  const told = JSON.parse(stdout);
  assert.ok(fits('doctor', told));
  assert.deepEqual([code, told.isWell, told.findings[0].severity], [1, false, 'error']);
});
