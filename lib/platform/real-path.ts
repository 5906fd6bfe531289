/** Where a path leads once its symbolic links are followed: what decides whether a file is inside a folder. */
import { realpathSync } from 'node:fs';
import { fileError } from './files.ts';

/** @throws CubeError NOT_FOUND when it leads nowhere */
export function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    throw fileError(error, 'read', path);
  }
}
