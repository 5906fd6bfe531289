/** Work in steps: done at once, or with others answered in between. */
import { CubeError } from '../lib/core/errors.ts';
import type { DeferredResponse } from '../lib/rpc/deferred-response.ts';

/** Undefined: others may go first. A promise: the work goes on with its number when it is settled. */
export type Steps<T = void> = Generator<Promise<number> | undefined, T, number>;

/** Does all steps now: none may be a promise. */
export function runNow<T>(steps: Steps<T>): T {
  for (;;) {
    const step = steps.next(0);
    if (step.done === true) return step.value;
    if (step.value !== undefined) throw new Error('a step that waits was run without waiting');
  }
}

/**
 * Does one step after the other while somebody waits for the result.
 * @param isAbandoned whether nobody does any more
 * @throws CubeError DEADLINE_EXCEEDED when the rest was not done
 */
export async function runLater<T>(steps: Steps<T>, isAbandoned: () => boolean): Promise<T> {
  let result = 0;
  for (;;) {
    if (isAbandoned()) {
      throw new CubeError('DEADLINE_EXCEEDED', 'the caller no longer waits: the rest was not done');
    }
    const step = steps.next(result);
    if (step.done === true) return step.value;
    if (step.value === undefined) await new Promise((resolve) => setImmediate(resolve));
    result = step.value === undefined ? 0 : await step.value;
  }
}

/** Answers a call with what the steps write to it, or with their error. */
export async function answerLater(steps: Steps, deferred: DeferredResponse): Promise<void> {
  try {
    await runLater(steps, () => deferred.abandoned);
    deferred.finish();
  } catch (error) {
    deferred.fail(error);
  }
}
