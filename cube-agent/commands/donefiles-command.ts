/** `cube-agent watch-donefiles`: publishes what donefiles of Cube's trainers ask for. */
import { CubeError } from '../../lib/core/errors.ts';
import { SHARD_NUM_MAX } from '../../lib/core/layer-format.ts';
import { type Command, integerBetween, nameOption, Option } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { runService } from '../../lib/platform/lifecycle.ts';
import { createLogger, type Logger } from '../../lib/platform/logs.ts';
import { DonefileSource } from '../cube/donefile-source.ts';
import {
  AFTERWARDS,
  type Afterwards,
  DonefileWatch,
  type WatchProblem,
} from '../cube/donefile-watch.ts';
import { readTransferConf } from '../cube/transfer-conf.ts';
import { addSigningKeyOption, addTrustedKeysOption, openWithKeys } from './keys.ts';
import { defaultAuthor } from './options.ts';

const POLL_MS = { min: 100, max: 86_400_000, default: 5000 };

interface WatchOptions {
  readonly config?: string;
  readonly donefiles?: string;
  readonly bundle?: string;
  readonly shardNum?: number;
  readonly baseOnly?: boolean;
  readonly repository: string;
  readonly channel: string;
  readonly then: Afterwards;
  readonly by: string;
  readonly pollMs: number;
  readonly once?: boolean;
  readonly signingKey?: string;
  readonly trustedKeys?: string;
}

const EXAMPLES = `
Examples:
  cube-agent watch-donefiles --config /home/cube/conf/transfer.conf --repository /srv/models
  cube-agent watch-donefiles --donefiles http://10.0.0.9/done --bundle test_dict --shard-num 2 \\
    --repository /srv/models --then rollout -- --value-format f32
A base of id 1628131462 becomes version 1628131462, a patch on it 1628131462_1628131999.`;

export function addDonefilesCommand(program: Command): void {
  addSigningKeyOption(addTrustedKeysOption(program.command('watch-donefiles')))
    .description("publish what donefiles of Cube's trainers ask for, with cube-builder")
    .argument('[flags...]', 'after --: further flags of cube-builder')
    .option('--config <file>', 'transfer.conf: donefile_address, dict_name, shard_num, mode')
    .option('--donefiles <place>', 'a folder or http(s)://…, with base.txt and patch.txt')
    .option('--bundle <name>', 'the model, and its table', nameOption('bundle'))
    .option('--shard-num <n>', 'of bases', integerBetween(1, SHARD_NUM_MAX))
    .option('--base-only', 'patches do not count')
    .requiredOption('--repository <folder>', 'where to publish')
    .option('--channel <name>', 'the named pointer', nameOption('channel'), 'stable')
    .addOption(
      new Option('--then <what>', 'of a published version: point the channel, open a rollout')
        .choices(AFTERWARDS)
        .default('activate'),
    )
    .option('--by <who>', 'who; kept in the history', defaultAuthor())
    .option(
      '--poll-ms <n>',
      'how often to look',
      integerBetween(POLL_MS.min, POLL_MS.max),
      POLL_MS.default,
    )
    .option('--once', 'do what is to be done now, and end')
    .addHelpText('after', EXAMPLES)
    .action(watchDonefiles);
}

async function watchDonefiles(builderFlags: string[], options: WatchOptions): Promise<void> {
  const logger = createLogger('watch-donefiles');
  const watch = makeWatch(options, builderFlags, logger);
  if (options.once) {
    const problems = await watch.pass();
    if (problems.length === 0) return;
    const [{ code, message }] = problems as [WatchProblem];
    const more = problems.length === 1 ? '' : ` (and ${problems.length - 1} more in the log)`;
    tell(problems, logger);
    throw new CubeError(code as CubeError['code'], `${message}${more}`);
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

function makeWatch(options: WatchOptions, builderFlags: string[], logger: Logger): DonefileWatch {
  const conf = options.config === undefined ? undefined : readTransferConf(options.config);
  const need = <T>(flag: string, given: T | undefined, configured: T | undefined): T => {
    const value = given ?? configured;
    if (value !== undefined) return value;
    throw new CubeError('INVALID_ARGUMENT', `${flag} is missing (or give --config transfer.conf)`);
  };
  const source = new DonefileSource(need('--donefiles', options.donefiles, conf?.donefileAddress));
  const repository = openWithKeys(options, { create: true });
  if (!repository.isLocal) {
    const text = `${repository.location}: cube-builder builds into a folder; publish on from there`;
    throw new CubeError('UNSUPPORTED', text);
  }
  return new DonefileWatch({
    ...{ source, repository, builderFlags, logger },
    ...{ signs: options.signingKey !== undefined, clock: systemClock },
    patches: !(options.baseOnly ?? conf?.mode === 'base_only'),
    bundle: need('--bundle', options.bundle, conf?.dictName),
    shardNum: need('--shard-num', options.shardNum, conf?.shardNum),
    channel: options.channel,
    afterwards: options.then,
    by: options.by,
  });
}

async function keepWatching(
  watch: DonefileWatch,
  pollMs: number,
  logger: Logger,
  signal: AbortSignal,
): Promise<void> {
  let said = '[]';
  while (!signal.aborted) {
    const problems = await watch.pass(signal).catch((error: unknown) => {
      if (signal.aborted) return [];
      throw error;
    });
    const now = JSON.stringify(problems);
    // What stays wrong is said once.
    if (now !== said) {
      tell(problems, logger);
      if (problems.length === 0) logger.info('all well again');
    }
    said = now;
    await systemClock.sleep(pollMs, signal);
  }
}

function tell(problems: readonly WatchProblem[], logger: Logger): void {
  for (const { what, code, message } of problems) logger.error({ what, code }, message);
}
