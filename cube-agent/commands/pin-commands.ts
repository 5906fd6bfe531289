/** `pin`, `unpin` and `quarantine`: what people say once and automation keeps to. */
import type { Command } from '../../lib/platform/cli.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import type { ChannelEntry } from '../../lib/repository/repository.ts';
import {
  type AuditOptions,
  addAuditOptions,
  addVersionOption,
  addWritableChannelOptions,
  type ChannelOptions,
  openRepositoryWithKeys,
  requireReason,
  withDryRunNote,
} from './options.ts';

type PinOptions = AuditOptions & ChannelOptions;

export function addPinCommands(program: Command): void {
  addAuditOptions(addWritableChannelOptions(program.command('pin')))
    .description('Keep a channel at its current version until the channel is unpinned')
    .addHelpText('after', PIN_EXAMPLES)
    .action(pin);
  addAuditOptions(addWritableChannelOptions(program.command('unpin')))
    .description('Allow a pinned channel to move again')
    .addHelpText('after', PIN_EXAMPLES)
    .action(unpin);
  addVersionOption(
    addAuditOptions(addWritableChannelOptions(program.command('quarantine'))),
    'Version to quarantine',
  )
    .description('Forbid a version; no channel may point to it')
    .option('--lift', 'Allow the version again; the history of --channel records it')
    .addHelpText('after', QUARANTINE_EXAMPLES)
    .action(quarantine);
}

const PIN_EXAMPLES = `
A pinned channel refuses activate, rollback and rollouts; the error says who pinned it and why.

Examples:
  cube-agent pin   --repository /srv/models --bundle ctr-dnn --reason "holidays"
  cube-agent unpin --repository /srv/models --bundle ctr-dnn --reason "holidays are over"`;

const QUARANTINE_EXAMPLES = `
A lifted quarantine allows to activate the version again; it activates nothing.

Examples:
  cube-agent quarantine --repository /srv/models --bundle ctr-dnn --version 3 \\
    --reason "trained on bad labels"
  cube-agent quarantine --repository /srv/models --bundle ctr-dnn --version 3 --lift \\
    --reason "the labels were right"`;

async function pin(options: PinOptions): Promise<void> {
  const { bundle, channel, by } = options;
  const reason = requireReason(options.reason);
  const entry = await openRepositoryWithKeys(options).pin(bundle, channel, { by, reason });
  printResult(entry, `pinned to version ${entry.version} (entry ${entry.seq})`, options);
}

async function unpin(options: PinOptions): Promise<void> {
  const { bundle, channel, by } = options;
  const reason = requireReason(options.reason);
  const entry = await openRepositoryWithKeys(options).unpin(bundle, channel, { by, reason });
  printResult(entry, `unpinned, points to version ${entry.version} (entry ${entry.seq})`, options);
}

function printResult(entry: ChannelEntry, text: string, options: PinOptions): void {
  const { bundle, channel, dryRun = false, json } = options;
  const line = withDryRunNote(`${bundle} ${channel}: ${text}`, options);
  printLine(json ? JSON.stringify({ bundle, channel, entry, dryRun }) : line);
}

async function quarantine(
  options: AuditOptions & ChannelOptions & { version: string; lift?: boolean },
): Promise<void> {
  const { bundle, channel, version, by, lift = false, dryRun = false, json } = options;
  const reason = requireReason(options.reason);
  if (lift) {
    const repository = openRepositoryWithKeys(options);
    const lifted = await repository.liftQuarantine(bundle, version, { by, reason, channel });
    const state = lifted ? 'is no longer quarantined' : 'was not quarantined';
    const text = withDryRunNote(`${bundle} ${version} ${state}`, options);
    printLine(json ? JSON.stringify({ bundle, version, lifted, dryRun }) : text);
    return;
  }
  const isNew = await openRepositoryWithKeys(options).quarantine(bundle, version, { by, reason });
  const line = withDryRunNote(
    `${bundle} ${version} ${isNew ? 'is' : 'was already'} quarantined`,
    options,
  );
  printLine(json ? JSON.stringify({ bundle, version, isNew, dryRun }) : line);
}
