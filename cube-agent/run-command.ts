/** `cube-agent run`: the agent of one host, until it is told to stop. */
import { CubeError } from '../lib/core/errors.ts';
import { byteCount, type Command, integerBetween } from '../lib/platform/cli.ts';
import { systemClock } from '../lib/platform/clock.ts';
import { makeFolder } from '../lib/platform/files.ts';
import { runService } from '../lib/platform/lifecycle.ts';
import { createLogger } from '../lib/platform/logs.ts';
import { openRepository } from '../lib/repository/repository.ts';
import { Agent } from './agent.ts';
import { HostData } from './host-data.ts';
import {
  addTargetOptions,
  addTokenOption,
  collectEndpoints,
  readToken,
  type TargetOptions,
} from './options.ts';

interface RunOptions extends TargetOptions {
  readonly dataDir: string;
  readonly server: readonly string[];
  readonly pollMs: number;
  readonly retireGraceMs: number;
  readonly rateLimit?: number;
  readonly controlTokenFile?: string;
}

export function addRunCommand(program: Command): void {
  addTokenOption(addTargetOptions(program.command('run')))
    .description('run on a host: fetch, load, activate and retire what the channel wants')
    .requiredOption('--data-dir <folder>', "the host's own copy, shared with its servers")
    .requiredOption(
      '--server <host:port>',
      'control address of a local cube-server; once for each',
      collectEndpoints,
    )
    .option('--poll-ms <n>', 'how often to look', integerBetween(50, 3_600_000), 2000)
    .option(
      '--retire-grace-ms <n>',
      'unload an unwanted version that was not looked up for so long',
      integerBetween(0, 86_400_000),
      60_000,
    )
    .option('--rate-limit <bytes>', 'fetch at most so much a second, such as 100MiB', byteCount)
    .action(runAgent);
}

async function runAgent(options: RunOptions): Promise<void> {
  const { repository, bundle, channel, dataDir, server, rateLimit } = options;
  requireSource(options);
  makeFolder(dataDir);
  const logger = createLogger('cube-agent');
  const agent = new Agent({
    openRepository: () => openRepository(repository),
    bundle,
    channel,
    dataFolder: dataDir,
    servers: server,
    controlToken: readToken(options.controlTokenFile),
    pollMs: options.pollMs,
    retireGraceMs: options.retireGraceMs,
    ...(rateLimit === undefined ? {} : { bytesPerSecond: Math.max(1, rateLimit) }),
    clock: systemClock,
    logger,
  });
  const start = async (): Promise<Agent> => {
    logger.info({ repository, bundle, channel, dataDir, servers: server }, 'running');
    agent.start();
    return agent;
  };
  await runService(start, logger);
}

/** A repository that is away is waited for on a host that has run before; a first start with a wrong path ends. */
function requireSource({ repository, bundle, channel, dataDir }: RunOptions): void {
  try {
    openRepository(repository);
  } catch (error) {
    const { code } = CubeError.from(error);
    const ranBefore = new HostData(dataDir, bundle).recall(channel) !== undefined;
    if (code !== 'NOT_FOUND' || !ranBefore) throw error;
  }
}
