/** Creates the fleet.json of a bundle: running servers report which shard they serve. */
import { CubeError } from '../../lib/core/errors.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';
import { type FleetChangeContext, getControlAddress, readServerStatus } from './fleet-changes.ts';
import { FleetDocument, type ReplicaEntry } from './fleet-document.ts';

/**
 * @param servers at least one for every shard
 * @param agents each is assigned to the servers of its host
 * @throws CubeError CONFLICT when the file already lists servers of the bundle
 */
export async function initFleet(
  context: FleetChangeContext,
  servers: readonly string[],
  agents: readonly string[],
): Promise<void> {
  const { path, bundle, dryRun, report } = context;
  const document = FleetDocument.readOrCreate(path);
  if (document.fleet.bundles.has(bundle)) {
    throw new CubeError(
      'CONFLICT',
      `${path} already lists servers of ${bundle}: ` +
        'add one with "cube-agent fleet add-replica", or ' +
        'change the number of shards with "cube-agent fleet reshard"',
    );
  }
  const shards = await assignServersToShards(context, addAgents(servers, agents));
  if (!dryRun) document.addShardMap(bundle, shards);
  report(`${servers.length} servers of ${shards.length} shards are in ${path}`);
}

/**
 * Asks each server for its shard.
 * @param shardNum undefined: the shard count of the first server
 * @throws CubeError INVALID_ARGUMENT naming a server of another shard count, or a missing shard
 */
export async function assignServersToShards(
  context: FleetChangeContext,
  entries: readonly ReplicaEntry[],
  shardNum?: number,
): Promise<ReplicaEntry[][]> {
  const shards: ReplicaEntry[][] = Array.from({ length: shardNum ?? 0 }, () => []);
  for (const entry of entries) {
    const status = await readServerStatus(context, getControlAddress(entry));
    if (shards.length === 0) shards.push(...Array.from({ length: status.shardNum }, () => []));
    if (status.shardNum !== shards.length) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${entry.data} serves shard ${status.shardIndex} of ${status.shardNum}, not one of ` +
          `${shards.length}: start servers with --shard-num ${shards.length}, or build a version ` +
          `with cube-builder --shard-num ${status.shardNum}`,
      );
    }
    shards[status.shardIndex]?.push(entry);
  }
  const missing = shards.flatMap((replicas, shard) => (replicas.length === 0 ? [shard] : []));
  if (missing.length > 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `no server was given for shard ${missing.join(', ')} ` +
        `of ${shards.length}: ` +
        `start cube-server --shard <index> --shard-num ${shards.length}, and list each with --data`,
    );
  }
  return shards;
}

function addAgents(servers: readonly string[], agents: readonly string[]): ReplicaEntry[] {
  const byHost = new Map<string, string>();
  for (const agent of agents) {
    const { host } = parseEndpoint(agent);
    const other = byHost.get(host);
    if (other !== undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `--agent ${other} and ${agent} are on the same host: give one, and edit the file for the ` +
          'other',
      );
    }
    byHost.set(host, agent);
  }
  return servers.map((data) => {
    const agent = byHost.get(parseEndpoint(data).host);
    return agent === undefined ? { data } : { data, agent };
  });
}
