/** Changes a key file: one writer at a time, and readers see the old file or the new one. */
import { basename, dirname, join } from 'node:path';
import { type ApiKey, formatKeyFile } from '../../lib/access/api-keys.ts';
import { readKeyFile } from '../../lib/access/key-store.ts';
import {
  fileExists,
  putFileIfAbsent,
  removeEmptyFolder,
  replaceFile,
} from '../../lib/platform/files.ts';
import { FolderLock } from '../../lib/platform/folder-lock.ts';

/** Only the owner reads it: hashes of random keys are no secrets, but scopes and ids may be. */
const MODE = 0o600;

/** The keys of a file; none when it is absent. @throws CubeError when it is invalid */
function readKeys(path: string): readonly ApiKey[] {
  return fileExists(path) ? readKeyFile(path).keys : [];
}

/**
 * Replaces the keys of a file, which is created if it is absent. A replaced file keeps its
 * permissions.
 * @throws CubeError CONFLICT when another process changes the file, and the errors of `change`
 */
export function changeKeys(
  path: string,
  isDryRun: boolean,
  change: (keys: readonly ApiKey[]) => ApiKey[],
): void {
  if (isDryRun) {
    change(readKeys(path));
    return;
  }
  const lock = new FolderLock(join(dirname(path), `.${basename(path)}.lock`));
  try {
    const text = formatKeyFile({ keys: change(readKeys(path)) });
    if (!putFileIfAbsent(path, text, MODE)) replaceFile(path, text, 'keep');
  } finally {
    lock.release();
    removeEmptyFolder(lock.folder);
  }
}
