/** The status of a host, as JSON (GET /agent/v1/status) and for metrics. */
import { getShardNum } from '../../lib/core/manifest.ts';
import { wallClockMs } from '../../lib/platform/clock.ts';
import type { Problem } from '../fleet/problem.ts';
import type { Agent } from './agent.ts';
import type { BundleReconciler } from './bundle-reconciler.ts';
import type { ChannelSnapshot } from './channel-monitor.ts';
import type { ServerState } from './plan.ts';
import { toServerState } from './server-monitor.ts';
import type { ProcessReport } from './server-processes.ts';

interface ChannelStatus {
  readonly channel: string;
  readonly pointer: string | undefined;
  readonly previous: string | undefined;
  /**
   * The oldest version of the channel among the servers: active for the first channel, loaded for
   * others. Undefined while a server has none.
   */
  readonly applied: string | undefined;
  readonly upToDate: boolean;
  /** Since the channel first pointed to the applied version: the minimum age of its rows. */
  readonly freshnessSeconds: number | undefined;
}

interface FetchStatus {
  readonly version: string;
  readonly table: string;
  readonly contentId: string;
  readonly bytes: number;
  readonly arrivedBytes: number;
  /** Undefined while the transfer waits, or no byte has arrived. */
  readonly etaSeconds: number | undefined;
}

interface BundleStatus {
  readonly bundle: string;
  readonly channels: readonly ChannelStatus[];
  /** The version that a rollout stages. */
  readonly candidate: string | undefined;
  readonly quarantined: readonly string[];
  /** Desired versions, most important first. */
  readonly wanted: readonly string[];
  readonly onDisk: readonly string[];
  readonly fetching: readonly FetchStatus[];
  /**
   * The first channel's version: its longest chain, and the age of its oldest base on this host.
   */
  readonly chain: { readonly layers: number; readonly ageSeconds: number | undefined } | undefined;
  readonly problems: readonly ProblemStatus[];
}

interface ProblemStatus extends Problem {
  readonly nextTrySeconds: number;
}

interface ServerStatus {
  readonly address: string;
  readonly answers: boolean;
  readonly ready: boolean;
  readonly shardIndex: number | undefined;
  readonly shardNum: number | undefined;
  readonly pid: number | undefined;
  readonly bundles: readonly {
    readonly bundle: string;
    readonly active: string | undefined;
    readonly held: readonly string[];
    readonly loading: readonly string[];
  }[];
  /** Only for a server that the agent runs itself. */
  readonly process: ProcessReport | undefined;
}

export interface HostStatus {
  readonly format: 1;
  readonly at: string;
  readonly pid: number;
  readonly repository: string;
  readonly dataFolder: string;
  readonly disk: { readonly freeBytes: number | undefined; readonly keepFreeBytes: number };
  readonly bundles: readonly BundleStatus[];
  readonly servers: readonly ServerStatus[];
  /** Problems of the host as a whole. */
  readonly problems: readonly ProblemStatus[];
}

export function buildHostStatus(agent: Agent): HostStatus {
  const { config } = agent;
  return {
    format: 1,
    at: new Date(wallClockMs()).toISOString(),
    pid: process.pid,
    repository: config.repository,
    dataFolder: config.dataFolder,
    disk: { freeBytes: readFreeBytes(agent), keepFreeBytes: config.keepFreeBytes },
    bundles: agent.bundles.map((keeper) => buildBundleStatus(agent, keeper)),
    servers: config.servers.map((address) => buildServerStatus(agent, address)),
    problems: agent.problems.toStatus(),
  };
}

/** Undefined when the disk cannot be read: the status is reported anyway. */
function readFreeBytes({ fetcher }: Agent): number | undefined {
  try {
    return fetcher.freeBytes();
  } catch {
    return undefined;
  }
}

function buildBundleStatus(agent: Agent, keeper: BundleReconciler): BundleStatus {
  const { bundle, channels, data, problems } = keeper;
  const transfers = agent.fetcher.transfers.filter((transfer) => transfer.bundle === bundle);
  return {
    bundle,
    channels: listChannelStatuses(agent, keeper),
    candidate: channels.candidate,
    quarantined: [...(channels.desired?.quarantined ?? [])],
    wanted: channels.desiredVersions,
    onDisk: [...data.scan().versions],
    fetching: transfers.map(({ version, table, contentId, bytes, arrivedBytes, ...rest }) => ({
      version,
      table,
      contentId,
      bytes,
      arrivedBytes,
      etaSeconds: estimateSecondsLeft(agent, { bytes, arrivedBytes, ...rest }),
    })),
    chain: getChainStatus(keeper),
    problems: problems.toStatus(),
  };
}

