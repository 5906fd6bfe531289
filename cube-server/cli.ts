/** The command line of cube-server: options in, a running server out, until it is told to stop. */
import { CubeError } from '../lib/core/errors.ts';
import { DEFAULT_SERVER_LIMITS } from '../lib/core/limits.ts';
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
import { runService } from '../lib/platform/lifecycle.ts';
import { createLogger, LOG_LEVELS } from '../lib/platform/logs.ts';
import { CubeServer } from './server.ts';

interface Flags {
  readonly shard: number;
  readonly shardNum: number;
  readonly port: number;
  readonly host: string;
  readonly dataDir: string;
  readonly memory: number;
  readonly cubeTable?: { bundle: string; table: string };
  readonly maxConnections: number;
  readonly controlTokenFile?: string;
  readonly logLevel: (typeof LOG_LEVELS)[number];
}

const EXAMPLES = `
Examples:
  cube-server --shard 0 --shard-num 4 --port 8000 --data-dir /var/lib/hypercube
  cube-server --shard 3 --shard-num 8 --port 8003 --data-dir data --memory 16GiB
  cube-server --shard 0 --shard-num 1 --port 8000 --data-dir data --cube-table ctr-dnn/embedding

It starts empty and not ready; cube-agent, or a control call, loads and activates versions:
  curl -H 'content-type: application/json' -d '{"bundle":"ctr-dnn","version":"1"}' \\
       http://127.0.0.1:8000/hypercube.ControlService/load
  curl http://127.0.0.1:8000/hypercube.ControlService/status`;

function createProgram(): Command {
  return createCli('cube-server', 'Serves one shard of sharded embedding tables.')
    .requiredOption('--shard <index>', 'the shard this replica serves', integerBetween(0, 65_535))
    .requiredOption('--shard-num <count>', 'the number of shards', integerBetween(1, 65_536))
    .requiredOption('--data-dir <folder>', 'where the agent puts layers and manifests')
    .option('--port <port>', 'port; 0 takes a free one', integerBetween(0, 65_535), 8000)
    .option('--host <address>', 'address to listen on', '127.0.0.1')
    .addOption(
      optionWithEnv('--memory <bytes>', 'memory for tables, such as 16GiB', 'CUBE_SERVER_MEMORY')
        .default(4 * 2 ** 30, '4GiB')
        .argParser(byteCount),
    )
    .option(
      '--cube-table <bundle/table>',
      'what Cube clients read by seek (default: the only table there is)',
      parseCubeTable,
    )
    .option(
      '--max-connections <count>',
      'connections open at once',
      integerBetween(1, 1_000_000),
      DEFAULT_SERVER_LIMITS.connections,
    )
    .option(
      '--control-token-file <file>',
      'control calls need "Authorization: Bearer" with its content; without it only this host may make them',
    )
    .addOption(
      new Option('--log-level <level>', 'least level of log lines')
        .choices(LOG_LEVELS)
        .default('info'),
    )
    .addHelpText('after', EXAMPLES);
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

async function serve(flags: Flags): Promise<void> {
  if (flags.shard >= flags.shardNum) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `--shard ${flags.shard} is not below --shard-num ${flags.shardNum} (shards count from 0)`,
    );
  }
  makeFolder(flags.dataDir);
  const logger = createLogger('cube-server', flags.logLevel);
  const server = new CubeServer({
    shardIndex: flags.shard,
    shardNum: flags.shardNum,
    dataFolder: flags.dataDir,
    memoryBytes: flags.memory,
    cubeTable: flags.cubeTable,
    controlTokenFile: flags.controlTokenFile,
    limits: { ...DEFAULT_SERVER_LIMITS, connections: flags.maxConnections },
    logger,
  });
  const start = async (): Promise<CubeServer> => {
    await server.listen(flags.host, flags.port);
    return server;
  };
  await runService(start, logger);
}

/** @returns the exit code: 0 stopped as asked, 1 failed, 2 wrong usage */
export function run(): Promise<number> {
  const program = createProgram().action(serve);
  return runCli(program, undefined, (error) => (error.code === 'INVALID_ARGUMENT' ? 2 : 1));
}
