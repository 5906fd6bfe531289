/** `cube-agent status`: prints the channel's version, what each server has, and all problems. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Command } from '../../lib/platform/cli.ts';
import { formatBytes, formatTable, printLine } from '../../lib/platform/terminal-output.ts';
import {
  type CallerOptions,
  createAgentCredentials,
  createServerCredentials,
} from '../../lib/rpc/credential-options.ts';
import { fetchHostReport, type HostProblem, type HostReport } from '../fleet/agent-client.ts';
import {
  fetchServerReports,
  listAgents,
  listServers,
  type ServerLocation,
  type ServerReport,
} from '../fleet/fleet-view.ts';
import { HostData } from '../host/host-data.ts';
import { formatExperiments } from './experiment-command.ts';
import {
  addAgentCredentialOption,
  addChannelOptions,
  addServerCredentialOptions,
  type ChannelOptions,
  collectEndpoints,
  openRepositoryWithKeys,
  readFleet,
} from './options.ts';

interface StatusOptions extends ChannelOptions, CallerOptions {
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
  /** The running experiments with the weights of their variants. */
  readonly experiments: string;
  readonly servers: readonly ServerReport[];
  /** Reports of the fleet's agents. */
  readonly hosts: readonly HostReport[];
  readonly problems: readonly HostProblem[];
}

export function addStatusCommand(program: Command): void {
  const command = addChannelOptions(program.command('status'));
  addAgentCredentialOption(addServerCredentialOptions(command))
    .description('Print what a channel points to and what each server has')
    .option('--fleet <file>', 'fleet.json; print its servers and agents (default: none)')
    .option(
      '--server <host:port>',
      'Control address of a further server; repeatable (default: none)',
      collectEndpoints,
    )
    .option(
      '--data-dir <folder>',
      "Also print the problems that this host's agent recorded (default: none)",
    )
    .option('--json', 'Print the result as JSON (docs/schemas/status.schema.json)')
    .addHelpText('after', EXAMPLES)
    .action(showStatus);
}

const EXAMPLES = `
Exit code: 1 if no server of some shard answers, else 0; cube-agent doctor checks much more.

Examples:
  cube-agent status --repository /srv/models --bundle ctr-dnn --fleet fleet.json
  cube-agent status --repository /srv/models --bundle ctr-dnn --server 127.0.0.1:8000
  cube-agent status --repository /srv/models --bundle ctr-dnn --data-dir /var/lib/hypercube`;

async function showStatus(options: StatusOptions): Promise<void> {
  const status = await readStatus(options);
  const dead = listDeadShards(collectServers(options), status.servers);
  printLine(options.json ? JSON.stringify(status) : format(status, dead));
  if (dead.length > 0) process.exitCode = 1;
}

/** The shards of the fleet, and the further servers, for which no server answers. */
function listDeadShards(
  locations: readonly ServerLocation[],
  servers: readonly ServerReport[],
): string[] {
  const answers = new Map<string, boolean>();
  for (const [i, { address, shard }] of locations.entries()) {
    const server = servers[i];
    const isPlaced = shard === undefined || server?.shardIndex === shard.index;
    const key = shard === undefined ? address : `shard ${shard.index}/${shard.shardNum}`;
    answers.set(key, (answers.get(key) ?? false) || (isUp(server) && isPlaced));
  }
  return [...answers].filter(([, isAnswering]) => !isAnswering).map(([shard]) => shard);
}

function isUp(server: ServerReport | undefined): boolean {
  return server?.memory !== undefined;
}

function formatShard({ shardIndex, shardNum }: ServerReport): string {
  return `${shardIndex ?? '?'}/${shardNum ?? '?'}`;
}

function formatState(server: ServerReport): string {
  if (!isUp(server)) return 'down';
  if (server.draining) return 'draining';
  return server.ready ? 'ready' : 'not ready';
}

async function readStatus(options: StatusOptions): Promise<Status> {
  const { bundle, channel } = options;
  const repository = openRepositoryWithKeys(options);
  const bundles = repository.canList ? await repository.listBundles() : [bundle];
  if (!bundles.includes(bundle)) {
    throw new CubeError(
      'NOT_FOUND',
      `${repository.location} has no bundle ${bundle} (it has: ${bundles.join(', ') || 'none'})`,
    );
  }
  const { pointer, previous, history, quarantined } = await repository.readChannel(bundle, channel);
  // HTTP cannot list; the versions that the channel ever pointed to are known.
  const versions = repository.canList
    ? await repository.listVersions(bundle)
    : [...new Set(history.map(({ version }) => version))];
  const { entry } = await repository.experimentLog(bundle).readNewest();
  const hosts = await readAgentReports(options);
  return {
    repository: repository.location,
    bundle,
    channel,
    pointer: pointer?.version,
    previous: previous?.version,
    pinned: pointer?.pinned ?? false,
    versions,
    quarantined: [...quarantined],
    experiments: formatExperiments(entry?.experiments ?? []),
    servers: await fetchServerReports(
      collectServers(options),
      bundle,
      createServerCredentials(options),
    ),
    hosts,
    problems: [...readLocalProblems(options), ...hosts.flatMap(({ problems }) => problems)],
  };
}

