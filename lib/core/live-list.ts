/**
 * What is in progress, in the order of arrival: requests, calls, responses. Adding and removing
 * cost the same at any length.
 *
 * Use it in place of a Set or Map whose members come and go with each request. Such a Set gets a
 * new table again and again, and V8 links each old table, with the members it had, to the next one.
 * After a collection of the whole heap the first of these tables is in the old space, so until the
 * next such collection the whole chain outlives every collection of young objects, which then copy
 * much of what the requests allocated.
 */

/** A member: of at most one list at a time. */
export interface LiveItem {
  /** Neighbours in the list; only the list sets them. */
  previous: LiveItem | undefined;
  next: LiveItem | undefined;
}

/** A member for a value that has no such fields itself. */
export class LiveEntry<V> implements LiveItem {
  previous: LiveItem | undefined;
  next: LiveItem | undefined;
  readonly value: V;

  constructor(value: V) {
    this.value = value;
  }
}

export class LiveList<T extends LiveItem> {
  #first: LiveItem | undefined;
  #last: LiveItem | undefined;
  #size = 0;

  get size(): number {
    return this.#size;
  }

  /** The member that was added first. */
  get first(): T | undefined {
    return this.#first as T | undefined;
  }

  /** Adds an item that is in no list. */
  add(item: T): void {
    item.previous = this.#last;
    if (this.#last === undefined) this.#first = item;
    else this.#last.next = item;
    this.#last = item;
    this.#size++;
  }

  /** @param item in this list or in none @returns whether it was in the list */
  delete(item: T): boolean {
    const { previous, next } = item;
    if (previous === undefined && this.#first !== item) return false;
    if (previous === undefined) this.#first = next;
    else previous.next = next;
    if (next === undefined) this.#last = previous;
    else next.previous = previous;
    // A dead item in the old space must not keep younger ones alive.
    item.previous = undefined;
    item.next = undefined;
    this.#size--;
    return true;
  }

  /** Visits all members; `visit` may delete the one that it gets. */
  forEach(visit: (item: T) => void): void {
    for (let item = this.#first; item !== undefined; ) {
      const { next } = item;
      visit(item as T);
      item = next;
    }
  }
}
