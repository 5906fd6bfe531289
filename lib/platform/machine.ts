/** Resources of the machine that this process may use. */
import { readFileSync } from 'node:fs';
import { availableParallelism, setPriority, totalmem } from 'node:os';

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
