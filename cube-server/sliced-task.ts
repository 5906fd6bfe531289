/** Work in slices: run at once, or with other requests answered between slices. */
import { CubeError } from '../lib/core/errors.ts';
import type { DeferredResponse } from '../lib/rpc/deferred-response.ts';

/**
 * Yields undefined to let other requests run, or a promise whose number the task receives when it
 * settles.
 */
export type SlicedTask<T = void> = Generator<Promise<number> | undefined, T, number>;

/** Runs all slices at once; none may yield a promise. */
export function runSync<T>(steps: SlicedTask<T>): T {
  for (;;) {
    const step = steps.next(0);
    if (step.done === true) return step.value;
    if (step.value !== undefined) throw new Error('a task that must wait was run at once');
  }
}

/**
 * Runs the slices one by one while the caller waits for the result.
 * @param isAbandoned whether the caller has stopped waiting
 * @throws CubeError DEADLINE_EXCEEDED when the task was abandoned
 */
export async function runSliced<T>(steps: SlicedTask<T>, isAbandoned: () => boolean): Promise<T> {
  let result = 0;
  for (;;) {
    if (isAbandoned()) {
      throw new CubeError(
        'DEADLINE_EXCEEDED',
        'the caller no longer waits; the lookup was aborted',
      );
    }
    const step = steps.next(result);
    if (step.done === true) return step.value;
    if (step.value === undefined) await new Promise((resolve) => setImmediate(resolve));
    result = step.value === undefined ? 0 : await step.value;
  }
}

/** Sends what the task writes as the response, or its error. */
export async function respondSliced(steps: SlicedTask, deferred: DeferredResponse): Promise<void> {
  try {
    await runSliced(steps, () => deferred.isAbandoned);
    deferred.finish();
  } catch (error) {
    deferred.fail(error);
  }
}
