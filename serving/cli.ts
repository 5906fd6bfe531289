/** The command line of serving: flags to `ServingOptions`, one process from start to graceful end. */
import { availableParallelism } from 'node:os';
import {
  type Command,
  createCli,
  integerBetween,
  nameOption,
  Option,
  runCli,
} from '../lib/platform/cli.ts';
import { runService } from '../lib/platform/lifecycle.ts';
import { createLogger, LOG_LEVELS } from '../lib/platform/logs.ts';
import { type StoreChoice, startServing } from './server.ts';

interface Flags {
  readonly repository: string;
  readonly bundle: string;
  readonly channel: string;
  readonly store: 'remote' | 'local';
  readonly fleet?: string;
  readonly dataDir?: string;
  readonly host: string;
  readonly port: number;
  readonly instances: number;
  readonly pollMs: number;
  readonly timeoutMs: number;
  readonly maxInFlight: number;
  readonly onUnavailable: 'fail' | 'default';
  readonly maxUnavailableShare: number;
  readonly logLevel: (typeof LOG_LEVELS)[number];
}

const EXAMPLES = `
Examples:
  serving --repository repo --bundle ctr-dnn --store remote --fleet fleet.json --port 8080
  serving --repository repo --bundle ctr-dnn --store local --data-dir serving-data
  head -3 rows.tsv | curl -s -H 'content-type: text/tab-separated-values' --data-binary @- localhost:8080/v1/ctr:predict`;

/** @returns the exit code */
export function run(argv?: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

function createProgram(): Command {
  const program = createCli('serving', 'Answers predictions of one bundle, following a channel.')
    .requiredOption('--repository <folder>', 'where versions are published')
    .requiredOption('--bundle <name>', 'the bundle to serve', nameOption('--bundle'))
    .option('--channel <name>', 'the channel to follow', nameOption('--channel'), 'stable')
    .addOption(storeOption())
    .option('--fleet <file>', 'fleet.json with the shard servers (with --store remote)')
    .option('--data-dir <folder>', 'where the embedded store lives (with --store local)')
    .option('--host <address>', 'address to listen on', '127.0.0.1')
    .option(
      '--port <number>',
      'port to listen on; 0 takes a free one',
      integerBetween(0, 65_535),
      8080,
    )
    .option(
      '--instances <number>',
      'model workers, each one thread',
      integerBetween(1, 256),
      availableParallelism(),
    )
    .option('--poll-ms <ms>', 'how often the channel is read', integerBetween(10, 3_600_000), 1_000)
    .option(
      '--timeout-ms <ms>',
      'deadline of a request without a timeout-ms header',
      integerBetween(1, 600_000),
      1_000,
    )
    .option(
      '--max-in-flight <number>',
      'requests let in at a time; more get 429',
      integerBetween(1, 100_000),
      256,
    );
  return addPolicyOptions(program)
    .addOption(new Option('--log-level <level>', 'what to log').choices(LOG_LEVELS).default('info'))
    .addHelpText('after', EXAMPLES)
    .action((flags: Flags) => serve(flags, program));
}

function storeOption(): Option {
  return new Option('--store <kind>', 'where embedding rows come from')
    .choices(['remote', 'local'])
    .makeOptionMandatory();
}

function addPolicyOptions(program: Command): Command {
  const onUnavailable = new Option(
    '--on-unavailable <policy>',
    'when no replica answers for a key: fail the request, or take the default row and say degraded',
  );
  return program
    .addOption(onUnavailable.choices(['fail', 'default']).default('fail'))
    .option(
      '--max-unavailable-share <share>',
      "with fail: the share of a request's lookups that may be unavailable (then degraded)",
      Number,
      0,
    );
}

async function serve(flags: Flags, program: Command): Promise<void> {
  const { onUnavailable, maxUnavailableShare, maxInFlight, logLevel, ...rest } = flags;
  if (!(maxUnavailableShare >= 0 && maxUnavailableShare <= 1)) {
    program.error('error: --max-unavailable-share is a number in 0..1');
  }
  const logger = createLogger('serving', logLevel);
  const options = {
    ...rest,
    store: storeChoice(flags, program),
    inFlightMax: maxInFlight,
    policy: { onUnavailable, maxUnavailableShare },
    logger,
  };
  await runService(() => startServing(options), logger);
}

function storeChoice({ store, fleet, dataDir }: Flags, program: Command): StoreChoice {
  if (store === 'remote' && fleet !== undefined) return { kind: 'remote', fleetPath: fleet };
  if (store === 'local' && dataDir !== undefined) return { kind: 'local', dataDir };
  const needed = store === 'remote' ? '--fleet <fleet.json>' : '--data-dir <folder>';
  return program.error(`error: --store ${store} needs ${needed}`);
}
