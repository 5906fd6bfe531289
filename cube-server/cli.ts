/** The command line of cube-server: parses options and runs the server until it is stopped. */
import { CubeError, requireDefined } from '../lib/core/errors.ts';
import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../lib/core/limits.ts';
import { checkName } from '../lib/core/names.ts';
import {
  type Command,
  createCli,
  InvalidArgumentError,
  Option,
  optionWithEnv,
  parseByteCount,
  parseIntegerBetween,
  runCli,
} from '../lib/platform/cli.ts';
import {
  addDecryptOptions,
  type DecryptOptions,
  shareDecryptKeys,
} from '../lib/platform/encryption-options.ts';
import { makeFolder } from '../lib/platform/files.ts';
import { letHeapGrow } from '../lib/platform/heap-growth.ts';
import { runService } from '../lib/platform/lifecycle.ts';
import {
  addLogFormatOption,
  createLogger,
  LOG_LEVELS,
  type LogFormat,
  type Logger,
  type LogLevel,
} from '../lib/platform/logs.ts';
import { reportListening, waitForParentStop } from '../lib/platform/supervised-process.ts';
import { type AccessOptions, addAccessOptions, toAccessConfig } from '../lib/rpc/access-options.ts';
import {
  addServerTlsOptions,
  type ServerTlsOptions,
  toServerTlsFiles,
} from '../lib/rpc/credential-options.ts';
import { DEFAULT_LOAD_BYTES_PER_SECOND } from '../lib/store/resident-store.ts';
import { collectLimits, formatLimitsHelp, parseShards } from './option-parsers.ts';
import type { CubeServer } from './server.ts';
import { checkPorts, supervise } from './supervisor.ts';

interface Flags extends ServerTlsOptions, AccessOptions, DecryptOptions {
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
  readonly logLevel: LogLevel;
  readonly logFormat?: LogFormat;
}

const EXAMPLES = `
Examples:
  cube-server --shard 0 --shard-num 4 --port 8000 --data-dir /var/lib/hypercube
  cube-server --shard 0-3 --shard-num 4 --port 8000 --data-dir data --memory 4GiB
  cube-server --shard 0 --shard-num 1 --port 8000 --data-dir data --cube-table ctr-dnn/embedding

The server starts empty and not ready. cube-agent or control calls load and activate versions:
  curl -H 'content-type: application/json' -d '{"bundle":"ctr-dnn","version":"1"}' \\
       http://127.0.0.1:8000/hypercube.ControlService/load
  curl http://127.0.0.1:8000/hypercube.ControlService/status
Signals: SIGTERM finishes requests in flight and stops. SIGHUP drains: the server refuses new
lookups and is not ready, until it is stopped or a control call ends the drain.`;

const port = parseIntegerBetween(0, 65_535);

export function createProgram(): Command {
  const program = createCli(
    'cube-server',
    'Answers lookups for shards of embedding tables, with one process per shard.',
  )
    .optionsGroup('Shard and addresses:')
    .requiredOption(
      '--shard <index>',
      'Shard to serve. A range (0-3) or a list (0,2,5) runs one process per shard on ' +
        'consecutive ports',
      parseShards,
    )
    .requiredOption('--shard-num <count>', 'Total number of shards', parseIntegerBetween(1, 65_536))
    .option('--host <address>', 'Address to listen on', '127.0.0.1')
    .option('--port <port>', 'Port for lookups; 0 chooses a free port', port, 8000)
    .option(
      '--admin-port <port>',
      'Separate port for control calls and metrics; --port then refuses them. With several ' +
        'shards, the first of consecutive ports (default: --port answers them)',
      port,
    );
  addStorageOptions(program);
  addControlOptions(program);
  addCubeOptions(program);
  program
    .optionsGroup('Limits and logs:')
    .addOption(
      new Option('--limit <name=value>', 'Override one of the limits below; repeatable')
        .default({}, 'none')
        .argParser(collectLimits),
    )
    .addOption(
      new Option('--log-level <level>', 'Minimum level of log messages')
        .choices(LOG_LEVELS)
        .default('info'),
    );
  return addLogFormatOption(program)
    .addHelpText('after', formatLimitsHelp())
    .addHelpText('after', EXAMPLES);
}

