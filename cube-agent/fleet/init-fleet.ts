/** The first fleet.json of a bundle: servers that run say themselves which shard they are. */
import { CubeError } from '../../lib/core/errors.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';
import { FleetDocument, type ReplicaEntry } from './fleet-document.ts';
import { controlOf, type MoveContext, statusOf } from './fleet-moves.ts';

/**
 * @param servers of every shard at least one
 * @param agents each stands beside the servers of its host
 * @throws CubeError CONFLICT when the file names servers of the bundle already
 */
export async function initFleet(
  context: MoveContext,
  servers: readonly string[],
  agents: readonly string[],
): Promise<void> {
  const { path, bundle, dryRun, say } = context;
  const document = FleetDocument.readOrBegin(path);
  if (document.fleet.bundles.has(bundle)) {
    throw new CubeError(
      'CONFLICT',
      `${path} names servers of ${bundle} already: "fleet add-replica" puts one beside them, "fleet reshard" another number of shards`,
    );
  }
  const shards = await placeServers(context, withAgents(servers, agents));
  if (!dryRun) document.addMap(bundle, shards);
  say(`${servers.length} servers of ${shards.length} shards are in ${path}`);
}

/** Asks each server for its shard. @param shardNum undefined: as the first one says @throws CubeError INVALID_ARGUMENT naming who or what does not fit */
export async function placeServers(
  context: MoveContext,
  entries: readonly ReplicaEntry[],
  shardNum?: number,
): Promise<ReplicaEntry[][]> {
  const shards: ReplicaEntry[][] = Array.from({ length: shardNum ?? 0 }, () => []);
  for (const entry of entries) {
    const status = await statusOf(context, controlOf(entry));
    if (shards.length === 0) shards.push(...Array.from({ length: status.shardNum }, () => []));
    if (status.shardNum !== shards.length) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${entry.data} serves shard ${status.shardIndex} of ${status.shardNum}, not one of ${shards.length}: ` +
          `start servers with --shard-num ${shards.length}, or build a version with cube-builder --shard-num ${status.shardNum}`,
      );
    }
    shards[status.shardIndex]?.push(entry);
  }
  const missing = shards.flatMap((placed, shard) => (placed.length === 0 ? [shard] : []));
  if (missing.length > 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `no server was given for shard ${missing.join(', ')} of ${shards.length}: ` +
        `start cube-server --shard <index> --shard-num ${shards.length}, and name each with --data`,
    );
  }
  return shards;
}

function withAgents(servers: readonly string[], agents: readonly string[]): ReplicaEntry[] {
  const byHost = new Map<string, string>();
  for (const agent of agents) {
    const { host } = parseEndpoint(agent);
    const other = byHost.get(host);
    if (other !== undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `--agent ${other} and ${agent} are on one host: name one, and put the other into the file by hand`,
      );
    }
    byHost.set(host, agent);
  }
  return servers.map((data) => {
    const agent = byHost.get(parseEndpoint(data).host);
    return agent === undefined ? { data } : { data, agent };
  });
}
