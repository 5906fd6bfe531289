/**
 * A lock on a folder: one process works in it at a time, and another takes over when that process
 * has ended. An owner file names the process. On the same host the system is asked whether it is
 * alive; for other hosts the file's modification time is the heartbeat.
 */
import { renameSync, rmSync, statSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import {
  copyFileIfAbsent,
  fileError,
  fileExists,
  getTemporarySiblingPath,
  makeFolder,
  putFileIfAbsent,
  readText,
} from './files.ts';
import {
  getProcessIdentity,
  getProcessLiveness,
  type ProcessIdentity,
  readProcessIdentity,
} from './process-identity.ts';

const HEARTBEAT_INTERVAL_MS = 10_000;
/** A lock of another host whose heartbeat is older than this has expired. */
const HEARTBEAT_TIMEOUT_MS = 60_000;
const OWNER_FILE = 'owner.json';

export class FolderLock {
  readonly folder: string;
  readonly #timer: NodeJS.Timeout;
  readonly #content = JSON.stringify(getProcessIdentity());

  /** @throws CubeError CONFLICT when a live process has the lock */
  constructor(folder: string) {
    this.folder = folder;
    makeFolder(folder);
    const path = join(folder, OWNER_FILE);
    // After a dead owner, another process may be first, and then has the lock.
    while (!putFileIfAbsent(path, this.#content)) {
      const owner = findLiveOwner(path) ?? removeDeadOwner(path);
      if (owner !== undefined) {
        throw new CubeError(
          'CONFLICT',
          `${folder} is in use by ${owner}; wait for it, or stop it and try again`,
        );
      }
    }
    this.#timer = setInterval(() => touchFile(path), HEARTBEAT_INTERVAL_MS).unref();
  }

  /**
   * Releases the lock; the folder's other content stays. The lock of a process that has taken over
   * stays too.
   */
  release(): void {
    clearInterval(this.#timer);
    const path = join(this.folder, OWNER_FILE);
    const owner = readOwner(path);
    if (owner !== undefined && JSON.stringify(owner) === this.#content)
      rmSync(path, { force: true });
  }
}

/** Whether a live process has the lock. */
export function isFolderLocked(folder: string): boolean {
  const path = join(folder, OWNER_FILE);
  return fileExists(path) && findLiveOwner(path) !== undefined;
}

/**
 * Whether a process that has ended left its lock in the folder. A lock with this process's own pid
 * is not counted as abandoned: it may be held by this process.
 */
export function isFolderAbandoned(folder: string): boolean {
  const path = join(folder, OWNER_FILE);
  const owner = readOwner(path);
  return (
    owner !== undefined && getProcessLiveness(owner) !== 'self' && findLiveOwner(path) === undefined
  );
}

/**
 * "process 12 of host a"; undefined when the owner has ended, or is an earlier process with this
 * pid.
 */
function findLiveOwner(path: string): string | undefined {
  const owner = readOwner(path);
  if (owner === undefined) return undefined;
  const name = `process ${owner.pid} of host ${owner.host}`;
  const fate = getProcessLiveness(owner);
  if (fate !== 'unknown') return fate === 'lives' ? name : undefined;
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat !== undefined && Date.now() - stat.mtimeMs < HEARTBEAT_TIMEOUT_MS ? name : undefined;
}

/**
 * Removes the file of an owner that has ended. Several processes may try it at the same time: only
 * one of them moves the file away.
 * @returns the live process that has taken over meanwhile, and whose file was put back
 */
function removeDeadOwner(path: string): string | undefined {
  const moved = getTemporarySiblingPath(path);
  try {
    renameSync(path, moved);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw fileError(error, 'remove', path);
  }
  const owner = findLiveOwner(moved);
  if (owner !== undefined) copyFileIfAbsent(path, moved);
  rmSync(moved, { force: true });
  return owner;
}

function readOwner(path: string): ProcessIdentity | undefined {
  try {
    return readProcessIdentity(JsonReader.parse(readText(path), path));
  } catch {
    return undefined;
  }
}

/** Updates the heartbeat. */
export function touchFile(path: string): void {
  try {
    utimesSync(path, new Date(), new Date());
  } catch {
    // The owner file was removed; its remover is responsible for the lock now.
  }
}
