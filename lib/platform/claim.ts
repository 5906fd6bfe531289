/**
 * A folder that one process works in at a time, and another takes over when that one is gone. The owner is written down; where
 * its processes can be seen it is asked whether it lives, elsewhere only what it touched lately is known.
 */
import { mkdirSync, rmSync, statSync, utimesSync } from 'node:fs';
import { join } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { fileError, fileExists, putFileIfAbsent, readText, replaceFile } from './files.ts';
import { fateOf, type ProcessMark, processMark, readProcessMark } from './process-mark.ts';

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
    const mine = JSON.stringify(processMark());
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

/** Whether a process worked in the folder that is gone. This process's own number says nothing: it may be this very one. */
export function isAbandoned(folder: string): boolean {
  const path = join(folder, OWNER_FILE);
  const owner = ownerOf(path);
  return owner !== undefined && fateOf(owner) !== 'self' && livingOwner(path) === undefined;
}

/** "process 12 of host a"; undefined when it is gone, or was an earlier process of this very number. */
function livingOwner(path: string): string | undefined {
  const owner = ownerOf(path);
  if (owner === undefined) return undefined;
  const name = `process ${owner.pid} of host ${owner.host}`;
  const fate = fateOf(owner);
  if (fate !== 'unknown') return fate === 'lives' ? name : undefined;
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat !== undefined && Date.now() - stat.mtimeMs < SILENCE_MS ? name : undefined;
}

function ownerOf(path: string): ProcessMark | undefined {
  try {
    return readProcessMark(JsonReader.parse(readText(path), path));
  } catch {
    return undefined;
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
