/** `cube-agent gc`: removes versions that nobody needs, and what no version left reaches. */
import { type Command, integerBetween, nameOption } from '../../lib/platform/cli.ts';
import { removeAbandonedFolders } from '../../lib/platform/temporary-folder.ts';
import { print, table } from '../../lib/platform/text-table.ts';
import { type GarbageReport, openRepository } from '../../lib/repository/repository.ts';
import { defaultAuthor } from './options.ts';

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
  program
    .command('gc')
    .description('remove versions that nobody needs, and what no version left reaches')
    .requiredOption('--repository <place>', 'where versions live')
    .requiredOption('--bundle <name>', 'the model', nameOption('bundle'))
    .option('--keep-versions <n>', 'the newest good versions', integerBetween(1, 10_000), 5)
    .option('--keep-days <n>', 'whatever is younger', integerBetween(1, 3650), 7)
    .option('--by <who>', 'who; others see it while this runs', defaultAuthor())
    .option('--dry-run', 'say what would go, and remove nothing')
    .option('--json', 'for programs')
    .addHelpText('after', EXAMPLES)
    .action(gc);
}

const EXAMPLES = `
What channels point to or would go back to, and what is being rolled out, always stays.

Examples:
  cube-agent gc --repository /srv/models --bundle ctr-dnn --dry-run
  cube-agent gc --repository s3://bucket/models --bundle ctr-dnn --keep-versions 3 --keep-days 14`;

async function gc(options: GcOptions): Promise<void> {
  const { bundle, keepVersions, keepDays, by, dryRun = false } = options;
  const policy = { keepVersions, keepMs: keepDays * DAY_MS };
  const repository = openRepository(options.repository);
  // What killed commands left on this machine is nobody's either.
  if (!dryRun) removeAbandonedFolders();
  const report = await repository.collectGarbage(bundle, policy, { by, dryRun });
  print(options.json ? JSON.stringify({ bundle, dryRun, ...report }) : format(report, dryRun));
}

function format({ versions, kept, objects, bytes }: GarbageReport, dryRun: boolean): string {
  const verb = dryRun ? 'would remove' : 'removed';
  const rows = [
    ...kept.map(({ version, why }) => [version, 'stays', why]),
    ...versions.map((version) => [version, dryRun ? 'would go' : 'gone', 'nobody needs it']),
  ];
  const sum = `${verb} ${versions.length} versions: ${objects} objects, ${bytes} bytes`;
  return rows.length === 0 ? sum : `${table(['VERSION', '', 'WHY'], rows)}\n${sum}`;
}
