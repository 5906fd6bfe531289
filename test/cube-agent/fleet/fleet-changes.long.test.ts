/**
 * Replicas and shard counts change with real processes while pinned lookups run; no lookup fails.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { runAgentCommand } from '../../support/commands.ts';
import { RunningProcess, startAgentProcess, waitFor } from '../../support/processes.ts';
import { DeltaSource, listKeys } from '../support/delta-source.ts';
import { FleetTraffic } from '../support/fleet-traffic.ts';
import { createWorkspace, type Workspace } from '../support/workspace.ts';

interface Shard {
  readonly address: string;
  readonly running: RunningProcess;
}

/** A host: servers of these shards, and an agent that keeps them. */
async function startHost(
  t: TestContext,
  { folder, repository }: Workspace,
  name: string,
  shards: readonly number[],
  shardNum: number,
): Promise<Shard[]> {
  const dataDir = join(folder, name);
  const servers = shards.map((shard) => {
    const flags = ['--shard', String(shard), '--shard-num', String(shardNum), '--port', '0'];
    return new RunningProcess(t, 'cube-server/main.js', [...flags, '--data-dir', dataDir]);
  });
  const findAddress = ({ lines }: RunningProcess) =>
    lines.find(({ msg }) => msg === 'listening')?.['address'];
  await waitFor('listening', () => servers.every((server) => findAddress(server) !== undefined));
  const hosts = servers.map((running) => ({ address: String(findAddress(running)), running }));
  const addresses = hosts.map(({ address }) => address);
  startAgentProcess(t, { repository, dataDir, servers: addresses }, '--keep-free', '0');
  return hosts;
}

test('replicas change and two shards become three while lookups run', async (t) => {
  const place = createWorkspace(t);
  const two = new DeltaSource(place.folder, 2);
  await two.publish(1, 1);
  const fleet = join(place.folder, 'fleet.json');
  const of = ['--fleet', fleet, '--bundle', 'ctr', '--timeout-ms', '60000'];
  const withRepository = [...of, '--repository', place.repository];
  const run = async (command: string, ...args: string[]): Promise<string> => {
    const { code, stdout, stderr } = await runAgentCommand('fleet', command, ...args);
    assert.equal(code, 0, stderr);
    return stdout;
  };
  const toDataFlags = (shards: readonly Shard[]) =>
    shards.flatMap(({ address }) => ['--data', address]);

  // The first servers of a new fleet file.
  const old = await startHost(t, place, 'old', [0, 1], 2);
  const first = ['--version', '1', '--reason', 'first'];
  await run('reshard', ...withRepository, ...first, ...toDataFlags(old));
  const traffic = new FleetTraffic(t, fleet, two.repository, listKeys(2));
  const more = async (version: string, count = 50): Promise<void> => {
    const target = traffic.count(version) + count;
    await waitFor(`${count} more answers of ${version}`, () => traffic.count(version) >= target);
  };
  await more('1');

  const [added] = await startHost(t, place, 'added', [0], 2);
  assert.ok(added);
  const join0 = [...of, '--data', added.address];
  assert.match(await run('add-replica', ...join0, '--group', 'b'), /answers for shard 0 of 2/);
  assert.match(await run('add-replica', ...join0), /is already in .* as shard/);
  await more('1');
  const leave0 = [...of, '--data', old[0]!.address];
  assert.match(await run('drain', ...leave0), /is drained/);
  await more('1');
  await run('undrain', ...leave0);
  await more('1');
  const removed = await run('remove-replica', ...leave0, '--idle-ms', '500');
  assert.match(removed, /gets no more lookups/);
  await old[0]!.running.kill();
  await more('1');

  const three = new DeltaSource(place.folder, 3);
  await three.publish(2, 1);
  const wide = await startHost(t, place, 'wide', [0, 1, 2], 3);
  const second = ['--version', '2', '--reason', 'three shards'];
  const said = await run('reshard', ...withRepository, ...second, ...toDataFlags(wide));
  assert.match(said, /all 3 servers of 3 shards have version 2 active/);
  await more('2');
  const narrow = [...withRepository, '--shard-num', '2', '--idle-ms', '500'];
  const kept = await runAgentCommand('fleet', 'retire', ...narrow);
  assert.match(kept.stderr, /would roll back to version 1, which has 2 shards/);
  await run('retire', ...narrow, '--no-return');
  await Promise.all([added, old[1]!].map(({ running }) => running.kill()));
  await more('2');
  await traffic.stop();
  t.diagnostic(`lookups by version: ${JSON.stringify([...traffic.answered])}`);
  const { bundles } = JSON.parse(readFileSync(fleet, 'utf8'));
  assert.deepEqual(
    bundles.ctr.map(({ shardNum }: { shardNum: number }) => shardNum),
    [3],
  );
});
