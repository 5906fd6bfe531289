/** Every problem that doctor detects, caused on purpose; a healthy bundle has no finding. */
import assert from 'node:assert/strict';
import fs, {
  constants,
  cpSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:http';
import { syncBuiltinESMExports } from 'node:module';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { Ajv } from 'ajv';
import { type DiagnoseOptions, diagnose } from '../../../cube-agent/doctor/doctor.ts';
import { checkServers, type ProbedServer } from '../../../cube-agent/doctor/fleet-checks.ts';
import type { Finding } from '../../../lib/core/findings.ts';
import { parseFleet } from '../../../lib/core/fleet.ts';
import { layerPath, manifestPath, versionFilePath } from '../../../lib/repository/layout.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { generateKeyPair, SigningKey, TrustedKeys } from '../../../lib/repository/signatures.ts';
import { Credentials, NO_CREDENTIALS } from '../../../lib/rpc/credentials.ts';
import type { ControlStatus } from '../../../proto/control.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { getBaseLayer, onTestEnd, temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { waitFor } from '../../support/processes.ts';
import { ControlServer } from '../support/control-server.ts';
import { AUDIT, createHost, type Host, publish, startAgent } from '../support/host.ts';

/** Version 1, which the channel points to, and 2; no servers. */
async function makeRepository(t: TestContext): Promise<Host> {
  const host = await createHost(t, 2);
  await publish(host, { version: '1', table: 'one' });
  await publish(host, { version: '2', table: 'two' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  return host;
}

const runDoctor = (host: Host, options: Partial<DiagnoseOptions> = {}): Promise<Finding[]> =>
  diagnose({
    repository: host.repository,
    target: { repository: host.location, bundle: 'ctr', channel: 'stable' },
    deep: false,
    staleMs: undefined,
    fleet: undefined,
    servings: [],
    serverCredentials: NO_CREDENTIALS,
    agentCredentials: NO_CREDENTIALS,
    onBytes: () => undefined,
    ...options,
  });

const checks = (findings: readonly Finding[]): string[] => findings.map(({ check }) => check);

async function expectOnly(
  host: Host,
  expected: string[],
  options?: Partial<DiagnoseOptions>,
): Promise<Finding> {
  const findings = await runDoctor(host, options);
  assert.deepEqual([...new Set(checks(findings))], expected, JSON.stringify(findings));
  for (const { what, where, todo } of findings) assert.ok(what && where && todo);
  return findings[0]!;
}

test('a healthy repository has no finding; an unknown bundle is an error', async (t) => {
  const host = await makeRepository(t);
  assert.deepEqual(await runDoctor(host, { deep: true, staleMs: 3_600_000 }), []);
  const patient = { repository: host.location, bundle: 'other', channel: 'stable' };
  await assert.rejects(runDoctor(host, { target: patient }), /has no bundle other \(it has: ctr\)/);
});

test('damaged or missing layers, files and manifests are reported', async (t) => {
  const host = await makeRepository(t);
  const manifest = await host.repository.readManifest('ctr', '1');
  const layer = join(host.location, layerPath('ctr', 't', getBaseLayer(manifest, 1).contentId));
  const whole = readFileSync(layer);
  const flipped = Uint8Array.from(whole, (byte, i) => (i === 5 ? byte ^ 1 : byte));
  rmSync(layer);
  writeFileSync(layer, flipped);
  assert.deepEqual(await runDoctor(host), [], 'sizes are right');
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
  assert.ok(checks(await runDoctor(host)).includes('manifest-damaged'));
  rmSync(path);
  writeFileSync(path, text);
  assert.deepEqual(await runDoctor(host), []);
});

const LONG_AGO = {
  nowMs: () => 0,
  isoTime: () => '2020-01-01T00:00:00.000Z',
  sleep: async () => {},
};

test('empty, damaged, pinned, stale and quarantined channels are reported', async (t) => {
  const host = await makeRepository(t);
  const { repository, location } = host;
  const patient = { repository: location, bundle: 'ctr', channel: 'canary' };
  await expectOnly(host, ['channel-empty'], { target: patient });
  await expectOnly(host, ['stale'], { staleMs: -1 });
  await repository.pin('ctr', 'stable', AUDIT);
  assert.equal((await expectOnly(host, ['channel-pinned'])).severity, 'note');
  await repository.unpin('ctr', 'stable', AUDIT);
  await openRepository(location, { clock: LONG_AGO }).activate('ctr', 'old', {
    version: '1',
    ...AUDIT,
  });
  await repository.recordOutcome('ctr', '2', 'served', AUDIT);
  const old = { repository: location, bundle: 'ctr', channel: 'old' };
  assert.ok(checks(await runDoctor(host, { target: old })).includes('outcome-missing'));
  await repository.recordOutcome('ctr', '1', 'served', AUDIT);
  // Two channels at a bad version: one goes back, the other is left behind.
  await repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await repository.activate('ctr', 'canary', { version: '2', ...AUDIT });
  await repository.rollback('ctr', 'stable', 'test', 'bad');
  assert.match((await expectOnly(host, ['pointer-quarantined'])).todo, /--channel canary --from 2/);
  writeFileSync(join(location, 'ctr/channels/canary/0000000001.json'), '{"version":');
  const damaged = (await runDoctor(host)).find(({ check }) => check === 'channel-damaged');
  assert.match(damaged?.what ?? '', /0000000001\.json: not JSON/);
  assert.doesNotMatch(damaged?.what ?? '', /cube-agent doctor/);
});

test('a channel entry that is missing before the newest one is reported by name', async (t) => {
  const host = await makeRepository(t);
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const path = join(host.location, 'ctr/channels/stable/0000000002.json');
  rmSync(path);
  const { where, what, todo } = await expectOnly(host, ['channel-damaged']);
  assert.equal(where, path);
  assert.match(what, /^entry 2 is missing/);
  assert.match(todo, /restore it from a copy; if there is none .* copy the next entry/);
  cpSync(join(host.location, 'ctr/channels/stable/0000000003.json'), path);
  assert.deepEqual(await runDoctor(host), []);
});

test('a repository folder that cannot be written is reported', async (t) => {
  const host = await makeRepository(t);
  const { accessSync } = fs;
  const deny = (folder: string, code: string): void => {
    t.mock.method(fs, 'accessSync', (path: string, mode?: number) => {
      const isDenied = path === folder && mode === (constants.W_OK | constants.X_OK);
      if (isDenied) throw Object.assign(new Error(code), { code });
      accessSync(path, mode);
    });
    syncBuiltinESMExports();
  };
  t.after(() => {
    t.mock.restoreAll();
    syncBuiltinESMExports();
  });
  const before = readdirSync(host.location, { recursive: true });
  for (const [folder, code, reason] of [
    ['ctr', 'EROFS', 'the file system is read-only'],
    ['ctr/channels/stable', 'EACCES', 'permission denied'],
    ['ctr/layers', 'EACCES', 'permission denied'],
  ] as const) {
    const path = join(host.location, folder);
    deny(path, code);
    const { severity, what } = await expectOnly(host, ['repository-read-only']);
    assert.equal(severity, 'note');
    assert.ok(what.endsWith(`cannot write to ${path}: ${reason}`), what);
  }
  assert.deepEqual(readdirSync(host.location, { recursive: true }), before);
});

test('garbage, idle rollouts, missing signatures and lost repositories are reported', async (t) => {
  const host = await makeRepository(t);
  const { repository, location } = host;
  const stray = join(location, layerPath('ctr', 't', '0'.repeat(32)));
  writeFileSync(stray, 'unreferenced');
  utimesSync(stray, 1e9, 1e9);
  assert.match((await expectOnly(host, ['garbage'])).todo, /^cube-agent gc/);
  rmSync(stray);
  const unreadable = join(location, 'ctr/versions/9');
  mkdirSync(unreadable);
  writeFileSync(join(unreadable, 'manifest.json'), '{');
  assert.match(
    (await expectOnly(host, ['garbage'])).todo,
    /cube-agent quarantine .* --version 9 .* then cube-agent gc/,
  );
  rmSync(unreadable, { recursive: true });

  const rollout = repository.rolloutLog('ctr', '2');
  await rollout.append(0, { state: 'seen', holder: 'c1', reason: 'new' });
  assert.deepEqual(await runDoctor(host), [], 'the rollout is recent');
  const past = openRepository(location, { clock: LONG_AGO });
  await past.rolloutLog('ctr', '2').append(1, { state: 'staging', holder: 'c1', reason: 'go' });
  assert.match((await expectOnly(host, ['rollout-idle'])).what, /is staging since 2020.*c1/);
  await past.rolloutLog('ctr', '2').append(2, { state: 'failed', holder: 'c1', reason: 'x' });
  await past.rolloutLog('ctr', '2').append(3, { state: 'quarantined', holder: 'c1', reason: 'x' });

  const key = join(host.folder, 'key.pem');
  const { privatePem, publicPem } = generateKeyPair();
  writeFileSync(key, privatePem);
  writeFileSync(`${key}.pub`, publicPem);
  const signing = openRepository(location, { keys: { signing: SigningKey.read(key) } });
  await signing.activate('ctr', 'signed', { version: '1', ...AUDIT });
  const trusting = openRepository(location, { keys: { trusted: TrustedKeys.read(`${key}.pub`) } });
  const patient = { repository: location, bundle: 'ctr', channel: 'signed' };
  const unsigned = checks(await runDoctor(host, { repository: trusting, target: patient }));
  for (const check of ['unsigned', 'channel-damaged', 'rollout-damaged']) {
    assert.ok(unsigned.includes(check), check);
  }

  const away = openRepository(`http://127.0.0.1:${await freePort()}/models`);
  const seen = await runDoctor(host, { repository: away });
  assert.deepEqual(checks(seen), ['repository-unreachable', 'repository-read-only']);
});

/** Two shards with a server each, a real agent that keeps them, and fleet.json. */
async function makeFleet(
  t: TestContext,
): Promise<{ host: Host; fleet: NonNullable<DiagnoseOptions['fleet']>; agentAt: string }> {
  const host = await makeRepository(t);
  const agentAt = `127.0.0.1:${await freePort()}`;
  startAgent(t, host, host.servers, '--listen', agentAt);
  await waitFor('version 1', () => host.servers.every(({ active }) => active === '1'));
  const fleet = makeFleetFile(host, agentAt, host.servers);
  await waitFor('settled', async () => (await runDoctor(host, { fleet })).length === 0);
  return { host, fleet, agentAt };
}

function makeFleetFile(
  host: Host,
  agentAt: string,
  servers: readonly { address: string }[],
): NonNullable<DiagnoseOptions['fleet']> {
  const shards = servers.map(({ address }) => [{ data: address, agent: agentAt }]);
  const text = JSON.stringify({
    format: 1,
    bundles: { ctr: [{ shardNum: shards.length, shards }] },
  });
  const path = join(host.folder, 'fleet.json');
  writeFileSync(path, text);
  return { path, read: () => parseFleet(text, path) };
}

/** Whether a value matches a schema of docs/schemas. */
function matchesSchema(name: string, value: unknown): boolean {
  const schema = JSON.parse(readFileSync(`docs/schemas/${name}.schema.json`, 'utf8'));
  const validate = new Ajv({ strict: true, allowUnionTypes: true }).compile(schema);
  const valid = validate(value);
  assert.deepEqual(validate.errors ?? [], []);
  return valid;
}

test('status prints shards, replicas, hosts, ages and free disk', async (t) => {
  const { host, fleet, agentAt } = await makeFleet(t);
  const of = ['--repository', host.location, '--bundle', 'ctr', '--fleet', fleet.path];
  const { stdout } = await runAgentCommand('status', ...of);
  const [first] = host.servers;
  assert.match(stdout, new RegExp(`0/2 +${first?.address} +ready +1 +1 +-`));
  assert.match(stdout, new RegExp(`${agentAt} +1 +yes +\\d+ s +- +[\\d.]+ [kMGT]?B +0\n`));
  const status = JSON.parse((await runAgentCommand('status', ...of, '--json')).stdout);
  assert.ok(matchesSchema('status', status));
  assert.deepEqual([status.servers.length, status.hosts[0].channels[0].upToDate], [2, true]);
});

test('problems of servers, shards and agents are reported', async (t) => {
  const { host, fleet, agentAt } = await makeFleet(t);
  assert.deepEqual(await runDoctor(host, { fleet }), []);
  const [first, second] = host.servers;
  assert.ok(first && second);
  const nobody = { address: `127.0.0.1:${await freePort()}` };
  const expect = async (
    expected: string[],
    given: Parameters<typeof makeFleetFile>[2],
    agents = agentAt,
  ) =>
    assert.deepEqual(
      [
        ...new Set(checks(await runDoctor(host, { fleet: makeFleetFile(host, agents, given) }))),
      ].sort(),
      expected,
    );
  await expect(['server-down', 'shard-without-replica'], [first, nobody]);
  await expect(['shard-without-replica', 'wrong-shard'], [second, first]);
  await expect(['agent-down'], host.servers, nobody.address);
  const place = { shardIndex: 1, shardNum: 2, dataDir: host.dataDir };
  const empty = await ControlServer.start(t, place);
  await expect(['not-ready', 'shard-without-replica'], [first, empty]);
  const three = await ControlServer.start(t, { ...place, shardNum: 3 });
  assert.ok(
    checks(
      await runDoctor(host, { fleet: makeFleetFile(host, agentAt, [first, second, three]) }),
    ).includes('shard-count-absent'),
  );
  const path = join(host.folder, 'broken.json');
  const invalid = { path, read: () => parseFleet('{"format":2}', path) };
  assert.deepEqual(checks(await runDoctor(host, { fleet: invalid })), ['fleet-invalid']);
  const other = { path, read: () => parseFleet('{"format":1,"bundles":{}}', path) };
  assert.deepEqual(checks(await runDoctor(host, { fleet: other })), ['bundle-not-in-fleet']);
});

test('problems of an agent and a version that does not arrive are reported', async (t) => {
  const { host, fleet } = await makeFleet(t);
  const layer = getBaseLayer(await host.repository.readManifest('ctr', '2'), 0);
  rmSync(join(host.location, layerPath('ctr', 't', layer.contentId)));
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('the problem', async () =>
    checks(await runDoctor(host, { fleet })).includes('agent-problem'),
  );
  const folder = temporaryFolder(t);
  const tokenFile = join(folder, 'token');
  writeFileSync(tokenFile, 'a token of this test\n');
  const agentCredentials = new Credentials({ tokenFile });
  const findings = await runDoctor(host, { fleet, agentCredentials });
  const seen = checks(findings);
  for (const check of ['layer-damaged', 'behind', 'shard-without-replica'])
    assert.ok(seen.includes(check), check);
  const getTodo = (check: string): string =>
    findings.find((finding) => finding.check === check)?.todo ?? '';
  assert.match(getTodo('shard-without-replica'), /see layer-damaged and agent-problem/);
  assert.doesNotMatch(getTodo('shard-without-replica'), /add-replica/);
  assert.ok(
    getTodo('agent-problem').includes(
      `curl -X POST -H "Authorization: Bearer $(cat ${tokenFile})" http://127.0.0.1:`,
    ),
  );
});

test('agents with too little disk, a wrong clock or no bundle are reported', async (t) => {
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
  const fleet = makeFleetFile(host, agentAt, host.servers);
  const ofAgent = async (): Promise<string[]> =>
    (await runDoctor(host, { fleet }))
      .filter(({ where }) => where === agentAt)
      .map(({ check }) => check);
  assert.deepEqual(await ofAgent(), ['disk-short', 'clock-skew']);
  bundles = [];
  at = () => new Date();
  assert.deepEqual(await ofAgent(), ['agent-without-bundle', 'disk-short']);
});

test('serving that is down or answers with another version is reported', async (t) => {
  const host = await makeRepository(t);
  const model = { model: 'ctr', channel: 'stable', active: '2', failed: [] };
  const behind = await serveJson(t, () => ({ models: [model] }));
  const right = await serveJson(t, () => ({ models: [{ ...model, active: '1' }] }));
  const down = `127.0.0.1:${await freePort()}`;
  assert.deepEqual(await runDoctor(host, { servings: [right] }), []);
  const seen = await runDoctor(host, { servings: [right, behind, down] });
  assert.deepEqual(seen.map(({ check, where }) => [check, where.split(',')[0]]).sort(), [
    ['serving-behind', behind],
    ['serving-down', down],
  ]);
});

async function serveJson(t: TestContext, answer: () => unknown): Promise<string> {
  const server = createServer((_request, response) => response.end(JSON.stringify(answer())));
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestEnd(t, () => {
    server.closeAllConnections();
    server.close();
  });
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test('low memory, draining, failed loads and mixed versions of servers are reported', () => {
  const version = (name: string) => ({ version: name, rows: 1, bytes: 600, idleMs: 0 });
  const healthy: ControlStatus = {
    shardIndex: 0,
    shardNum: 1,
    ready: true,
    draining: false,
    pid: 1,
    loading: [],
    failed: [],
    bundles: [{ bundle: 'ctr', active: '1', versions: [version('1')] }],
    memory: { budgetBytes: 2000, usedBytes: 600, pooledBytes: 0 },
  };
  const seen = (...statuses: Partial<ControlStatus>[]): string[] => {
    const findings: Finding[] = [];
    const servers: ProbedServer[] = statuses.map((status, i) => ({
      location: { address: `h:${i + 1}`, shard: { index: 0, shardNum: 1 } },
      status: { ...healthy, ...status },
    }));
    const patient = { repository: 'r', bundle: 'ctr', channel: 'stable' };
    const manifest = { bundle: 'ctr', version: '1', files: [], slots: [], tables: [] } as never;
    checkServers({ target: patient, fleetFile: 'f', servers, manifest }, (f) => findings.push(f));
    return checks(findings);
  };
  assert.deepEqual(seen({}, {}), []);
  const memory = { ...healthy.memory, budgetBytes: 1000 };
  assert.deepEqual(seen({ memory }), ['memory-tight']);
  const large = { budgetBytes: 2 ** 40, usedBytes: 2 ** 30, pooledBytes: 0 };
  assert.deepEqual(seen({ memory: { ...large, hugePages: 'madvise' } }, {}), ['huge-pages-off']);
  assert.deepEqual(seen({ memory: { ...large, hugePages: 'always' } }, {}), []);
  assert.deepEqual(seen({ memory: { ...healthy.memory, hugePages: 'never' } }, {}), []);
  assert.deepEqual(seen({ draining: true, ready: false }, {}), ['draining']);
  const failed = [{ bundle: 'ctr', version: '2', code: 'CORRUPT', message: 'x' }];
  assert.deepEqual(seen({ failed }), ['load-failed']);
  const otherTables = { ...version('1'), tablesDigest: '0123456789abcdef' };
  const others = [{ bundle: 'ctr', active: '1', versions: [otherTables] }];
  assert.deepEqual(seen({ bundles: others }, {}), ['other-rows']);
  const two = [{ bundle: 'ctr', active: '2', versions: [version('2'), version('1')] }];
  assert.deepEqual(seen({ bundles: two, memory: { ...memory, budgetBytes: 9000 } }, {}), [
    'versions-mixed',
  ]);
});

test('the command prints findings with remedies and exits with 1', async (t) => {
  const host = await makeRepository(t);
  const of = ['--repository', host.location, '--bundle', 'ctr'];
  const healthy = await runAgentCommand('doctor', ...of);
  assert.deepEqual([healthy.code, healthy.stdout], [0, 'no problems found\n']);
  rmSync(join(host.location, manifestPath('ctr', '1')));
  const unhealthy = await runAgentCommand('doctor', ...of);
  assert.equal(unhealthy.code, 1);
  assert.match(unhealthy.stdout, /1 +error +version-absent +version 1/);
  assert.match(unhealthy.stdout, /What to do:\n {2}1\. cube-agent publish --from/);
  const { code, stdout } = await runAgentCommand('doctor', ...of, '--json');
  const output = JSON.parse(stdout);
  assert.ok(matchesSchema('doctor', output));
  assert.deepEqual([code, output.isWell, output.findings[0].severity], [1, false, 'error']);
});
