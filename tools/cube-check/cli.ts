/** The command line of cube-check. */
import {
  createCli,
  EXIT_FAILED,
  EXIT_OK,
  EXIT_USAGE,
  InvalidArgumentError,
  nameOption,
  optionWithEnv,
  runCli,
} from '../../lib/platform/cli.ts';
import { fileBytes } from '../../lib/platform/files.ts';
import { type Progress, startProgress } from '../../lib/platform/progress.ts';
import { print } from '../../lib/platform/text-table.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import {
  addCallerTlsOptions,
  type CallerFlags,
  serverCredentials,
} from '../../lib/rpc/credential-options.ts';
import { Findings, findingsJson, findingsText } from './findings.ts';
import { HttpSource } from './http-source.ts';
import { checkNamedFile } from './layer-checks.ts';
import { checkRepository } from './repository-check.ts';
import { checkServer } from './server-check.ts';
import { FolderSource, type Source } from './source.ts';
import { findTarget, type Target } from './target.ts';

interface Flags extends CallerFlags {
  readonly deep?: boolean;
  readonly json?: boolean;
  readonly bundle?: string;
  readonly channel: string;
  readonly dataFolder?: boolean;
  readonly shards?: readonly number[];
  readonly repository?: string;
}

const MEGABYTE = 1e6;

const EXAMPLES = `
Examples:
  A layer file, a version, a whole repository:
    cube-check /srv/models/ads/layers/users/0123456789abcdef0123456789abcdef.cube
    cube-check /srv/models/ads/versions/7 --deep
    cube-check /srv/models

  A host's data folder, which holds some shards only:
    cube-check /data/host --data-folder --shards 0,2

  A version, or what a channel points to, below a URL:
    cube-check https://models.example.com/repo/ads/versions/7/manifest.json
    cube-check https://models.example.com/repo --bundle ads --channel stable

  A running cube-server, and whether its rows are those of the repository:
    cube-check 127.0.0.1:8000 --repository /srv/models

Without --deep: manifests, sizes, SHA-256, headers, every block's checksum, structure, that every key is found and in the right
shard, deltas on their parents, channels, quarantine. With --deep also content ids, padding, rows that no dtype holds.
Goes on after a problem and lists all. Exit code 0: sound; 1: damaged, or not to be read; 2: wrong usage.`;

/** @returns the exit code */
export function run(argv?: readonly string[]): Promise<number> {
  const program = createCli(
    'cube-check',
    'Verifies layer files, versions, repositories and servers.',
  );
  program
    .argument('<target>', 'a file, a folder, a URL, or host:port of a cube-server')
    .option('--deep', 'also what follows only from the content of whole layers')
    .option('--json', 'the findings for programs')
    .option('--bundle <name>', 'of a repository: this bundle alone', nameOption('bundle'))
    .option('--channel <name>', 'of a URL: the channel to follow', nameOption('channel'), 'stable')
    .option('--data-folder', "the folder is a host's: it holds layers of its shards only")
    .option('--shards <list>', 'the shards that must be there (0-3,7)', shardList)
    .option('--repository <folder>', 'of a server: where its manifests are')
    .addOption(
      optionWithEnv(
        '--control-token-file <file>',
        'of a server: the token that its control calls ask for',
        'CUBE_CONTROL_TOKEN_FILE',
      ),
    );
  addCallerTlsOptions(program)
    .addHelpText('after', EXAMPLES)
    .action(async (text: string, flags: Flags) => {
      process.exitCode = await check(text, flags);
    });
  return runCli(program, argv, ({ code }) =>
    code === 'INVALID_ARGUMENT' ? EXIT_USAGE : EXIT_FAILED,
  );
}

const SHARD_MAX = 65_535;

/** Option parser: numbers and ranges such as 0-3,7. */
function shardList(text: string): number[] {
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

async function check(text: string, flags: Flags): Promise<number> {
  const target = findTarget(text);
  const bar = new ProgressBar();
  const findings = new Findings((bytes) => bar.update(bytes));
  try {
    await checkTarget(target, flags, findings, bar);
  } finally {
    bar.stop();
  }
  process.exitCode = findings.problems.length === 0 ? EXIT_OK : EXIT_FAILED;
  print(flags.json === true ? findingsJson(text, findings) : findingsText(findings));
  return Number(process.exitCode);
}

async function checkTarget(
  target: Target,
  flags: Flags,
  findings: Findings,
  bar: ProgressBar,
): Promise<void> {
  if (target.kind === 'layer') {
    bar.begin(fileBytes(target.path));
    checkLayer(target.path, flags.deep === true, findings);
    return;
  }
  if (target.kind === 'server') {
    const { repository } = flags;
    const credentials = serverCredentials(flags);
    const opened = repository === undefined ? undefined : openRepository(repository);
    await checkServer({ address: target.address, credentials, repository: opened }, findings);
    return;
  }
  const { kind, root } = target;
  const source: Source = kind === 'url' ? new HttpSource(root) : new FolderSource(root);
  const release = closeWhenKilled(source);
  try {
    const wish = {
      ...{ source, deep: flags.deep === true, shards: flags.shards, channel: flags.channel },
      ...{ bundle: target.bundle ?? flags.bundle, version: target.version },
      ...{ isHost: flags.dataFolder, onTotal: (bytes: number) => bar.begin(bytes) },
    };
    await checkRepository(wish, findings);
  } finally {
    release();
    source.close();
  }
}

function checkLayer(path: string, deep: boolean, findings: Findings): void {
  const header = checkNamedFile(path, deep, findings);
  if (header === undefined) return;
  const { table, kind, layout, dtype, dim, rowCount, shardIndex, shardNum } = header;
  findings.note(
    path,
    `${kind} of table ${table}, shard ${shardIndex} of ${shardNum}: ${rowCount} rows of ${dim} ${dtype}, ${layout}`,
  );
}

/** What was copied here is removed when the process is told to end. @returns what undoes it */
function closeWhenKilled(source: Source): () => void {
  const end = (signal: NodeJS.Signals): void => {
    source.close();
    process.exit(signal === 'SIGINT' ? 130 : 143);
  };
  process.on('SIGINT', end).on('SIGTERM', end);
  return () => process.off('SIGINT', end).off('SIGTERM', end);
}

/** Of bytes, begun anew for each bundle. */
class ProgressBar {
  #bar: Progress | undefined;
  #before = 0;
  #done = 0;

  begin(bytes: number): void {
    this.stop();
    this.#before = this.#done;
    this.#bar = startProgress('checking', Math.ceil(bytes / MEGABYTE), 'MB');
  }

  update(bytes: number): void {
    this.#done = bytes;
    this.#bar?.update(Math.floor((bytes - this.#before) / MEGABYTE));
  }

  stop(): void {
    this.#bar?.stop();
  }
}
