/** The commands of `cube-agent fleet` that change fleet.json: replicas and shard counts. */
import { type Command, parseIntegerBetween, parseNameOption } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import { type CallerOptions, createServerCredentials } from '../../lib/rpc/credential-options.ts';
import {
  addReplica,
  drainReplica,
  type FleetChangeContext,
  removeReplica,
  undrainReplica,
} from '../fleet/fleet-changes.ts';
import type { ReplicaEntry } from '../fleet/fleet-document.ts';
import { initFleet } from '../fleet/init-fleet.ts';
import { reshard, retire } from '../fleet/reshard.ts';
import {
  addAuthorOption,
  addBundleOption,
  addChannelOption,
  addDryRunOption,
  addJsonOption,
  addReasonOption,
  addRepositoryOption,
  addServerCredentialOptions,
  addSigningKeyOption,
  addTimeoutOption,
  addTrustedKeysOption,
  addVersionOption,
  addWritableRepositoryOption,
  collectEndpoints,
  openRepositoryWithKeys,
  parseEndpoint,
  requireReason,
  withDryRunNote,
} from './options.ts';

interface FleetChangeOptions extends CallerOptions {
  readonly fleet: string;
  readonly bundle: string;
  readonly timeoutMs: number;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

interface ReplicaOptions extends FleetChangeOptions {
  readonly data: string;
  readonly control?: string;
  readonly group?: string;
  readonly agent?: string;
  readonly weight?: number;
  readonly idleMs: number;
}

interface ReshardOptions extends FleetChangeOptions {
  readonly repository: string;
  readonly trustedKeys?: string;
  readonly signingKey?: string;
  readonly channel: string;
  readonly version: string;
  readonly reason: string;
  readonly by: string;
  readonly data?: readonly string[];
}

interface RetireOptions extends FleetChangeOptions {
  readonly repository: string;
  readonly trustedKeys?: string;
  readonly shardNum: number;
  readonly idleMs: number;
  /** Commander's name for --no-return: false when it is given. */
  readonly return: boolean;
}

export function addFleetChangeCommands(subcommand: (name: string) => Command): void {
  const addReplicaCommand = (name: string, fleetHelp?: string): Command =>
    addFleetChangeOptions(subcommand(name), fleetHelp).requiredOption(
      '--data <host:port>',
      'Lookup address of the replica',
      parseEndpoint,
    );
  addReplicaCommand('add-replica')
    .description("Add a replica to its shard once it has the shard's active versions")
    .option(
      '--control <host:port>',
      'Control address of the replica (default: --data)',
      parseEndpoint,
    )
    .option(
      '--group <name>',
      'Rack or zone of the replica, for people only (default: the group "default")',
      parseNameOption('group'),
    )
    .option(
      '--agent <host:port>',
      'Address of the agent of its host (default: none)',
      parseEndpoint,
    )
    .option(
      '--weight <n>',
      'Relative weight with the load balancers wrr and wr (default: 1)',
      parseIntegerBetween(1, 10_000),
    )
    .action((options: ReplicaOptions) =>
      runChange(options, (context) => addReplica(context, toReplicaEntry(options))),
    );
  addIdleOption(addReplicaCommand('remove-replica'))
    .description('Remove a replica and wait until no client calls it; then it may be stopped')
    .action((options: ReplicaOptions) =>
      runChange(options, (context) => removeReplica(context, options.data, options.idleMs)),
    );
  addReplicaCommand('drain', 'fleet.json that lists the server; it is not changed')
    .description('Make a server refuse lookups, so that clients use the other replicas')
    .action((options: ReplicaOptions) =>
      runChange(options, (context) => drainReplica(context, options.data)),
    );
  addReplicaCommand('undrain', 'fleet.json that lists the server; it is not changed')
    .description('Make a drained server answer lookups again')
    .action((options: ReplicaOptions) =>
      runChange(options, (context) => undrainReplica(context, options.data)),
    );
  addInit(subcommand('init'));
  addReshard(subcommand('reshard'));
  addRetire(subcommand('retire'));
}

function addInit(command: Command): void {
  addFleetChangeOptions(command, 'fleet.json to create, or to add the bundle to')
    .description('Create fleet.json from running servers, which report their shards')
    .requiredOption(
      '--data <host:port>',
      'Lookup address of a server; repeatable',
      collectEndpoints,
    )
    .option(
      '--agent <host:port>',
      'Address of the agent of a host; repeatable (default: none)',
      collectEndpoints,
    )
    .action((options: FleetChangeOptions & { data: string[]; agent?: string[] }) =>
      runChange(options, (context) => initFleet(context, options.data, options.agent ?? [])),
    );
}

function addReshard(command: Command): void {
  const audited = addAuthorOption(addReasonOption(addFleetChangeOptions(command)));
  const signed = addSigningKeyOption(addTrustedKeysOption(audited));
  addVersionOption(
    addChannelOption(addWritableRepositoryOption(signed)),
    'Version built with the new number of shards',
  )
    .description('Move a channel to a version with another number of shards, on new servers')
    .option(
      '--data <host:port>',
      'Lookup address of a new server; repeatable, required unless fleet.json lists them',
      collectEndpoints,
    )
    .action((options: ReshardOptions) => {
      const reason = requireReason(options.reason);
      const repository = openRepositoryWithKeys(options);
      const replicas = (options.data ?? []).map((data) => ({ data }));
      return runChange(options, (context) =>
        reshard(context, { ...options, repository, reason, replicas }),
      );
    });
}

function addRetire(command: Command): void {
  addRepositoryOption(addIdleOption(addTrustedKeysOption(addFleetChangeOptions(command))))
    .description('Remove the servers of an old number of shards, after a reshard')
    .requiredOption(
      '--shard-num <count>',
      'Old number of shards, whose servers are removed',
      parseIntegerBetween(1, 65_536),
    )
    .option(
      '--no-return',
      'Give up the rollback to them: remove them even if one would need them (default: refuse)',
    )
    .action((options: RetireOptions) => {
      const { shardNum, idleMs } = options;
      const repository = openRepositoryWithKeys(options);
      const request = { repository, shardNum, idleMs, noReturn: !options.return };
      return runChange(options, (context) => retire(context, request));
    });
}

function addFleetChangeOptions(
  command: Command,
  fleetDescription = 'fleet.json to change',
): Command {
  const target = addServerCredentialOptions(command).requiredOption(
    '--fleet <file>',
    fleetDescription,
  );
  const timed = addTimeoutOption(
    addBundleOption(target),
    'Total time that the command may wait, in milliseconds',
    600_000,
  );
  return addJsonOption(addDryRunOption(timed));
}

function addIdleOption(command: Command): Command {
  return command.option(
    '--idle-ms <n>',
    'Time without a lookup after which a server counts as unused, in milliseconds',
    parseIntegerBetween(100, 3_600_000),
    5_000,
  );
}

async function runChange(
  options: FleetChangeOptions,
  move: (context: FleetChangeContext) => Promise<void>,
): Promise<void> {
  const { fleet: path, bundle, timeoutMs, dryRun = false, json } = options;
  const did: string[] = [];
  const say = (text: string): void => {
    did.push(text);
    if (!json) printLine(withDryRunNote(text, { dryRun }));
  };
  const credentials = createServerCredentials(options);
  await move({ path, bundle, credentials, timeoutMs, clock: systemClock, dryRun, report: say });
  if (json) printLine(JSON.stringify({ bundle, dryRun, did }));
}

/** Only what was said: the rest has its defaults in every reader. */
function toReplicaEntry({ data, control, group, agent, weight }: ReplicaOptions): ReplicaEntry {
  return {
    data,
    ...(control === undefined ? {} : { control }),
    ...(group === undefined ? {} : { group }),
    ...(agent === undefined ? {} : { agent }),
    ...(weight === undefined ? {} : { weight }),
  };
}
