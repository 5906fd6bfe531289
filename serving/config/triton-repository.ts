/** Reads the configurations of the models in a repository of Triton's layout. */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
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
 * @param ignored takes the fields without effect
 * @throws CubeError INVALID_ARGUMENT for the first invalid one, NOT_FOUND
 */
export function readModelConfigs(
  repository: string,
  ignored: IgnoredSetting[],
): TritonModelConfig[] {
  if (!isFolder(repository)) {
    throw new CubeError('INVALID_ARGUMENT', `--model-repository: ${repository} is not a folder`);
  }
  const folders = listFolder(repository)
    .sort()
    .filter((name) => !name.startsWith('.') && isFolder(join(repository, name)));
  const reason = `not served: expected ${NAME_RULE}; rename the folder`;
  return folders.flatMap((name) => {
    const folder = join(repository, name);
    if (NAME_PATTERN.test(name)) return [readModelConfig(name, folder, ignored)];
    ignored.push({ setting: folder, reason });
    return [];
  });
}
