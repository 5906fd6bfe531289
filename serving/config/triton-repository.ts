/** Reads the configurations of the models in a repository of Triton's layout. */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists, isFolder, listFolder, readText } from '../../lib/platform/files.ts';
import type { IgnoredSetting } from './config-report.ts';
import {
  createDefaultConfig,
  readTritonConfig,
  type TritonModelConfig,
} from './triton-model-config.ts';

const CONFIG_FILE = 'config.pbtxt';
const CONFIG_BYTES_MAX = 4 << 20;

/**
 * @param name the name of the model's folder
 * @param ignored takes the fields without effect
 * @throws CubeError INVALID_ARGUMENT with file, line and column
 */
export function readModelConfig(
  name: string,
  folder: string,
  ignored: IgnoredSetting[],
): TritonModelConfig {
  const path = join(folder, CONFIG_FILE);
  if (!fileExists(path)) return createDefaultConfig(name, folder);
  return readTritonConfig({ text: readText(path, CONFIG_BYTES_MAX), path }, name, ignored);
}

/**
 * Checks every configuration of a repository.
 * @returns the fields without effect
 * @throws CubeError INVALID_ARGUMENT for the first invalid one, NOT_FOUND
 */
export function checkModelConfigs(repository: string): IgnoredSetting[] {
  if (!isFolder(repository)) {
    throw new CubeError('INVALID_ARGUMENT', `--model-repository: ${repository} is not a folder`);
  }
  const ignored: IgnoredSetting[] = [];
  for (const name of listFolder(repository).sort()) {
    const folder = join(repository, name);
    if (!name.startsWith('.') && isFolder(folder)) readModelConfig(name, folder, ignored);
  }
  return ignored;
}
