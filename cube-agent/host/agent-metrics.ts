/** The metrics of an agent. deploy/prometheus/alerts.yaml has alerts on them. */
import { MetricsRegistry } from '../../lib/platform/metrics.ts';
import type { Agent } from './agent.ts';
import { getChainStatus, listChannelStatuses } from './host-status.ts';

export function createAgentMetrics(agent: Agent): MetricsRegistry {
  const metrics = new MetricsRegistry();
  addChannelMetrics(metrics, agent);
  addChainMetrics(metrics, agent);
  addDiskMetrics(metrics, agent);
  metrics.collectedGauge({
    name: 'hypercube_agent_problems',
    help: 'Operations that fail and have not succeeded since; bundle "" is the host itself.',
    labels: ['bundle'],
    collect: (set) => {
      set({ bundle: '' }, agent.problems.list().length);
      for (const { bundle, problems } of agent.bundles) set({ bundle }, problems.list().length);
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_agent_server_up',
    help: '1 if the server answers its agent.',
    labels: ['server'],
    collect: (set) => {
      for (const server of agent.config.servers) {
        const known = agent.servers.snapshots.find(({ address }) => address === server);
        set({ server }, known?.answers ? 1 : 0);
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_agent_server_version',
    help: '1 for each loaded version of a server; state "active" or "held" (loaded, not active).',
    labels: ['server', 'bundle', 'version', 'state'],
    collect: (set) => {
      for (const { address: server, status } of agent.servers.snapshots) {
        for (const { bundle, active, versions } of status.bundles) {
          for (const { version } of versions) {
            set({ server, bundle, version, state: version === active ? 'active' : 'held' }, 1);
          }
        }
      }
    },
  });
  metrics.collectedCounter({
    name: 'hypercube_agent_server_starts_total',
    help: 'Starts of servers that the agent runs itself.',
    labels: ['server'],
    collect: (set) => {
      for (const server of agent.config.servers) {
        const report = agent.processes.report(server);
        if (report !== undefined) set({ server }, report.starts);
      }
    },
  });
  return metrics;
}

function addChannelMetrics(metrics: MetricsRegistry, agent: Agent): void {
  const labels = ['bundle', 'channel'] as const;
  metrics.collectedGauge({
    name: 'hypercube_agent_freshness_seconds',
    help: 'Seconds since the version that all servers of the host have was first activated.',
    labels,
    collect: (set) => {
      for (const keeper of agent.bundles) {
        for (const { channel, freshnessSeconds } of listChannelStatuses(agent, keeper)) {
          if (freshnessSeconds === undefined) continue;
          set({ bundle: keeper.bundle, channel }, freshnessSeconds);
        }
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_agent_up_to_date',
    help: '1 if all servers of the host have the version of the channel.',
    labels,
    collect: (set) => {
      for (const keeper of agent.bundles) {
        for (const { channel, upToDate } of listChannelStatuses(agent, keeper)) {
          set({ bundle: keeper.bundle, channel }, upToDate ? 1 : 0);
        }
      }
    },
  });
}

function addChainMetrics(metrics: MetricsRegistry, agent: Agent): void {
  metrics.collectedGauge({
    name: 'hypercube_agent_chain_layers',
    help: "Layers (base and deltas) in the longest chain of the first channel's version.",
    labels: ['bundle'],
    collect: (set) => {
      for (const keeper of agent.bundles) {
        const chain = getChainStatus(keeper);
        if (chain !== undefined) set({ bundle: keeper.bundle }, chain.layers);
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_agent_chain_age_seconds',
    help: "Seconds since this host fetched the oldest base layer of the first channel's version.",
    labels: ['bundle'],
    collect: (set) => {
      for (const keeper of agent.bundles) {
        const ageSeconds = getChainStatus(keeper)?.ageSeconds;
        if (ageSeconds !== undefined) set({ bundle: keeper.bundle }, ageSeconds);
      }
    },
  });
}

function addDiskMetrics(metrics: MetricsRegistry, { fetcher }: Agent): void {
  metrics.collectedCounter({
    name: 'hypercube_agent_fetched_bytes_total',
    help: 'Bytes fetched from the repository.',
    collect: (set) => set({}, fetcher.fetchedBytes),
  });
  metrics.collectedGauge({
    name: 'hypercube_agent_disk_free_bytes',
    help: 'Free bytes on the disk of the data folder.',
    collect: (set) => {
      try {
        set({}, fetcher.freeBytes());
      } catch {
        // An unreadable disk has no value; the reason is listed as a problem.
      }
    },
  });
}
