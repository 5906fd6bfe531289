/** What a scraper learns of an agent; deploy/prometheus/alerts.yaml has rules for it. */
import { MetricsRegistry } from '../../lib/platform/metrics.ts';
import type { Agent } from './agent.ts';
import { chainOf, channelStatuses } from './host-status.ts';

export function agentMetrics(agent: Agent): MetricsRegistry {
  const metrics = new MetricsRegistry();
  addChannelMetrics(metrics, agent);
  addChainMetrics(metrics, agent);
  addDiskMetrics(metrics, agent);
  metrics.collectedGauge({
    name: 'hypercube_agent_problems',
    help: 'Things that fail and have not gone right since; bundle "" is the host itself.',
    labels: ['bundle'],
    collect: (set) => {
      set({ bundle: '' }, agent.problems.list().length);
      for (const { bundle, problems } of agent.bundles) set({ bundle }, problems.list().length);
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_agent_server_up',
    help: '1 when the server answers its agent.',
    labels: ['server'],
    collect: (set) => {
      for (const server of agent.config.servers) {
        const known = agent.servers.known.find(({ address }) => address === server);
        set({ server }, known?.answers ? 1 : 0);
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_agent_server_version',
    help: '1 for each version that a server holds; state "active" or "held".',
    labels: ['server', 'bundle', 'version', 'state'],
    collect: (set) => {
      for (const { address: server, status } of agent.servers.known) {
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
    help: 'Starts of the servers that the agent runs itself.',
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
    help: "Since the version that all servers of the host have was first pointed to: its rows' age at least.",
    labels,
    collect: (set) => {
      for (const keeper of agent.bundles) {
        for (const { channel, freshnessSeconds } of channelStatuses(agent, keeper)) {
          if (freshnessSeconds === undefined) continue;
          set({ bundle: keeper.bundle, channel }, freshnessSeconds);
        }
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_agent_up_to_date',
    help: '1 when all servers of the host have what the channel points to.',
    labels,
    collect: (set) => {
      for (const keeper of agent.bundles) {
        for (const { channel, upToDate } of channelStatuses(agent, keeper)) {
          set({ bundle: keeper.bundle, channel }, upToDate ? 1 : 0);
        }
      }
    },
  });
}

function addChainMetrics(metrics: MetricsRegistry, agent: Agent): void {
  metrics.collectedGauge({
    name: 'hypercube_agent_chain_layers',
    help: "Layers of the deepest shard of the first channel's version: a base and its deltas.",
    labels: ['bundle'],
    collect: (set) => {
      for (const keeper of agent.bundles) {
        const chain = chainOf(keeper);
        if (chain !== undefined) set({ bundle: keeper.bundle }, chain.layers);
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_agent_chain_age_seconds',
    help: 'Since this host fetched the oldest base that the version builds on.',
    labels: ['bundle'],
    collect: (set) => {
      for (const keeper of agent.bundles) {
        const ageSeconds = chainOf(keeper)?.ageSeconds;
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
    help: "Free on the data folder's disk.",
    collect: (set) => {
      try {
        set({}, fetcher.freeBytes());
      } catch {
        // A disk that cannot be asked has no value; the problems say why.
      }
    },
  });
}
