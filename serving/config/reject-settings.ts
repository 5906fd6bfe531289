/** Refuses settings that contradict each other. */
import { CubeError } from '../../lib/core/errors.ts';
import { type ModelSettings, toKebabCase } from './settings.ts';

/** @throws CubeError INVALID_ARGUMENT naming those of `keys` that are given */
export function rejectSettings(
  settings: ModelSettings,
  keys: readonly (keyof ModelSettings)[],
  reason: string,
): void {
  const given = keys
    .filter((key) => settings[key] !== undefined)
    .map((key) => `--${toKebabCase(key)}`);
  if (given.length > 0) rejectConfig(`${given.join(', ')}: ${reason}`);
}

/** @throws CubeError INVALID_ARGUMENT */
export function rejectConfig(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
