/**
 * The layout of `--help`: wrapped at the terminal width, environment variables listed once at the
 * end. Options marked by `advanced` appear only in `--help-all`.
 */
import { Command, Help, Option } from 'commander';

/** Width in columns of help that does not go to a terminal. */
const DEFAULT_WIDTH = 100;
/** The description of an option with longer flags starts on the next line. */
const FLAGS_WIDTH_MAX = 30;
const HELP_ALL = '--help-all';
const HELP_COMMAND_HELP = 'Show help for a command';
const DEFAULT_GROUP = 'Options:';

const advancedOptions = new WeakSet<Option>();
const environmentRules = new WeakMap<Command, EnvironmentRule>();

/** How environment variables follow from the flags of a command's options. */
export interface EnvironmentRule {
  /** The rule in one or two sentences. */
  readonly text: string;
  /** The variable of an option by the rule; options with other variables are exceptions. */
  readonly variable: (option: Option) => string;
}

/** Marks an option, before it is added to a command, that only `--help-all` shows. */
export function advanced(option: Option): Option {
  advancedOptions.add(option);
  return option;
}

/** Replaces a command's list of environment variables in the help by a rule and its exceptions. */
export function setEnvironmentRule(command: Command, rule: EnvironmentRule): void {
  environmentRules.set(command, rule);
}

/** A method of Commander that its types lack. */
interface UnknownOptionReporter {
  unknownOption(flag: string): never;
}

/** A command whose help, and that of its subcommands, has this layout. */
export class CliCommand extends Command {
  #showsAll = false;

  override createCommand(name?: string): CliCommand {
    return new CliCommand(name);
  }

  override createHelp(): Help {
    return Object.assign(new CliHelp(this.#showsAll), this.configureHelp());
  }

  override addOption(option: Option): this {
    super.addOption(option);
    const isFirst = this.options.every(({ long }) => long !== HELP_ALL);
    if (advancedOptions.has(option) && isFirst) this.#addHelpAll();
    return this;
  }

  /** Reports an unknown option before a missing one, which a typing error may cause. */
  override parseOptions(args: string[]): ReturnType<Command['parseOptions']> {
    const parsed = super.parseOptions(args);
    const [flag] = parsed.unknown;
    // A command inside another one gets its options without the name of its own subcommand.
    const isNested = this.parent !== null;
    const isOfSubcommand = this.commands.length > 0 && (isNested || parsed.operands.length > 0);
    if (flag === undefined || isOfSubcommand) return parsed;
    if (flag === HELP_ALL) this.help();
    const isHelp = parsed.unknown.some((text) => text === '-h' || text === '--help');
    if (!isHelp) (this as unknown as UnknownOptionReporter).unknownOption(flag);
    return parsed;
  }

  #addHelpAll(): void {
    super.addOption(new Option(HELP_ALL, 'Show all options').helpGroup(DEFAULT_GROUP));
    this.on('option:help-all', () => {
      this.#showsAll = true;
      this.help();
    });
  }
}

class CliHelp extends Help {
  readonly #showsAll: boolean;

  constructor(showsAll: boolean) {
    super();
    this.#showsAll = showsAll;
  }

  override prepareContext(context: Parameters<Help['prepareContext']>[0]): void {
    super.prepareContext({ ...context, helpWidth: context.helpWidth ?? DEFAULT_WIDTH });
  }

  override visibleOptions(command: Command): Option[] {
    const visible = super.visibleOptions(command);
    if (this.#showsAll) return visible.filter(({ long }) => long !== HELP_ALL);
    const everyday = visible.filter((option) => !advancedOptions.has(option));
    const helpAll = everyday.find(({ long }) => long === HELP_ALL);
    if (helpAll === undefined) return everyday;
    const hidden = visible.length - everyday.length;
    helpAll.description = `Show all options (${hidden} more)`;
    return [...everyday.filter((option) => option !== helpAll), helpAll];
  }

  /** Marks required options; environment variables have their own section. */
  override optionDescription(option: Option): string {
    const { defaultValue, defaultValueDescription: described } = option;
    const isEmpty = Array.isArray(defaultValue) && defaultValue.length === 0;
    const withoutVariable: Option = Object.create(option, {
      envVar: { value: undefined },
      defaultValue: { value: isEmpty ? undefined : defaultValue },
      defaultValueDescription: {
        value: described ?? (typeof defaultValue === 'string' ? defaultValue : undefined),
      },
    });
    const text = super.optionDescription(withoutVariable);
    return option.mandatory && option.defaultValue === undefined ? `${text} (required)` : text;
  }

  override subcommandDescription(command: Command): string {
    return command.name() === 'help' ? HELP_COMMAND_HELP : super.subcommandDescription(command);
  }

  override padWidth(command: Command, helper: Help): number {
    return Math.min(super.padWidth(command, helper), FLAGS_WIDTH_MAX);
  }

  override formatItem(term: string, termWidth: number, description: string, helper: Help): string {
    if (helper.displayWidth(term) <= termWidth) {
      return super.formatItem(term, termWidth, description, helper);
    }
    return `  ${term}\n${super.formatItem('', termWidth, description, helper)}`;
  }

  override formatHelp(command: Command, helper: Help): string {
    return super.formatHelp(command, helper) + this.#formatEnvironment(command, helper);
  }

  #formatEnvironment(command: Command, helper: Help): string {
    const rule = environmentRules.get(command);
    const options = helper
      .visibleOptions(command)
      .filter((option) => option.envVar !== undefined && option.envVar !== rule?.variable(option));
    if (options.length === 0 && rule === undefined) return '';
    const text = rule?.text ?? 'An option on the command line overrides its variable.';
    const width = Math.max(0, ...options.map(({ envVar = '' }) => envVar.length));
    const lines = options.map(({ envVar = '', long }) => `  ${envVar.padEnd(width)}  ${long}`);
    const wrapped = helper.boxWrap(text, (helper.helpWidth ?? DEFAULT_WIDTH) - 2);
    const intro = wrapped.replace(/^/gm, '  ');
    return ['\nEnvironment variables:', intro, ...lines, ''].join('\n');
  }
}
