/** `cube-agent run`: runs the agent of one host until it is stopped. */

import { CubeError } from '../../lib/core/errors.ts';
import { toFlag } from '../../lib/platform/arguments.ts';
import {
  type Command,
  parseByteCount,
  parseIntegerBetween,
  parseNameOption,
  UsageError,
} from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { useDecryptKeysOfEnvironment } from '../../lib/platform/encryption-options.ts';
import { makeFolder } from '../../lib/platform/files.ts';
import { IdleMainThread } from '../../lib/platform/idle-main-thread.ts';
import { runService, type Stoppable } from '../../lib/platform/lifecycle.ts';
import {
  addLogFormatOption,
  createLogger,
  type LogFormat,
  type Logger,
} from '../../lib/platform/logs.ts';
import { TRUSTED_KEYS_VARIABLE } from '../../lib/repository/signatures.ts';
import { type CallerOptions, createServerCredentials } from '../../lib/rpc/credential-options.ts';
import { Agent } from '../host/agent.ts';
import {
  type AgentConfig,
  KEEP_FREE_BYTES_DEFAULT,
  NUMBER_RANGES,
  readAgentConfig,
} from '../host/agent-config.ts';
import { CopyThreads } from '../host/copy-threads.ts';
import { HostData } from '../host/host-data.ts';
import {
  addServerCredentialOptions,
  addTrustedKeysOption,
  collectEndpoints,
  openRepositoryWithKeys,
} from './options.ts';

/** Longer than the stop grace of supervised servers. */
const STOP_GRACE_MS = 35_000;
/** A host that starts must load its versions first. */
const IDLE_AFTER_MS = 5_000;

interface RunOptions extends CallerOptions {
  readonly config?: string;
  readonly repository?: string;
  readonly trustedKeys?: string;
  readonly bundle?: string;
  readonly channel?: readonly string[];
  readonly dataDir?: string;
  readonly server?: readonly string[];
  readonly listen?: readonly string[];
  readonly tokenFile?: string;
  readonly pollMs?: number;
  readonly retireGraceMs?: number;
  readonly parallel?: number;
  readonly rateLimit?: number;
  readonly keepFree?: number;
  readonly keepVersions?: number;
  readonly keepBytes?: number;
  readonly logFormat?: LogFormat;
}

export function addRunCommand(program: Command): void {
  const command = program
    .command('run')
    .description('Run the agent of a host: fetch, load, activate and unload versions')
    .option(
      '--config <file>',
      'agent.yaml, which can also describe several bundles and supervised servers',
    )
    .option(
      '--repository <location>',
      'Repository: a folder, s3://bucket/prefix or http(s) URL (required without --config)',
    )
    .option('--bundle <name>', 'Bundle name (required without --config)', parseNameOption('bundle'))
    .option(
      '--channel <name>',
      'Channel whose version is loaded; repeatable. Servers activate the version of the first ' +
        'channel (default: stable)',
      collectNames,
    )
    .option(
      '--data-dir <folder>',
      'Folder for downloaded layers and manifests; the cube-servers of this host read it too ' +
        '(required without --config)',
    )
    .option(
      '--server <host:port>',
      'Control address of a cube-server of this host; repeatable (required without --config)',
      collectEndpoints,
    )
    .option(
      '--listen <host:port>',
      'Address that serves status, metrics and requests to poll at once (default: none)',
      collectEndpoints,
    )
    .option(
      '--token-file <file>',
      'File with the token that callers of --listen must send, with --agent-token-file ' +
        '(default: none; without token and certificates only this host may call)',
    );
  addFetchOptions(addTrustedKeysOption(addServerCredentialOptions(command)));
  addLogFormatOption(command)
    .addHelpText('after', EXAMPLES)
    .action((options: RunOptions) => runAgent(readConfig(command, options), options.logFormat));
}

