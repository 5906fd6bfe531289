/**
 * Where a version is published, and the folder in which its layers are written: the repository
 * itself if it is a folder, else a temporary folder, from which publishing uploads them.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { isFolder, listFolder } from '../../lib/platform/files.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import { openRepository, type Repository } from '../../lib/repository/repository.ts';

export interface BuildTarget {
  readonly repository: Repository;
  /** Has a folder on this machine. */
  readonly work: Repository;
  /** Removes the temporary folder. */
  close(): void;
}

/** Whether a location is a URL and not a folder. */
export function isRemote(location: string): boolean {
  return /^[a-z][a-z0-9+]+:\/\//i.test(location);
}

/**
 * Opens a repository to build for; a missing or empty folder becomes a new one.
 * @param dryRun a missing folder stays missing, and nothing is written to an existing one
 * @throws CubeError UNSUPPORTED for a web server; INVALID_ARGUMENT for a folder with other content
 */
export async function openTarget(location: string, dryRun = false): Promise<BuildTarget> {
  if (!isRemote(location)) return openFolderTarget(location, dryRun);
  const repository = openRepository(location, { dryRun });
  if (!repository.canList) {
    throw new CubeError(
      'UNSUPPORTED',
      `--output-path ${location}: a web server can only be read; publish to a folder or ` +
        's3://bucket/prefix',
    );
  }
  const folder = new TemporaryFolder('build');
  const work = openRepository(folder.path);
  return { repository, work, close: () => folder.remove() };
}

async function openFolderTarget(folder: string, dryRun: boolean): Promise<BuildTarget> {
  const isNew = !isFolder(folder) || listFolder(folder).length === 0;
  if (dryRun && isNew) {
    const empty = new TemporaryFolder('build');
    const repository = openRepository(empty.path, { dryRun });
    return { repository, work: repository, close: () => empty.remove() };
  }
  const repository = openRepository(folder, { create: true, dryRun });
  if (isNew || (await repository.listBundles()).length > 0 || hasWorkFolder(folder)) {
    return { repository, work: repository, close: () => undefined };
  }
  throw new CubeError(
    'INVALID_ARGUMENT',
    `--output-path ${folder} is not a repository: it contains ${listFolder(folder)[0]} and no ` +
      'bundle; give a repository or a new folder',
  );
}

/** A build that was interrupted before its first layer leaves only a work folder. */
function hasWorkFolder(folder: string): boolean {
  return listFolder(folder).some((name) => isFolder(join(folder, name, '.work')));
}
