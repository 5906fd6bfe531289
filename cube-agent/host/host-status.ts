/** What an agent knows of its host, for people, for a controller and for metrics: GET /agent/v1/status. */
import { shardNumOf } from '../../lib/core/manifest.ts';
import { wallClockMs } from '../../lib/platform/clock.ts';
import type { Agent } from './agent.ts';
import type { BundleKeeper } from './bundle-keeper.ts';
import type { ChannelView } from './channel-watch.ts';
import type { Problem } from './host-data.ts';
import type { ServerState } from './plan.ts';
import type { ProcessReport } from './server-processes.ts';
import { serverState } from './server-watch.ts';

interface ChannelStatus {
  readonly channel: string;
  readonly pointer: string | undefined;
  readonly previous: string | undefined;
  /**
   * What every server of this host has of the channel: active for the first channel, held for others. Undefined while one
   * has nothing.
   */
  readonly applied: string | undefined;
  readonly upToDate: boolean;
  /** Since the applied version was first pointed to: the age that its rows have at least. */
  readonly freshnessSeconds: number | undefined;
}

interface FetchStatus {
  readonly version: string;
  readonly table: string;
  readonly contentId: string;
  readonly bytes: number;
  readonly arrivedBytes: number;
  /** Undefined while it waits for its turn, or nothing has come. */
  readonly etaSeconds: number | undefined;
}

interface BundleStatus {
  readonly bundle: string;
  readonly channels: readonly ChannelStatus[];
  /** What a rollout stages. */
  readonly candidate: string | undefined;
  readonly quarantined: readonly string[];
  /** Versions in order of need. */
  readonly wanted: readonly string[];
  readonly onDisk: readonly string[];
  readonly fetching: readonly FetchStatus[];
  /** Of the first channel's pointer: layers of its deepest shard, and since when this host has the oldest base. */
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
  /** Of a server that the agent started. */
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
  /** Of the host, beside those of each bundle. */
  readonly problems: readonly ProblemStatus[];
}

export function hostStatus(agent: Agent): HostStatus {
  const { config } = agent;
  return {
    format: 1,
    at: new Date(wallClockMs()).toISOString(),
    pid: process.pid,
    repository: config.repository,
    dataFolder: config.dataFolder,
    disk: { freeBytes: freeBytes(agent), keepFreeBytes: config.keepFreeBytes },
    bundles: agent.bundles.map((keeper) => bundleStatus(agent, keeper)),
    servers: config.servers.map((address) => serverStatus(agent, address)),
    problems: agent.problems.report(),
  };
}

/** Undefined when the disk cannot be asked: status answers all the same. */
function freeBytes({ fetcher }: Agent): number | undefined {
  try {
    return fetcher.freeBytes();
  } catch {
    return undefined;
  }
}

function bundleStatus(agent: Agent, keeper: BundleKeeper): BundleStatus {
  const { bundle, channels, host, problems } = keeper;
  const transfers = agent.fetcher.transfers.filter((transfer) => transfer.bundle === bundle);
  return {
    bundle,
    channels: channelStatuses(agent, keeper),
    candidate: channels.candidate,
    quarantined: [...(channels.wanted?.quarantined ?? [])],
    wanted: channels.versions,
    onDisk: [...host.scan().versions],
    fetching: transfers.map(({ version, table, contentId, bytes, arrivedBytes, ...rest }) => ({
      ...{ version, table, contentId, bytes, arrivedBytes },
      etaSeconds: etaSeconds(agent, { bytes, arrivedBytes, ...rest }),
    })),
    chain: chainOf(keeper),
    problems: problems.report(),
  };
}

export function channelStatuses(agent: Agent, keeper: BundleKeeper): ChannelStatus[] {
  const { bundle, channels } = keeper;
  const states = agent.servers.known.map((server) => serverState(server, bundle, undefined));
  return keeper.channelNames.map((channel, i) => {
    const view = channels.views.get(channel);
    const applied = view && appliedVersion(view, fitting(keeper, view, states), i === 0);
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

/** The servers that are places for the channel's version. */
function fitting(
  { observer }: BundleKeeper,
  { pointer }: ChannelView,
  states: readonly ServerState[],
): readonly ServerState[] {
  const manifest = pointer === undefined ? undefined : observer.manifest(pointer);
  if (manifest === undefined) return states;
  return states.filter(({ shardNum }) => shardNum === shardNumOf(manifest));
}

/** The oldest of what the servers have. */
function appliedVersion(
  { past }: ChannelView,
  servers: readonly ServerState[],
  isFirst: boolean,
): string | undefined {
  let oldest = -1;
  for (const { active, held } of servers) {
    const has = (version: string): boolean =>
      isFirst ? version === active : held.some((candidate) => candidate.version === version);
    const age = past.findIndex(({ version }) => has(version));
    if (age < 0) return undefined;
    oldest = Math.max(oldest, age);
  }
  return past[oldest]?.version;
}

export function chainOf({ channels, observer, host }: BundleKeeper): BundleStatus['chain'] {
  const pointer = channels.wanted?.pointer;
  const manifest = pointer === undefined ? undefined : observer.manifest(pointer);
  if (manifest === undefined) return undefined;
  let layers = 0;
  let oldestMs = Number.POSITIVE_INFINITY;
  for (const table of manifest.tables) {
    for (const chain of table.shards) {
      layers = Math.max(layers, chain.length);
      const arrivedMs = chain[0] && host.layerArrivedMs(table.name, chain[0].contentId);
      oldestMs = Math.min(oldestMs, arrivedMs ?? oldestMs);
    }
  }
  const isHere = Number.isFinite(oldestMs);
  return {
    layers,
    ageSeconds: isHere ? Math.max(0, (wallClockMs() - oldestMs) / 1000) : undefined,
  };
}

function etaSeconds(
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

function serverStatus(agent: Agent, address: string): ServerStatus {
  const known = agent.servers.known.find((server) => server.address === address);
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
