/** `cube-agent status`: what the channel wants, what each server has, and what goes wrong on this host. */

import { CubeError } from '../../lib/core/errors.ts';
import type { Command } from '../../lib/platform/cli.ts';
import { bytesText, print, table } from '../../lib/platform/text-table.ts';
import {
  agentCredentials,
  type CallerFlags,
  serverCredentials,
} from '../../lib/rpc/credential-options.ts';
import { askAgent, type HostProblem, type HostReport } from '../fleet/agent-client.ts';
import {
  agentsOf,
  askServers,
  type ServerPlace,
  type ServerReport,
  serversOf,
} from '../fleet/fleet-view.ts';
import { HostData } from '../host/host-data.ts';
import { openWithKeys } from './keys.ts';
import {
  addAgentTokenOption,
  addTargetOptions,
  addTokenOption,
  collectEndpoints,
  readFleet,
  type TargetOptions,
} from './options.ts';

interface StatusOptions extends TargetOptions, CallerFlags {
  readonly fleet?: string;
  readonly server?: readonly string[];
  readonly dataDir?: string;
  readonly json?: boolean;
}

interface Status {
  readonly repository: string;
  readonly bundle: string;
  readonly channel: string;
  readonly pointer: string | undefined;
  readonly previous: string | undefined;
  readonly pinned: boolean;
  readonly versions: readonly string[];
  readonly quarantined: readonly string[];
  readonly servers: readonly ServerReport[];
  /** What the agents say that the fleet names. */
  readonly hosts: readonly HostReport[];
  readonly problems: readonly HostProblem[];
}

export function addStatusCommand(program: Command): void {
  addAgentTokenOption(addTokenOption(addTargetOptions(program.command('status'))))
    .description('what the channel wants and what each server has')
    .option('--fleet <file>', 'fleet.json: all servers')
    .option('--server <host:port>', 'control address of a server; once for each', collectEndpoints)
    .option('--data-dir <folder>', "also list the problems of this host's agent")
    .option('--json', 'for programs (docs/schemas/status.schema.json)')
    .addHelpText('after', EXAMPLES)
    .action(showStatus);
}

const EXAMPLES = `
Examples:
  cube-agent status --repository /srv/models --bundle ctr-dnn --fleet fleet.json
  cube-agent status --repository /srv/models --bundle ctr-dnn --server 127.0.0.1:8000
  cube-agent status --repository /srv/models --bundle ctr-dnn --data-dir /var/lib/hypercube`;

async function showStatus(options: StatusOptions): Promise<void> {
  const status = await readStatus(options);
  print(options.json ? JSON.stringify(status) : format(status));
}

async function readStatus(options: StatusOptions): Promise<Status> {
  const { bundle, channel } = options;
  const repository = openWithKeys(options);
  const bundles = repository.canList ? await repository.bundles() : [bundle];
  if (!bundles.includes(bundle)) {
    throw new CubeError(
      'NOT_FOUND',
      `${repository.location} has no bundle ${bundle} (it has: ${bundles.join(', ') || 'none'})`,
    );
  }
  const { pointer, previous, history, quarantined } = await repository.channel(bundle, channel);
  // Over HTTP nobody can list: what the channel ever pointed to is known.
  const versions = repository.canList
    ? await repository.versions(bundle)
    : [...new Set(history.map(({ version }) => version))];
  const hosts = await askHosts(options);
  return {
    repository: repository.location,
    bundle,
    channel,
    pointer: pointer?.version,
    previous: previous?.version,
    pinned: pointer?.pinned ?? false,
    versions,
    quarantined: [...quarantined],
    servers: await askServers(placesOf(options), bundle, serverCredentials(options)),
    hosts,
    problems: [...notedProblems(options), ...hosts.flatMap(({ problems }) => problems)],
  };
}

async function askHosts(options: StatusOptions): Promise<HostReport[]> {
  const { bundle, fleet } = options;
  const credentials = agentCredentials(options);
  const agents = fleet === undefined ? [] : agentsOf(readFleet(fleet), bundle);
  return Promise.all(agents.map((agent) => askAgent(agent, bundle, credentials)));
}

