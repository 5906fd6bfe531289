/** Work that can wait goes behind work that somebody waits for. */
import { setPriority } from 'node:os';

/**
 * A quarter of a core beside a thread that never rests, all of it where nobody else runs: behind whoever just woke to answer, but no
 * load or fetch starves on a machine that has too much to do.
 */
const BACKGROUND_NICE = 5;

/**
 * Lets the calling thread, and what it starts, run behind the process's other threads from now on. Only Linux gives threads priorities of
 * their own: elsewhere it would be the whole process, and nothing is done.
 */
export function runInBackground(): void {
  if (process.platform !== 'linux') return;
  try {
    setPriority(BACKGROUND_NICE);
  } catch {
    // A sandbox may forbid it: then it runs like everything else.
  }
}
