/**
 * Fleet commands read, change and refuse fleet files. A refused change leaves the file unchanged.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import {
  addReplica,
  drainReplica,
  type FleetChangeContext,
  removeReplica,
} from '../../../cube-agent/fleet/fleet-changes.ts';
import { FleetDocument } from '../../../cube-agent/fleet/fleet-document.ts';
import { initFleet } from '../../../cube-agent/fleet/init-fleet.ts';
import { reshard, retire } from '../../../cube-agent/fleet/reshard.ts';
import type { Clock } from '../../../lib/platform/clock.ts';
import { NO_CREDENTIALS } from '../../../lib/rpc/credentials.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { waitFor } from '../../support/processes.ts';
import { ControlServer } from '../support/control-server.ts';
import { AUDIT, areAllActive, createHost, publish, startAgent } from '../support/host.ts';

const CUBE_CONF = [
  {
    dict_name: 'dict',
    shard: 2,
    dup: 1,
    timeout: 200,
    retry: 3,
    backup_request: 100,
    type: 'ipport_list',
    load_balancer: 'rr',
    nodes: [
      { ipport_list: 'list://10.0.0.1:8000,10.0.0.2:8000' },
      { ipport_list: 'list://10.0.0.3:8000' },
    ],
  },
];

test('cube.conf is converted to a valid fleet file and overwrites no file', async (t) => {
  const folder = temporaryFolder(t);
  const conf = join(folder, 'cube.conf');
  const out = join(folder, 'fleet.json');
  writeFileSync(conf, JSON.stringify(CUBE_CONF));
  const make = ['fleet', 'from-cube-conf', '--cube-conf', conf, '--out', out];
  assert.match((await runAgentCommand(...make)).stdout, /dict, 3 replicas/);
  assert.match((await runAgentCommand(...make)).stderr, /already exists and is not overwritten/);
  assert.match(
    (await runAgentCommand('fleet', 'validate', '--fleet', out)).stdout,
    /is valid\n.*\ndict +2 +3/,
  );
  const shown = await runAgentCommand('fleet', 'show', '--fleet', out, '--json');
  const { replicas } = JSON.parse(shown.stdout);
  assert.deepEqual(replicas[2], {
    bundle: 'dict',
    shard: 1,
    shardNum: 2,
    data: '10.0.0.3:8000',
    control: '10.0.0.3:8000',
    group: 'default',
    weight: 1,
  });
  const other = await runAgentCommand('fleet', 'show', '--fleet', out, '--bundle', 'other');
  assert.match(other.stderr, /has no bundle other \(it has: dict\)/);
});

test('a duplicate endpoint is invalid; two bundles on one server are valid', (t) => {
  const path = join(temporaryFolder(t), 'fleet.json');
  const write = (bundles: object): void =>
    writeFileSync(path, JSON.stringify({ format: 1, bundles }));
  const [a, b] = [[{ data: 'h:1' }], [{ data: 'h:2' }]];
  write({ x: [{ shardNum: 2, shards: [a, b] }], y: [{ shardNum: 2, shards: [a, b] }] });
  assert.equal(FleetDocument.read(path).fleet.bundles.size, 2);
  write({ x: [{ shardNum: 2, shards: [a, a] }] });
  assert.throws(
    () => FleetDocument.read(path),
    /h:1 is listed twice, as shard 0 of 2 and as shard 1 of 2/,
  );
  write({ x: [{ shardNum: 1, shards: [[a[0], a[0]]] }] });
  assert.throws(() => FleetDocument.read(path), /listed twice/);
  const map = { shardNum: 1, shards: [a] };
  write({ x: [map, { ...map, shards: [b] }] });
  assert.throws(() => FleetDocument.read(path), /two shard maps of 1 shards/);
});

test('a change keeps all fields and refuses to overwrite a concurrent change', (t) => {
  const path = join(temporaryFolder(t), 'fleet.json');
  const shards = [[{ data: 'h:1', group: 'r7' }]];
  const file = {
    $schema: 'fleet.schema.json',
    format: 1,
    bundles: { x: [{ shardNum: 1, shards }] },
  };
  writeFileSync(path, JSON.stringify(file));
  const [mine, theirs] = [FleetDocument.read(path), FleetDocument.read(path)];
  mine.addReplica('x', { shardNum: 1, shard: 0 }, { data: 'h:2' });
  mine.addReplica('x', { shardNum: 1, shard: 0 }, { data: 'h:3', weight: 2 });
  const written = JSON.parse(readFileSync(path, 'utf8'));
  assert.equal(written.$schema, 'fleet.schema.json');
  assert.deepEqual(
    written.bundles.x[0].shards[0].map((r: object) => Object.keys(r)),
    [['data', 'group'], ['data'], ['data', 'weight']],
  );
  const late = () => theirs.addReplica('x', { shardNum: 1, shard: 0 }, { data: 'h:4' });
  assert.throws(late, /changed by another process/);
});

/** As the system's, but a wait ends at once. */
function impatient(): Clock {
  let nowMs = 0;
  const sleep = async (ms: number): Promise<void> => {
    nowMs += ms;
  };
  return { nowMs: () => nowMs, isoTime: () => '', sleep };
}

