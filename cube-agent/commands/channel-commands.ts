/** `activate`, `stage`, `rollback` and `history`: entries of a channel's log. Agents see them and act. */

import { CubeError } from '../../lib/core/errors.ts';
import { shardNumOf } from '../../lib/core/manifest.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import { type Command, integerBetween, nameOption } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { print, table } from '../../lib/platform/text-table.ts';
import type { ChannelEntry, Repository } from '../../lib/repository/repository.ts';
import {
  agentCredentials,
  type CallerFlags,
  serverCredentials,
} from '../../lib/rpc/credential-options.ts';
import { pokeAgents } from '../fleet/agent-client.ts';
import { agentsOf, serversOf, waitForVersion } from '../fleet/fleet-view.ts';
import { openWithKeys } from './keys.ts';
import {
  addAgentTokenOption,
  addBundleOptions,
  addDeedOptions,
  addTargetOptions,
  addTokenOption,
  type BundleOptions,
  type DeedOptions,
  readFleet,
  requireReason,
  said,
  type TargetOptions,
} from './options.ts';

interface WaitOptions extends CallerFlags {
  readonly fleet?: string;
  readonly wait?: boolean;
  readonly timeoutMs: number;
}

type MoveOptions = DeedOptions & WaitOptions;

export function addChannelCommands(program: Command): void {
  addWaitOptions(addDeedOptions(addTargetOptions(program.command('activate'))))
    .description('point the channel to a published version')
    .requiredOption('--version <name>', 'the version wanted', nameOption('version'))
    .option('--expected <seq>', 'only if that is still the newest entry', integerBetween(0, 1e10))
    .addHelpText('after', ACTIVATE_EXAMPLES)
    .action(activate);
  addWaitOptions(addDeedOptions(addBundleOptions(program.command('stage'))))
    .description(
      'let the whole fleet hold a version, and answer who names it, before any channel moves',
    )
    .requiredOption('--version <name>', 'the version', nameOption('version'))
    .addHelpText('after', STAGE_EXAMPLES)
    .action(stage);
  addWaitOptions(addDeedOptions(addTargetOptions(program.command('rollback'))))
    .description("quarantine the channel's version and return to the previous one")
    .option('--from <version>', 'only if the channel points there still')
    .addHelpText('after', ROLLBACK_EXAMPLES)
    .action(rollback);
  addTargetOptions(program.command('history'))
    .description('who pointed the channel where, when and why')
    .option('--json', 'for programs')
    .action(history);
}

const ACTIVATE_EXAMPLES = `
Examples:
  cube-agent activate --repository /srv/models --bundle ctr-dnn --version 2 --reason "retrained" --dry-run
  cube-agent activate --repository /srv/models --bundle ctr-dnn --version 2 --reason "retrained" \\
    --fleet fleet.json --wait`;

const STAGE_EXAMPLES = `
The version is held beside the active ones until another is staged. Activating it then is a switch.

Examples:
  cube-agent stage --repository /srv/models --bundle ctr-dnn --version 2 --reason "retrained" \\
    --fleet fleet.json --wait`;

const ROLLBACK_EXAMPLES = `
Nothing is fetched: servers hold the previous version. With --from, of several at once one moves.

Examples:
  cube-agent rollback --repository /srv/models --bundle ctr-dnn --from 2 --reason "AUC fell" \\
    --fleet fleet.json --wait`;

function addWaitOptions(command: Command): Command {
  return addAgentTokenOption(addTokenOption(command))
    .option('--fleet <file>', 'fleet.json: its agents look at once, instead of at their next poll')
    .option('--wait', 'until every server of the fleet has the version')
    .option('--timeout-ms <n>', 'of --wait', integerBetween(1, 86_400_000), 120_000);
}

async function activate(
  options: MoveOptions & TargetOptions & { version: string; expected?: number },
): Promise<void> {
  const { bundle, channel, version, by, expected } = options;
  requireFleetToWait(options);
  const repository = openWithKeys(options);
  const reason = requireReason(options.reason);
  const entry = await repository.activate(bundle, channel, {
    ...{ version, by, reason },
    ...(expected === undefined ? {} : { expected }),
  });
  const text = `${bundle} ${channel}: entry ${entry.seq} points to version ${entry.version}`;
  await finish(repository, { channel, entry, text, until: 'active' }, options);
}

