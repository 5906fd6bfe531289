/** The statistics of clients as text for Prometheus, for programs that use this library. */
import type { ClientStats } from './client-stats.ts';
import type { CtrClientStats } from './ctr-client.ts';
import type { ReplicaStats } from './replica.ts';

/** What every client's `stats` has. */
type AnyClientStats = ClientStats | CtrClientStats;

interface Family {
  readonly name: string;
  readonly type: 'counter' | 'gauge';
  readonly help: string;
}

const COUNTERS = {
  calls: 'Calls of the client.',
  failures: 'Failed requests of the client; with several servers also those that another answered.',
  retries: 'Requests that were sent again after a failure.',
  retryBudgetRefusals: 'Retries not sent because the retry budget was spent.',
  backups: 'Requests that were also sent to another server.',
  backupBudgetRefusals: 'Backup requests not sent because their budget was spent.',
  ejections: 'Servers ejected because they failed more calls than the others.',
  concurrencyRefusals: 'Calls refused because all servers were at their concurrency limits.',
} as const;

type GaugeSource = Pick<ReplicaStats, 'concurrencyLimit' | 'inFlight'>;

/**
 * The counters and limits of clients in Prometheus' text format, to append to the metrics of a
 * program.
 * @param clients statistics by the name of the client, which becomes the label `client`
 */
export function formatClientMetrics(clients: Readonly<Record<string, AnyClientStats>>): string {
  const all = Object.entries(clients);
  const lines: string[] = [];
  const add = ({ name, type, help }: Family, samples: readonly string[]): void => {
    if (samples.length === 0) return;
    lines.push(`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...samples);
  };
  for (const [field, help] of Object.entries(COUNTERS)) {
    const name = `hypercube_client_${toSnakeCase(field)}_total`;
    const samples = all.flatMap(([client, stats]) => {
      const value = (stats as unknown as Readonly<Record<string, number | undefined>>)[field];
      return value === undefined ? [] : [`${name}${formatLabels({ client })} ${value}`];
    });
    add({ name, type: 'counter', help }, samples);
  }
  const addGauge = (name: string, help: string, read: (server: GaugeSource) => number): void => {
    const samples = all.flatMap(([client, stats]) =>
      listServers(stats).map(([server, source]) => {
        return `${name}${formatLabels({ client, server })} ${read(source)}`;
      }),
    );
    add({ name, type: 'gauge', help }, samples);
  };
  addGauge(
    'hypercube_client_concurrency_limit',
    'Calls in flight that a server answers without queueing, as the client estimates it.',
    ({ concurrencyLimit }) => concurrencyLimit,
  );
  addGauge(
    'hypercube_client_in_flight',
    'Calls in flight to a server.',
    ({ inFlight }) => inFlight,
  );
  const share = 'hypercube_client_server_share';
  const shares = all.flatMap(([client, stats]) =>
    'replicas' in stats
      ? stats.replicas.map((replica) => {
          const labels = formatLabels({ client, server: replica.endpoint });
          return `${share}${labels} ${getShare(replica)}`;
        })
      : [],
  );
  add({ name: share, type: 'gauge', help: SHARE_HELP }, shares);
  return lines.map((line) => `${line}\n`).join('');
}

export const SHARE_HELP: string =
  'Share of its requests that a server gets: 0 while it is ejected or answers nothing, below 1 ' +
  'after an outage.';

/** 0 while the server gets only probes, or calls that no other server can take. */
export function getShare({ circuitOpen, ejected, share }: ReplicaStats): number {
  return circuitOpen || ejected ? 0 : share;
}

/** The only server of a client without replicas has no name. */
function listServers(stats: AnyClientStats): readonly (readonly [string, GaugeSource])[] {
  if (!('replicas' in stats)) return [['', stats]];
  return stats.replicas.map((replica) => [replica.endpoint, replica] as const);
}

function toSnakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function formatLabels(labels: Readonly<Record<string, string>>): string {
  const pairs = Object.entries(labels).map(([name, value]) => {
    const text = value.replace(/[\\"\n]/g, (char) => (char === '\n' ? '\\n' : `\\${char}`));
    return `${name}="${text}"`;
  });
  return `{${pairs}}`;
}
