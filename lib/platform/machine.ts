/** Resources of the machine that this process may use. */
import { execFile } from 'node:child_process';
import { readFileSync, readlinkSync } from 'node:fs';
import { availableParallelism, setPriority, totalmem } from 'node:os';
import { basename } from 'node:path';

/** Memory of the machine, or of the container that the process runs in. */
export function getMemoryLimitBytes(): number {
  // Without a limit this is 0 or more than the machine has.
  const limit = process.constrainedMemory() || Number.POSITIVE_INFINITY;
  return Math.min(totalmem(), limit);
}

export function getProcessorCount(): number {
  return availableParallelism();
}

/**
 * @returns a function that computes the share of time (0..1) this thread has been busy since the
 *   call
 */
export function startUtilizationMeter(): () => number {
  const start = performance.eventLoopUtilization();
  return () => performance.eventLoopUtilization(start).utilization;
}

/**
 * Chosen so that background threads get about a quarter of a core beside a busy thread, and all of
 * an idle one: they yield to threads that answer requests, and still progress on an overloaded
 * machine.
 */
const BACKGROUND_NICE = 5;

/**
 * Lowers the priority of the calling thread and of those it starts. Only Linux has priorities per
 * thread; elsewhere this does nothing, because it would affect the whole process.
 */
export function lowerThreadPriority(): void {
  if (process.platform !== 'linux') return;
  try {
    setPriority(BACKGROUND_NICE);
  } catch {
    // A sandbox may forbid it; the thread then keeps its priority.
  }
}

/** A process that sets a policy takes milliseconds; one that hangs must not stay. */
const POLICY_TIMEOUT_MS = 10_000;

/**
 * Lets the calling thread run only while no other thread of the machine wants its core: Linux's
 * policy SCHED_IDLE, which also makes its disk reads idle ones. With a low priority alone, a thread
 * keeps a core for some milliseconds while one that answers requests waits for it. Node cannot set
 * a policy, so `chrt` of util-linux or BusyBox does it. It cannot be undone, and on a machine
 * without idle time such a thread hardly runs at all. To start `chrt`, the page tables of the
 * process are copied: call this while it is small.
 * @returns false where that is not possible: the thread then has a low priority only
 */
export function runWhenIdle(): Promise<boolean> {
  lowerThreadPriority();
  if (process.platform !== 'linux') return Promise.resolve(false);
  let thread: string;
  try {
    thread = basename(readlinkSync('/proc/thread-self'));
  } catch {
    return Promise.resolve(false);
  }
  return runChrt(['-i', '-p', '0', thread]);
}

/**
 * Runs `chrt`, which sets policies of threads.
 * @param args without long options, which are unknown to BusyBox
 * @returns whether it succeeded
 */
export function runChrt(args: readonly string[]): Promise<boolean> {
  return new Promise((resolve) => {
    execFile('chrt', args, { timeout: POLICY_TIMEOUT_MS }, (error) => resolve(error === null));
  });
}

/** Linux's setting of transparent huge pages. */
export const HUGE_PAGES_FILE = '/sys/kernel/mm/transparent_hugepage/enabled';

export type HugePageMode = 'always' | 'madvise' | 'never';

/**
 * When Linux gives memory of tables huge pages. `madvise` gives none, because Node cannot ask for
 * them.
 * @returns undefined where the system does not say
 */
export function readHugePageMode(file: string = HUGE_PAGES_FILE): HugePageMode | undefined {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
  const mode = /\[(always|madvise|never)\]/.exec(text)?.[1];
  return mode as HugePageMode | undefined;
}
