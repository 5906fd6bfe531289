/**
 * Which process wrote something down, so that whoever reads it later can tell whether that one still lives. Numbers of processes mean
 * something on one host, and there within one namespace: two containers may have one host name, and neither sees the other's.
 */
import { readlinkSync } from 'node:fs';
import { hostname } from 'node:os';
import type { JsonReader } from '../core/json.ts';

export interface ProcessMark {
  readonly host: string;
  /** What the process's number counts in, as the system calls it; undefined where that is not known. */
  readonly space: string | undefined;
  readonly pid: number;
}

/** Of this process. */
export function processMark(): ProcessMark {
  return { host: hostname(), space: spaceOf(), pid: process.pid };
}

/** @throws CubeError INVALID_ARGUMENT when it is no mark */
export function readProcessMark(json: JsonReader): ProcessMark {
  return {
    host: json.field('host').string(),
    space: json.optional('space', (field) => field.string()),
    pid: json.field('pid').integer(1),
  };
}

/**
 * `self`: this very process, or an earlier one of the same number. `unknown`: its processes cannot be seen from here. Another
 * process that got the number of one that has ended counts as living: whoever waits for it waits too long, never too short.
 */
export function fateOf({ host, space, pid }: ProcessMark): 'lives' | 'gone' | 'self' | 'unknown' {
  const isElsewhere = host !== hostname() || (space !== undefined && space !== spaceOf());
  if (isElsewhere) return 'unknown';
  if (pid === process.pid) return 'self';
  try {
    process.kill(pid, 0);
    return 'lives';
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM' ? 'lives' : 'gone';
  }
}

function spaceOf(): string | undefined {
  try {
    return readlinkSync('/proc/self/ns/pid');
  } catch {
    return undefined;
  }
}
