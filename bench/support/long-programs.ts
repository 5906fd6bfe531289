/**
 * The command line of programs that run for minutes, such as `npm run bench`: a table of programs,
 * the help made from it, the choice by name, and a contained run of each.
 */
import { join } from 'node:path';
import { toArguments } from '../../lib/platform/arguments.ts';
import { type Command, createCli, Option, runCli, UsageError } from '../../lib/platform/cli.ts';
import { runScripts } from './contained-run.ts';

export interface LongProgram {
  /** Compiled script, relative to `folder` of the command line. */
  readonly script: string;
  /** What it measures or tests, as a phrase for the help. */
  readonly summary: string;
  /** About how long it takes on two cores with its default options; shown in the help. */
  readonly minutes?: number;
  readonly options?: readonly LongProgramOption[];
}

type OptionValue = number | string | readonly string[];

/** An option, passed to the script when given. Programs that take the same one share one object. */
export interface LongProgramOption {
  readonly flags: string;
  readonly description: string;
  /** @param previous the value so far of an option that is given again */
  readonly parse: (text: string, previous?: OptionValue) => OptionValue;
}

export interface LongProgramTable {
  /** As in `npm run <name>`. */
  readonly name: string;
  readonly description: string;
  readonly folder: string;
  readonly programs: Readonly<Record<string, LongProgram>>;
}

type OptionValues = Readonly<Record<string, OptionValue | undefined>>;

/** @returns the exit code */
export async function runLongPrograms(
  table: LongProgramTable,
  argv?: readonly string[],
): Promise<number> {
  let exitCode = 0;
  const program = createCommand(table).action(async (words: string[], values: OptionValues) => {
    const names = selectPrograms(table, words, values);
    exitCode = await runScripts(names.map((name) => createRun(table, name, values)));
  });
  const code = await runCli(program, argv);
  return code === 0 ? exitCode : code;
}

/** A command line that users reach with `npm run <name> --`. */
export function createNpmRunCli(name: string, description: string): Command {
  return createCli(`npm run ${name}`, description)
    .usage('-- [options] [names...]')
    .showHelpAfterError(`(npm run ${name} -- --help shows the options)`);
}

function createCommand({ name, description, programs }: LongProgramTable): Command {
  const list = Object.entries(programs);
  const width = Math.max(...list.map(([each]) => each.length));
  const lines = list.map(([each, { summary, minutes }]) => {
    const duration = minutes === undefined ? '' : ` (about ${minutes} min)`;
    return `  ${each.padEnd(width)}  ${summary}${duration}`;
  });
  const command = createNpmRunCli(name, description).argument(
    '[names...]',
    'Programs to run, by a part of their name (default: all)',
  );
  for (const option of new Set(list.flatMap(([, { options = [] }]) => options))) {
    const { flags, description: help, parse } = option;
    const takers = list.filter(([, { options = [] }]) => options.includes(option));
    const names =
      takers.length < list.length ? ` (only ${takers.map(([one]) => one).join(', ')})` : '';
    command.addOption(new Option(flags, `${help}${names}`).argParser(parse));
  }
  return command.addHelpText('after', `\nPrograms:\n${lines.join('\n')}`);
}

/** @throws UsageError for a word that is in no name, or an option of a program that is not run */
function selectPrograms(
  { programs }: LongProgramTable,
  words: readonly string[],
  values: OptionValues,
): string[] {
  const names = Object.keys(programs);
  const unknown = words.find((word) => names.every((name) => !name.includes(word)));
  if (unknown !== undefined) {
    throw new UsageError(`no name contains ${unknown}; the names are ${names.join(', ')}`);
  }
  const selected = names.filter(
    (name) => words.length === 0 || words.some((word) => name.includes(word)),
  );
  const known = new Set(selected.flatMap((name) => listOptions(programs[name])));
  const useless = Object.keys(values).find((key) => !known.has(key));
  if (useless === undefined) return selected;
  throw new UsageError(`--${useless} has no effect on ${selected.join(', ')}; leave it out`);
}

function createRun(
  { folder, programs }: LongProgramTable,
  name: string,
  values: OptionValues,
): { title: string; args: string[] } {
  const program = programs[name];
  const options = Object.fromEntries(listOptions(program).map((key) => [key, values[key]]));
  return { title: name, args: [join(folder, program?.script ?? ''), ...toArguments(options)] };
}

function listOptions({ options = [] }: Pick<LongProgram, 'options'> = {}): string[] {
  return options.map(({ flags }) => new Option(flags).attributeName());
}
