/** The commands of `cube-agent fleet` that change the file: replicas come and go, and so does a number of shards. */

import { type Command, integerBetween, nameOption } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { print } from '../../lib/platform/text-table.ts';
import { type CallerFlags, serverCredentials } from '../../lib/rpc/credential-options.ts';
import type { ReplicaEntry } from '../fleet/fleet-document.ts';
import {
  addReplica,
  drainReplica,
  type MoveContext,
  removeReplica,
  undrainReplica,
} from '../fleet/fleet-moves.ts';
import { initFleet } from '../fleet/init-fleet.ts';
import { reshard, retire } from '../fleet/reshard.ts';
import { addSigningKeyOption, addTrustedKeysOption, openWithKeys } from './keys.ts';
import {
  addTokenOption,
  collectEndpoints,
  defaultAuthor,
  parseEndpoint,
  requireReason,
  said,
} from './options.ts';

interface MoveOptions extends CallerFlags {
  readonly fleet: string;
  readonly bundle: string;
  readonly timeoutMs: number;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

interface ReplicaOptions extends MoveOptions {
  readonly data: string;
  readonly control?: string;
  readonly group?: string;
  readonly agent?: string;
  readonly weight?: number;
  readonly idleMs: number;
}

interface ReshardOptions extends MoveOptions {
  readonly repository: string;
  readonly trustedKeys?: string;
  readonly signingKey?: string;
  readonly channel: string;
  readonly version: string;
  readonly reason: string;
  readonly by: string;
  readonly data?: readonly string[];
}

interface RetireOptions extends MoveOptions {
  readonly repository: string;
  readonly trustedKeys?: string;
  readonly shardNum: number;
  readonly idleMs: number;
  /** Commander's name for --no-return: false when it is given. */
  readonly return: boolean;
}

export function addFleetMoves(subcommand: (name: string) => Command): void {
  const ofReplica = (name: string): Command =>
    addMoveOptions(subcommand(name)).requiredOption(
      '--data <host:port>',
      'where the replica answers lookups',
      parseEndpoint,
    );
  ofReplica('add-replica')
    .description(
      "put a server beside its shard's others, as soon as it holds what they have active",
    )
    .option(
      '--control <host:port>',
      'where it answers control calls (default: --data)',
      parseEndpoint,
    )
    .option('--group <name>', 'its rack or zone', nameOption('group'))
    .option('--agent <host:port>', 'where the agent of its host answers', parseEndpoint)
    .option(
      '--weight <n>',
      'share of the load with the balancers wrr and wr',
      integerBetween(1, 10_000),
    )
    .action((options: ReplicaOptions) =>
      run(options, (context) => addReplica(context, entryOf(options))),
    );
  addIdleOption(ofReplica('remove-replica'))
    .description('take a server out, and wait until nobody asks it: then it may be stopped')
    .action((options: ReplicaOptions) =>
      run(options, (context) => removeReplica(context, options.data, options.idleMs)),
    );
  ofReplica('drain')
    .description("let a server refuse lookups for a while; clients turn to its shard's others")
    .action((options: ReplicaOptions) =>
      run(options, (context) => drainReplica(context, options.data)),
    );
  ofReplica('undrain')
    .description('let it answer again')
    .action((options: ReplicaOptions) =>
      run(options, (context) => undrainReplica(context, options.data)),
    );
  addInit(subcommand('init'));
  addReshard(subcommand('reshard'));
  addRetire(subcommand('retire'));
}

function addInit(command: Command): void {
  addMoveOptions(command)
    .description('begin the file: ask running servers which shards they serve, and write them down')
    .requiredOption('--data <host:port>', 'a server; once for each', collectEndpoints)
    .option(
      '--agent <host:port>',
      'the agent of one of their hosts; once for each',
      collectEndpoints,
    )
    .action((options: MoveOptions & { data: string[]; agent?: string[] }) =>
      run(options, (context) => initFleet(context, options.data, options.agent ?? [])),
    );
}

function addReshard(command: Command): void {
  addSigningKeyOption(addTrustedKeysOption(addMoveOptions(command)))
    .description(
      'move a channel to a version with another number of shards, on servers beside the old ones',
    )
    .requiredOption('--repository <place>', 'where versions live')
    .option('--channel <name>', 'the channel that moves', nameOption('channel'), 'stable')
    .requiredOption('--version <name>', 'built with the new --shard-num', nameOption('version'))
    .option('--data <host:port>', 'a new server; once for each', collectEndpoints)
    .requiredOption('--reason <text>', 'why; kept in the history')
    .option('--by <who>', 'who; kept in the history', defaultAuthor())
    .action((options: ReshardOptions) => {
      const reason = requireReason(options.reason);
      const repository = openWithKeys(options);
      const replicas = (options.data ?? []).map((data) => ({ data }));
      return run(options, (context) =>
        reshard(context, { ...options, repository, reason, replicas }),
      );
    });
}

function addRetire(command: Command): void {
  addIdleOption(addTrustedKeysOption(addMoveOptions(command)))
    .description('take all servers of a shard count out, and wait until nobody asks them')
    .requiredOption('--repository <place>', 'where versions live')
    .requiredOption('--shard-num <count>', 'the count that goes', integerBetween(1, 65_536))
    .option('--no-return', 'also when a rollback would lead back to a version of that count')
    .action((options: RetireOptions) => {
      const { shardNum, idleMs } = options;
      const repository = openWithKeys(options);
      const wish = { repository, shardNum, idleMs, noReturn: !options.return };
      return run(options, (context) => retire(context, wish));
    });
}

function addMoveOptions(command: Command): Command {
  return addTokenOption(command)
    .requiredOption('--fleet <file>', 'fleet.json')
    .requiredOption('--bundle <name>', 'the model', nameOption('bundle'))
    .option(
      '--timeout-ms <n>',
      'for all that is waited for',
      integerBetween(1, 86_400_000),
      600_000,
    )
    .option('--dry-run', 'check everything, and change nothing')
    .option('--json', 'for programs: the lines that people read, as "did"');
}

function addIdleOption(command: Command): Command {
  return command.option(
    '--idle-ms <n>',
    'for so long nobody must have asked',
    integerBetween(100, 3_600_000),
    5_000,
  );
}

async function run(
  options: MoveOptions,
  move: (context: MoveContext) => Promise<void>,
): Promise<void> {
  const { fleet: path, bundle, timeoutMs, dryRun = false, json } = options;
  const did: string[] = [];
  const say = (text: string): void => {
    did.push(text);
    if (!json) print(said(text, { dryRun }));
  };
  const credentials = serverCredentials(options);
  await move({ path, bundle, credentials, timeoutMs, clock: systemClock, dryRun, say });
  if (json) print(JSON.stringify({ bundle, dryRun, did }));
}

/** Only what was said: the rest has its defaults in every reader. */
function entryOf({ data, control, group, agent, weight }: ReplicaOptions): ReplicaEntry {
  return {
    data,
    ...(control === undefined ? {} : { control }),
    ...(group === undefined ? {} : { group }),
    ...(agent === undefined ? {} : { agent }),
    ...(weight === undefined ? {} : { weight }),
  };
}
