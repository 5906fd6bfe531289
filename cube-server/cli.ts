/** The command line of cube-server: options in, a running server out, until it is told to stop. */
import { CubeError } from '../lib/core/errors.ts';
import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../lib/core/limits.ts';
import { checkName } from '../lib/core/names.ts';
import {
  byteCount,
  type Command,
  createCli,
  InvalidArgumentError,
  integerBetween,
  Option,
  optionWithEnv,
  runCli,
} from '../lib/platform/cli.ts';
import { makeFolder } from '../lib/platform/files.ts';
import { ownerLeft, reportListening } from '../lib/platform/kept-process.ts';
import { runService } from '../lib/platform/lifecycle.ts';
import { createLogger, LOG_LEVELS, type Logger } from '../lib/platform/logs.ts';
import { addTlsOptions, type TlsFlags, tlsFilesOf } from '../lib/rpc/credential-options.ts';
import { DEFAULT_LOAD_BYTES_PER_SECOND } from '../lib/store/resident-store.ts';
import { collectLimits, limitsHelp } from './limit-option.ts';
import type { CubeServer } from './server.ts';
import { parseShards } from './shard-option.ts';
import { checkPorts, supervise } from './supervisor.ts';

interface Flags extends TlsFlags {
  readonly shard: readonly number[];
  readonly shardNum: number;
  readonly port: number;
  readonly host: string;
  readonly adminPort?: number;
  readonly dataDir: string;
  readonly memory: number;
  readonly threads: number;
  readonly inMem: boolean;
  readonly loadRate: number;
  readonly retireGraceMs: number;
  readonly cubeTable?: { bundle: string; table: string };
  readonly cubeData?: string;
  readonly limit: Partial<ServerLimits>;
  readonly controlTokenFile?: string;
  readonly logLevel: (typeof LOG_LEVELS)[number];
}

const EXAMPLES = `
Examples:
  cube-server --shard 0 --shard-num 4 --port 8000 --data-dir /var/lib/hypercube
  cube-server --shard 0-3 --shard-num 4 --port 8000 --data-dir data --memory 4GiB
  cube-server --shard 0 --shard-num 1 --port 8000 --data-dir data --cube-table ctr-dnn/embedding

It starts empty and not ready; cube-agent, or a control call, loads and activates versions:
  curl -H 'content-type: application/json' -d '{"bundle":"ctr-dnn","version":"1"}' \\
       http://127.0.0.1:8000/hypercube.ControlService/load
  curl http://127.0.0.1:8000/hypercube.ControlService/status
Signals: SIGTERM finishes what is in flight and ends, SIGHUP drains (docs/server.md).`;

const port = integerBetween(0, 65_535);

function createProgram(): Command {
  const program = createCli('cube-server', 'Serves one shard of sharded embedding tables.')
    .requiredOption(
      '--shard <index>',
      'the shard this replica serves; 0-3 or 0,2,5 runs a process for each, on ports counted up',
      parseShards,
    )
    .requiredOption('--shard-num <count>', 'the number of shards', integerBetween(1, 65_536))
    .requiredOption('--data-dir <folder>', 'where the agent puts layers and manifests')
    .option('--port <port>', 'port; 0 takes a free one', port, 8000)
    .option('--host <address>', 'address to listen on', '127.0.0.1')
    .option(
      '--admin-port <port>',
      'a port of their own for control calls and metrics; the data port then refuses them',
      port,
    );
  return addControlOptions(addServingOptions(program))
    .option<Partial<ServerLimits>>(
      '--limit <name=value>',
      'another limit, once for each (below)',
      collectLimits,
      {},
    )
    .addOption(
      new Option('--log-level <level>', 'least level of log lines')
        .choices(LOG_LEVELS)
        .default('info'),
    )
    .addHelpText('after', limitsHelp())
    .addHelpText('after', EXAMPLES);
}

/** Without any only this host may make control calls. */
function addControlOptions(program: Command): Command {
  const command = program.option(
    '--control-token-file <file>',
    'control calls need "Authorization: Bearer" with its content, or a certificate; reread when it changes',
  );
  return addTlsOptions(command, 'whoever shows a certificate of theirs may make control calls');
}

