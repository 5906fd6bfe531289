/**
 * Processes the items of a stream, several at a time, and yields the results in the order of the
 * items. It stops reading while `inFlightMax` results wait: a consumer that reads slowly is sent to
 * slowly.
 */
export async function* mapInOrder<Item, Answer>(
  items: AsyncIterable<Item>,
  work: (item: Item) => Promise<Answer>,
  inFlightMax: number,
): AsyncGenerator<Answer, void, undefined> {
  const source = items[Symbol.asyncIterator]();
  const pending: Promise<Answer>[] = [];
  let next: Promise<IteratorResult<Item>> | undefined = ignoreUnhandledRejection(source.next());
  try {
    for (;;) {
      const [oldest] = pending;
      const read: Promise<IteratorResult<Item>> | undefined =
        pending.length < inFlightMax ? next : undefined;
      if (oldest !== undefined && (read === undefined || (await isFirst(oldest, read)))) {
        pending.shift();
        yield await oldest;
        continue;
      }
      if (read === undefined) return;
      const { done, value }: IteratorResult<Item> = await read;
      next = done ? undefined : ignoreUnhandledRejection(source.next());
      if (!done) pending.push(ignoreUnhandledRejection(work(value)));
    }
  } finally {
    await source.return?.();
  }
}

/** True when `one` settles before `other`. @throws the error of the promise that rejects first */
function isFirst(one: Promise<unknown>, other: Promise<unknown>): Promise<boolean> {
  return Promise.race([one.then(() => true), other.then(() => false)]);
}

/** Prevents an unhandled rejection when no caller waits for the promise any more. */
function ignoreUnhandledRejection<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}
