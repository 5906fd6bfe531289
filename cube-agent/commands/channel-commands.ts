/** `activate`, `stage`, `rollback` and `history`: write and list the entries of a channel's log. */
import { getShardNum } from '../../lib/core/manifest.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import { type Command, parseIntegerBetween, UsageError } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { formatTable, printLine } from '../../lib/platform/terminal-output.ts';
import type { ChannelEntry, Repository } from '../../lib/repository/repository.ts';
import {
  type CallerOptions,
  createAgentCredentials,
  createServerCredentials,
} from '../../lib/rpc/credential-options.ts';
import { pokeAgents } from '../fleet/agent-client.ts';
import { listAgents, listServers, waitForVersion } from '../fleet/fleet-view.ts';
import {
  type AuditOptions,
  addAgentCredentialOption,
  addAuditOptions,
  addChannelOptions,
  addJsonOption,
  addServerCredentialOptions,
  addTimeoutOption,
  addVersionOption,
  addWritableBundleOptions,
  addWritableChannelOptions,
  type BundleOptions,
  type ChannelOptions,
  openRepositoryWithKeys,
  readFleet,
  requireReason,
  withDryRunNote,
} from './options.ts';

interface WaitOptions extends CallerOptions {
  readonly fleet?: string;
  readonly wait?: boolean;
  readonly timeoutMs: number;
}

type ChannelMoveOptions = AuditOptions & WaitOptions;

export function addChannelCommands(program: Command): void {
  addVersionOption(
    addWaitOptions(
      addAuditOptions(addWritableChannelOptions(program.command('activate'))),
      WAIT_ACTIVE_HELP,
    ),
    'Published version to activate',
  )
    .description('Point a channel to a published version')
    .option(
      '--expected <entry>',
      'Fail unless the newest entry of the channel has this number (default: no check)',
      parseIntegerBetween(0, 1e10),
    )
    .addHelpText('after', ACTIVATE_EXAMPLES)
    .action(activate);
  addVersionOption(
    addWaitOptions(
      addAuditOptions(addWritableBundleOptions(program.command('stage'))),
      'Wait until every server in --fleet has loaded the version',
    ),
    'Published version to load',
  )
    .description('Load a version on the whole fleet without switching traffic to it')
    .addHelpText('after', STAGE_EXAMPLES)
    .action(stage);
  addWaitOptions(
    addAuditOptions(addWritableChannelOptions(program.command('rollback'))),
    WAIT_ACTIVE_HELP,
  )
    .description('Return a channel to its previous version and quarantine the current one')
    .option(
      '--from <version>',
      'Fail unless the channel points to this version (default: no check)',
    )
    .option(
      '--no-quarantine',
      'Leave the current version usable; a second rollback may return to it',
    )
    .addHelpText('after', ROLLBACK_EXAMPLES)
    .action(rollback);
  addJsonOption(addChannelOptions(program.command('history')))
    .description('List who pointed a channel to which version, when and why')
    .action(history);
}

const WAIT_ACTIVE_HELP = 'Wait until the version is active on every server in --fleet';

const ACTIVATE_EXAMPLES = `
Examples:
  cube-agent activate --repository /srv/models --bundle ctr-dnn --version 2 \\
    --reason "retrained" --dry-run
  cube-agent activate --repository /srv/models --bundle ctr-dnn --version 2 \\
    --reason "retrained" --fleet fleet.json --wait`;

const STAGE_EXAMPLES = `
The version is staged by pointing channel candidate to it. Servers keep it until another version is
staged, and answer lookups that name it. Activating it later fetches and loads nothing.

Examples:
  cube-agent stage --repository /srv/models --bundle ctr-dnn --version 2 --reason "retrained" \\
    --fleet fleet.json --wait`;

const ROLLBACK_EXAMPLES = `
Each host keeps the previous version on disk, so one rollback fetches nothing; a server that has
unloaded the version reads it from disk first. A second rollback may have to fetch an older version.
With --from, a rollback fails if another one has already moved the channel.

Examples:
  cube-agent rollback --repository /srv/models --bundle ctr-dnn --from 2 --reason "AUC fell" \\
    --fleet fleet.json --wait`;

/** @param waitHelp help of --wait: what the command waits for */
function addWaitOptions(command: Command, waitHelp: string): Command {
  const waiting = addAgentCredentialOption(addServerCredentialOptions(command))
    .option(
      '--fleet <file>',
      'fleet.json; make its agents poll at once (default: they poll at their interval)',
    )
    .option('--wait', waitHelp);
  return addTimeoutOption(waiting, 'Timeout of --wait in milliseconds', 120_000);
}

async function activate(
  options: ChannelMoveOptions & ChannelOptions & { version: string; expected?: number },
): Promise<void> {
  const { bundle, channel, version, by, expected } = options;
  requireFleetToWait(options);
  const repository = openRepositoryWithKeys(options);
  const reason = requireReason(options.reason);
  const entry = await repository.activate(bundle, channel, {
    version,
    by,
    reason,
    ...(expected === undefined ? {} : { expected }),
  });
  const text = `${bundle} ${channel}: entry ${entry.seq} points to version ${entry.version}`;
  await reportAndWait(repository, { channel, entry, text, until: 'active' }, options);
}

