/** Options that several commands share. */
import { hostname, userInfo } from 'node:os';
import { CubeError } from '../lib/core/errors.ts';
import { type Fleet, parseFleet } from '../lib/core/fleet.ts';
import {
  type Command,
  InvalidArgumentError,
  nameOption,
  optionWithEnv,
} from '../lib/platform/cli.ts';
import { readText } from '../lib/platform/files.ts';

const ENDPOINT = /^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):(\d{1,5})$/;
const FLEET_BYTES_MAX = 64 << 20;
const TOKEN_BYTES_MAX = 4096;

export interface TargetOptions {
  readonly repository: string;
  readonly bundle: string;
  readonly channel: string;
}

export function addTargetOptions(command: Command): Command {
  return command
    .requiredOption('--repository <folder>', 'where versions live')
    .requiredOption('--bundle <name>', 'the model', nameOption('bundle'))
    .option('--channel <name>', 'the named pointer', nameOption('channel'), 'stable');
}

/** Option parser: host:port, may be given several times. */
export function collectEndpoints(text: string, before: readonly string[] = []): string[] {
  const port = Number(ENDPOINT.exec(text)?.[2] ?? 0);
  if (port < 1 || port > 65_535) {
    throw new InvalidArgumentError('Expected host:port, such as 127.0.0.1:8000.');
  }
  return before.includes(text) ? [...before] : [...before, text];
}

/** For the commands that talk to servers. */
export function addTokenOption(command: Command): Command {
  return command.addOption(
    optionWithEnv(
      '--control-token-file <file>',
      'the token of the servers, where they ask for one',
      'CUBE_CONTROL_TOKEN_FILE',
    ),
  );
}

export function readToken(path: string | undefined): string | undefined {
  return path === undefined ? undefined : readText(path, TOKEN_BYTES_MAX).trim();
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