const EXAMPLES = `
Examples:
  cube-agent run --repository /srv/models --bundle ctr-dnn --channel stable --channel canary \\
    --data-dir /var/lib/hypercube --server 127.0.0.1:8000 --listen 127.0.0.1:8100
  cube-agent run --config /etc/hypercube/agent.yaml

Servers activate the version of the first channel. Versions of the other channels are loaded
too, for lookups that name such a version. With --config, only --log-format may be given, and
environment variables do not replace fields of the file.`;

function addFetchOptions(command: Command): Command {
  const { pollMs, retireGraceMs, parallel, keepVersions } = NUMBER_RANGES;
  return command
    .option(
      '--poll-ms <n>',
      `Poll interval for channel changes in milliseconds (default: ${pollMs.default})`,
      integerIn(pollMs),
    )
    .option(
      '--retire-grace-ms <n>',
      'Time without lookups after which the agent makes servers unload a version that no channel ' +
        `needs, in milliseconds (default: ${retireGraceMs.default})`,
      integerIn(retireGraceMs),
    )
    .option(
      '--parallel <n>',
      `Number of layers fetched concurrently (default: ${parallel.default})`,
      integerIn(parallel),
    )
    .option(
      '--rate-limit <bytes>',
      'Maximum fetch rate per second, such as 100MiB (default: unlimited)',
      parseByteCount,
    )
    .option(
      '--keep-free <bytes>',
      'Disk space that fetching leaves free (default: 1GiB)',
      parseByteCount,
    )
    .option(
      '--keep-versions <n>',
      'Number of versions to keep on disk, including those that channels need ' +
        `(default: ${keepVersions.default})`,
      integerIn(keepVersions),
    )
    .option(
      '--keep-bytes <bytes>',
      'If the versions on disk exceed this size, delete those that no channel points to or would ' +
        'roll back to (default: unlimited)',
      parseByteCount,
    );
}

function integerIn({ min, max }: { min: number; max: number }): (text: string) => number {
  return parseIntegerBetween(min, max);
}

function collectNames(text: string, before: readonly string[] = []): string[] {
  return [...before, parseNameOption('channel')(text)];
}

/**
 * The configuration comes from a file or from options, not from both. Variables, which an operator
 * exports for other commands of the same shell, do not change a file.
 */
function readConfig(command: Command, options: RunOptions): AgentConfig {
  const { config: path } = options;
  if (path === undefined) return toConfig(options);
  const other = Object.keys(options).find(
    (name) =>
      !['config', 'logFormat'].includes(name) && command.getOptionValueSource(name) === 'cli',
  );
  if (other !== undefined) {
    const flag = toFlag(other);
    throw new UsageError(
      `--config and ${flag} cannot be combined; put "${flag.slice(2)}" into ${path}`,
    );
  }
  const config = readAgentConfig(path);
  if (options.trustedKeys !== undefined && config.trustedKeys === undefined) {
    throw new UsageError(
      `${TRUSTED_KEYS_VARIABLE} is set, but ${path} has no trusted-keys, so signatures would not ` +
        'be checked; add trusted-keys to the file, or unset the variable',
    );
  }
  return config;
}

