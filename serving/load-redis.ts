/**
 * `serving load-redis`: loads the rows of a version into Redis before it is served, and removes
 * unneeded layers.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { Manifest } from '../lib/core/manifest.ts';
import {
  addDryRunOption,
  addJsonOption,
  type Command,
  createCli,
  optionWithEnv,
  parseByteCount,
  parseNameOption,
  withDryRunNote,
} from '../lib/platform/cli.ts';
import { createLogger } from '../lib/platform/logs.ts';
import { printLine } from '../lib/platform/terminal-output.ts';
import { openRepository, type Repository } from '../lib/repository/repository.ts';
import { TRUSTED_KEYS_VARIABLE, TrustedKeys } from '../lib/repository/signatures.ts';
import { createSettingOption } from './config/settings-flags.ts';
import { RedisStore } from './stores/redis-store.ts';
import type { RedisChoice } from './stores/store-choice.ts';

interface LoadRedisFlags {
  readonly repository: string;
  readonly bundle: string;
  readonly version?: string;
  readonly channel: string;
  readonly redisUrl: readonly string[];
  readonly redisUser?: string;
  readonly redisPasswordFile?: string;
  readonly redisCluster?: boolean;
  readonly rateLimit?: number;
  readonly remove?: boolean;
  readonly trustedKeys?: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

const EXAMPLES = `
An interrupted load continues where it stopped when the command runs again.

Examples:
  serving load-redis --repository repo --bundle ctr-dnn --version 7 --redis-url redis://cache:6379
  serving load-redis --repository repo --bundle ctr-dnn --remove \\
    --redis-url rediss://a:7000,rediss://b:7000 --redis-password-file pw`;

/** A separate program for this command, because `serving` itself has no subcommands. */
export function createLoadRedisCli(): Command {
  const program = createCli('serving', 'Serves predictions; serving --help shows its options.');
  program.enablePositionalOptions();
  addJsonOption(addDryRunOption(program.command('load-redis')))
    .description('Loads the rows of a version into Redis or Valkey.')
    .requiredOption('--repository <folder>', 'Repository where versions are published')
    .requiredOption('--bundle <name>', 'Bundle of the version', parseNameOption('--bundle'))
    .option(
      '--version <name>',
      "Version to load (default: the channel's version)",
      parseNameOption('--version'),
    )
    .option(
      '--channel <name>',
      'Channel that selects the version when --version is not given',
      parseNameOption('--channel'),
      'stable',
    )
    .addOption(createSettingOption('redisUrl').makeOptionMandatory())
    .addOption(createSettingOption('redisUser'))
    .addOption(createSettingOption('redisPasswordFile'))
    .addOption(createSettingOption('redisCluster'))
    .option(
      '--rate-limit <bytes>',
      'Maximum bytes of rows per second, such as 32MiB (default: no limit)',
      parseByteCount,
    )
    .option('--remove', 'Then remove layers that neither this version nor a channel uses')
    .addOption(
      optionWithEnv(
        '--trusted-keys <path>',
        'File or folder of public keys; only load versions signed by one of them',
        TRUSTED_KEYS_VARIABLE,
      ),
    )
    .addHelpText('after', EXAMPLES)
    .action(loadVersion);
  return program;
}

async function loadVersion(flags: LoadRedisFlags): Promise<void> {
  const { trustedKeys } = flags;
  const trusted = trustedKeys === undefined ? undefined : TrustedKeys.read(trustedKeys);
  const repository = openRepository(flags.repository, { keys: { trusted } });
  const manifest = await readManifest(repository, flags);
  let rows = 0;
  const store = new RedisStore(toRedisChoice(flags), {
    repository,
    logger: createLogger('serving', { level: 'warn' }),
    ...(flags.rateLimit !== undefined && { bytesPerSecond: flags.rateLimit }),
    onProgress: (done) => {
      rows = done;
    },
  });
  try {
    const missing = await store.measureMissing(manifest);
    const cost = `${missing.rows} rows take about ${formatMemory(missing.memoryBytes)} of Redis`;
    if (!flags.dryRun && missing.rows > 0) process.stderr.write(`${cost}\n`);
    const result = flags.dryRun
      ? { ...missing, ...(await planRemoval(store, manifest, flags)) }
      : await load(store, manifest, flags, () => rows);
    const { bundle, version } = manifest;
    const report = { bundle, version, ...result, dryRun: flags.dryRun ?? false };
    printLine(flags.json ? JSON.stringify(report) : formatResult(report, flags));
  } finally {
    await store.close();
  }
}

interface LoadResult {
  /** Rows that were written, or would be. */
  readonly rows: number;
  /** Estimated memory of Redis for these rows; only of a dry run. */
  readonly memoryBytes?: number;
  /** Content ids of unneeded layers that were removed, or would be; absent without --remove. */
  readonly removed?: readonly string[];
}

async function load(
  store: RedisStore,
  manifest: Manifest,
  { remove }: LoadRedisFlags,
  countRows: () => number,
): Promise<LoadResult> {
  await store.prepare(manifest);
  const removed = remove ? await store.removeUnused(manifest.bundle) : undefined;
  return { rows: countRows(), ...(removed && { removed }) };
}

async function planRemoval(
  store: RedisStore,
  manifest: Manifest,
  { remove }: LoadRedisFlags,
): Promise<Pick<LoadResult, 'removed'>> {
  const removed = remove ? await store.findUnused(manifest.bundle, [manifest]) : undefined;
  return removed === undefined ? {} : { removed };
}

function formatMemory(bytes: number): string {
  const [unit, size] = bytes < 2 ** 20 ? ['KiB', 2 ** 10] : ['MiB', 2 ** 20];
  return `${(bytes / Number(size)).toFixed(1)} ${unit}`;
}

function formatResult(
  {
    bundle,
    version,
    rows,
    memoryBytes = 0,
    removed,
  }: LoadResult & { bundle: string; version: string },
  { dryRun }: LoadRedisFlags,
): string {
  const memory = `about ${formatMemory(memoryBytes)} of Redis`;
  const loaded = dryRun
    ? `would be loaded (${rows} rows, ${memory})`
    : `is loaded (${rows} rows written)`;
  const text = `${bundle} ${version} ${rows === 0 ? 'was already loaded' : loaded}`;
  const rest =
    removed === undefined
      ? ''
      : `\n${removed.length} unneeded layers ${dryRun ? 'would be removed' : 'removed'}`;
  return withDryRunNote(text + rest, { dryRun });
}

function toRedisChoice(flags: LoadRedisFlags): RedisChoice {
  const { redisUrl, redisUser: user, redisPasswordFile: passwordFile, redisCluster } = flags;
  return {
    kind: 'redis',
    urls: redisUrl,
    fill: true,
    ...(user !== undefined && { user }),
    ...(passwordFile !== undefined && { passwordFile }),
    ...(redisCluster !== undefined && { cluster: redisCluster }),
  };
}

/** @throws CubeError NOT_FOUND when there is no such version, or the channel points nowhere */
async function readManifest(
  repository: Repository,
  { bundle, version, channel }: LoadRedisFlags,
): Promise<Manifest> {
  if (version !== undefined) return repository.readManifest(bundle, version);
  const { pointer } = await repository.readChannel(bundle, channel);
  if (pointer !== undefined) return repository.readManifest(bundle, pointer.version);
  throw new CubeError(
    'NOT_FOUND',
    `${repository.location} has no channel ${channel} for bundle ${bundle}: give --version`,
  );
}
