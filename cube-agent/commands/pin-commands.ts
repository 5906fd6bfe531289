/** `pin`, `unpin` and `quarantine`: what people say once and automation keeps to. */
import { type Command, nameOption } from '../../lib/platform/cli.ts';
import { print } from '../../lib/platform/text-table.ts';
import type { ChannelEntry } from '../../lib/repository/repository.ts';
import { openWithKeys } from './keys.ts';
import {
  addBundleOptions,
  addDeedOptions,
  addTargetOptions,
  type BundleOptions,
  type DeedOptions,
  requireReason,
  said,
  type TargetOptions,
} from './options.ts';

type PinOptions = DeedOptions & TargetOptions;

export function addPinCommands(program: Command): void {
  addDeedOptions(addTargetOptions(program.command('pin')))
    .description('keep everybody on the version that the channel points to')
    .addHelpText('after', PIN_EXAMPLES)
    .action(pin);
  addDeedOptions(addTargetOptions(program.command('unpin')))
    .description('let the channel move again')
    .addHelpText('after', PIN_EXAMPLES)
    .action(unpin);
  addDeedOptions(addBundleOptions(program.command('quarantine')))
    .description('condemn a version for good that no channel points to')
    .requiredOption('--version <name>', 'the version', nameOption('version'))
    .addHelpText('after', QUARANTINE_EXAMPLES)
    .action(quarantine);
}

const PIN_EXAMPLES = `
A pinned channel refuses activate, rollback and every rollout, and says who pinned it and why.

Examples:
  cube-agent pin   --repository /srv/models --bundle ctr-dnn --reason "holidays"
  cube-agent unpin --repository /srv/models --bundle ctr-dnn --reason "holidays are over"`;

const QUARANTINE_EXAMPLES = `
A quarantine is never lifted: publish the content again under another name.

Examples:
  cube-agent quarantine --repository /srv/models --bundle ctr-dnn --version 3 --reason "trained on bad labels"`;

async function pin(options: PinOptions): Promise<void> {
  const { bundle, channel, by } = options;
  const reason = requireReason(options.reason);
  const entry = await openWithKeys(options).pin(bundle, channel, { by, reason });
  tell(entry, `pinned to version ${entry.version} (entry ${entry.seq})`, options);
}

async function unpin(options: PinOptions): Promise<void> {
  const { bundle, channel, by } = options;
  const reason = requireReason(options.reason);
  const entry = await openWithKeys(options).unpin(bundle, channel, { by, reason });
  tell(entry, `not pinned, points to version ${entry.version} (entry ${entry.seq})`, options);
}

function tell(entry: ChannelEntry, text: string, options: PinOptions): void {
  const { bundle, channel, dryRun = false, json } = options;
  const line = said(`${bundle} ${channel}: ${text}`, options);
  print(json ? JSON.stringify({ bundle, channel, entry, dryRun }) : line);
}

async function quarantine(
  options: DeedOptions & BundleOptions & { version: string },
): Promise<void> {
  const { bundle, version, by, dryRun = false, json } = options;
  const reason = requireReason(options.reason);
  const isNew = await openWithKeys(options).quarantine(bundle, version, { by, reason });
  const line = said(`${bundle} ${version} ${isNew ? 'is' : 'was already'} quarantined`, options);
  print(json ? JSON.stringify({ bundle, version, isNew, dryRun }) : line);
}
