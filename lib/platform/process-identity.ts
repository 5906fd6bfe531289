/**
 * Identifies a process in a file, so that a later reader can check whether it is still alive. A pid
 * is meaningful on one host and within one pid namespace: two containers may share a host name
 * without seeing each other's processes.
 */
import { readlinkSync } from 'node:fs';
import { hostname } from 'node:os';
import type { JsonReader } from '../core/json.ts';

export interface ProcessIdentity {
  readonly host: string;
  /** The pid namespace as the system names it; undefined when unknown. */
  readonly space: string | undefined;
  readonly pid: number;
}

/** Identity of this process. */
export function getProcessIdentity(): ProcessIdentity {
  return { host: hostname(), space: readPidNamespace(), pid: process.pid };
}

/** @throws CubeError INVALID_ARGUMENT when it is not a process identity */
export function readProcessIdentity(json: JsonReader): ProcessIdentity {
  return {
    host: json.field('host').string(),
    space: json.optional('space', (field) => field.string()),
    pid: json.field('pid').integer(1),
  };
}

/**
 * `self`: this process, or an earlier one with the same pid. `unknown`: its processes are not
 * visible from here. A process that reuses the pid of an ended one counts as alive, so that callers
 * may wait too long but never too short.
 */
export function getProcessLiveness({
  host,
  space,
  pid,
}: ProcessIdentity): 'lives' | 'gone' | 'self' | 'unknown' {
  const isElsewhere = host !== hostname() || (space !== undefined && space !== readPidNamespace());
  if (isElsewhere) return 'unknown';
  if (pid === process.pid) return 'self';
  try {
    process.kill(pid, 0);
    return 'lives';
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM' ? 'lives' : 'gone';
  }
}

function readPidNamespace(): string | undefined {
  try {
    return readlinkSync('/proc/self/ns/pid');
  } catch {
    return undefined;
  }
}
