/**
 * Identifies a process in a file, so that a later reader can check whether it is still alive. A pid
 * is meaningful on one host and within one pid namespace: two containers may share a host name
 * without seeing each other's processes. The system gives the pid of an ended process to another
 * one, after a restart of the host even soon: where it tells them, the identity also has the boot
 * and the start time of the process.
 */
import { readFileSync, readlinkSync } from 'node:fs';
import { hostname } from 'node:os';
import type { JsonReader } from '../core/json.ts';

export interface ProcessIdentity {
  readonly host: string;
  /** The pid namespace as the system names it; undefined when unknown. */
  readonly space: string | undefined;
  readonly pid: number;
  /** The id that the system draws when it starts; undefined when unknown. */
  readonly boot: string | undefined;
  /** Start of the process in clock ticks since the boot; undefined when unknown. */
  readonly start: number | undefined;
}

interface ProcessStat {
  /** It has ended, and its parent has not yet asked for its exit code. */
  readonly isEnded: boolean;
  readonly start: number;
}

const BOOT_ID_FILE = '/proc/sys/kernel/random/boot_id';
/** Positions in /proc/<pid>/stat after the name: that of field 3, the state, is 0. */
const THREADS_INDEX = 17;
const START_INDEX = 19;

/** Identity of this process. */
export function getProcessIdentity(): ProcessIdentity {
  const { pid } = process;
  const start = readStat(pid)?.start;
  return { host: hostname(), space: readPidNamespace(), pid, boot: readBootId(), start };
}

/**
 * Earlier versions wrote neither `boot` nor `start`.
 * @throws CubeError INVALID_ARGUMENT when it is not a process identity
 */
export function readProcessIdentity(json: JsonReader): ProcessIdentity {
  return {
    host: json.field('host').string(),
    space: json.optional('space', (field) => field.string()),
    pid: json.field('pid').integer(1),
    boot: json.optional('boot', (field) => field.string()),
    start: json.optional('start', (field) => field.integer(0)),
  };
}

/**
 * `self`: this process, or an earlier one with the same pid whose start is unknown. `unknown`: its
 * processes are not visible from here. Without a boot and a start, a process that reuses the pid of
 * an ended one counts as alive, so that callers may wait too long but never too short.
 */
export function getProcessLiveness({
  host,
  space,
  pid,
  boot,
  start,
}: ProcessIdentity): 'lives' | 'gone' | 'self' | 'unknown' {
  const isElsewhere = host !== hostname() || (space !== undefined && space !== readPidNamespace());
  if (isElsewhere) return 'unknown';
  if (differs(boot, readBootId())) return 'gone';
  const stat = readStat(pid);
  if (stat?.isEnded || differs(start, stat?.start)) return 'gone';
  if (pid === process.pid) return 'self';
  try {
    process.kill(pid, 0);
    return 'lives';
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM' ? 'lives' : 'gone';
  }
}

/** Whether both are known and not the same. */
function differs<T>(a: T | undefined, b: T | undefined): boolean {
  return a !== undefined && b !== undefined && a !== b;
}

/** Undefined where the system does not tell it, or hides this process. */
function readStat(pid: number): ProcessStat | undefined {
  try {
    // Otherwise /proc belongs to another pid namespace, where the pid is another process's.
    if (readlinkSync('/proc/self') !== String(process.pid)) return undefined;
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name before is in parentheses and may contain spaces and parentheses itself.
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    const start = Number(fields[START_INDEX]);
    if (!Number.isSafeInteger(start)) return undefined;
    const [state] = fields;
    // The first thread is a zombie also while other threads of a killed process still run.
    const isZombie = state === 'Z' && Number(fields[THREADS_INDEX]) <= 1;
    return { isEnded: isZombie || state === 'X', start };
  } catch {
    return undefined;
  }
}

function readBootId(): string | undefined {
  try {
    return readFileSync(BOOT_ID_FILE, 'utf8').trim() || undefined;
  } catch {
    return undefined;
  }
}

function readPidNamespace(): string | undefined {
  try {
    return readlinkSync('/proc/self/ns/pid');
  } catch {
    return undefined;
  }
}
