/**
 * Changes the number of shards under traffic. New servers are started beside the old ones, a
 * version built for them is staged there, and the channel moves. The old servers are retired once
 * no channel can roll back to them. A lookup names its version, and the version its shard count, so
 * a lookup never mixes old and new servers.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { getShardNum } from '../../lib/core/manifest.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { type FleetChangeContext, waitUntilIdle } from './fleet-changes.ts';
import { FleetDocument, type ReplicaEntry } from './fleet-document.ts';
import { listServers, waitForVersion } from './fleet-view.ts';
import { assignServersToShards } from './init-fleet.ts';

export interface ReshardRequest {
  readonly repository: Repository;
  readonly channel: string;
  readonly version: string;
  readonly by: string;
  readonly reason: string;
  /** The new servers, at least one per shard. Empty when fleet.json already lists them. */
  readonly replicas: readonly ReplicaEntry[];
}

export async function reshard(context: FleetChangeContext, request: ReshardRequest): Promise<void> {
  const { path, bundle, timeoutMs, credentials, clock, dryRun, report } = context;
  const { repository, channel, version, by, reason } = request;
  const manifest = await repository.readManifest(bundle, version);
  const shardNum = getShardNum(manifest);
  await addServers(context, request, shardNum);
  if (dryRun) {
    report(`would stage version ${version} there and point channel ${channel} to it`);
    return;
  }
  const servers = listServers(FleetDocument.read(path).fleet, bundle, shardNum);
  const wait = { manifest, timeoutMs, credentials };
  await repository.activate(bundle, CANDIDATE_CHANNEL, { version, by, reason });
  report(`version ${version} is being staged on ${servers.length} servers of ${shardNum} shards`);
  await waitForVersion(servers, { ...wait, until: 'held' }, clock);
  const entry = await repository.activate(bundle, channel, { version, by, reason });
  report(`channel ${channel} points to version ${version} (entry ${entry.seq})`);
  await waitForVersion(servers, { ...wait, until: 'active' }, clock);
  report(`all ${servers.length} servers of ${shardNum} shards have version ${version} active`);
}

/** Adds the new servers. They get no lookups before a version of their shard count is active. */
async function addServers(
  context: FleetChangeContext,
  { replicas }: ReshardRequest,
  shardNum: number,
): Promise<void> {
  const { path, bundle, dryRun, report } = context;
  const document = FleetDocument.readOrCreate(path);
  const known = document.fleet.bundles.get(bundle)?.some((map) => map.shardNum === shardNum);
  if (known) {
    report(`${path} already lists servers of ${shardNum} shards`);
    return;
  }
  const shards = await assignServersToShards(context, replicas, shardNum);
  if (!dryRun) document.addShardMap(bundle, shards);
  report(`added ${replicas.length} servers of ${shardNum} shards to ${path}`);
}

/** Removes the servers of a shard count and waits until they get no more lookups. */
export async function retire(
  context: FleetChangeContext,
  request: { repository: Repository; shardNum: number; idleMs: number; noReturn: boolean },
): Promise<void> {
  const { path, bundle, dryRun, report } = context;
  const { repository, shardNum, idleMs, noReturn } = request;
  const document = FleetDocument.read(path);
  const servers = listServers(document.fleet, bundle, shardNum);
  await requireUnused(repository, bundle, shardNum, noReturn);
  if (dryRun) {
    report(`${servers.length} servers of ${shardNum} shards can be removed`);
    return;
  }
  document.removeShardMap(bundle, shardNum);
  report(
    `removed ${servers.length} servers of ${shardNum} shards from ${path}; ` +
      'waiting until they get no more lookups',
  );
  const controls = servers.map(({ address }) => address);
  await waitUntilIdle(context, controls, idleMs);
  report(`they get no more lookups and may be stopped (${controls.join(', ')})`);
}

/** @throws CubeError CONFLICT while a channel points, or could roll back, to that shard count */
async function requireUnused(
  repository: Repository,
  bundle: string,
  shardNum: number,
  noReturn: boolean,
): Promise<void> {
  const hasCount = async (version: string | undefined): Promise<boolean> =>
    version !== undefined &&
    getShardNum(await repository.readManifest(bundle, version)) === shardNum;
  for (const channel of await repository.listChannels(bundle)) {
    const { pointer, previous } = await repository.readChannel(bundle, channel);
    if (await hasCount(pointer?.version)) {
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} points to version ${pointer?.version}, which has ${shardNum} shards ` +
          'and needs these servers',
      );
    }
    if (noReturn || channel === CANDIDATE_CHANNEL || !(await hasCount(previous?.version))) continue;
    throw new CubeError(
      'CONFLICT',
      `channel ${channel} would roll back to version ${previous?.version}, which has ${shardNum} ` +
        'shards: activate another version of the new shard count first, or use --no-return',
    );
  }
}
