/** Serving with real shard servers: scores, killed shards, and versions with other shard counts. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { formatFleet } from '../../lib/core/fleet.ts';
import { CubeServers } from './stores/support/cube-servers.ts';
import type { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { LoadRunner, ToyRepository } from './support/toy-service.ts';

const one = new ToyBundle({ version: '1', seed: 101, shardNum: 2, wide: true });
const two = new ToyBundle({ version: '2', seed: 202, shardNum: 3, inputs: 'many' });

interface Remote {
  readonly toys: ToyRepository;
  readonly servers: CubeServers;
  readonly serving: ServingProcess;
}

interface RemoteOptions {
  readonly flags?: readonly string[];
  /** Whether shard servers can be killed; default: true. */
  readonly areProcesses?: boolean;
}

/** Version 1 on two shard servers, and a serving process that uses them. */
async function startRemote(
  t: TestContext,
  { flags = [], areProcesses = true }: RemoteOptions = {},
): Promise<Remote> {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  await toys.activate('1');
  // A data folder has the layout of a repository, so the servers can read the repository.
  const servers = new CubeServers(BUNDLE, toys.location, { areProcesses });
  t.after(() => servers.stop());
  await servers.load(await toys.repository.readManifest(BUNDLE, '1'));
  const fleet = join(toys.folder, 'fleet.json');
  writeFileSync(fleet, formatFleet(servers.fleet));
  const serving = await toys.startRemote(t, fleet, 2, flags);
  return { toys, servers, serving };
}

test('serving switches when every shard has the new version', async (t) => {
  const { toys, servers, serving } = await startRemote(t, { areProcesses: false });
  await serving.waitUntilReady();
  const traffic = new LoadRunner(serving, [one, two]);
  await traffic.waitForAnswers('1');
  await toys.publish(two);
  await toys.activate('2');
  await serving.waitFor('/v1/status', ({ body }) => body.failed.length === 1);
  const { body } = await serving.get('/v1/status');
  assert.deepEqual([body.active, body.failed[0].code], ['1', 'NOT_READY']);
  await servers.load(await toys.repository.readManifest(BUNDLE, '2'));
  writeFileSync(join(toys.folder, 'fleet.json'), formatFleet(servers.fleet));
  await traffic.waitForAnswers('2');
  await toys.rollback();
  await traffic.waitForAnswers('1');
  await traffic.stop();
  assert.deepEqual(traffic.refused, []);
  assert.equal(await serving.stop(), 0);
});

test('with a killed shard, requests fail without partial scores, then recover', async (t) => {
  const { toys, servers, serving } = await startRemote(t);
  await serving.waitUntilReady();
  const manifest = await toys.repository.readManifest(BUNDLE, '1');
  const address = servers.fleet.bundles.get(BUNDLE)![0]!.shards[1]![0]!.data;
  const traffic = new LoadRunner(serving, [one]);
  await traffic.waitForAnswers('1');
  await servers.kill(address);
  await serving.waitFor('/metrics', ({ body }) => /code="UNAVAILABLE"\} [1-9]/.test(body));
  await servers.restart(address);
  await servers.load(manifest);
  await traffic.waitForAnswers('1', 200);
  await traffic.stop();
  // A busy machine may refuse a request because others wait for the killed shard.
  const failed = traffic.refused.filter(({ body }) => body.code !== 'OVERLOADED');
  assert.ok(failed.length > 0);
  for (const { status, body } of failed) {
    assert.deepEqual([status, body.code], [503, 'UNAVAILABLE']);
    assert.match(body.error, /no answer for \d+ of \d+ lookups \(first: key \d+ of table/);
    assert.match(body.error, /shard 1 of 2/);
  }
  assert.equal(traffic.degraded, 0);
});

test('with --on-unavailable default, responses are degraded and have counts', async (t) => {
  const { servers, serving } = await startRemote(t, {
    flags: ['--on-unavailable', 'default'],
  });
  await serving.waitUntilReady();
  const rows = toyRows(100);
  const address = servers.fleet.bundles.get(BUNDLE)![0]!.shards[0]![0]!.data;
  await servers.kill(address);
  const { status, body } = await serving.postTsv(toTsv(rows));
  assert.equal(status, 200);
  assert.equal(body.degraded, true);
  assert.ok(body.unavailable > 0);
  const metrics = (await serving.get('/metrics')).body;
  assert.match(metrics, /hypercube_serving_degraded_total 1/);
  assert.match(
    metrics,
    new RegExp(`hypercube_serving_lookups_unavailable_total ${body.unavailable}\n`),
  );
});

test('rows of another version with the same name are rejected at any time', async (t) => {
  const other = new ToyBundle({ ...one.options, seed: 999 });
  const others = new ToyRepository(t);
  await others.publish(other);
  const { toys, servers, serving } = await startRemote(t);
  await serving.waitUntilReady();
  const [map] = servers.fleet.bundles.get(BUNDLE)!;
  assert.ok(map);
  const impostors = new CubeServers(BUNDLE, others.location);
  t.after(() => impostors.stop());
  await impostors.load(await others.repository.readManifest(BUNDLE, '1'));
  for (const replicas of map.shards) await servers.kill(replicas[0]!.data);
  writeFileSync(join(toys.folder, 'fleet.json'), formatFleet(impostors.fleet));
  for (let message = ''; !message.includes('toy 1 has other rows on this server'); ) {
    const { status, body } = await serving.postTsv(toTsv(toyRows(5)));
    assert.deepEqual([status, body.code], [503, 'UNAVAILABLE']);
    message = body.error;
  }
});
