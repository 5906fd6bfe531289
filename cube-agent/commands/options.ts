/** Options that several commands share. */
import { hostname, userInfo } from 'node:os';
import { CubeError } from '../../lib/core/errors.ts';
import { type Fleet, parseFleet } from '../../lib/core/fleet.ts';
import {
  type Command,
  InvalidArgumentError,
  nameOption,
  optionWithEnv,
} from '../../lib/platform/cli.ts';
import { readText } from '../../lib/platform/files.ts';
import { addCallerTlsOptions } from '../../lib/rpc/credential-options.ts';
import { addSigningKeyOption, addTrustedKeysOption, type KeyOptions } from './keys.ts';

const ENDPOINT = /^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):(\d{1,5})$/;
const FLEET_BYTES_MAX = 64 << 20;

export interface BundleOptions extends KeyOptions {
  readonly bundle: string;
}

export interface TargetOptions extends BundleOptions {
  readonly channel: string;
}

/** Of a command that writes an entry. */
export interface DeedOptions {
  readonly reason: string;
  readonly by: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

export function addBundleOptions(command: Command): Command {
  return addTrustedKeysOption(command)
    .requiredOption(
      '--repository <place>',
      'where versions live: a folder, s3://bucket/prefix, or http(s)://… to read only',
    )
    .requiredOption('--bundle <name>', 'the model', nameOption('bundle'));
}

export function addTargetOptions(command: Command): Command {
  return addBundleOptions(command).option(
    '--channel <name>',
    'the named pointer',
    nameOption('channel'),
    'stable',
  );
}

export function addDeedOptions(command: Command): Command {
  return addSigningKeyOption(command)
    .requiredOption('--reason <text>', 'why; kept in the history')
    .option('--by <who>', 'who; kept in the history', defaultAuthor())
    .option('--dry-run', 'check everything, say what would be written, and write nothing')
    .option('--json', 'for programs');
}

/** What a command did, or would do. */
export function said(text: string, { dryRun }: { dryRun?: boolean | undefined }): string {
  return dryRun ? `${text} (dry run: nothing was written)` : text;
}

/** Option parser: host:port. */
export function parseEndpoint(text: string): string {
  const port = Number(ENDPOINT.exec(text)?.[2] ?? 0);
  if (port < 1 || port > 65_535) {
    throw new InvalidArgumentError('Expected host:port, such as 127.0.0.1:8000.');
  }
  return text;
}

/** Option parser: host:port, may be given several times. */
export function collectEndpoints(text: string, before: readonly string[] = []): string[] {
  const endpoint = parseEndpoint(text);
  return before.includes(endpoint) ? [...before] : [...before, endpoint];
}

/** For the commands that talk to servers. */
export function addTokenOption(command: Command): Command {
  return addCallerTlsOptions(
    command.addOption(
      optionWithEnv(
        '--control-token-file <file>',
        'the token of the servers, where they ask for one',
        'CUBE_CONTROL_TOKEN_FILE',
      ),
    ),
  );
}

/** For the commands that ask agents. */
export function addAgentTokenOption(command: Command): Command {
  return command.addOption(
    optionWithEnv(
      '--agent-token-file <file>',
      'the token of the agents that the fleet names, where they ask for one',
      'CUBE_AGENT_TOKEN_FILE',
    ),
  );
}

export function readFleet(path: string): Fleet {
  return parseFleet(readText(path, FLEET_BYTES_MAX), path);
}

/** Who writes an entry, unless `--by` says so. */
export function defaultAuthor(): string {
  try {
    return `${userInfo().username}@${hostname()}`;
  } catch {
    // A container's user id may have no name.
    return `unknown@${hostname()}`;
  }
}

/** @throws CubeError INVALID_ARGUMENT */
export function requireReason(reason: string): string {
  if (reason.trim() !== '') return reason;
  throw new CubeError('INVALID_ARGUMENT', '--reason is empty: say why, it is kept in the history');
}
