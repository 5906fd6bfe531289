/**
 * A lock on a folder: one process works in it at a time, and another takes over when that process
 * has ended. An owner file names the process. On the same host the system is asked whether it is
 * alive; for other hosts the file's modification time is the heartbeat.
 */
import { mkdirSync, rmSync, statSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { fileError, fileExists, putFileIfAbsent, readText, replaceFile } from './files.ts';
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

  /** @throws CubeError CONFLICT when a live process has the lock */
  constructor(folder: string) {
    this.folder = folder;
    try {
      mkdirSync(folder, { recursive: true });
    } catch (error) {
      throw fileError(error, 'make the folder', folder);
    }
    const path = join(folder, OWNER_FILE);
    const mine = JSON.stringify(getProcessIdentity());
    if (!putFileIfAbsent(path, mine)) {
      const owner = findLiveOwner(path);
      if (owner !== undefined) {
        throw new CubeError(
          'CONFLICT',
          `${folder} is in use by ${owner}; wait for it, or stop it and try again`,
        );
      }
      replaceFile(path, mine);
    }
    this.#timer = setInterval(() => touchFile(path), HEARTBEAT_INTERVAL_MS).unref();
  }

  /** Releases the lock; the folder's other content stays. */
  release(): void {
    clearInterval(this.#timer);
    rmSync(join(this.folder, OWNER_FILE), { force: true });
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
