/**
 * The base of every command line. Usage errors exit with 2. Failures print one line that says what
 * to do and exit with 1; a stack trace is printed only with HYPERCUBE_DEBUG=1. The only reader of
 * environment variables.
 */
import './disable-telemetry.ts';
import { type Command, CommanderError, InvalidArgumentError, Option } from 'commander';
import { CubeError } from '../core/errors.ts';
import { checkName } from '../core/names.ts';
import { CliCommand } from './help.ts';
import { PRODUCT_VERSION } from './version.ts';

export { Command, InvalidArgumentError, Option } from 'commander';
export { advanced, setEnvironmentRule } from './help.ts';

/** Wrong usage that only the command itself can detect. Exits with 2. */
export class UsageError extends CubeError {
  constructor(message: string) {
    super('INVALID_ARGUMENT', message);
  }
}

export const EXIT_OK = 0;
export const EXIT_FAILED = 1;
export const EXIT_USAGE = 2;

/**
 * A program with the shared help and error handling: add options and an action, call `runCli`.
 * @param versionFlags of a program without subcommands whose own --version names something else
 */
export function createCli(
  name: string,
  description: string,
  versionFlags = '-V, --version',
): Command {
  return new CliCommand(name)
    .description(description)
    .version(PRODUCT_VERSION, versionFlags, 'Print the version')
    .helpOption('-h, --help', 'Show help')
    .showHelpAfterError(`(${name} --help shows the options)`)
    .exitOverride();
}

/** Environment variable, or undefined when unset or empty. */
export function readEnvironment(name: string): string | undefined {
  const value = process.env[name];
  return value === undefined || value === '' ? undefined : value;
}

/** Sets a variable for the processes that this process starts. */
export function setEnvironment(name: string, value: string): void {
  process.env[name] = value;
}

/**
 * Parses the command line and runs the command.
 * @param argv without the first two entries of process.argv
 * @returns the exit code: 0, 1 for a failure, 2 for wrong usage, or `exitCode(error)` for an error
 */
export async function runCli(
  program: Command,
  argv: readonly string[] = process.argv.slice(2),
  exitCode: (error: CubeError) => number = () => EXIT_FAILED,
): Promise<number> {
  for (const stream of [process.stdout, process.stderr]) {
    stream.off('error', ignoreClosedOutput).on('error', ignoreClosedOutput);
  }
  try {
    prepareCommands(program, program.name());
    await program.parseAsync([...argv], { from: 'user' });
    return Number(process.exitCode ?? EXIT_OK);
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT_OK : EXIT_USAGE;
    const failure = CubeError.from(error);
    process.stderr.write(`${program.name()}: ${failure.message}\n`);
    if (readEnvironment('HYPERCUBE_DEBUG') !== undefined || failure.code === 'INTERNAL') {
      process.stderr.write(`${(error as Error).stack ?? ''}\n`);
    }
    return failure instanceof UsageError ? EXIT_USAGE : exitCode(failure);
  }
}

/** Usage errors of a command, also of one inside another, name its help. */
function prepareCommands(parent: Command, name: string): void {
  removeEmptyVariables(parent);
  for (const command of parent.commands) {
    const path = `${name} ${command.name()}`;
    command.exitOverride().showHelpAfterError(`(${path} --help shows the options)`);
    prepareCommands(command, path);
  }
}

/** An empty variable counts as unset, as in `readEnvironment`: deployments clear variables so. */
function removeEmptyVariables({ options }: Command): void {
  for (const { envVar } of options) {
    if (envVar !== undefined && process.env[envVar] === '') delete process.env[envVar];
  }
}

/**
 * The reader closed the pipe, as `| head` does, or the terminal: the command continues without
 * output, so that it stops the processes that it started.
 */
function ignoreClosedOutput(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE' && error.code !== 'EIO') throw error;
}

/** For commands that write. */
export function addDryRunOption(command: Command): Command {
  return command.option(
    '--dry-run',
    'Check the request and print what would be done; write nothing',
  );
}

/** For every command that ends. */
export function addJsonOption(command: Command): Command {
  return command.option('--json', 'Print the result as JSON');
}

/** What a command did, or would do in a dry run. */
export function withDryRunNote(text: string, { dryRun }: { dryRun?: boolean | undefined }): string {
  return dryRun ? `${text} (dry run: nothing was written)` : text;
}

/** Option parser: an integer within bounds. */
export function parseIntegerBetween(min: number, max: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (!/^-?\d+$/.test(text) || value < min || value > max) {
      throw new InvalidArgumentError(`Expected an integer from ${min} to ${max}.`);
    }
    return value;
  };
}

/** Option parser: bytes such as 512MiB, 2GiB, 100MB or plain 1048576. */
export function parseByteCount(text: string): number {
  const match = /^(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?$/i.exec(text.trim());
  if (match === null)
    throw new InvalidArgumentError('Expected bytes, such as 1048576, 512MiB or 2GB.');
  const prefix = (match[2] ?? '').toLowerCase();
  const power = ['', 'k', 'm', 'g', 't'].indexOf(prefix.charAt(0));
  return Math.floor(Number(match[1]) * (prefix.endsWith('i') ? 1024 : 1000) ** power);
}

/** Option parser: a bundle, table, version or channel name. */
export function parseNameOption(what: string): (text: string) => string {
  return (text) => {
    try {
      return checkName(text, what);
    } catch (error) {
      throw new InvalidArgumentError((error as Error).message);
    }
  };
}

/**
 * An option with an environment variable. A flag overrides the variable, which overrides the
 * default.
 */
export function optionWithEnv(flags: string, description: string, variable: string): Option {
  return new Option(flags, description).env(variable);
}