/** What this host's agent has written down, also while it does not run. */
function notedProblems({ bundle, channel, dataDir }: StatusOptions): HostProblem[] {
  if (dataDir === undefined) return [];
  const problems = new HostData(dataDir, bundle).recall(channel)?.problems ?? [];
  return problems.map((problem) => ({ host: dataDir, ...problem }));
}

function placesOf({ fleet, server = [], bundle }: StatusOptions): ServerPlace[] {
  const inFleet = fleet === undefined ? [] : serversOf(readFleet(fleet), bundle);
  const known = new Set(inFleet.map(({ address }) => address));
  const others = server.filter((address) => !known.has(address));
  return [...inFleet, ...others.map((address) => ({ address, shard: undefined }))];
}

function format(status: Status): string {
  const { bundle, channel, pointer, previous, versions, quarantined, servers, problems } = status;
  const lines = [
    `${bundle} in ${status.repository}`,
    `channel ${channel}: ${pointer ?? 'points nowhere yet'}${status.pinned ? ' (pinned)' : ''}${previous === undefined ? '' : `, previous ${previous}`}`,
    `published: ${versions.join(', ') || 'none'}`,
    ...(quarantined.length === 0 ? [] : [`quarantined: ${quarantined.join(', ')}`]),
  ];
  if (servers.length > 0) lines.push('', serverTable(servers));
  if (status.hosts.length > 0) lines.push('', hostTable(status.hosts, channel));
  if (problems.length > 0) {
    const rows = problems.map(({ host, what, code, message, since, attempts }) => [
      what,
      host,
      since,
      String(attempts),
      `${code} ${message}`,
    ]);
    lines.push('', table(['PROBLEM', 'HOST', 'SINCE', 'TRIES', 'WHY'], rows));
  }
  return lines.join('\n');
}

/** Shards, and of each its replicas one below the other. */
function serverTable(servers: readonly ServerReport[]): string {
  const places = [...servers].sort(
    (a, b) => (a.shardNum ?? 0) - (b.shardNum ?? 0) || (a.shardIndex ?? 0) - (b.shardIndex ?? 0),
  );
  const rows = places.map((server) => [
    `${server.shardIndex ?? '?'}/${server.shardNum ?? '?'}`,
    server.address,
    server.draining ? 'draining' : server.ready ? 'ready' : 'not ready',
    server.active ?? '-',
    server.held.join(', ') || '-',
    server.loading.join(', ') || '-',
    server.memory === undefined
      ? '-'
      : `${bytesText(server.memory.usedBytes)} of ${bytesText(server.memory.budgetBytes)}`,
    server.trouble.join('; '),
  ]);
  return table(
    ['SHARD', 'SERVER', 'STATE', 'ACTIVE', 'HELD', 'LOADING', 'MEMORY', 'TROUBLE'],
    rows,
  );
}

function hostTable(hosts: readonly HostReport[], channel: string): string {
  const rows = hosts.map(({ host, answers, freeBytes, channels, fetching, problems }) => {
    const own = channels.find((candidate) => candidate.channel === channel);
    const share = fetching.bytes === 0 ? 1 : fetching.arrivedBytes / fetching.bytes;
    return [
      host,
      answers ? (own?.applied ?? '-') : 'no answer',
      own === undefined ? '-' : own.upToDate ? 'yes' : 'no',
      own?.freshnessSeconds === undefined ? '-' : ageText(own.freshnessSeconds),
      fetching.bytes === 0 ? '-' : `${Math.floor(100 * share)} % of ${bytesText(fetching.bytes)}`,
      freeBytes === undefined ? '-' : bytesText(freeBytes),
      String(problems.length),
    ];
  });
  return table(
    ['AGENT', 'APPLIED', 'UP TO DATE', 'AGE', 'FETCHING', 'DISK FREE', 'PROBLEMS'],
    rows,
  );
}

/** "42 s", "12 min", "3.5 h", "2.1 d" */
function ageText(seconds: number): string {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800
    ? `${(seconds / 3600).toFixed(1)} h`
    : `${(seconds / 86_400).toFixed(1)} d`;
}
