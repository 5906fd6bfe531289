/** Checks the fleet, the channel's version and the servers' own status against each other. Pure. */
import {
  checkHugePages,
  checkLoadedTables,
  checkServerStatus,
  describeTablesMismatch,
  reportServerError,
  type ServerRemedies,
} from '../../lib/client/server-checks.ts';
import type { CubeError } from '../../lib/core/errors.ts';
import type { ReportFinding } from '../../lib/core/findings.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import { getShardNum, type Manifest } from '../../lib/core/manifest.ts';
import { formatBytes } from '../../lib/platform/terminal-output.ts';
import type { ControlStatus } from '../../proto/control.ts';
import type { ServerLocation } from '../fleet/fleet-view.ts';
import type { CheckTarget } from './check-target.ts';

/** A server of the fleet with its status, or with the error of reading it. */
export type ProbedServer = { readonly location: ServerLocation } & (
  | { readonly status: ControlStatus }
  | { readonly error: CubeError }
);

type RespondingServer = Extract<ProbedServer, { status: ControlStatus }>;

export interface ServerCheckOptions {
  readonly target: CheckTarget;
  readonly fleetFile: string;
  readonly servers: readonly ProbedServer[];
  /** The manifest of the channel's version; undefined if it could not be read. */
  readonly manifest: Manifest | undefined;
}

/** Checks the fleet against the channel's version. */
export function checkFleet(
  fleet: Fleet,
  { target: { bundle }, fleetFile, manifest }: Omit<ServerCheckOptions, 'servers'>,
  report: ReportFinding,
): void {
  const maps = fleet.bundles.get(bundle);
  const fleetOptions = `--fleet ${fleetFile} --bundle ${bundle}`;
  if (maps === undefined) {
    const known = [...fleet.bundles.keys()].join(', ') || 'none';
    report({
      severity: 'error',
      check: 'bundle-not-in-fleet',
      where: fleetFile,
      what: `has no servers of bundle ${bundle} (it has bundles: ${known})`,
      todo: `for each server: cube-agent fleet add-replica ${fleetOptions} --data <host:port>`,
    });
    return;
  }
  if (manifest === undefined) return;
  const shardNum = getShardNum(manifest);
  const shardCounts = maps.map((map) => map.shardNum);
  if (!shardCounts.includes(shardNum)) {
    report({
      severity: 'error',
      check: 'shard-count-absent',
      where: fleetFile,
      what:
        `has servers of ${bundle} for ${shardCounts.join(', ')} shards, ` +
        `but version ${manifest.version} has ${shardNum} shards`,
      todo:
        `start servers with --shard-num ${shardNum} and run cube-agent fleet reshard, ` +
        `or build the version with --shard-num ${shardCounts[0]}`,
    });
  }
  for (const count of shardCounts) {
    if (count === shardNum || maps.length === 1) continue;
    report({
      severity: 'note',
      check: 'second-shard-count',
      where: fleetFile,
      what: `also has servers for ${count} shards; the channel's version has ${shardNum} shards`,
      todo:
        `once no rollback to ${count} shards is needed: ` +
        `cube-agent fleet retire ${fleetOptions} --shard-num ${count}`,
    });
  }
}

export function checkServers(options: ServerCheckOptions, report: ReportFinding): void {
  const remedies = createServerRemedies(options);
  const { servers, manifest, target } = options;
  for (const server of servers) {
    const where = server.location.address;
    const scope = { where, bundle: target.bundle, remedies };
    if ('error' in server) {
      reportServerError(scope, server.error, report);
      continue;
    }
    checkShard(server, options, report);
    checkServerStatus(scope, server.status, report);
    if (manifest !== undefined) checkLoadedTables(scope, server.status, manifest, report);
    checkMemory(server, options, report);
    checkHugePages(where, server.status, report);
  }
  if (manifest === undefined) return;
  const shardNum = getShardNum(manifest);
  const assigned = servers.filter(({ location }) => location.shard?.shardNum === shardNum);
  if (assigned.length === 0) return;
  checkReplicas(assigned, options, manifest, report);
  checkActiveVersions(assigned, options, manifest.version, report);
}

function createServerRemedies({ fleetFile, target }: ServerCheckOptions): ServerRemedies {
  const replica = `--fleet ${fleetFile} --bundle ${target.bundle} --data <its lookup address>`;
  return {
    grantAccess:
      'give the server and its agent a token (cube-server --control-token-file) and pass it to ' +
      'doctor with --control-token-file, or give all of them certificates ' +
      '(--tls-cert, --tls-key, --tls-ca)',
    restart: `restart it, or take it out: cube-agent fleet remove-replica ${replica}`,
    undrain: `cube-agent fleet undrain ${replica}`,
    activate:
      'read what its agent reports with cube-agent status --fleet; ' +
      'restart the agent if it does not run',
    load:
      'nothing if its agent fetches damaged files again and the load succeeds; ' +
      'if memory is short, restart the server with more --memory',
    reload:
      'restart it, and its agent has it load what the repository has; ' +
      'publish different content under another version name',
  };
}

