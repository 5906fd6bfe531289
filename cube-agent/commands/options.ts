/** Options that several commands share, and what they are parsed into. */
import { hostname, userInfo } from 'node:os';
import { type Fleet, parseFleet } from '../../lib/core/fleet.ts';
import {
  addDryRunOption,
  addJsonOption,
  type Command,
  InvalidArgumentError,
  optionWithEnv,
  parseIntegerBetween,
  parseNameOption,
  UsageError,
} from '../../lib/platform/cli.ts';
import { readText } from '../../lib/platform/files.ts';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';
import { SigningKey, TRUSTED_KEYS_VARIABLE, TrustedKeys } from '../../lib/repository/signatures.ts';
import { addCallerTlsOptions } from '../../lib/rpc/credential-options.ts';

export { addDryRunOption, addJsonOption, withDryRunNote } from '../../lib/platform/cli.ts';

const ENDPOINT = /^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):(\d{1,5})$/;
const FLEET_BYTES_MAX = 64 << 20;
const DAY_MS = 86_400_000;

export interface KeyOptions {
  readonly repository: string;
  readonly signingKey?: string | undefined;
  readonly trustedKeys?: string | undefined;
  /** Everything is checked, nothing is written. */
  readonly dryRun?: boolean | undefined;
}

export interface BundleOptions extends KeyOptions {
  readonly bundle: string;
}

export interface ChannelOptions extends BundleOptions {
  readonly channel: string;
}

/** The options of commands whose action is recorded with who did it and why. */
export interface AuditOptions {
  readonly reason: string;
  readonly by: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

/** For commands that only read the repository. */
export function addRepositoryOption(command: Command): Command {
  return command.requiredOption(
    '--repository <location>',
    'Repository to read: a folder, s3://bucket/prefix or http(s) URL',
  );
}

/** For commands that write to the repository. */
export function addWritableRepositoryOption(command: Command): Command {
  return command.requiredOption(
    '--repository <location>',
    'Repository to change: a folder or s3://bucket/prefix',
  );
}

export function addBundleOption(command: Command): Command {
  return command.requiredOption('--bundle <name>', 'Bundle name', parseNameOption('bundle'));
}

/** The options of commands that read a bundle. */
export function addBundleOptions(command: Command): Command {
  return addTrustedKeysOption(addBundleOption(addRepositoryOption(command)));
}

/** The options of commands that change a bundle. */
export function addWritableBundleOptions(command: Command): Command {
  return addTrustedKeysOption(addBundleOption(addWritableRepositoryOption(command)));
}

/** The options of commands that read a channel of a bundle. */
export function addChannelOptions(command: Command): Command {
  return addChannelOption(addBundleOptions(command));
}

/** The options of commands that move a channel of a bundle. */
export function addWritableChannelOptions(command: Command): Command {
  return addChannelOption(addWritableBundleOptions(command));
}

export function addChannelOption(command: Command): Command {
  return command.option('--channel <name>', 'Channel name', parseNameOption('channel'), 'stable');
}

export function addVersionOption(command: Command, description = 'Version name'): Command {
  return command.requiredOption('--version <name>', description, parseNameOption('version'));
}

/** The options of commands that write an entry. */
export function addAuditOptions(command: Command): Command {
  addAuthorOption(addReasonOption(addSigningKeyOption(command)));
  return addJsonOption(addDryRunOption(command));
}

export function addReasonOption(command: Command): Command {
  return command.requiredOption('--reason <text>', 'Reason to record in the history');
}

export function addAuthorOption(
  command: Command,
  author: string = getDefaultAuthor(),
  description = 'Author to record in the history',
): Command {
  return command.option('--by <name>', description, author);
}

export function addTimeoutOption(
  command: Command,
  description: string,
  defaultMs: number,
): Command {
  return command.option('--timeout-ms <n>', description, parseIntegerBetween(1, DAY_MS), defaultMs);
}

export function addTrustedKeysOption(command: Command): Command {
  return command.addOption(
    optionWithEnv(
      '--trusted-keys <path>',
      'File or folder of public keys; only versions and channel entries signed by one of them ' +
        'are accepted (default: signatures are not checked)',
      TRUSTED_KEYS_VARIABLE,
    ),
  );
}

export function addSigningKeyOption(
  command: Command,
  description = 'Private key that signs the new entries (default: unsigned)',
): Command {
  return command.addOption(optionWithEnv('--signing-key <file>', description, 'CUBE_SIGNING_KEY'));
}

/** For commands that call servers. */
export function addServerCredentialOptions(command: Command): Command {
  return addCallerTlsOptions(
    command.addOption(
      optionWithEnv(
        '--control-token-file <file>',
        'File with the control token of the servers (default: none)',
        'CUBE_CONTROL_TOKEN_FILE',
      ),
    ),
  );
}

/** For commands that call agents. */
export function addAgentCredentialOption(command: Command): Command {
  return command.addOption(
    optionWithEnv(
      '--agent-token-file <file>',
      'File with the token of the agents in the fleet (default: none)',
      'CUBE_AGENT_TOKEN_FILE',
    ),
  );
}

/** Option parser: host:port. */
export function parseEndpoint(text: string): string {
  const port = Number(ENDPOINT.exec(text)?.[2] ?? 0);
  if (port < 1 || port > 65_535) {
    throw new InvalidArgumentError('Expected host:port, such as 127.0.0.1:8000.');
  }
  return text;
}

/** Option parser of an option that can be repeated: host:port, each once. */
export function collectEndpoints(text: string, previous: readonly string[] = []): string[] {
  const endpoint = parseEndpoint(text);
  return previous.includes(endpoint) ? [...previous] : [...previous, endpoint];
}

/** Option parser of an option that can be repeated. */
export function collectValues(text: string, previous: readonly string[]): string[] {
  return [...previous, text];
}

export function readFleet(path: string): Fleet {
  return parseFleet(readText(path, FLEET_BYTES_MAX), path);
}

/** @param options.create creates a folder that does not exist */
export function openRepositoryWithKeys(
  { repository, signingKey, trustedKeys, dryRun = false }: KeyOptions,
  options: { create?: boolean } = {},
): Repository {
  const signing = signingKey === undefined ? undefined : SigningKey.read(signingKey);
  const trusted = trustedKeys === undefined ? undefined : TrustedKeys.read(trustedKeys);
  return openRepository(repository, { ...options, keys: { signing, trusted }, dryRun });
}

/** The author of entries without `--by`: user@host. */
export function getDefaultAuthor(): string {
  try {
    return `${userInfo().username}@${hostname()}`;
  } catch {
    // The user id of a container may have no name.
    return `unknown@${hostname()}`;
  }
}

/** @throws UsageError */
export function requireReason(reason: string): string {
  if (reason.trim() !== '') return reason;
  throw new UsageError('--reason is empty; give a reason for the history');
}
