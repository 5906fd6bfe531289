/** `cube-agent status`: what the channel wants, what each server has, and what goes wrong on this host. */
import { CubeError } from '../lib/core/errors.ts';
import type { Command } from '../lib/platform/cli.ts';
import { print, table } from '../lib/platform/text-table.ts';
import { openRepository } from '../lib/repository/repository.ts';
import { askServers, type ServerPlace, type ServerReport, serversOf } from './fleet-view.ts';
import { HostData, type Problem } from './host-data.ts';
import {
  addTargetOptions,
  addTokenOption,
  collectEndpoints,
  readFleet,
  readToken,
  type TargetOptions,
} from './options.ts';

interface StatusOptions extends TargetOptions {
  readonly fleet?: string;
  readonly server?: readonly string[];
  readonly dataDir?: string;
  readonly json?: boolean;
  readonly controlTokenFile?: string;
}

interface Status {
  readonly repository: string;
  readonly bundle: string;
  readonly channel: string;
  readonly pointer: string | undefined;
  readonly previous: string | undefined;
  readonly versions: readonly string[];
  readonly quarantined: readonly string[];
  readonly servers: readonly ServerReport[];
  readonly problems: readonly Problem[];
}

export function addStatusCommand(program: Command): void {
  addTokenOption(addTargetOptions(program.command('status')))
    .description('what the channel wants and what each server has')
    .option('--fleet <file>', 'fleet.json: all servers')
    .option('--server <host:port>', 'control address of a server; once for each', collectEndpoints)
    .option('--data-dir <folder>', "also list the problems of this host's agent")
    .option('--json', 'for programs')
    .action(showStatus);
}

async function showStatus(options: StatusOptions): Promise<void> {
  const status = await readStatus(options);
  print(options.json ? JSON.stringify(status) : format(status));
}

async function readStatus(options: StatusOptions): Promise<Status> {
  const { bundle, channel, dataDir } = options;
  const repository = openRepository(options.repository);
  const bundles = await repository.bundles();
  if (!bundles.includes(bundle)) {
    throw new CubeError(
      'NOT_FOUND',
      `${repository.location} has no bundle ${bundle} (it has: ${bundles.join(', ') || 'none'})`,
    );
  }
  const { pointer, previous } = await repository.channel(bundle, channel);
  return {
    repository: repository.location,
    bundle,
    channel,
    pointer: pointer?.version,
    previous: previous?.version,
    versions: await repository.versions(bundle),
    quarantined: [...(await repository.quarantined(bundle))],
    servers: await askServers(placesOf(options), bundle, readToken(options.controlTokenFile)),
    problems:
      dataDir === undefined ? [] : (new HostData(dataDir, bundle).recall(channel)?.problems ?? []),
  };
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
    `channel ${channel}: ${pointer ?? 'points nowhere yet'}${previous === undefined ? '' : `, previous ${previous}`}`,
    `published: ${versions.join(', ') || 'none'}`,
    ...(quarantined.length === 0 ? [] : [`quarantined: ${quarantined.join(', ')}`]),
  ];
  if (servers.length > 0) lines.push('', serverTable(servers));
  if (problems.length > 0) {
    const rows = problems.map(({ what, code, message, since, attempts }) => [
      what,
      since,
      String(attempts),
      `${code} ${message}`,
    ]);
    lines.push('', table(['PROBLEM', 'SINCE', 'TRIES', 'WHY'], rows));
  }
  return lines.join('\n');
}

function serverTable(servers: readonly ServerReport[]): string {
  const rows = servers.map((server) => [
    `${server.shardIndex ?? '?'}/${server.shardNum ?? '?'}`,
    server.address,
    server.ready ? 'ready' : 'not ready',
    server.active ?? '-',
    server.held.join(', ') || '-',
    server.loading.join(', ') || '-',
    server.trouble.join('; '),
  ]);
  return table(['SHARD', 'SERVER', 'STATE', 'ACTIVE', 'HELD', 'LOADING', 'TROUBLE'], rows);
}
