/** First in, first out, with removal in constant time: a request that ends leaves its queues. */
export class TaskQueue<T extends QueueNode<T>> {
  #first: T | undefined;
  #last: T | undefined;
  #length = 0;

  get length(): number {
    return this.#length;
  }

  get first(): T | undefined {
    return this.#first;
  }

  push(node: T): void {
    node.queue = this;
    node.previous = this.#last;
    if (this.#last === undefined) this.#first = node;
    else this.#last.next = node;
    this.#last = node;
    this.#length++;
  }

  shift(): T | undefined {
    const node = this.#first;
    if (node !== undefined) this.remove(node);
    return node;
  }

  /** @param node of this queue */
  remove(node: T): void {
    const { previous, next } = node;
    if (previous === undefined) this.#first = next;
    else previous.next = next;
    if (next === undefined) this.#last = previous;
    else next.previous = previous;
    node.previous = undefined;
    node.next = undefined;
    node.queue = undefined;
    this.#length--;
  }
}

export interface QueueNode<T extends QueueNode<T>> {
  /** The queue that holds the node. */
  queue: TaskQueue<T> | undefined;
  previous: T | undefined;
  next: T | undefined;
}