async function readAgentReports(options: StatusOptions): Promise<HostReport[]> {
  const { bundle, fleet } = options;
  const credentials = createAgentCredentials(options);
  const agents = fleet === undefined ? [] : listAgents(readFleet(fleet), bundle);
  return Promise.all(agents.map((agent) => fetchHostReport(agent, bundle, credentials)));
}

/** The problems that this host's agent recorded; it need not be running. */
function readLocalProblems({ bundle, channel, dataDir }: StatusOptions): HostProblem[] {
  if (dataDir === undefined) return [];
  const problems = new HostData(dataDir, bundle).readSavedState(channel)?.problems ?? [];
  return problems.map((problem) => ({ host: dataDir, ...problem }));
}

function collectServers({ fleet, server = [], bundle }: StatusOptions): ServerLocation[] {
  const inFleet = fleet === undefined ? [] : listServers(readFleet(fleet), bundle);
  const known = new Set(inFleet.map(({ address }) => address));
  const others = server.filter((address) => !known.has(address));
  return [...inFleet, ...others.map((address) => ({ address, shard: undefined }))];
}

function format(status: Status, dead: readonly string[]): string {
  const { bundle, channel, pointer, previous, versions, quarantined, servers, problems } = status;
  const lines = [
    `${bundle} in ${status.repository}`,
    `channel ${channel}: ${pointer ?? 'does not point to a version yet'}` +
      (status.pinned ? ' (pinned)' : '') +
      (previous === undefined ? '' : `, previous ${previous}`),
    `published: ${versions.join(', ') || 'none'}`,
    ...(status.experiments === '' ? [] : [`experiments: ${status.experiments}`]),
    ...(quarantined.length === 0 ? [] : [`quarantined: ${quarantined.join(', ')}`]),
  ];
  if (servers.length > 0) lines.push('', serverTable(servers));
  if (dead.length > 0) lines.push('', `no server answers: ${dead.join(', ')}`);
  if (status.hosts.length > 0) lines.push('', hostTable(status.hosts, channel));
  if (problems.length > 0) {
    const rows = problems.map(({ host, what, code, message, since, attempts }) => [
      what,
      host,
      since,
      String(attempts),
      `${code} ${message}`,
    ]);
    lines.push('', formatTable(['PROBLEM', 'HOST', 'SINCE', 'TRIES', 'WHY'], rows));
  }
  return lines.join('\n');
}

/** Replicas sorted by shard. */
function serverTable(servers: readonly ServerReport[]): string {
  const places = [...servers].sort(
    (a, b) => (a.shardNum ?? 0) - (b.shardNum ?? 0) || (a.shardIndex ?? 0) - (b.shardIndex ?? 0),
  );
  const rows = places.map((server) => [
    formatShard(server),
    server.address,
    formatState(server),
    server.active ?? '-',
    server.held.join(', ') || '-',
    server.loading.join(', ') || '-',
    server.memory === undefined
      ? '-'
      : `${formatBytes(server.memory.usedBytes)} of ${formatBytes(server.memory.budgetBytes)}`,
    server.trouble.join('; '),
  ]);
  return formatTable(
    ['SHARD', 'SERVER', 'STATE', 'ACTIVE', 'LOADED', 'LOADING', 'MEMORY', 'PROBLEMS'],
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
      own?.freshnessSeconds === undefined ? '-' : formatAge(own.freshnessSeconds),
      fetching.bytes === 0 ? '-' : `${Math.floor(100 * share)} % of ${formatBytes(fetching.bytes)}`,
      freeBytes === undefined ? '-' : formatBytes(freeBytes),
      String(problems.length),
    ];
  });
  return formatTable(
    ['AGENT', 'APPLIED', 'UP TO DATE', 'AGE', 'FETCHING', 'DISK FREE', 'PROBLEMS'],
    rows,
  );
}

/** "42 s", "12 min", "3.5 h", "2.1 d" */
function formatAge(seconds: number): string {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800
    ? `${(seconds / 3600).toFixed(1)} h`
    : `${(seconds / 86_400).toFixed(1)} d`;
}
