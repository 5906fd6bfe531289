/** `cube-agent gc`: deletes unneeded versions and unreferenced files. */
import { type Command, parseIntegerBetween } from '../../lib/platform/cli.ts';
import { removeAbandonedFolders } from '../../lib/platform/temporary-folder.ts';
import { formatTable, printLine } from '../../lib/platform/terminal-output.ts';
import { type GarbageReport, openRepository } from '../../lib/repository/repository.ts';
import {
  addAuthorOption,
  addBundleOption,
  addDryRunOption,
  addJsonOption,
  addWritableRepositoryOption,
  getDefaultAuthor,
} from './options.ts';

const DAY_MS = 24 * 3_600_000;

interface GcOptions {
  readonly repository: string;
  readonly bundle: string;
  readonly keepVersions: number;
  readonly keepDays: number;
  readonly by: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

export function addGcCommand(program: Command): void {
  const command = addBundleOption(addWritableRepositoryOption(program.command('gc')));
  addJsonOption(
    addDryRunOption(
      addAuthorOption(command, getDefaultAuthor(), 'Name to record in the lock of the repository'),
    ),
  )
    .description('Delete unneeded versions and unreferenced files')
    .option(
      '--keep-versions <n>',
      'Number of newest versions to keep, not counting quarantined ones',
      parseIntegerBetween(1, 10_000),
      5,
    )
    .option(
      '--keep-days <n>',
      'Keep everything younger than this many days',
      parseIntegerBetween(1, 3650),
      7,
    )
    .addHelpText('after', EXAMPLES)
    .action(gc);
}

const EXAMPLES = `
Versions that channels point to or would roll back to, and versions that are being rolled out, are
always kept. A manifest that cannot be read keeps the layers that it may name: restore it, or
quarantine the version and run gc again.

Examples:
  cube-agent gc --repository /srv/models --bundle ctr-dnn --dry-run
  cube-agent gc --repository s3://bucket/models --bundle ctr-dnn --keep-versions 3 --keep-days 14`;

async function gc(options: GcOptions): Promise<void> {
  const { bundle, keepVersions, keepDays, by, dryRun = false } = options;
  const policy = { keepVersions, keepMs: keepDays * DAY_MS };
  const repository = openRepository(options.repository);
  // Killed commands may have left temporary folders on this machine.
  if (!dryRun) removeAbandonedFolders();
  const report = await repository.collectGarbage(bundle, policy, { by, dryRun });
  printLine(
    options.json ? JSON.stringify({ bundle, dryRun, ...report }) : format(report, options, dryRun),
  );
}

function format(report: GarbageReport, options: GcOptions, dryRun: boolean): string {
  const { versions, kept, objects, bytes } = report;
  const verb = dryRun ? 'would remove' : 'removed';
  const rows = [
    ...kept.map(({ version, why }) => [version, 'keep', why]),
    ...versions.map((version) => [version, dryRun ? 'would remove' : 'removed', 'not needed']),
  ];
  const sum = `${verb} ${versions.length} versions: ${objects} files, ${bytes} bytes`;
  const table = rows.length === 0 ? [] : [formatTable(['VERSION', 'ACTION', 'REASON'], rows)];
  return [...table, sum, ...formatUnreadable(report, options)].join('\n');
}

/** Says what an unreadable manifest holds back, and the way out. */
function formatUnreadable(
  { unreadable, keptForUnreadable: { layers, bytes } }: GarbageReport,
  { repository, bundle }: GcOptions,
): string[] {
  if (unreadable.length === 0) return [];
  const ways = unreadable.map(({ version, path, message }) => {
    if (version === undefined) return `${message}\n  remove ${path} if no publisher uses it`;
    const of = `--repository ${repository} --bundle ${bundle} --version ${version}`;
    return (
      `${message}\n  restore it, or give the version up: ` +
      `cube-agent quarantine ${of} --reason 'unreadable', then run gc again`
    );
  });
  return [`kept ${layers} layers, ${bytes} bytes, that an unreadable manifest may name:`, ...ways];
}
