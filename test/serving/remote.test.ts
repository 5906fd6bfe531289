/** The serving process before real shard servers: equal scores, killed shards, switches to another number of shards. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, it, type TestContext } from 'node:test';
import { formatFleet } from '../../lib/core/fleet.ts';
import { ServingProcess } from './serving-process.ts';
import { CubeServers } from './stores/cube-servers.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './toy-bundle.ts';
import { ToyRepository, Traffic } from './toy-service.ts';

const one = new ToyBundle({ version: '1', seed: 101, shardNum: 2, wide: true });
const two = new ToyBundle({ version: '2', seed: 202, shardNum: 3, inputs: 'many' });

interface Remote {
  readonly toys: ToyRepository;
  readonly servers: CubeServers;
  readonly serving: ServingProcess;
}

/** Version 1 on two shard servers, and serving before them. */
async function startRemote(t: TestContext, flags: readonly string[] = []): Promise<Remote> {
  const toys = new ToyRepository(t);
  await toys.publish(one);
  await toys.activate('1');
  // A host's data folder has the repository's shape, so the servers may read the repository itself.
  const servers = new CubeServers(BUNDLE, toys.location);
  t.after(() => servers.stop());
  await servers.load(await toys.repository.manifest(BUNDLE, '1'));
  const fleet = join(toys.folder, 'fleet.json');
  writeFileSync(fleet, formatFleet(servers.fleet));
  const serving = await ServingProcess.start(t, [
    ...['--repository', toys.location, '--bundle', BUNDLE, '--store', 'remote'],
    ...['--fleet', fleet, '--instances', '2', '--timeout-ms', '10000', ...flags],
  ]);
  return { toys, servers, serving };
}

describe('serving before shard servers', () => {
  it('waits until every shard has the new version, then switches, also to another number of shards', async (t) => {
    const { toys, servers, serving } = await startRemote(t);
    await serving.untilReady();
    const traffic = new Traffic(serving, [one, two]);
    await traffic.untilAnswered('1');
    await toys.publish(two);
    await toys.activate('2');
    await serving.until('/v1/status', ({ body }) => body.failed.length === 1);
    const { body } = await serving.get('/v1/status');
    assert.deepEqual([body.active, body.failed[0].code], ['1', 'NOT_READY']);
    await servers.load(await toys.repository.manifest(BUNDLE, '2'));
    writeFileSync(join(toys.folder, 'fleet.json'), formatFleet(servers.fleet));
    await traffic.untilAnswered('2');
    await toys.rollback();
    await traffic.untilAnswered('1');
    await traffic.stop();
    assert.deepEqual(traffic.refused, []);
    assert.equal(await serving.stop(), 0);
  });

  it('with a shard killed: fails clearly, never a score from half the rows; whole again by itself', async (t) => {
    const { toys, servers, serving } = await startRemote(t);
    await serving.untilReady();
    const manifest = await toys.repository.manifest(BUNDLE, '1');
    const address = servers.fleet.bundles.get(BUNDLE)![0]!.shards[1]![0]!.data;
    const traffic = new Traffic(serving, [one]);
    await traffic.untilAnswered('1');
    await servers.kill(address);
    await serving.until('/metrics', ({ body }) => /code="UNAVAILABLE"\} [1-9]/.test(body));
    await servers.restart(address);
    await servers.load(manifest);
    await traffic.untilAnswered('1', 200);
    await traffic.stop();
    assert.ok(traffic.refused.length > 0);
    for (const { status, body } of traffic.refused) {
      assert.deepEqual([status, body.code], [503, 'UNAVAILABLE']);
      assert.match(body.error, /no answer for \d+ of \d+ lookups \(first: key \d+ of table/);
      assert.match(body.error, /shard 1 of 2/);
    }
    assert.equal(traffic.degraded, 0);
  });

  it('with --on-unavailable default: answers degraded with counts', async (t) => {
    const { servers, serving } = await startRemote(t, ['--on-unavailable', 'default']);
    await serving.untilReady();
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
});

it('rows of another version of the same name are refused, also when they come later', async (t) => {
  const other = new ToyBundle({ ...one.wish, seed: 999 });
  const others = new ToyRepository(t);
  await others.publish(other);
  const { toys, servers, serving } = await startRemote(t);
  await serving.untilReady();
  const [map] = servers.fleet.bundles.get(BUNDLE)!;
  const impostors = new CubeServers(BUNDLE, others.location);
  t.after(() => impostors.stop());
  await impostors.load(await others.repository.manifest(BUNDLE, '1'));
  for (const replicas of map!.shards) await servers.kill(replicas[0]!.data);
  writeFileSync(join(toys.folder, 'fleet.json'), formatFleet(impostors.fleet));
  for (let said = ''; !said.includes('toy 1 has other rows here'); ) {
    const { status, body } = await serving.postTsv(toTsv(toyRows(5)));
    assert.deepEqual([status, body.code], [503, 'UNAVAILABLE']);
    said = body.error;
  }
});
