/**
 * Settings as flags and environment variables, made from the tables of settings.ts, and laid over those of a file: a flag goes
 * before its variable, both before the file.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { type Command, InvalidArgumentError, optionWithEnv } from '../../lib/platform/cli.ts';
import type { ServingSettings } from './serving-config.ts';
import {
  kebabOf,
  MODEL_SETTINGS,
  type ModelSettings,
  PROCESS_SETTINGS,
  type ProcessSettings,
  type Setting,
  variableOf,
} from './settings.ts';

type AnyTable = Readonly<Record<string, Setting<unknown>>>;

/** What of the tables was given as flags or in the environment. */
export type SettingFlags = ProcessSettings & ModelSettings;

export function addSettingOptions(program: Command): Command {
  program.optionsGroup('The process:');
  addOptions(program, PROCESS_SETTINGS);
  program.optionsGroup('The model (with several, in the file of --config):');
  addOptions(program, MODEL_SETTINGS);
  return program;
}

function addOptions(program: Command, table: AnyTable): void {
  for (const [key, setting] of Object.entries(table)) {
    const { kind, help } = setting;
    const flags = `--${kebabOf(key)} <${kind.shown}>`;
    const option = optionWithEnv(flags, help, variableOf(key, setting));
    option.argParser((text: string) => {
      try {
        return kind.fromText(text);
      } catch (error) {
        throw new InvalidArgumentError(CubeError.from(error).message);
      }
    });
    program.addOption(option);
  }
}

/**
 * Lays what was given over the settings of a file; without a file it is the one model.
 * @throws CubeError INVALID_ARGUMENT for a model's setting when the file has several models
 */
export function layOver(file: ServingSettings | undefined, given: SettingFlags): ServingSettings {
  const process = pick<ProcessSettings>(given, PROCESS_SETTINGS);
  const model = pick<ModelSettings>(given, MODEL_SETTINGS);
  const names = Object.keys(model);
  if (file === undefined) return { ...process, models: names.length === 0 ? [] : [model] };
  const [first, ...others] = file.models;
  if (names.length > 0 && (first === undefined || others.length > 0)) {
    const flags = names.map((key) => `--${kebabOf(key)}`).join(', ');
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${flags}: the configuration has ${file.models.length} models; say it there, at the model that is meant`,
    );
  }
  const models = first === undefined ? [] : [{ ...first, ...model }, ...others];
  return { ...file, ...process, models };
}

function pick<T>(given: object, table: AnyTable): T {
  const entries = Object.entries(given).filter(
    ([key, value]) => Object.hasOwn(table, key) && value !== undefined,
  );
  return Object.fromEntries(entries) as T;
}
