/** `serving load-redis`: loads a version's rows into Redis before anybody serves it, and removes what no channel wants. */
import { CubeError } from '../lib/core/errors.ts';
import type { Manifest } from '../lib/core/manifest.ts';
import {
  byteCount,
  type Command,
  createCli,
  nameOption,
  optionWithEnv,
} from '../lib/platform/cli.ts';
import { createLogger } from '../lib/platform/logs.ts';
import { openRepository, type Repository } from '../lib/repository/repository.ts';
import { TRUSTED_KEYS_VARIABLE, TrustedKeys } from '../lib/repository/signatures.ts';
import { RedisStore } from './stores/redis-store.ts';
import type { RedisChoice } from './stores/store-choice.ts';

interface Flags {
  readonly repository: string;
  readonly bundle: string;
  readonly version?: string;
  readonly channel: string;
  readonly redisUrl: string;
  readonly redisUser?: string;
  readonly redisPasswordFile?: string;
  readonly redisCluster?: boolean;
  readonly rateLimit?: number;
  readonly remove?: boolean;
  readonly trustedKeys?: string;
}

const EXAMPLES = `
A load that was cut off goes on where it stopped when it is started again.

Examples:
  serving load-redis --repository repo --bundle ctr-dnn --version 7 --redis-url redis://cache:6379
  serving load-redis --repository repo --bundle ctr-dnn --redis-url rediss://a:7000,rediss://b:7000 --redis-password-file pw --remove`;

/** The program that has the command alone: `serving` itself has no commands but what it does. */
export function createLoadRedis(): Command {
  const program = createCli('serving', 'Answers predictions; serving --help shows the rest.');
  program.enablePositionalOptions();
  program
    .command('load-redis')
    .description('Loads the rows of a version into Redis or Valkey.')
    .requiredOption('--repository <folder>', 'where versions are published')
    .requiredOption('--bundle <name>', 'the bundle', nameOption('--bundle'))
    .option('--version <name>', "the version (default: the channel's)", nameOption('--version'))
    .option('--channel <name>', 'the channel to take it from', nameOption('--channel'), 'stable')
    .requiredOption(
      '--redis-url <urls>',
      'redis[s]://host:port; several, with commas between, are nodes of a Cluster',
    )
    .option('--redis-user <name>', 'who to log in as')
    .option('--redis-password-file <file>', 'a file with the password alone')
    .option('--redis-cluster', 'the node named is one of a Cluster')
    .option('--rate-limit <bytes>', 'bytes of rows a second, at most, such as 32MiB', byteCount)
    .option('--remove', 'afterwards remove layers that neither this version nor a channel names')
    .addOption(
      optionWithEnv(
        '--trusted-keys <path>',
        'public keys (a file or a folder): load only what one of them has signed',
        TRUSTED_KEYS_VARIABLE,
      ),
    )
    .addHelpText('after', EXAMPLES)
    .action(load);
  return program;
}

async function load(flags: Flags): Promise<void> {
  const { trustedKeys } = flags;
  const trusted = trustedKeys === undefined ? undefined : TrustedKeys.read(trustedKeys);
  const repository = openRepository(flags.repository, { keys: { trusted } });
  const manifest = await wantedVersion(repository, flags);
  let rows = 0;
  const store = new RedisStore(choiceOf(flags), {
    repository,
    logger: createLogger('serving', 'warn'),
    ...(flags.rateLimit !== undefined && { bytesPerSecond: flags.rateLimit }),
    onProgress: (done) => {
      rows = done;
    },
  });
  try {
    await store.prepare(manifest);
    const { bundle, version } = manifest;
    const how = rows === 0 ? 'was there' : `is there, ${rows} rows were loaded`;
    process.stdout.write(`${bundle} ${version} ${how}\n`);
    if (flags.remove !== true) return;
    const removed = await store.removeUnwanted(bundle);
    process.stdout.write(`${removed.length} layers that nobody wants were removed\n`);
  } finally {
    await store.close();
  }
}

function choiceOf(flags: Flags): RedisChoice {
  const { redisUrl, redisUser: user, redisPasswordFile: passwordFile, redisCluster } = flags;
  return {
    kind: 'redis',
    urls: redisUrl.split(',').map((url) => url.trim()),
    fill: true,
    ...(user !== undefined && { user }),
    ...(passwordFile !== undefined && { passwordFile }),
    ...(redisCluster && { cluster: true }),
  };
}

/** @throws CubeError NOT_FOUND when there is no such version, or the channel points nowhere */
async function wantedVersion(
  repository: Repository,
  { bundle, version, channel }: Flags,
): Promise<Manifest> {
  if (version !== undefined) return repository.manifest(bundle, version);
  const { pointer } = await repository.channel(bundle, channel);
  if (pointer !== undefined) return repository.manifest(bundle, pointer.version);
  throw new CubeError(
    'NOT_FOUND',
    `${repository.location} has no channel ${channel} for bundle ${bundle}: give --version`,
  );
}
