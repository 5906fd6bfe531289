/** What the process may use of its machine. */
import { availableParallelism, totalmem } from 'node:os';

/** Memory of the machine, or of the container that the process is in. */
export function memoryBytes(): number {
  // 0, or more than there is, without a limit.
  const limit = process.constrainedMemory() || Number.POSITIVE_INFINITY;
  return Math.min(totalmem(), limit);
}

export function processors(): number {
  return availableParallelism();
}

/** @returns says how much of the time since then this thread was busy, 0..1 */
export function startBusyMeter(): () => number {
  const start = performance.eventLoopUtilization();
  return () => performance.eventLoopUtilization(start).utilization;
}