function addServingOptions(program: Command): Command {
  return program
    .addOption(
      optionWithEnv('--memory <bytes>', 'memory for tables, such as 16GiB', 'CUBE_SERVER_MEMORY')
        .default(4 * 2 ** 30, '4GiB')
        .argParser(byteCount),
    )
    .option(
      '--threads <count>',
      'threads that answer lookups, on Node 22.12 or newer',
      integerBetween(1, 256),
      1,
    )
    .option('--no-in-mem', 'keep rows in their files: for tables larger than memory')
    .addOption(
      new Option(
        '--load-rate <bytes>',
        'bytes a second that a load reads while lookups are answered; 0: as fast as possible',
      )
        .default(DEFAULT_LOAD_BYTES_PER_SECOND, '256MiB')
        .argParser(byteCount),
    )
    .option(
      '--retire-grace-ms <n>',
      'a version looked up within this time is in use: not unloaded unless forced',
      integerBetween(0, 86_400_000),
      60_000,
    )
    .option(
      '--cube-table <bundle/table>',
      'what Cube clients read by seek (default: the only table there is)',
      parseCubeTable,
    )
    .option(
      '--cube-data <folder>',
      "Cube's own data folder, with VERSION and dict directories; {shard} becomes the shard",
    );
}

function parseCubeTable(text: string): { bundle: string; table: string } {
  const [bundle = '', table = '', ...rest] = text.split('/');
  if (table === '' || rest.length > 0) {
    throw new InvalidArgumentError('Expected bundle/table, such as ctr-dnn/embedding.');
  }
  return {
    bundle: checkName(bundle, '--cube-table: bundle'),
    table: checkName(table, '--cube-table: table'),
  };
}

/** Threads need listeners that share a port. */
function usableThreads(threads: number, logger: Logger): number {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const canSharePort = major > 22 || (major === 22 && minor >= 12);
  if (threads === 1 || canSharePort) return threads;
  const { version } = process;
  logger.warn({ threads, node: version }, '--threads needs Node 22.12 or newer: one thread serves');
  return 1;
}

async function serve(flags: Flags): Promise<void> {
  const beyond = flags.shard.find((shard) => shard >= flags.shardNum);
  if (beyond !== undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `--shard ${beyond} is not below --shard-num ${flags.shardNum} (shards count from 0)`,
    );
  }
  checkPorts(flags);
  const limits = { ...DEFAULT_SERVER_LIMITS, ...flags.limit };
  makeFolder(flags.dataDir);
  const logger = createLogger('cube-server', flags.logLevel);
  const [shardIndex] = flags.shard;
  if (flags.shard.length > 1) {
    await supervise(flags, logger);
    return;
  }
  const { CubeServer } = await import('./server.ts');
  const server = new CubeServer({
    shardIndex: shardIndex!,
    shardNum: flags.shardNum,
    dataFolder: flags.dataDir,
    memoryBytes: flags.memory,
    threads: usableThreads(flags.threads, logger),
    rowsOnDisk: !flags.inMem,
    loadBytesPerSecond: flags.loadRate === 0 ? Number.POSITIVE_INFINITY : flags.loadRate,
    retireGraceMs: flags.retireGraceMs,
    cubeTable: flags.cubeTable,
    cubeFolder: flags.cubeData,
    controlTokenFile: flags.controlTokenFile,
    tls: tlsFilesOf(flags),
    limits,
    logger,
  });
  const asked = ownerLeft();
  const drain = (): void => void server.drain();
  process.on('SIGHUP', drain);
  const start = async (): Promise<CubeServer> => {
    try {
      reportListening(await server.listen(flags));
    } catch (error) {
      await server.stop();
      throw error;
    }
    return server;
  };
  try {
    await runService(start, logger, asked === undefined ? {} : { asked });
  } finally {
    process.off('SIGHUP', drain);
  }
}

/** @returns the exit code: 0 stopped as asked, 1 failed, 2 wrong usage */
export function run(): Promise<number> {
  const program = createProgram().action(serve);
  return runCli(program, undefined, (error) => (error.code === 'INVALID_ARGUMENT' ? 2 : 1));
}
