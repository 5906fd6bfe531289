/** Asynchronous work with limited concurrency. */
/**
 * Runs `action` for every item, at most `concurrency` at a time. After a failure no further action
 * starts, and the first failure is thrown when all started actions have ended.
 */
export async function forEachConcurrent<T>(
  items: readonly T[],
  concurrency: number,
  action: (item: T) => Promise<void>,
): Promise<void> {
  const failures: unknown[] = [];
  let next = 0;
  const work = async (): Promise<void> => {
    while (next < items.length && failures.length === 0) {
      const item = items[next++] as T;
      await action(item).catch((error: unknown) => failures.push(error));
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, items.length) }, work));
  if (failures.length > 0) throw failures[0];
}
