/**
 * The fleet of a rollout: servers and agents from fleet.json, serving processes by their metrics,
 * the gate as a child process.
 */
import { type Fleet, findShardMap } from '../../lib/core/fleet.ts';
import { getShardNum } from '../../lib/core/manifest.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { fetchHostProblems, type HostProblem, pokeAgents } from '../fleet/agent-client.ts';
import {
  fetchServerReports,
  listAgents,
  listServers,
  type ServerReport,
} from '../fleet/fleet-view.ts';
import type { ProblemFields } from '../fleet/problem.ts';
import type { RolloutFleet } from './rollout-driver.ts';
import type { GateOutcome, HealthFailure, ReplicaView } from './rollout-view.ts';
import {
  checkHealth,
  collectCounts,
  type HealthLimits,
  type HealthReadings,
  readHealth,
} from './version-health.ts';

export interface LiveFleetOptions {
  readonly repository: Repository;
  readonly bundle: string;
  /** Called for every inspection, since replicas are added and removed. */
  readonly fleet: () => Fleet;
  readonly serving: readonly string[];
  readonly health: HealthLimits;
  readonly gate: RolloutFleet['gate'];
  readonly serverCredentials: Credentials;
  readonly agentCredentials: Credentials;
  readonly logger: Logger;
}

export class LiveFleet implements RolloutFleet {
  /** Only of versions that are served, which are few. */
  readonly readings: Map<string, HealthReadings> = new Map();
  readonly #options: LiveFleetOptions;

  constructor(options: LiveFleetOptions) {
    this.#options = options;
  }

  /** @throws CubeError NOT_FOUND when the fleet has no servers of the version's shard count */
  async replicas(version: string): Promise<ReplicaView[][]> {
    const { repository, bundle, serverCredentials, agentCredentials } = this.#options;
    const manifest = await repository.readManifest(bundle, version);
    const shardNum = getShardNum(manifest);
    const fleet = this.#options.fleet();
    const servers = listServers(fleet, bundle, shardNum);
    const reports = await fetchServerReports(servers, bundle, serverCredentials, manifest);
    const byAddress = new Map(reports.map((report) => [report.address, report]));
    const isStaged = reports.every(({ held }) => held.includes(version));
    const agents = isStaged ? [] : listAgents(fleet, bundle);
    const problems = new Map(
      await Promise.all(
        agents.map(async (agent) => {
          return [agent, await fetchHostProblems(agent, bundle, agentCredentials)] as const;
        }),
      ),
    );
    return findShardMap(fleet, bundle, shardNum).shards.map((replicas) =>
      replicas.flatMap(({ control, agent }) => {
        const report = byAddress.get(control);
        return report ? [toReplicaView(report, version, problems.get(agent ?? '') ?? [])] : [];
      }),
    );
  }

  gate(version: string, active: string | undefined, by?: string): Promise<GateOutcome> {
    return this.#options.gate(version, active, by);
  }

  async checkHealth(
    version: string,
    before: string | undefined,
  ): Promise<HealthFailure | undefined> {
    const { serving, bundle, health, logger } = this.#options;
    if (serving.length === 0) return undefined;
    const counts = await collectCounts(serving, bundle, logger);
    const baseline = before === undefined ? undefined : counts.get(before);
    const readings = readHealth(counts.get(version), baseline, health);
    if (readings !== undefined) this.readings.set(version, readings);
    return checkHealth(counts.get(version), baseline, health);
  }

  notifyChannelMoved(): Promise<void> {
    const { bundle, agentCredentials } = this.#options;
    return pokeAgents(listAgents(this.#options.fleet(), bundle), agentCredentials);
  }
}

/** @param hostProblems problems of the replica's host, for all versions of the bundle */
export function toReplicaView(
  report: ServerReport,
  version: string,
  hostProblems: readonly HostProblem[],
): ReplicaView {
  const { address, held, active, loading, trouble } = report;
  // A problem of an older agent has no fields: it may concern this version, so its text is shown.
  const related = hostProblems.filter(
    (problem) => problem.action === undefined || problem.version === version,
  );
  const texts = [...trouble, ...related.map(({ what, message }) => `${what}: ${message}`)];
  if (loading.includes(version)) texts.push('loading it');
  return {
    address,
    holds: held.includes(version),
    isActive: active === version,
    damaged: listDamagedLayers(related),
    problems: [...report.problems, ...related.map(toProblemFields)],
    trouble: texts.join('; '),
  };
}

function toProblemFields(problem: HostProblem): ProblemFields {
  const { action, version, table, contentId, server, code, message } = problem;
  return { action, version, table, contentId, server, code, message };
}

/** Layers, as table/contentId, that failed their checksum when a host fetched them. */
export function listDamagedLayers(problems: readonly ProblemFields[]): string[] {
  return problems.flatMap(({ action, code, table, contentId }) =>
    action === 'fetch' && code === 'CORRUPT' && table !== undefined
      ? [`${table}/${contentId}`]
      : [],
  );
}