async function stage(options: MoveOptions & BundleOptions & { version: string }): Promise<void> {
  const { bundle, version, by } = options;
  requireFleetToWait(options);
  const repository = openWithKeys(options);
  const reason = requireReason(options.reason);
  const channel = CANDIDATE_CHANNEL;
  const entry = await repository.activate(bundle, channel, { version, by, reason });
  const text = `${bundle}: agents stage version ${entry.version} (entry ${entry.seq} of ${channel})`;
  await finish(repository, { channel, entry, text, until: 'held' }, options);
}

async function rollback(options: MoveOptions & TargetOptions & { from?: string }): Promise<void> {
  const { bundle, channel, by, from } = options;
  requireFleetToWait(options);
  const repository = openWithKeys(options);
  const reason = requireReason(options.reason);
  const entry = await repository.rollback(bundle, channel, by, reason, from);
  const text =
    `${bundle} ${channel}: entry ${entry.seq} points back to version ${entry.version}; ` +
    `version ${entry.quarantines} is quarantined`;
  await finish(repository, { channel, entry, text, until: 'active' }, options);
}

/** Before anything is written: a wait that cannot begin is a mistake of the command line. */
function requireFleetToWait({ wait, fleet }: MoveOptions): void {
  if (fleet !== undefined) readFleet(fleet);
  else if (wait) throw new CubeError('INVALID_ARGUMENT', '--wait needs --fleet: whom to wait for');
}

interface Move {
  readonly channel: string;
  readonly entry: ChannelEntry;
  readonly text: string;
  readonly until: 'active' | 'held';
}

/** Says what was done, and waits where that was asked. */
async function finish(
  repository: Repository,
  { channel, entry, text, until }: Move,
  options: MoveOptions & BundleOptions,
): Promise<void> {
  const { bundle, wait, fleet, json, dryRun = false } = options;
  if (fleet !== undefined && !dryRun) {
    await pokeAgents(agentsOf(readFleet(fleet), bundle), agentCredentials(options));
  }
  if (!json) print(said(text, options));
  let waited: Waited | undefined;
  if (wait && fleet !== undefined && !dryRun) {
    waited = await waitFor(repository, entry.version, { ...options, fleet, until });
    const { servers, tookMs } = waited;
    const have = `${until === 'active' ? 'have' : 'hold'} version ${entry.version}`;
    const state = until === 'active' ? `${have} active` : have;
    if (!json) print(`all ${servers} servers ${state} (${Math.round(tookMs)} ms)`);
  }
  if (json) print(JSON.stringify({ bundle, channel, entry, dryRun, waited }));
}

interface Waited {
  readonly servers: number;
  readonly tookMs: number;
}

async function waitFor(
  repository: Repository,
  version: string,
  wish: MoveOptions & BundleOptions & { fleet: string; until: Move['until'] },
): Promise<Waited> {
  const { bundle, fleet, until, timeoutMs } = wish;
  const manifest = await repository.manifest(bundle, version);
  const places = serversOf(readFleet(fleet), bundle, shardNumOf(manifest));
  const credentials = serverCredentials(wish);
  const order = { manifest, until, timeoutMs, credentials };
  return { servers: places.length, tookMs: await waitForVersion(places, order, systemClock) };
}

async function history(options: TargetOptions & { json?: boolean }): Promise<void> {
  const { bundle, channel } = options;
  const repository = openWithKeys(options);
  const state = await repository.channel(bundle, channel);
  const { quarantined } = state;
  if (options.json) {
    print(
      JSON.stringify({ bundle, channel, history: state.history, quarantined: [...quarantined] }),
    );
    return;
  }
  if (state.history.length === 0) {
    print(
      `channel ${channel} of ${bundle} points nowhere yet${await otherChannels(repository, bundle)}`,
    );
    return;
  }
  const rows = state.history.map(({ seq, version, pinned, at, by, reason }) => [
    String(seq),
    `${version}${quarantined.has(version) ? ' (quarantined)' : ''}${pinned ? ' (pinned)' : ''}`,
    at,
    by,
    reason,
  ]);
  print(table(['SEQ', 'VERSION', 'AT', 'BY', 'REASON'], rows));
}

/** Whoever mistypes a channel is told which there are. */
async function otherChannels(repository: Repository, bundle: string): Promise<string> {
  if (!repository.canList) return '';
  const names = await repository.channels(bundle);
  return names.length === 0 ? '' : ` (${bundle} has: ${names.join(', ')})`;
}