function toConfig(flags: RunOptions): AgentConfig {
  const { repository, dataDir, bundle, server } = flags;
  if (
    repository === undefined ||
    bundle === undefined ||
    dataDir === undefined ||
    server === undefined
  ) {
    const required = { repository, bundle, 'data-dir': dataDir, server };
    const missing = Object.entries(required).filter(([, value]) => value === undefined);
    const names = missing.map(([name]) => `--${name}`).join(', ');
    throw new UsageError(
      `${names} ${missing.length === 1 ? 'is' : 'are'} missing; or pass --config`,
    );
  }
  return {
    repository,
    trustedKeys: flags.trustedKeys,
    dataFolder: dataDir,
    bundles: [{ name: bundle, channels: flags.channel ?? ['stable'] }],
    servers: server,
    supervised: [],
    controlTokenFile: flags.controlTokenFile,
    listen: flags.listen?.at(-1),
    tokenFile: flags.tokenFile,
    tlsCert: flags.tlsCert,
    tlsKey: flags.tlsKey,
    tlsCa: flags.tlsCa,
    tlsServerName: flags.tlsServerName,
    pollMs: flags.pollMs ?? NUMBER_RANGES.pollMs.default,
    retireGraceMs: flags.retireGraceMs ?? NUMBER_RANGES.retireGraceMs.default,
    parallel: flags.parallel ?? NUMBER_RANGES.parallel.default,
    bytesPerSecond: flags.rateLimit,
    keepFreeBytes: flags.keepFree ?? KEEP_FREE_BYTES_DEFAULT,
    retention: {
      maxVersions: flags.keepVersions ?? NUMBER_RANGES.keepVersions.default,
      maxBytes: flags.keepBytes ?? Number.MAX_SAFE_INTEGER,
    },
  };
}

async function runAgent(config: AgentConfig, format: LogFormat | undefined): Promise<void> {
  // Only to find rewrapped keys in a repository that cannot list them: the agent opens no file.
  useDecryptKeysOfEnvironment();
  const { repository, bundles, dataFolder, servers } = config;
  requireRepository(config);
  makeFolder(dataFolder);
  const logger = createLogger('cube-agent', { format });
  const mainThread = new IdleMainThread();
  const copies = new CopyThreads(repository, { useUsualPolicy: () => mainThread.useUsual() });
  const agent = new Agent({
    config,
    openRepository: () => openRepositoryWithKeys(config),
    credentials: createServerCredentials(config),
    copyLayer: (copy, options) => copies.copy(copy, options),
    closeFile: (descriptor) => copies.closeFile(descriptor),
    commandPrefix: () => mainThread.commandPrefix,
    clock: systemClock,
    logger,
  });
  const { listen } = config;
  const endpoint =
    listen === undefined
      ? undefined
      : (await import('./endpoints.ts')).createAgentEndpoint(agent, config, logger);
  const stopping = new AbortController();
  const stop = async (): Promise<void> => {
    stopping.abort();
    await Promise.all([endpoint?.stop(), agent.stop()]);
    await mainThread.stop();
  };
  const start = async (): Promise<Stoppable> => {
    agent.start();
    try {
      if (listen !== undefined) await endpoint?.listen(listen);
    } catch (error) {
      await stop();
      throw error;
    }
    logger.info({ repository, bundles, dataFolder, servers }, 'running');
    void yieldToLookups(mainThread, logger, stopping.signal);
    return { stop };
  };
  await runService(start, logger, { graceMs: STOP_GRACE_MS });
}

/** Lookups of the host's servers go before what the agent does, except at its start. */
async function yieldToLookups(
  mainThread: IdleMainThread,
  logger: Logger,
  stopping: AbortSignal,
): Promise<void> {
  await systemClock.sleep(IDLE_AFTER_MS, stopping);
  if (stopping.aborted) return;
  const isIdle = await mainThread.start((policy) => logger.debug({ policy }, 'policy changed'));
  if (isIdle) logger.info('running in idle time, so that lookups go first');
  else if (process.platform === 'linux') {
    logger.info(
      'lookups do not go first: this process could not leave SCHED_IDLE again (see docs/agent.md)',
    );
  }
}

/** An unreachable repository is tolerated if the agent ran before; a first start fails. */
function requireRepository(config: AgentConfig): void {
  const { bundles, dataFolder } = config;
  try {
    openRepositoryWithKeys(config);
  } catch (error) {
    const { code } = CubeError.from(error);
    const ranBefore = bundles.some(({ name, channels }) =>
      channels.some(
        (channel) => new HostData(dataFolder, name).readSavedState(channel) !== undefined,
      ),
    );
    if (code !== 'NOT_FOUND' || !ranBefore) throw error;
  }
}
