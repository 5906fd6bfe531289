/** `cube-agent watch-donefiles`: publishes what donefiles of Cube's trainers list. */
import { CubeError } from '../../lib/core/errors.ts';
import { SHARD_NUM_MAX } from '../../lib/core/layer-format.ts';
import {
  type Command,
  Option,
  parseIntegerBetween,
  parseNameOption,
  UsageError,
} from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { runService } from '../../lib/platform/lifecycle.ts';
import {
  addLogFormatOption,
  createLogger,
  type LogFormat,
  type Logger,
} from '../../lib/platform/logs.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import type { DonefileStep } from '../cube/donefile.ts';
import { DonefileSource } from '../cube/donefile-source.ts';
import {
  AFTER_PUBLISH_ACTIONS,
  type AfterPublishAction,
  DonefileWatcher,
  type WatchProblem,
} from '../cube/donefile-watcher.ts';
import { readTransferConf } from '../cube/transfer-conf.ts';
import {
  addAuthorOption,
  addChannelOption,
  addDryRunOption,
  addJsonOption,
  addSigningKeyOption,
  addTrustedKeysOption,
  openRepositoryWithKeys,
  withDryRunNote,
} from './options.ts';

const POLL_MS = { min: 100, max: 86_400_000, default: 5000 };

interface WatchOptions {
  readonly logFormat?: LogFormat;
  readonly config?: string;
  readonly donefiles?: string;
  readonly bundle?: string;
  readonly shardNum?: number;
  readonly baseOnly?: boolean;
  readonly repository: string;
  readonly channel: string;
  readonly then: AfterPublishAction;
  readonly by: string;
  readonly pollMs: number;
  readonly once?: boolean;
  readonly dryRun?: boolean;
  readonly json?: boolean;
  readonly signingKey?: string;
  readonly trustedKeys?: string;
}

const EXAMPLES = `
Examples:
  cube-agent watch-donefiles --config /home/cube/conf/transfer.conf --repository /srv/models
  cube-agent watch-donefiles --donefiles http://10.0.0.9/done --bundle test_dict --shard-num 2 \\
    --repository /srv/models --then rollout -- --value-format f32

A base with id 1628131462 becomes version 1628131462, a patch of it 1628131462_1628131999.`;

export function addDonefilesCommand(program: Command): void {
  const command = addSigningKeyOption(addTrustedKeysOption(program.command('watch-donefiles')))
    .description(
      'Watch the donefiles of PaddlePaddle Cube trainers; build, publish and activate the bases ' +
        'and patches (deltas) that they list',
    )
    .argument('[flags...]', 'Further flags of cube-builder, after --')
    .option(
      '--config <file>',
      'transfer.conf with donefile_address, dict_name, shard_num and mode (default: the options)',
    )
    .option(
      '--donefiles <location>',
      'Folder or http(s)://… with base.txt and patch.txt (default: donefile_address of --config)',
    )
    .option(
      '--bundle <name>',
      'Name of the bundle and its table (default: dict_name of --config)',
      parseNameOption('bundle'),
    )
    .option(
      '--shard-num <n>',
      'Number of shards of new bases (default: shard_num of --config)',
      parseIntegerBetween(1, SHARD_NUM_MAX),
    )
    .option('--base-only', 'Ignore patches (default: the mode of transfer.conf)')
    .requiredOption('--repository <folder>', 'Repository to publish to, a folder');
  addJsonOption(addDryRunOption(addAuthorOption(addChannelOption(command))))
    .addOption(
      new Option(
        '--then <action>',
        'Action after publishing: activate moves the channel, rollout opens a rollout',
      )
        .choices(AFTER_PUBLISH_ACTIONS)
        .default('activate'),
    )
    .option(
      '--poll-ms <n>',
      'Poll interval in milliseconds',
      parseIntegerBetween(POLL_MS.min, POLL_MS.max),
      POLL_MS.default,
    )
    .option('--once', 'Publish what is listed now and exit (default: keep polling)');
  addLogFormatOption(command).addHelpText('after', EXAMPLES).action(watchDonefiles);
}

