/**
 * Flags and environment variables made from the tables of settings.ts, and their precedence: a flag
 * overrides its variable, and both override the configuration file.
 */
import { CubeError } from '../../lib/core/errors.ts';
import {
  advanced,
  type Command,
  InvalidArgumentError,
  type Option,
  optionWithEnv,
  setEnvironmentRule,
} from '../../lib/platform/cli.ts';
import type { ServingSettings } from './serving-config.ts';
import type { Setting } from './setting-kinds.ts';
import {
  getVariableName,
  MODEL_SETTINGS,
  type ModelSettings,
  PROCESS_SETTINGS,
  type ProcessSettings,
  toKebabCase,
} from './settings.ts';

type SettingTable = Readonly<Record<string, Setting<unknown>>>;

/** Settings given as flags or environment variables. */
export type SettingFlags = ProcessSettings & ModelSettings;

export function addSettingOptions(program: Command): Command {
  addOptions(program, PROCESS_SETTINGS);
  addOptions(program, MODEL_SETTINGS);
  setEnvironmentRule(program, {
    text:
      'Every setting can also be given as an environment variable: HYPERCUBE_TIMEOUT_MS for ' +
      '--timeout-ms. An option overrides its variable, and both override the configuration file.',
    variable: (option) => getVariableName(option.attributeName(), {}),
  });
  return program;
}

/** The option of one setting, for another command that has it too. */
export function createSettingOption(key: keyof ModelSettings): Option {
  return createOption(key, MODEL_SETTINGS[key] as Setting<unknown>);
}

function addOptions(program: Command, table: SettingTable): void {
  for (const [key, setting] of Object.entries(table)) {
    const option = createOption(key, setting).helpGroup(setting.group);
    program.addOption(setting.isCommon ? option : advanced(option));
  }
}

function createOption(key: string, setting: Setting<unknown>): Option {
  const { kind, help, isPath } = setting;
  const placeholder = isPath ? 'path' : kind.placeholder;
  const flags = `--${toKebabCase(key)} <${placeholder}>`;
  const option = optionWithEnv(flags, help, getVariableName(key, setting));
  option.argParser((text: string) => {
    try {
      return kind.fromText(text);
    } catch (error) {
      throw new InvalidArgumentError(CubeError.from(error).message);
    }
  });
  return option;
}

/**
 * Overrides the settings of a file with flags and variables. Without a file, they describe the only
 * model.
 * @throws CubeError INVALID_ARGUMENT for a model setting when the file has several models
 */
export function mergeSettings(
  file: ServingSettings | undefined,
  given: SettingFlags,
): ServingSettings {
  const process = pickSettings<ProcessSettings>(given, PROCESS_SETTINGS);
  const model = pickSettings<ModelSettings>(given, MODEL_SETTINGS);
  const names = Object.keys(model);
  if (file === undefined) return { ...process, models: names.length === 0 ? [] : [model] };
  const [first, ...others] = file.models;
  if (names.length > 0 && (first === undefined || others.length > 0)) {
    const flags = names.map((key) => `--${toKebabCase(key)}`).join(', ');
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${flags}: the configuration has ${file.models.length} models; set this in the file instead`,
    );
  }
  const models = first === undefined ? [] : [{ ...first, ...model }, ...others];
  return { ...file, ...process, models };
}

function pickSettings<T>(given: object, table: SettingTable): T {
  const entries = Object.entries(given).filter(
    ([key, value]) => Object.hasOwn(table, key) && value !== undefined,
  );
  return Object.fromEntries(entries) as T;
}