function checkShard(
  { location, status }: RespondingServer,
  { fleetFile }: ServerCheckOptions,
  report: ReportFinding,
): void {
  const { address, shard } = location;
  const { shardIndex, shardNum } = status;
  if (shard === undefined) return;
  if (shard.index === shardIndex && shard.shardNum === shardNum) return;
  report({
    severity: 'error',
    check: 'wrong-shard',
    where: address,
    what:
      `serves shard ${shardIndex} of ${shardNum}, ` +
      `but the fleet has it as shard ${shard.index} of ${shard.shardNum}`,
    todo:
      `restart it with --shard ${shard.index} --shard-num ${shard.shardNum}, ` +
      `or correct ${fleetFile}`,
  });
}

/** While a version is staged, a server has both the active one and the new one in memory. */
function checkMemory(
  { location, status }: RespondingServer,
  { target }: ServerCheckOptions,
  report: ReportFinding,
): void {
  const entry = status.bundles.find(({ bundle }) => bundle === target.bundle);
  const active = entry?.versions.find(({ version }) => version === entry.active);
  const { budgetBytes, usedBytes } = status.memory;
  if (active === undefined || budgetBytes === 0) return;
  const others = usedBytes - (entry?.versions.reduce((sum, { bytes }) => sum + bytes, 0) ?? 0);
  const needed = Math.max(0, others) + 2 * active.bytes;
  if (needed <= budgetBytes) return;
  report({
    severity: 'warning',
    check: 'memory-tight',
    where: location.address,
    what:
      `has too little memory (--memory ${formatBytes(budgetBytes)}) for two versions ` +
      `of ${formatBytes(active.bytes)} each, so it will refuse the next version`,
    todo:
      `restart it with --memory ${Math.ceil((needed + active.bytes) / 2 ** 20)}MiB, ` +
      'which is enough for three versions',
  });
}

function checkReplicas(
  servers: readonly ProbedServer[],
  { target, fleetFile }: ServerCheckOptions,
  manifest: Manifest,
  report: ReportFinding,
): void {
  const shardNum = getShardNum(manifest);
  for (let shard = 0; shard < shardNum; shard++) {
    const own = servers.filter(({ location }) => location.shard?.index === shard);
    if (own.some((server) => hasVersion(server, manifest))) continue;
    const toText = (some: readonly ProbedServer[]): string =>
      some.map(({ location }) => location.address).join(', ');
    const healthy = own.filter(isHealthy);
    report({
      severity: 'error',
      check: 'shard-without-replica',
      where: `shard ${shard} of ${shardNum}`,
      what: `none of its servers (${own.length}) can answer with version ${manifest.version}`,
      todo:
        healthy.length > 0
          ? `solve what keeps the version from ${toText(healthy)}, which would keep it from ` +
            'another server too: see layer-damaged and agent-problem, and cube-agent status --fleet'
          : `${own.length === 1 ? 'restore' : 'restore one of'} ${toText(own)}, or add a server: ` +
            `cube-agent fleet add-replica --fleet ${fleetFile} --bundle ${target.bundle} ` +
            '--data <host:port>',
    });
  }
}

/** Whether a server answers and serves its shard, whatever its versions. */
function isHealthy(server: ProbedServer): boolean {
  if ('error' in server || server.status.draining) return false;
  const { shard } = server.location;
  return shard?.index === server.status.shardIndex && shard.shardNum === server.status.shardNum;
}

function hasVersion(server: ProbedServer, manifest: Manifest): boolean {
  if ('error' in server) return false;
  const { location, status } = server;
  if (describeTablesMismatch(status, manifest) !== undefined || status.draining) return false;
  const { shard } = location;
  if (shard?.index !== status.shardIndex || shard.shardNum !== status.shardNum) return false;
  const entry = status.bundles.find(({ bundle }) => bundle === manifest.bundle);
  return entry?.versions.some(({ version }) => version === manifest.version) ?? false;
}

/** Lookups that name a version are not affected: different active versions show who is behind. */
function checkActiveVersions(
  servers: readonly ProbedServer[],
  { target }: ServerCheckOptions,
  version: string,
  report: ReportFinding,
): void {
  const addressesByVersion = new Map<string, string[]>();
  for (const server of servers) {
    if ('error' in server) continue;
    const entry = server.status.bundles.find(({ bundle }) => bundle === target.bundle);
    const active = entry?.active ?? '';
    if (active === '') continue;
    const addresses = addressesByVersion.get(active) ?? [];
    addressesByVersion.set(active, [...addresses, server.location.address]);
  }
  if (addressesByVersion.size > 1) {
    const list = [...addressesByVersion].map(
      ([active, addresses]) => `version ${active} on ${addresses.join(', ')}`,
    );
    report({
      severity: 'error',
      check: 'versions-mixed',
      where: target.bundle,
      what: `servers have different active versions: ${list.join('; ')}`,
      todo:
        'wait if a rollout is in progress; otherwise find the agent that is behind with ' +
        'cube-agent status --fleet',
    });
  } else if (addressesByVersion.size === 1 && !addressesByVersion.has(version)) {
    const [active] = addressesByVersion.keys();
    report({
      severity: 'error',
      check: 'behind',
      where: target.bundle,
      what:
        `all servers have version ${active} active, ` +
        `but channel ${target.channel} points to version ${version}`,
      todo:
        'read what the agents report with cube-agent status --fleet; they poll by themselves, ' +
        'so restart those that report nothing',
    });
  }
}
