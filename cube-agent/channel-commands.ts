/** `activate`, `rollback` and `history`: entries of a channel's log. Agents see them and act. */
import { CubeError } from '../lib/core/errors.ts';
import { shardNumOf } from '../lib/core/manifest.ts';
import { type Command, integerBetween, nameOption } from '../lib/platform/cli.ts';
import { systemClock } from '../lib/platform/clock.ts';
import { print, table } from '../lib/platform/text-table.ts';
import {
  type ChannelEntry,
  openRepository,
  type Repository,
} from '../lib/repository/repository.ts';
import { serversOf, waitForVersion } from './fleet-view.ts';
import {
  addTargetOptions,
  addTokenOption,
  defaultAuthor,
  readFleet,
  readToken,
  requireReason,
  type TargetOptions,
} from './options.ts';

interface MoveOptions extends TargetOptions {
  readonly reason: string;
  readonly by: string;
  readonly fleet?: string;
  readonly wait?: boolean;
  readonly timeoutMs: number;
  readonly controlTokenFile?: string;
}

export function addChannelCommands(program: Command): void {
  addMoveOptions(addTargetOptions(program.command('activate')))
    .description('point the channel to a published version')
    .requiredOption('--version <name>', 'the version wanted', nameOption('version'))
    .action(activate);
  addMoveOptions(addTargetOptions(program.command('rollback')))
    .description("quarantine the channel's version and return to the previous one")
    .action(rollback);
  addTargetOptions(program.command('history'))
    .description('who pointed the channel where, when and why')
    .option('--json', 'for programs')
    .action(history);
}

function addMoveOptions(command: Command): Command {
  return addTokenOption(command)
    .requiredOption('--reason <text>', 'why; kept in the history')
    .option('--by <who>', 'who; kept in the history', defaultAuthor())
    .option('--fleet <file>', 'fleet.json, for --wait')
    .option('--wait', 'until every server of the fleet has the version active')
    .option('--timeout-ms <n>', 'of --wait', integerBetween(1, 86_400_000), 120_000);
}

async function activate(options: MoveOptions & { version: string }): Promise<void> {
  const { bundle, channel, version, by } = options;
  requireFleetToWait(options);
  const repository = openRepository(options.repository);
  const reason = requireReason(options.reason);
  const entry = await repository.activate(bundle, channel, { version, by, reason });
  print(`${bundle} ${channel}: entry ${entry.seq} points to version ${entry.version}`);
  await waitIfAsked(repository, entry, options);
}

async function rollback(options: MoveOptions): Promise<void> {
  const { bundle, channel, by } = options;
  requireFleetToWait(options);
  const repository = openRepository(options.repository);
  const { pointer } = await repository.channel(bundle, channel);
  const entry = await repository.rollback(bundle, channel, by, requireReason(options.reason));
  print(
    `${bundle} ${channel}: entry ${entry.seq} points back to version ${entry.version}; ` +
      `version ${pointer?.version} is quarantined`,
  );
  await waitIfAsked(repository, entry, options);
}

/** Before anything is written: a wait that cannot begin is a mistake of the command line. */
function requireFleetToWait({ wait, fleet }: MoveOptions): void {
  if (fleet !== undefined) readFleet(fleet);
  else if (wait) throw new CubeError('INVALID_ARGUMENT', '--wait needs --fleet: whom to wait for');
}

async function waitIfAsked(
  repository: Repository,
  { version }: ChannelEntry,
  { wait, fleet, bundle, timeoutMs, controlTokenFile }: MoveOptions,
): Promise<void> {
  if (!wait || fleet === undefined) return;
  const shardNum = shardNumOf(await repository.manifest(bundle, version));
  const places = serversOf(readFleet(fleet), bundle, shardNum);
  const token = readToken(controlTokenFile);
  const wish = { bundle, version, timeoutMs, token };
  const tookMs = await waitForVersion(places, wish, systemClock);
  print(`all ${places.length} servers have version ${version} active (${Math.round(tookMs)} ms)`);
}

async function history(options: TargetOptions & { json?: boolean }): Promise<void> {
  const { bundle, channel } = options;
  const repository = openRepository(options.repository);
  const state = await repository.channel(bundle, channel);
  const quarantined = await repository.quarantined(bundle);
  if (options.json) {
    print(
      JSON.stringify({ bundle, channel, history: state.history, quarantined: [...quarantined] }),
    );
    return;
  }
  if (state.history.length === 0) {
    print(`channel ${channel} of ${bundle} points nowhere yet`);
    return;
  }
  const rows = state.history.map(({ seq, version, at, by, reason }) => [
    String(seq),
    quarantined.has(version) ? `${version} (quarantined)` : version,
    at,
    by,
    reason,
  ]);
  print(table(['SEQ', 'VERSION', 'AT', 'BY', 'REASON'], rows));
}
