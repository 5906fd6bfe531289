/** The fleet as a rollout sees it: servers and agents by fleet.json, serving processes by their metrics, the gate by its command. */
import type { Fleet } from '../../lib/core/fleet.ts';
import { shardMapOf } from '../../lib/core/fleet.ts';
import { shardNumOf } from '../../lib/core/manifest.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { Credentials } from '../../lib/rpc/credentials.ts';
import { agentProblems, type HostProblem, pokeAgents } from '../fleet/agent-client.ts';
import { agentsOf, askServers, type ServerReport, serversOf } from '../fleet/fleet-view.ts';
import type { RolloutFleet } from './rollout-driver.ts';
import type { GateOutcome, ReplicaView, Sickness } from './rollout-view.ts';
import { type HealthLimits, liveCounts, sicknessOf } from './version-health.ts';

export interface LiveFleetOptions {
  readonly repository: Repository;
  readonly bundle: string;
  /** Read again for every look: replicas come and go. */
  readonly fleet: () => Fleet;
  readonly serving: readonly string[];
  readonly health: HealthLimits;
  readonly gate: (version: string, active: string | undefined) => Promise<GateOutcome>;
  readonly toServers: Credentials;
  readonly toAgents: Credentials;
  readonly logger: Logger;
}

export class LiveFleet implements RolloutFleet {
  readonly #options: LiveFleetOptions;

  constructor(options: LiveFleetOptions) {
    this.#options = options;
  }

  /** @throws CubeError NOT_FOUND when the fleet has no servers for the version's number of shards */
  async replicas(version: string): Promise<ReplicaView[][]> {
    const { repository, bundle, toServers, toAgents } = this.#options;
    const manifest = await repository.manifest(bundle, version);
    const shardNum = shardNumOf(manifest);
    const fleet = this.#options.fleet();
    const places = serversOf(fleet, bundle, shardNum);
    const reports = await askServers(places, bundle, toServers, manifest);
    const byAddress = new Map(reports.map((report) => [report.address, report]));
    const isStaged = reports.every(({ held }) => held.includes(version));
    const agents = isStaged ? [] : agentsOf(fleet, bundle);
    const told = await Promise.all(
      agents.map(async (agent) => [agent, await agentProblems(agent, bundle, toAgents)] as const),
    );
    const problems = new Map(told);
    return shardMapOf(fleet, bundle, shardNum).shards.map((replicas) =>
      replicas.map(({ control, agent }) =>
        replicaView(byAddress.get(control)!, version, problems.get(agent ?? '') ?? []),
      ),
    );
  }

  gate(version: string, active: string | undefined): Promise<GateOutcome> {
    return this.#options.gate(version, active);
  }

  async sickness(version: string, before: string | undefined): Promise<Sickness | undefined> {
    const { serving, bundle, health, logger } = this.#options;
    if (serving.length === 0) return undefined;
    const counts = await liveCounts(serving, bundle, logger);
    const other = before === undefined ? undefined : counts.get(before);
    return sicknessOf(counts.get(version), other, health);
  }

  moved(): Promise<void> {
    const { bundle, toAgents } = this.#options;
    return pokeAgents(agentsOf(this.#options.fleet(), bundle), toAgents);
  }
}

function replicaView(
  { address, held, active, loading, trouble }: ServerReport,
  version: string,
  problems: readonly HostProblem[],
): ReplicaView {
  const concerning = problems.filter(({ what }) => what.split(' ').includes(version));
  const texts = [...trouble, ...concerning.map(({ what, message }) => `${what}: ${message}`)];
  if (loading.includes(version)) texts.push('loads it');
  return {
    address,
    holds: held.includes(version),
    isActive: active === version,
    damaged: damagedLayers(concerning),
    trouble: texts.join('; '),
  };
}

/** Of an agent's problems, which it calls "fetch <version> <table>/<contentId>". */
export function damagedLayers(problems: readonly Pick<HostProblem, 'what' | 'code'>[]): string[] {
  return problems.flatMap(({ what, code }) => {
    const [doing, , layer] = what.split(' ');
    return doing === 'fetch' && code === 'CORRUPT' && layer !== undefined ? [layer] : [];
  });
}
