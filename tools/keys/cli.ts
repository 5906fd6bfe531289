/** The command line of keys. */
import {
  type ApiKey,
  checkKeyLimit,
  generateKey,
  type KeyLimits,
  LIMIT_NAMES,
} from '../../lib/access/api-keys.ts';
import { addKey, expireKey, revokeKey, rotateKey } from '../../lib/access/key-changes.ts';
import { readKeyFile } from '../../lib/access/key-store.ts';
import { checkScope } from '../../lib/access/scopes.ts';
import { CubeError } from '../../lib/core/errors.ts';
import {
  addDryRunOption,
  addJsonOption,
  type Command,
  createCli,
  InvalidArgumentError,
  optionWithEnv,
  parseNameOption,
  runCli,
  withDryRunNote,
} from '../../lib/platform/cli.ts';
import { wallClockMs } from '../../lib/platform/clock.ts';
import { putFileIfAbsent } from '../../lib/platform/files.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import { changeKeys } from './key-file.ts';
import { parseTime } from './key-times.ts';

const EXAMPLES = `
Examples:
  keys add --file keys.json --id ads-frontend --scope predict:ctr-dnn --rows-per-second 50000
  keys add --file keys.json --id prometheus --scope metrics --key-out prometheus.key
  keys list --file keys.json
  keys rotate --file keys.json --id ads-frontend --grace 24h
  keys revoke --file keys.json --id ads-frontend
  keys expire --file keys.json --id ads-frontend --at 30d`;

/** Only the owner can read it. */
const KEY_MODE = 0o600;
const DEFAULT_GRACE = '24h';

interface FileOptions {
  readonly file: string;
  readonly json?: boolean;
  readonly dryRun?: boolean;
}

interface KeyOptions extends FileOptions {
  readonly id: string;
}

interface SecretOptions extends KeyOptions {
  readonly keyOut?: string;
}

interface AddOptions extends SecretOptions, KeyLimits {
  readonly scope: readonly string[];
  readonly expires?: string;
}

interface RotateOptions extends SecretOptions {
  readonly grace: string;
}

interface ExpireOptions extends KeyOptions {
  readonly at: string;
}

/** Limits in the order of the help. */
const LIMIT_OPTIONS: readonly (readonly [keyof KeyLimits, flags: string, help: string])[] = [
  ['requestsPerSecond', '--requests-per-second <n>', 'Maximum requests per second'],
  ['rowsPerSecond', '--rows-per-second <n>', 'Maximum rows per second'],
  ['concurrentMax', '--concurrent-max <n>', 'Maximum concurrent requests'],
  ['dailyRequests', '--daily-requests <n>', 'Maximum requests per day of UTC'],
  ['dailyRows', '--daily-rows <n>', 'Maximum rows per day of UTC'],
  ['batchRowsMax', '--batch-rows-max <n>', 'Maximum rows of one request'],
  [
    'weight',
    '--weight <n>',
    'Share of the capacity under overload, relative to others (default: 1)',
  ],
  ['highestPriority', '--highest-priority <n>', 'Most urgent priority to use; 0 is the highest'],
];

export function createProgram(): Command {
  const program = createCli(
    'keys',
    'Manages the API keys of a key file. The file has hashes only: a key is shown once, when it ' +
      'is made. Servers reread the file when it changes.',
  ).addHelpText('after', EXAMPLES);
  addAddCommand(program);
  addJsonOption(addFileOption(program.command('list')))
    .description('List keys with scopes, limits and state')
    .action(list);
  addSecretOptions(addKeyOptions(program.command('rotate')))
    .description('Give a key a new secret; the old one stays valid for a while')
    .option(
      '--grace <time>',
      'How long the old secret stays valid: a duration (24h) or a time',
      DEFAULT_GRACE,
    )
    .action(rotate);
  addKeyOptions(program.command('revoke'))
    .description('End a key at once, with its old secret')
    .action(revoke);
  addKeyOptions(program.command('expire'))
    .description('Set when a key ends')
    .requiredOption('--at <time>', 'A duration from now (30d, 12h, 5m) or a time in UTC')
    .action(expire);
  return program;
}

export function run(argv: readonly string[] = process.argv.slice(2)): Promise<number> {
  return runCli(createProgram(), argv);
}

function addAddCommand(program: Command): void {
  const command = addSecretOptions(addKeyOptions(program.command('add')))
    .description('Make a key and print it; it cannot be shown again')
    .requiredOption(
      '--scope <scopes>',
      'Scopes, separated by commas or in several options: predict, predict:<model>, metrics, ' +
        'tables, control, control:<verb>',
      parseScopes,
    )
    .option('--expires <time>', 'When the key ends: a duration (90d) or a time (default: never)');
  for (const [name, flags, help] of LIMIT_OPTIONS) {
    command.option(flags, help, (text: string) => parseLimit(name, text));
  }
  command.action(add);
}

function addFileOption(command: Command): Command {
  const option = optionWithEnv('--file <file>', 'Key file', 'HYPERCUBE_KEY_FILE');
  return command.addOption(option.makeOptionMandatory());
}