async function watchDonefiles(builderFlags: string[], options: WatchOptions): Promise<void> {
  const logger = createLogger('watch-donefiles', { format: options.logFormat });
  const watch = createWatcher(options, builderFlags, logger);
  if (options.dryRun) {
    const { steps, problems } = await watch.plan();
    printPlan(steps, problems, options);
    throwProblems(problems, logger);
    return;
  }
  if (options.once) {
    const problems = await watch.runOnce();
    const { published } = watch;
    if (options.json) printLine(JSON.stringify({ published, problems, dryRun: false }));
    throwProblems(problems, logger);
    return;
  }
  if (options.json) {
    throw new UsageError('--json needs --once or --dry-run; without them the command only logs');
  }
  const stopping = new AbortController();
  const start = async (): Promise<{ stop: () => Promise<void> }> => {
    const ended = keepWatching(watch, options.pollMs, logger, stopping.signal);
    logger.info({ repository: options.repository }, 'watching');
    return {
      stop: () => {
        stopping.abort();
        return ended;
      },
    };
  };
  await runService(start, logger);
}

function printPlan(
  steps: readonly DonefileStep[],
  problems: readonly WatchProblem[],
  options: WatchOptions,
): void {
  if (options.json) {
    printLine(JSON.stringify({ steps, problems, dryRun: true }));
    return;
  }
  for (const { version, kind, input, line } of steps) {
    printLine(
      withDryRunNote(`would build ${kind} ${version} from ${input} (line ${line})`, options),
    );
  }
  if (steps.length === 0) printLine(withDryRunNote('nothing to build', options));
}

/** @throws CubeError of the first problem; all are logged */
function throwProblems(problems: readonly WatchProblem[], logger: Logger): void {
  const [first] = problems;
  if (first === undefined) return;
  const more = problems.length === 1 ? '' : ` (and ${problems.length - 1} more in the log)`;
  logProblems(problems, logger);
  throw new CubeError(first.code as CubeError['code'], `${first.message}${more}`);
}

function createWatcher(
  options: WatchOptions,
  builderFlags: string[],
  logger: Logger,
): DonefileWatcher {
  const conf = options.config === undefined ? undefined : readTransferConf(options.config);
  const need = <T>(flag: string, given: T | undefined, configured: T | undefined): T => {
    const value = given ?? configured;
    if (value !== undefined) return value;
    throw new UsageError(`${flag} is missing; pass it, or --config transfer.conf`);
  };
  const source = new DonefileSource(need('--donefiles', options.donefiles, conf?.donefileAddress));
  const repository = openRepositoryWithKeys(options, { create: options.dryRun !== true });
  if (!repository.isLocal) {
    const text =
      `${repository.location} is not a folder, which cube-builder needs; ` +
      'publish to a folder and copy from there with cube-agent publish';
    throw new CubeError('UNSUPPORTED', text);
  }
  return new DonefileWatcher({
    source,
    repository,
    builderFlags,
    logger,
    isSigning: options.signingKey !== undefined,
    clock: systemClock,
    includePatches: !(options.baseOnly ?? conf?.mode === 'base_only'),
    bundle: need('--bundle', options.bundle, conf?.dictName),
    shardNum: need('--shard-num', options.shardNum, conf?.shardNum),
    channel: options.channel,
    afterPublish: options.then,
    by: options.by,
  });
}

async function keepWatching(
  watch: DonefileWatcher,
  pollMs: number,
  logger: Logger,
  signal: AbortSignal,
): Promise<void> {
  let reported = '[]';
  while (!signal.aborted) {
    const problems = await watch.runOnce(signal).catch((error: unknown) => {
      if (signal.aborted) return [];
      throw error;
    });
    const now = JSON.stringify(problems);
    // A problem that stays the same is logged once.
    if (now !== reported) {
      logProblems(problems, logger);
      if (problems.length === 0) logger.info('all problems are solved');
    }
    reported = now;
    await systemClock.sleep(pollMs, signal);
  }
}

function logProblems(problems: readonly WatchProblem[], logger: Logger): void {
  for (const { what, code, message } of problems) logger.error({ what, code }, message);
}
