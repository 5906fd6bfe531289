/**
 * Another number of shards under traffic: new servers come up beside the old ones, a version built for them is staged there, the
 * channel moves, the old ones go when nothing leads back to them. Lookups name their version, and the version its shard count, so
 * both kinds of servers are asked by whoever means them, and nobody in between.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { shardNumOf } from '../../lib/core/manifest.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { FleetDocument, type ReplicaEntry } from './fleet-document.ts';
import { type MoveContext, waitIdle } from './fleet-moves.ts';
import { serversOf, waitForVersion } from './fleet-view.ts';
import { placeServers } from './init-fleet.ts';

export interface ReshardWish {
  readonly repository: Repository;
  readonly channel: string;
  readonly version: string;
  readonly by: string;
  readonly reason: string;
  /** The new servers: together all shards of the version's count. Empty when the fleet names them already. */
  readonly replicas: readonly ReplicaEntry[];
}

export async function reshard(context: MoveContext, wish: ReshardWish): Promise<void> {
  const { path, bundle, timeoutMs, credentials, clock, dryRun, say } = context;
  const { repository, channel, version, by, reason } = wish;
  const manifest = await repository.manifest(bundle, version);
  const shardNum = shardNumOf(manifest);
  await addServers(context, wish, shardNum);
  if (dryRun) {
    say(`version ${version} would be staged there, and channel ${channel} point to it`);
    return;
  }
  const places = serversOf(FleetDocument.read(path).fleet, bundle, shardNum);
  const order = { manifest, timeoutMs, credentials };
  await repository.activate(bundle, CANDIDATE_CHANNEL, { version, by, reason });
  say(`version ${version} is being staged on ${places.length} servers of ${shardNum} shards`);
  await waitForVersion(places, { ...order, until: 'held' }, clock);
  const entry = await repository.activate(bundle, channel, { version, by, reason });
  say(`channel ${channel} points to version ${version} (entry ${entry.seq})`);
  await waitForVersion(places, { ...order, until: 'active' }, clock);
  say(`all ${places.length} servers of ${shardNum} shards have version ${version} active`);
}

/** Puts the new servers into the fleet beside the others: nobody asks them before a version of their shard count is wanted. */
async function addServers(
  context: MoveContext,
  { replicas }: ReshardWish,
  shardNum: number,
): Promise<void> {
  const { path, bundle, dryRun, say } = context;
  const document = FleetDocument.readOrBegin(path);
  const known = document.fleet.bundles.get(bundle)?.some((map) => map.shardNum === shardNum);
  if (known) {
    say(`${path} names servers of ${shardNum} shards already`);
    return;
  }
  const shards = await placeServers(context, replicas, shardNum);
  if (!dryRun) document.addMap(bundle, shards);
  say(`${replicas.length} servers of ${shardNum} shards are in ${path}`);
}

/** Takes the servers of a shard count out; done when nobody asks them any more. */
export async function retire(
  context: MoveContext,
  wish: { repository: Repository; shardNum: number; idleMs: number; noReturn: boolean },
): Promise<void> {
  const { path, bundle, dryRun, say } = context;
  const { repository, shardNum, idleMs, noReturn } = wish;
  const document = FleetDocument.read(path);
  const places = serversOf(document.fleet, bundle, shardNum);
  await requireUnwanted(repository, bundle, shardNum, noReturn);
  if (dryRun) {
    say(`${places.length} servers of ${shardNum} shards can go`);
    return;
  }
  document.removeMap(bundle, shardNum);
  say(
    `${places.length} servers of ${shardNum} shards are out of ${path}; waiting until nobody asks them`,
  );
  const controls = places.map(({ address }) => address);
  await waitIdle(context, controls, idleMs);
  say(`nobody asks them any more: they may be stopped (${controls.join(', ')})`);
}

/** @throws CubeError CONFLICT while a channel points to a version of that shard count, or would go back to one */
async function requireUnwanted(
  repository: Repository,
  bundle: string,
  shardNum: number,
  noReturn: boolean,
): Promise<void> {
  const hasCount = async (version: string | undefined): Promise<boolean> =>
    version !== undefined && shardNumOf(await repository.manifest(bundle, version)) === shardNum;
  for (const channel of await repository.channels(bundle)) {
    const { pointer, previous } = await repository.channel(bundle, channel);
    if (await hasCount(pointer?.version)) {
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} points to version ${pointer?.version}, which has ${shardNum} shards: these servers answer for it`,
      );
    }
    if (noReturn || channel === CANDIDATE_CHANNEL || !(await hasCount(previous?.version))) continue;
    throw new CubeError(
      'CONFLICT',
      `channel ${channel} would go back to version ${previous?.version}, which has ${shardNum} shards: ` +
        'activate another version of the new count first, or say --no-return',
    );
  }
}
