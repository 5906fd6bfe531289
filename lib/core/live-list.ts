/**
 * A linked list of requests, calls or responses in progress, in the order of arrival. Adding and
 * removing take the same time at any length.
 *
 * Use it in place of a Set or Map whose members come and go with each request. V8 moves such a Set
 * to a new table again and again. Each old table still holds its former members, and is linked to
 * the next table. Once the oldest table is in the old space, it keeps all later ones alive until
 * the whole heap is collected: collections of young objects copy them and their members each time.
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
