/** The command line of cube-check. */

import {
  type Command,
  createCli,
  EXIT_FAILED,
  EXIT_OK,
  EXIT_USAGE,
  InvalidArgumentError,
  optionWithEnv,
  parseNameOption,
  runCli,
} from '../../lib/platform/cli.ts';
import {
  addDecryptOptions,
  type DecryptOptions,
  useDecryptKeys,
} from '../../lib/platform/encryption-options.ts';
import { getFileBytes } from '../../lib/platform/files.ts';
import { type Progress, startProgress } from '../../lib/platform/progress.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import { openBackend } from '../../lib/repository/open-backend.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import {
  addCallerTlsOptions,
  type CallerOptions,
  createServerCredentials,
} from '../../lib/rpc/credential-options.ts';
import { CheckReport, formatReport, formatReportJson } from './check-report.ts';
import { HttpSource } from './http-source.ts';
import { checkLayerByName } from './layer-checks.ts';
import { checkRepository } from './repository-check.ts';
import { checkServer } from './server-check.ts';
import { type CheckSource, ListedSource } from './source.ts';
import { findTarget, type Target } from './target.ts';

interface CheckFlags extends CallerOptions, DecryptOptions {
  readonly deep?: boolean;
  readonly json?: boolean;
  readonly bundle?: string;
  readonly channel: string;
  readonly dataFolder?: boolean;
  readonly shards?: readonly number[];
  readonly repository?: string;
}

const MEGABYTE = 1e6;
const SHARD_MAX = 65_535;

const EXAMPLES = `
Examples:
  A layer file, a version, a whole repository:
    cube-check /srv/models/ads/layers/users/0123456789abcdef0123456789abcdef.cube
    cube-check /srv/models/ads/versions/7 --deep
    cube-check /srv/models

  The data folder of a host, which has the layers of some shards only:
    cube-check /data/host --data-folder --shards 0,2

  A version, or the version of a channel, below a URL:
    cube-check https://models.example.com/repo/ads/versions/7/manifest.json
    cube-check https://models.example.com/repo --bundle ads --channel stable

  A repository or a version in a bucket:
    cube-check s3://bucket/models --bundle ads
    cube-check s3://bucket/models/ads/versions/7/manifest.json

  A running cube-server, compared with the repository:
    cube-check 127.0.0.1:8000 --repository /srv/models

Checked always:
  manifests, files and layers: sizes, SHA-256, headers, block checksums, structure
  keys: every key can be found and is in the right shard
  deltas: they fit their parents
  channels and quarantined versions
Checked with --deep as well:
  layers: content ids (the hash in the name of a layer), padding, invalid values

All problems are listed, not only the first.
Exit code: 0 no problem; 1 damaged or unreadable; 2 wrong usage.`;

/** @returns the exit code */
export function run(argv?: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv, ({ code }) =>
    code === 'INVALID_ARGUMENT' ? EXIT_USAGE : EXIT_FAILED,
  );
}

export function createProgram(): Command {
  const program = createCli(
    'cube-check',
    'Verifies layer files, versions, repositories and servers.',
  );
  program
    .argument('<target>', 'File, folder, bucket, URL, or host:port of a cube-server to check')
    .option('--deep', 'Also check content ids, padding and invalid values, which reads all rows')
    .option('--json', 'Print the findings as JSON')
    .option(
      '--bundle <name>',
      'Bundle to check in a repository (default: all)',
      parseNameOption('bundle'),
    )
    .option(
      '--channel <name>',
      'Channel to check if the target is a URL, where channels cannot be listed',
      parseNameOption('channel'),
      'stable',
    )
    .option('--data-folder', "Treat the folder as a host's data folder (default: detect it)")
    .option(
      '--shards <list>',
      'Shards that must be present, such as 0-3,7 (default: those that the folder or server names)',
      parseShardList,
    )
    .option('--repository <folder>', 'Repository to compare a server with (default: none)')
    .addOption(
      optionWithEnv(
        '--control-token-file <file>',
        'File with the control token of a server (default: none)',
        'CUBE_CONTROL_TOKEN_FILE',
      ),
    );
  return addCallerTlsOptions(addDecryptOptions(program))
    .addHelpText('after', EXAMPLES)
    .action(async (text: string, flags: CheckFlags) => {
      process.exitCode = await check(text, flags);
    });
}