/** Without these options only this host may make control calls. */
function addControlOptions(program: Command): void {
  program
    .optionsGroup('Control access and TLS:')
    .option(
      '--control-token-file <file>',
      'File with the token that control calls must send as "Authorization: Bearer <token>"; ' +
        'reread when it changes (default: only this host may make control calls)',
    );
  addServerTlsOptions(program, 'whose clients may make control calls');
  addAccessOptions(program);
  addDecryptOptions(program.optionsGroup('Encrypted versions (docs/security.md):'));
}

function addStorageOptions(program: Command): void {
  program
    .optionsGroup('Tables and memory:')
    .requiredOption(
      '--data-dir <folder>',
      'Data folder with layers and manifests, which cube-agent fills',
    )
    .addOption(
      optionWithEnv(
        '--memory <bytes>',
        'Memory budget for the tables of each shard, for example 16GiB',
        'CUBE_SERVER_MEMORY',
      )
        .default(4 * 2 ** 30, '4GiB')
        .argParser(parseByteCount),
    )
    .option(
      '--no-in-mem',
      'Keep rows in their files and only indexes in memory, for tables larger than memory',
    )
    .option(
      '--threads <count>',
      'Threads that answer lookups; more than 1 needs Node 22.12 or newer',
      parseIntegerBetween(1, 256),
      1,
    )
    .addOption(
      new Option(
        '--load-rate <bytes>',
        'Maximum rate at which versions are read from disk while lookups are answered, in bytes ' +
          'per second; 0: unlimited',
      )
        .default(DEFAULT_LOAD_BYTES_PER_SECOND, '256MiB')
        .argParser(parseByteCount),
    )
    .option(
      '--retire-grace-ms <ms>',
      'Time since its last lookup within which the server refuses to unload an inactive version, ' +
        'in milliseconds; unload calls of cube-agent set their own',
      parseIntegerBetween(0, 86_400_000),
      60_000,
    );
}

function addCubeOptions(program: Command): void {
  program
    .optionsGroup('Clients and files of PaddlePaddle Cube:')
    .option(
      '--cube-table <bundle/table>',
      'Table that clients of PaddlePaddle Cube read (required for them with several tables)',
      parseCubeTable,
    )
    .option(
      '--cube-data <folder>',
      "Serve the dictionaries in this data folder of PaddlePaddle Cube (the folder's VERSION " +
        'file names the first one, loaded before the server listens on --port); {shard} is ' +
        'replaced by the shard index (default: none)',
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

/** Several threads need listeners that share a port. */
function usableThreads(threads: number, logger: Logger): number {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
  const canSharePort = major > 22 || (major === 22 && minor >= 12);
  if (threads === 1 || canSharePort) return threads;
  const { version } = process;
  logger.warn({ threads, node: version }, '--threads needs Node 22.12 or newer; using one thread');
  return 1;
}

async function serve(flags: Flags): Promise<void> {
  shareDecryptKeys(flags);
  const beyond = flags.shard.find((shard) => shard >= flags.shardNum);
  if (beyond !== undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `--shard ${beyond} must be less than --shard-num ${flags.shardNum}; shards count from 0`,
    );
  }
  checkPorts(flags);
  const limits = { ...DEFAULT_SERVER_LIMITS, ...flags.limit };
  makeFolder(flags.dataDir);
  const logger = createLogger('cube-server', {
    level: flags.logLevel,
    format: flags.logFormat,
  });
  if (flags.shard.length > 1) {
    await supervise(flags, logger);
    return;
  }
  const { CubeServer } = await import('./server.ts');
  letHeapGrow();
  const server = new CubeServer({
    shardIndex: requireDefined(flags.shard[0], '--shard'),
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
    tls: toServerTlsFiles(flags),
    access: toAccessConfig(flags),
    limits,
    logger,
  });
  const stopRequest = waitForParentStop();
  const drain = (): void => void server.drain();
  process.on('SIGHUP', drain);
  const start = async (stopping: AbortSignal): Promise<CubeServer> => {
    // A load that is due at start may take minutes.
    stopping.addEventListener('abort', () => server.cancelStart());
    try {
      reportListening(await server.listen(flags));
    } catch (error) {
      await server.stop();
      throw error;
    }
    return server;
  };
  try {
    await runService(start, logger, stopRequest === undefined ? {} : { stopRequest });
  } finally {
    process.off('SIGHUP', drain);
  }
}

/** @returns the exit code: 0 stopped on request, 1 failed, 2 wrong usage */
export function run(): Promise<number> {
  const program = createProgram().action(serve);
  return runCli(program, undefined, (error) => (error.code === 'INVALID_ARGUMENT' ? 2 : 1));
}