async function stage(
  options: ChannelMoveOptions & BundleOptions & { version: string },
): Promise<void> {
  const { bundle, version, by } = options;
  requireFleetToWait(options);
  const repository = openRepositoryWithKeys(options);
  const reason = requireReason(options.reason);
  const channel = CANDIDATE_CHANNEL;
  const entry = await repository.activate(bundle, channel, { version, by, reason });
  const text =
    `${bundle}: version ${entry.version} is staged ` + `(channel ${channel}, entry ${entry.seq})`;
  await reportAndWait(repository, { channel, entry, text, until: 'held' }, options);
}

async function rollback(
  options: ChannelMoveOptions & ChannelOptions & { from?: string; quarantine: boolean },
): Promise<void> {
  const { bundle, channel, by, from } = options;
  requireFleetToWait(options);
  const repository = openRepositoryWithKeys(options);
  const reason = requireReason(options.reason);
  const entry = await repository.rollback(bundle, channel, by, reason, from, options.quarantine);
  const text =
    `${bundle} ${channel}: entry ${entry.seq} points back to version ${entry.version}` +
    (entry.quarantines === undefined ? '' : `; version ${entry.quarantines} is quarantined`);
  await reportAndWait(repository, { channel, entry, text, until: 'active' }, options);
}

/** Called before anything is written: a wait without a readable fleet is a usage error. */
function requireFleetToWait({ wait, fleet }: ChannelMoveOptions): void {
  if (fleet !== undefined) readFleet(fleet);
  else if (wait) throw new UsageError('--wait needs --fleet, which lists the servers to wait for');
}

interface ChannelMove {
  readonly channel: string;
  readonly entry: ChannelEntry;
  readonly text: string;
  readonly until: 'active' | 'held';
}

/** Prints what was done, and waits with --wait. */
async function reportAndWait(
  repository: Repository,
  { channel, entry, text, until }: ChannelMove,
  options: ChannelMoveOptions & BundleOptions,
): Promise<void> {
  const { bundle, wait, fleet, json, dryRun = false } = options;
  if (fleet !== undefined && !dryRun) {
    await pokeAgents(listAgents(readFleet(fleet), bundle), createAgentCredentials(options));
  }
  if (!json) printLine(withDryRunNote(text, options));
  let waited: WaitResult | undefined;
  if (wait && fleet !== undefined && !dryRun) {
    waited = await waitForServers(repository, entry.version, { ...options, fleet, until });
    const { servers, tookMs } = waited;
    const have = `have version ${entry.version}`;
    const state = until === 'active' ? `${have} active` : `${have} loaded`;
    if (!json) printLine(`all ${servers} servers ${state} (${Math.round(tookMs)} ms)`);
  }
  if (json) printLine(JSON.stringify({ bundle, channel, entry, dryRun, waited }));
}

interface WaitResult {
  readonly servers: number;
  readonly tookMs: number;
}

async function waitForServers(
  repository: Repository,
  version: string,
  options: ChannelMoveOptions & BundleOptions & { fleet: string; until: ChannelMove['until'] },
): Promise<WaitResult> {
  const { bundle, fleet, until, timeoutMs } = options;
  const manifest = await repository.readManifest(bundle, version);
  const places = listServers(readFleet(fleet), bundle, getShardNum(manifest));
  const credentials = createServerCredentials(options);
  const condition = { manifest, until, timeoutMs, credentials };
  return { servers: places.length, tookMs: await waitForVersion(places, condition, systemClock) };
}

async function history(options: ChannelOptions & { json?: boolean }): Promise<void> {
  const { bundle, channel } = options;
  const repository = openRepositoryWithKeys(options);
  const state = await repository.readChannel(bundle, channel);
  const { quarantined } = state;
  if (options.json) {
    printLine(
      JSON.stringify({ bundle, channel, history: state.history, quarantined: [...quarantined] }),
    );
    return;
  }
  if (state.history.length === 0) {
    printLine(
      `channel ${channel} of ${bundle} does not point to a version yet` +
        (await describeOtherChannels(repository, bundle)),
    );
    return;
  }
  const rows = state.history.map(({ seq, version, pinned, lifts, at, by, reason }) => [
    String(seq),
    `${version}${quarantined.has(version) ? ' (quarantined)' : ''}${pinned ? ' (pinned)' : ''}` +
      (lifts === undefined ? '' : ` (quarantine of ${lifts} lifted)`),
    at,
    by,
    reason,
  ]);
  printLine(formatTable(['SEQ', 'VERSION', 'AT', 'BY', 'REASON'], rows));
}

/** The channels that exist, for a mistyped name. */
async function describeOtherChannels(repository: Repository, bundle: string): Promise<string> {
  if (!repository.canList) return '';
  const names = await repository.listChannels(bundle);
  return names.length === 0 ? '' : ` (${bundle} has: ${names.join(', ')})`;
}