/** Option parser: numbers and ranges such as 0-3,7. */
function parseShardList(text: string): number[] {
  const shards = new Set<number>();
  for (const part of text.split(',')) {
    const [, from, to = from] = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(part) ?? [];
    if (from === undefined || Number(from) > Number(to) || Number(to) > SHARD_MAX) {
      throw new InvalidArgumentError('Expected shards such as 0-3,7.');
    }
    for (let shard = Number(from); shard <= Number(to); shard++) shards.add(shard);
  }
  return [...shards];
}

async function check(text: string, flags: CheckFlags): Promise<number> {
  useDecryptKeys(flags);
  const target = findTarget(text);
  const progress = new CheckProgress();
  const report = new CheckReport((bytes) => progress.update(bytes));
  try {
    await checkTarget(target, flags, report, progress);
  } finally {
    progress.stop();
  }
  printLine(flags.json === true ? formatReportJson(text, report) : formatReport(report));
  return report.problems.length === 0 ? EXIT_OK : EXIT_FAILED;
}

async function checkTarget(
  target: Target,
  flags: CheckFlags,
  report: CheckReport,
  progress: CheckProgress,
): Promise<void> {
  if (target.kind === 'layer') {
    progress.begin(getFileBytes(target.path));
    checkLayer(target.path, flags.deep === true, report);
    return;
  }
  if (target.kind === 'server') {
    const credentials = createServerCredentials(flags);
    const repository =
      flags.repository === undefined ? undefined : openRepository(flags.repository);
    await checkServer({ address: target.address, credentials, repository }, report);
    return;
  }
  const { kind, root } = target;
  const source: CheckSource =
    kind === 'url' ? new HttpSource(root) : new ListedSource(openBackend(root, false));
  const removeListeners = closeOnSignal(source);
  try {
    const options = {
      source,
      deep: flags.deep === true,
      shards: flags.shards,
      channel: flags.channel,
      bundle: target.bundle ?? flags.bundle,
      version: target.version,
      isHost: flags.dataFolder,
      onTotal: (bytes: number) => progress.begin(bytes),
    };
    await checkRepository(options, report);
  } finally {
    removeListeners();
    source.close();
  }
}

function checkLayer(path: string, deep: boolean, report: CheckReport): void {
  const header = checkLayerByName(path, deep, report);
  if (header === undefined) return;
  const { table, kind, layout, dtype, dim, rowCount, shardIndex, shardNum } = header;
  report.addNote(
    path,
    `${kind} of table ${table}, shard ${shardIndex} of ${shardNum}: ` +
      `${rowCount} rows of ${dim} ${dtype}, ${layout}`,
  );
}

/** Removes temporary copies when the process is told to end. @returns removes the listeners */
function closeOnSignal(source: CheckSource): () => void {
  const end = (signal: NodeJS.Signals): void => {
    source.close();
    process.exit(signal === 'SIGINT' ? 130 : 143);
  };
  process.on('SIGINT', end).on('SIGTERM', end);
  return () => process.off('SIGINT', end).off('SIGTERM', end);
}

/** A progress bar that starts again for each bundle. */
class CheckProgress {
  #bar: Progress | undefined;
  /** Bytes that were checked before the bar started. */
  #startBytes = 0;
  #bytes = 0;

  begin(totalBytes: number): void {
    this.stop();
    this.#startBytes = this.#bytes;
    this.#bar = startProgress('checking', Math.ceil(totalBytes / MEGABYTE), 'MB');
  }

  /** @param bytes all that were checked so far */
  update(bytes: number): void {
    this.#bytes = bytes;
    this.#bar?.update(Math.floor((bytes - this.#startBytes) / MEGABYTE));
  }

  stop(): void {
    this.#bar?.stop();
  }
}
