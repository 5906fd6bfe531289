/**
 * A folder that one process works in at a time, and another takes over when that one is gone. The owner is written down as
 * host and process; on this host it is asked whether it lives, of another one only what it touched lately is known.
 */
import { mkdirSync, rmSync, statSync, utimesSync } from 'node:fs';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { fileError, fileExists, putFileIfAbsent, readText, replaceFile } from './files.ts';

const BEAT_MS = 10_000;
/** A host that has not touched its claim for so long is taken for gone. */
const SILENCE_MS = 60_000;
const OWNER_FILE = 'owner.json';

export class Claim {
  readonly folder: string;
  readonly #timer: NodeJS.Timeout;

  /** @throws CubeError CONFLICT when a living process works in the folder */
  constructor(folder: string) {
    this.folder = folder;
    try {
      mkdirSync(folder, { recursive: true });
    } catch (error) {
      throw fileError(error, 'make the folder', folder);
    }
    const path = join(folder, OWNER_FILE);
    const mine = JSON.stringify({ host: hostname(), pid: process.pid });
    if (!putFileIfAbsent(path, mine)) {
      const owner = livingOwner(path);
      if (owner !== undefined) {
        throw new CubeError(
          'CONFLICT',
          `${folder} is being worked in by ${owner}; wait for it, or stop it and try again`,
        );
      }
      replaceFile(path, mine);
    }
    this.#timer = setInterval(() => touch(path), BEAT_MS).unref();
  }

  /** Leaves the folder as it is to whoever comes next. */
  release(): void {
    clearInterval(this.#timer);
    rmSync(join(this.folder, OWNER_FILE), { force: true });
  }
}

/** Whether a living process works in the folder. */
export function isClaimed(folder: string): boolean {
  const path = join(folder, OWNER_FILE);
  return fileExists(path) && livingOwner(path) !== undefined;
}

/** "process 12 of host a"; undefined when it is gone, or was an earlier process of this very number. */
function livingOwner(path: string): string | undefined {
  let host: string;
  let pid: number;
  try {
    const owner = JsonReader.parse(readText(path), path);
    host = owner.field('host').string();
    pid = owner.field('pid').integer(1);
  } catch {
    return undefined;
  }
  const name = `process ${pid} of host ${host}`;
  if (host !== hostname()) {
    const stat = statSync(path, { throwIfNoEntry: false });
    return stat !== undefined && Date.now() - stat.mtimeMs < SILENCE_MS ? name : undefined;
  }
  return pid !== process.pid && lives(pid) ? name : undefined;
}

function lives(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM';
  }
}

/** Says that somebody still works here. */
export function touch(path: string): void {
  try {
    utimesSync(path, new Date(), new Date());
  } catch {
    // Removed under us: whoever did it finds out what we write next.
  }
}
