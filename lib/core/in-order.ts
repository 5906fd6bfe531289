/**
 * Work on the items of a stream, several at a time, answered in the order of the items. Nothing is read while as many answers wait
 * as may: who takes answers slowly sends slowly.
 */
export async function* inOrder<Item, Answer>(
  items: AsyncIterable<Item>,
  work: (item: Item) => Promise<Answer>,
  inFlightMax: number,
): AsyncGenerator<Answer, void, undefined> {
  const source = items[Symbol.asyncIterator]();
  const waiting: Promise<Answer>[] = [];
  let next: Promise<IteratorResult<Item>> | undefined = quiet(source.next());
  try {
    while (next !== undefined || waiting.length > 0) {
      const [oldest] = waiting;
      const read: Promise<IteratorResult<Item>> | undefined =
        waiting.length < inFlightMax ? next : undefined;
      if (await isFirst(oldest, read)) {
        yield await waiting.shift()!;
        continue;
      }
      const { done, value }: IteratorResult<Item> = await read!;
      next = done ? undefined : quiet(source.next());
      if (!done) waiting.push(quiet(work(value)));
    }
  } finally {
    await source.return?.();
  }
}

/** Whether the first of the two settles before the other. @throws what failed first */
function isFirst(
  one: Promise<unknown> | undefined,
  other: Promise<unknown> | undefined,
): Promise<boolean> {
  if (one === undefined || other === undefined) return Promise.resolve(other === undefined);
  return Promise.race([one.then(() => true), other.then(() => false)]);
}

/** A failure that nobody waits for any more is not an unhandled one. */
function quiet<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}
