/** `cube-agent run`: the agent of one host, until it is told to stop. */
import { CubeError } from '../../lib/core/errors.ts';
import { byteCount, type Command, integerBetween, nameOption } from '../../lib/platform/cli.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { makeFolder } from '../../lib/platform/files.ts';
import { runService, type Stoppable } from '../../lib/platform/lifecycle.ts';
import { createLogger, type Logger } from '../../lib/platform/logs.ts';
import { type CallerFlags, serverCredentials } from '../../lib/rpc/credential-options.ts';
import type { EndpointFiles } from '../fleet/endpoint-access.ts';
import { Agent } from '../host/agent.ts';
import {
  type AgentConfig,
  BOUNDS,
  KEEP_FREE_BYTES_DEFAULT,
  readAgentConfig,
} from '../host/agent-config.ts';
import { CopyThread } from '../host/copy-thread.ts';
import { HostData } from '../host/host-data.ts';
import type { HostEndpoint } from '../host/host-endpoint.ts';
import { addTrustedKeysOption, openWithKeys } from './keys.ts';
import { addTokenOption, collectEndpoints } from './options.ts';

/** Above what a server of ours allows itself. */
const STOP_GRACE_MS = 35_000;

interface RunOptions extends CallerFlags {
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
}

export function addRunCommand(program: Command): void {
  const command = program
    .command('run')
    .description('run on a host: fetch, load, activate and retire what the channels want')
    .option('--config <file>', 'agent.yaml, for several bundles and for supervised servers')
    .option('--repository <place>', 'where versions live')
    .option('--bundle <name>', 'the model', nameOption('bundle'))
    .option('--channel <name>', 'the named pointer; once for each (default: stable)', collectNames)
    .option('--data-dir <folder>', "the host's own copy, shared with its servers")
    .option(
      '--server <host:port>',
      'control address of a local cube-server; once for each',
      collectEndpoints,
    )
    .option('--listen <host:port>', 'answer status, poke and metrics there', collectEndpoints)
    .option(
      '--token-file <file>',
      'what callers of --listen need, or a certificate; without both only this host',
    );
  addFetchOptions(addTrustedKeysOption(addTokenOption(command)))
    .addHelpText('after', EXAMPLES)
    .action((options: RunOptions) => runAgent(configOf(options)));
}

const EXAMPLES = `
Examples:
  cube-agent run --repository /srv/models --bundle ctr-dnn --channel stable --channel canary \\
    --data-dir /var/lib/cube --server 127.0.0.1:8000 --listen 127.0.0.1:8100
  cube-agent run --config /etc/hypercube/agent.yaml
Servers activate the version of the first channel; the others are held for those who ask for them by name.`;

function addFetchOptions(command: Command): Command {
  const { pollMs, retireGraceMs, parallel, keepVersions } = BOUNDS;
  return command
    .option(`--poll-ms <n>`, `how often to look (default: ${pollMs.default})`, number(pollMs))
    .option(
      '--retire-grace-ms <n>',
      `unload an unwanted version not looked up for so long (default: ${retireGraceMs.default})`,
      number(retireGraceMs),
    )
    .option('--parallel <n>', `layers at once (default: ${parallel.default})`, number(parallel))
    .option('--rate-limit <bytes>', 'fetch at most so much a second, such as 100MiB', byteCount)
    .option('--keep-free <bytes>', 'what fetching leaves free on disk (default: 1GiB)', byteCount)
    .option(
      '--keep-versions <n>',
      `versions on disk, wanted ones included (default: ${keepVersions.default})`,
      number(keepVersions),
    )
    .option('--keep-bytes <bytes>', 'beyond which only wanted versions stay on disk', byteCount);
}

function number({ min, max }: { min: number; max: number }): (text: string) => number {
  return integerBetween(min, max);
}

function collectNames(text: string, before: readonly string[] = []): string[] {
  return [...before, nameOption('channel')(text)];
}

/** A file says it all, or flags do. */
function configOf(options: RunOptions): AgentConfig {
  const { config, ...flags } = options;
  if (config === undefined) return configOfFlags(flags);
  const [other] = Object.keys(flags);
  if (other === undefined) return readAgentConfig(config);
  const flag = other.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
  throw new CubeError(
    'INVALID_ARGUMENT',
    `--config and --${flag}: put "${flag}" into ${config}, a host has one place that says what runs on it`,
  );
}

function configOfFlags(flags: RunOptions): AgentConfig {
  const need = <T>(value: T | undefined, flag: string): T => {
    if (value !== undefined) return value;
    throw new CubeError('INVALID_ARGUMENT', `${flag} is missing (or give --config)`);
  };
  return {
    repository: need(flags.repository, '--repository'),
    trustedKeys: flags.trustedKeys,
    dataFolder: need(flags.dataDir, '--data-dir'),
    bundles: [{ name: need(flags.bundle, '--bundle'), channels: flags.channel ?? ['stable'] }],
    servers: need(flags.server, '--server'),
    supervised: [],
    controlTokenFile: flags.controlTokenFile,
    listen: flags.listen?.at(-1),
    tokenFile: flags.tokenFile,
    ...{ tlsCert: flags.tlsCert, tlsKey: flags.tlsKey, tlsCa: flags.tlsCa },
    tlsServerName: flags.tlsServerName,
    pollMs: flags.pollMs ?? BOUNDS.pollMs.default,
    retireGraceMs: flags.retireGraceMs ?? BOUNDS.retireGraceMs.default,
    parallel: flags.parallel ?? BOUNDS.parallel.default,
    bytesPerSecond: flags.rateLimit,
    keepFreeBytes: flags.keepFree ?? KEEP_FREE_BYTES_DEFAULT,
    keep: {
      versions: flags.keepVersions ?? BOUNDS.keepVersions.default,
      bytes: flags.keepBytes ?? Number.MAX_SAFE_INTEGER,
    },
  };
}

/** What listens is loaded by those who listen. */
async function endpointOf(
  agent: Agent,
  config: EndpointFiles,
  logger: Logger,
): Promise<HostEndpoint> {
  const { HostEndpoint } = await import('../host/host-endpoint.ts');
  return new HostEndpoint(agent, config, logger);
}

async function runAgent(config: AgentConfig): Promise<void> {
  const { repository, bundles, dataFolder, servers } = config;
  requireSource(config);
  makeFolder(dataFolder);
  const logger = createLogger('cube-agent');
  const copies = new CopyThread(repository);
  const agent = new Agent({
    config,
    openRepository: () => openWithKeys(config),
    credentials: serverCredentials(config),
    copyLayer: (copy, options) => copies.copy(copy, options),
    clock: systemClock,
    logger,
  });
  const { listen } = config;
  const endpoint = listen === undefined ? undefined : await endpointOf(agent, config, logger);
  const stop = async (): Promise<void> => {
    await Promise.all([endpoint?.stop(), agent.stop()]);
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
    return { stop };
  };
  await runService(start, logger, { graceMs: STOP_GRACE_MS });
}

/** A repository that is away is waited for on a host that has run before; a first start with a wrong path ends. */
function requireSource(config: AgentConfig): void {
  const { bundles, dataFolder } = config;
  try {
    openWithKeys(config);
  } catch (error) {
    const { code } = CubeError.from(error);
    const ranBefore = bundles.some(({ name, channels }) =>
      channels.some((channel) => new HostData(dataFolder, name).recall(channel) !== undefined),
    );
    if (code !== 'NOT_FOUND' || !ranBefore) throw error;
  }
}
