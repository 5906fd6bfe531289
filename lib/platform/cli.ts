/**
 * What every command line shares: usage errors exit 2, failures print one line that says what to do and exit 1,
 * nothing prints a stack unless HYPERCUBE_DEBUG=1. The only reader of the environment.
 */
import './telemetry.ts';
import { Command, CommanderError, Help, InvalidArgumentError, Option } from 'commander';
import { CubeError } from '../core/errors.ts';
import { checkName } from '../core/names.ts';

export { Command, InvalidArgumentError, Option } from 'commander';

export const EXIT_OK = 0;
export const EXIT_FAILED = 1;
export const EXIT_USAGE = 2;

/** A command with the project's manners; add options and an action, then `runCli`. */
export function createCli(name: string, description: string): Command {
  return new Command(name)
    .description(description)
    .version('0.1.0')
    .showHelpAfterError(`(${name} --help shows the options)`)
    .configureHelp({ sortOptions: false, optionDescription: describeOption })
    .exitOverride();
}

/** Commander says which options have a default, not which must be given. */
function describeOption(option: Option): string {
  const text = new Help().optionDescription(option);
  return option.mandatory && option.defaultValue === undefined ? `${text} (required)` : text;
}

/** Environment variable, or undefined when unset or empty. */
function environment(name: string): string | undefined {
  const value = process.env[name];
  return value === undefined || value === '' ? undefined : value;
}

/**
 * Parses and runs. @param argv without the two leading entries of process.argv
 * @returns the exit code: 0, 1 for a failure, 2 for wrong usage, or what `exitCode(error)` says for an error
 */
export async function runCli(
  program: Command,
  argv: readonly string[] = process.argv.slice(2),
  exitCode: (error: CubeError) => number = () => EXIT_FAILED,
): Promise<number> {
  process.stdout.off('error', endOfReader).on('error', endOfReader);
  try {
    for (const command of program.commands) {
      const name = `${program.name()} ${command.name()}`;
      command.exitOverride().showHelpAfterError(`(${name} --help shows the options)`);
    }
    await program.parseAsync([...argv], { from: 'user' });
    return Number(process.exitCode ?? EXIT_OK);
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT_OK : EXIT_USAGE;
    const failure = CubeError.from(error);
    process.stderr.write(`${program.name()}: ${failure.message}\n`);
    if (environment('HYPERCUBE_DEBUG') !== undefined || failure.code === 'INTERNAL') {
      process.stderr.write(`${(error as Error).stack ?? ''}\n`);
    }
    return exitCode(failure);
  }
}

/** Whoever reads our output went away, as `| head` does: the work goes on, and nobody is told. */
function endOfReader(error: NodeJS.ErrnoException): void {
  if (error.code !== 'EPIPE') throw error;
}

/** Option parser: an integer within bounds. */
export function integerBetween(min: number, max: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (!/^-?\d+$/.test(text) || value < min || value > max) {
      throw new InvalidArgumentError(`Expected an integer in ${min}..${max}.`);
    }
    return value;
  };
}

/** Option parser: bytes such as 512MiB, 2GiB, 100MB or plain 1048576. */
export function byteCount(text: string): number {
  const match = /^(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?$/i.exec(text.trim());
  if (match === null) throw new InvalidArgumentError('Expected bytes such as 512MiB or 2GiB.');
  const prefix = (match[2] ?? '').toLowerCase();
  const power = ['', 'k', 'm', 'g', 't'].indexOf(prefix.charAt(0));
  return Math.floor(Number(match[1]) * (prefix.endsWith('i') ? 1024 : 1000) ** power);
}

/** Option parser: a bundle, table, version or channel name. */
export function nameOption(what: string): (text: string) => string {
  return (text) => {
    try {
      return checkName(text, what);
    } catch (error) {
      throw new InvalidArgumentError((error as Error).message);
    }
  };
}

/** An option that may also come from the environment: flag over environment over default. */
export function optionWithEnv(flags: string, description: string, variable: string): Option {
  return new Option(flags, description).env(variable);
}