export function listChannelStatuses(agent: Agent, keeper: BundleReconciler): ChannelStatus[] {
  const { bundle, channels } = keeper;
  const states = agent.servers.snapshots.map((server) => toServerState(server, bundle, undefined));
  return keeper.channelNames.map((channel, i) => {
    const view = channels.snapshots.get(channel);
    const applied =
      view && findAppliedVersion(view, filterCapableServers(keeper, view, states), i === 0);
    const at = Date.parse(view?.past.find(({ version }) => version === applied)?.at ?? '');
    return {
      channel,
      pointer: view?.pointer,
      previous: view?.previous,
      applied,
      upToDate: applied !== undefined && applied === view?.pointer,
      freshnessSeconds: Number.isNaN(at) ? undefined : Math.max(0, (wallClockMs() - at) / 1000),
    };
  });
}

/** The servers of the shard count of the channel's version. */
function filterCapableServers(
  { observer }: BundleReconciler,
  { pointer }: ChannelSnapshot,
  states: readonly ServerState[],
): readonly ServerState[] {
  const manifest = pointer === undefined ? undefined : observer.manifest(pointer);
  if (manifest === undefined) return states;
  return states.filter(({ shardNum }) => shardNum === getShardNum(manifest));
}

/** The oldest version among those that the servers have. */
function findAppliedVersion(
  { past }: ChannelSnapshot,
  servers: readonly ServerState[],
  isFirst: boolean,
): string | undefined {
  let oldest = -1;
  for (const { active, loaded } of servers) {
    const has = (version: string): boolean =>
      isFirst ? version === active : loaded.some((candidate) => candidate.version === version);
    const age = past.findIndex(({ version }) => has(version));
    if (age < 0) return undefined;
    oldest = Math.max(oldest, age);
  }
  return past[oldest]?.version;
}

export function getChainStatus({
  channels,
  observer,
  data,
}: BundleReconciler): BundleStatus['chain'] {
  const pointer = channels.desired?.pointer;
  const manifest = pointer === undefined ? undefined : observer.manifest(pointer);
  if (manifest === undefined) return undefined;
  let layers = 0;
  let oldestMs = Number.POSITIVE_INFINITY;
  for (const table of manifest.tables) {
    for (const chain of table.shards) {
      layers = Math.max(layers, chain.length);
      const arrivedMs = chain[0] && data.layerArrivedMs(table.name, chain[0].contentId);
      oldestMs = Math.min(oldestMs, arrivedMs ?? oldestMs);
    }
  }
  const isHere = Number.isFinite(oldestMs);
  return {
    layers,
    ageSeconds: isHere ? Math.max(0, (wallClockMs() - oldestMs) / 1000) : undefined,
  };
}

function estimateSecondsLeft(
  agent: Agent,
  transfer: {
    bytes: number;
    arrivedBytes: number;
    resumedBytes: number;
    startMs?: number | undefined;
  },
): number | undefined {
  const { bytes, arrivedBytes, resumedBytes, startMs } = transfer;
  const fresh = arrivedBytes - resumedBytes;
  if (startMs === undefined || fresh <= 0) return undefined;
  return (((bytes - arrivedBytes) / fresh) * (agent.nowMs() - startMs)) / 1000;
}

function buildServerStatus(agent: Agent, address: string): ServerStatus {
  const known = agent.servers.snapshots.find((server) => server.address === address);
  const { status } = known ?? {};
  return {
    address,
    answers: known?.answers ?? false,
    ready: (known?.answers && status?.ready) ?? false,
    shardIndex: status?.shardIndex,
    shardNum: status?.shardNum,
    pid: status?.pid,
    bundles: (status?.bundles ?? []).map(({ bundle, active, versions }) => ({
      bundle,
      active: active === '' ? undefined : active,
      held: versions.map(({ version }) => version),
      loading: (status?.loading ?? [])
        .filter((load) => load.bundle === bundle)
        .map(({ version }) => version),
    })),
    process: agent.processes.report(address),
  };
}