/** A replica is not drained when the other one holds nothing, and a dry run changes nothing. */
async function refuseDrainBesideEmpty(
  context: FleetChangeContext,
  [first, second]: readonly [string, string],
  empty: string,
): Promise<void> {
  const replicas = [[{ data: first }, { data: empty }], [{ data: second }]];
  writeFileSync(
    context.path,
    JSON.stringify({ format: 1, bundles: { ctr: [{ shardNum: 2, shards: replicas }] } }),
  );
  await assert.rejects(
    drainReplica(context, first),
    /no replica would answer version 1 for shard 0 of 2/,
  );
  const before = readFileSync(context.path, 'utf8');
  await removeReplica({ ...context, dryRun: true }, empty, 100);
  assert.equal(readFileSync(context.path, 'utf8'), before);
}

test('changes that leave a shard without replicas or an invalid file are refused', async (t) => {
  const host = await createHost(t, 2);
  await publish(host, { version: '1' });
  await publish(host, { version: '3', shardNum: 3 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  startAgent(t, host);
  await waitFor('all at 1', areAllActive('1', host.servers));
  const path = join(host.folder, 'fleet.json');
  const [first, second] = host.servers.map(({ address }) => address);
  assert.ok(first && second);
  const shards = [[{ data: first }], [{ data: second }]];
  const text = JSON.stringify({ format: 1, bundles: { ctr: [{ shardNum: 2, shards }] } });
  writeFileSync(path, text);
  const context: FleetChangeContext = {
    path,
    bundle: 'ctr',
    credentials: NO_CREDENTIALS,
    timeoutMs: 600,
    clock: impatient(),
    dryRun: false,
    report: () => undefined,
  };
  const { repository, dataDir } = host;
  const other = await ControlServer.start(t, { shardIndex: 0, shardNum: 3, dataDir });
  const empty = await ControlServer.start(t, { shardIndex: 0, shardNum: 2, dataDir });
  const request = { repository, channel: 'stable', version: '3', ...AUDIT };
  const refusals: readonly (readonly [RegExp, () => Promise<void>])[] = [
    [/is the last replica of shard 0 of 2: add another/, () => removeReplica(context, first, 100)],
    [/is the last replica of shard 1 of 2/, () => drainReplica(context, second)],
    [/has no replica h:9 of ctr \(it has: /, () => drainReplica(context, 'h:9')],
    [
      /serves shard 0 of 3; .* with these shard counts: 2/,
      () => addReplica(context, { data: other.address }),
    ],
    [
      /after 600 ms: .* has not loaded version 1 yet/,
      () => addReplica(context, { data: empty.address }),
    ],
    [
      /no cube-server answers at 127\.0\.0\.1:9 /,
      () => addReplica(context, { data: '127.0.0.1:9' }),
    ],
    [
      /no server was given for shard 1, 2/,
      () => reshard(context, { ...request, replicas: [{ data: other.address }] }),
    ],
    [
      /serves shard 0 of 2, not one of 3: .*--shard-num 3, or build/,
      () => reshard(context, { ...request, replicas: [{ data: first }] }),
    ],
    [
      /points to version 1, which has 2 shards and needs these servers/,
      () => retire(context, { repository, shardNum: 2, idleMs: 100, noReturn: true }),
    ],
  ];
  for (const [expected, refusal] of refusals) await assert.rejects(refusal(), expected);
  assert.equal(readFileSync(path, 'utf8'), text);
  const { pointer } = await repository.readChannel('ctr', 'stable');
  assert.equal(pointer?.version, '1');

  await refuseDrainBesideEmpty(context, [first, second], empty.address);
});

test('a new fleet file is created from the shards that servers report', async (t) => {
  const host = await createHost(t, 2);
  const [first, second] = host.servers.map(({ address }) => address);
  assert.ok(first && second);
  const path = join(host.folder, 'begun.json');
  const context: FleetChangeContext = {
    path,
    bundle: 'ctr',
    credentials: NO_CREDENTIALS,
    timeoutMs: 600,
    clock: impatient(),
    dryRun: false,
    report: () => undefined,
  };
  const both = [second, first];
  await initFleet({ ...context, dryRun: true }, both, []);
  await assert.rejects(
    initFleet(context, [first], []),
    /no server was given for shard 1 of 2: start/,
  );
  const agents = ['10.0.0.1:1', '10.0.0.1:2'];
  await assert.rejects(
    initFleet(context, both, agents),
    /:1 and 10\.0\.0\.1:2 are on the same host/,
  );
  assert.ok(!existsSync(path));

  const agent = '127.0.0.1:8100';
  await initFleet(context, both, [agent]);
  const shards = [[{ data: first, agent }], [{ data: second, agent }]];
  const begun = { format: 1, bundles: { ctr: [{ shardNum: 2, shards }] } };
  assert.deepEqual(JSON.parse(readFileSync(path, 'utf8')), begun);
  await assert.rejects(
    initFleet(context, both, []),
    /already lists servers of ctr: .*"cube-agent fleet add-replica"/,
  );
});
