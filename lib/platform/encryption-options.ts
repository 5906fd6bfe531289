/** The options that give a process its encryption keys: a file, or a command that prints them. */
import { execFileSync } from 'node:child_process';
import { resolve } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { type Command, optionWithEnv, readEnvironment, setEnvironment, UsageError } from './cli.ts';
import {
  createFileSource,
  DECRYPT_FLAGS,
  KEY_FILE_BYTES_MAX,
  type KeyRing,
  type KeySource,
  parseKeys,
  processKeys,
} from './encryption-keys.ts';

const COMMAND_TIMEOUT_MS = 30_000;
export const DECRYPT_FILE_VARIABLE = 'HYPERCUBE_DECRYPT_KEY_FILE';
export const DECRYPT_COMMAND_VARIABLE = 'HYPERCUBE_DECRYPT_KEY_COMMAND';

/** Where the keys of a process come from; at most one is given. */
export interface KeyLocation {
  readonly file: string | undefined;
  readonly command: string | undefined;
}

export interface DecryptOptions {
  readonly decryptKeyFile?: string | undefined;
  readonly decryptKeyCommand?: string | undefined;
}

const DECRYPT_KEY_FILE_HELP =
  'File with the keys of encrypted versions, one of 64 hex digits on a line (default: none; ' +
  'encrypted versions are refused)';
const DECRYPT_KEY_COMMAND_HELP =
  'Program that prints the keys of encrypted versions, with arguments separated by spaces, or as ' +
  'a JSON array of strings; it is run without a shell';

/** The options of processes that read versions. */
export function addDecryptOptions(command: Command): Command {
  return command
    .addOption(
      optionWithEnv('--decrypt-key-file <file>', DECRYPT_KEY_FILE_HELP, DECRYPT_FILE_VARIABLE),
    )
    .addOption(
      optionWithEnv(
        '--decrypt-key-command <command>',
        DECRYPT_KEY_COMMAND_HELP,
        DECRYPT_COMMAND_VARIABLE,
      ),
    );
}

/** Gives this process its keys. @throws CubeError if they cannot be read */
export function useDecryptKeys({ decryptKeyFile, decryptKeyCommand }: DecryptOptions): void {
  processKeys.clear();
  useKeys({ file: decryptKeyFile, command: decryptKeyCommand }, DECRYPT_FLAGS);
}

/** Like `useDecryptKeys`, also for the processes that this process starts. */
export function shareDecryptKeys(options: DecryptOptions): void {
  useDecryptKeys(options);
  const { decryptKeyFile: file, decryptKeyCommand: command } = options;
  if (file !== undefined) setEnvironment(DECRYPT_FILE_VARIABLE, resolve(file));
  if (command !== undefined) setEnvironment(DECRYPT_COMMAND_VARIABLE, command);
}

/** For commands without these options: the variables alone. */
export function useDecryptKeysOfEnvironment(): void {
  useDecryptKeys({
    decryptKeyFile: readEnvironment(DECRYPT_FILE_VARIABLE),
    decryptKeyCommand: readEnvironment(DECRYPT_COMMAND_VARIABLE),
  });
}

/** @param flags both flags, for errors */
export function useKeys(location: KeyLocation, flags: string, keys: KeyRing = processKeys): void {
  const { file, command } = location;
  keys.flags = flags;
  if (file !== undefined && command !== undefined) {
    throw new UsageError(`${flags}: give one of them`);
  }
  if (file !== undefined) keys.use(createFileSource(file));
  else if (command !== undefined) keys.use(createCommandSource(command));
}

/** The command runs once, when the process starts. */
function createCommandSource(text: string): KeySource {
  const [program = '', ...args] = parseCommand(text);
  const name = `the output of ${program}`;
  return { name, stamp: () => undefined, read: () => parseKeys(runCommand(program, args), name) };
}

/** @throws CubeError INVALID_ARGUMENT */
export function parseCommand(text: string): string[] {
  const trimmed = text.trim();
  const words = trimmed.startsWith('[') ? parseJsonWords(trimmed) : trimmed.split(/\s+/);
  if (words.length > 0 && words[0] !== '') return words;
  throw new CubeError('INVALID_ARGUMENT', 'the command for encryption keys is empty');
}

function parseJsonWords(text: string): string[] {
  try {
    const words: unknown = JSON.parse(text);
    if (Array.isArray(words) && words.every((word) => typeof word === 'string')) return words;
  } catch {
    // The error below says what is expected.
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    'the command for encryption keys begins with [ but is not a JSON array of strings',
  );
}

/** The output is never part of an error: it may hold a key. */
function runCommand(program: string, args: readonly string[]): Uint8Array {
  try {
    return execFileSync(program, args, {
      shell: false,
      timeout: COMMAND_TIMEOUT_MS,
      maxBuffer: KEY_FILE_BYTES_MAX,
      stdio: ['ignore', 'pipe', 'ignore'],
    });
  } catch (error) {
    const { code, status, signal } = error as NodeJS.ErrnoException & {
      status?: number | null;
      signal?: string | null;
    };
    const reason =
      code === 'ETIMEDOUT'
        ? `did not end within ${COMMAND_TIMEOUT_MS / 1000} seconds`
        : code !== undefined
          ? `failed (${code})`
          : signal
            ? `was ended by ${signal}`
            : `ended with exit code ${status}`;
    throw new CubeError(
      'IO',
      `the command for encryption keys, ${program}, ${reason}; run it by hand`,
    );
  }
}