function addKeyOptions(command: Command): Command {
  addJsonOption(addDryRunOption(addFileOption(command)));
  return command.requiredOption('--id <name>', 'Name of the key, for logs', parseNameOption('id'));
}

function addSecretOptions(command: Command): Command {
  return command.option(
    '--key-out <file>',
    'File to write the key to instead of printing it; it must not exist',
  );
}

function add(options: AddOptions): void {
  const { file, id, scope: scopes, dryRun = false } = options;
  const { key, secret } = generateKey();
  const nowMs = wallClockMs();
  const expiresAt = options.expires === undefined ? undefined : parseTime(options.expires, nowMs);
  const createdAt = new Date(nowMs).toISOString();
  const limits = Object.fromEntries(
    LIMIT_NAMES.flatMap((name) => (options[name] === undefined ? [] : [[name, options[name]]])),
  );
  changeKeys(file, dryRun, (keys) => {
    const changed = addKey(keys, { id, secret, scopes, limits, createdAt, expiresAt });
    writeSecret(key, options);
    return changed;
  });
  report(options, { id, scopes, limits, expiresAt }, key);
}

function rotate(options: RotateOptions): void {
  const { file, id, grace, dryRun = false } = options;
  const { key, secret } = generateKey();
  const oldExpiresAt = parseTime(grace, wallClockMs());
  changeKeys(file, dryRun, (keys) => {
    const changed = rotateKey(keys, id, secret, oldExpiresAt);
    writeSecret(key, options);
    return changed;
  });
  report(options, { id, oldExpiresAt }, key);
}

function revoke(options: KeyOptions): void {
  const { file, id, dryRun = false } = options;
  const revokedAt = new Date(wallClockMs()).toISOString();
  changeKeys(file, dryRun, (keys) => revokeKey(keys, id, revokedAt));
  report(options, { id, revokedAt });
}

function expire(options: ExpireOptions): void {
  const { file, id, at, dryRun = false } = options;
  const expiresAt = parseTime(at, wallClockMs());
  changeKeys(file, dryRun, (keys) => expireKey(keys, id, expiresAt));
  report(options, { id, expiresAt });
}

function list({ file, json }: FileOptions): void {
  const nowMs = wallClockMs();
  const keys = readKeyFile(file).keys.map(({ sha256: _, previous, ...key }) => ({
    ...key,
    ...(previous !== undefined && { previousExpiresAt: previous.expiresAt }),
    state: getState(key, nowMs),
  }));
  if (json) {
    printLine(JSON.stringify({ keys }));
    return;
  }
  if (keys.length === 0) printLine(`${file} has no keys`);
  for (const { id, prefix, state, scopes, limits, expiresAt } of keys) {
    const details = [
      ...Object.entries(limits).map(([name, value]) => `${name}=${value}`),
      ...(expiresAt === undefined ? [] : [`expires=${expiresAt}`]),
    ];
    printLine([id, `${prefix}…`, state, scopes.join(','), ...details].join('  '));
  }
}

function getState(
  { revokedAt, expiresAt }: Pick<ApiKey, 'revokedAt' | 'expiresAt'>,
  nowMs: number,
): 'valid' | 'revoked' | 'expired' {
  if (revokedAt !== undefined) return 'revoked';
  return expiresAt !== undefined && Date.parse(expiresAt) <= nowMs ? 'expired' : 'valid';
}

/** Before the key file changes: a key whose secret was not written would be useless. */
function writeSecret(key: string, { keyOut, dryRun }: SecretOptions): void {
  if (keyOut === undefined || dryRun) return;
  if (putFileIfAbsent(keyOut, `${key}\n`, KEY_MODE)) return;
  throw new CubeError('CONFLICT', `${keyOut} exists; keys are not overwritten, name another file`);
}

function report(options: SecretOptions, fields: object, key?: string): void {
  const { file, id, keyOut, json, dryRun = false } = options;
  const isShown = key !== undefined && keyOut === undefined && !dryRun;
  if (json) {
    printLine(JSON.stringify({ ...fields, ...(isShown && { key }), keyOut, dryRun }));
    return;
  }
  printLine(withDryRunNote(`key ${id} changed in ${file}`, options));
  if (keyOut !== undefined && !dryRun) printLine(`the key is in ${keyOut}`);
  // Alone on its line, for scripts; it is not stored anywhere.
  if (isShown) printLine(key);
}

/** @param before the scopes of the options before this one */
function parseScopes(text: string, before: readonly string[] = []): string[] {
  const scopes = withOptionError(() => text.split(',').map((scope) => checkScope(scope.trim())));
  return [...new Set([...before, ...scopes])];
}

function parseLimit(name: keyof KeyLimits, text: string): number {
  return withOptionError(() => checkKeyLimit(name, text.trim() === '' ? Number.NaN : Number(text)));
}

function withOptionError<T>(parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    throw new InvalidArgumentError((error as Error).message);
  }
}
