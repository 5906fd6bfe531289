/** Runs one task in each turn of the event loop, so that what arrives meanwhile is read first. */
export class TurnQueue {
  readonly #tasks: (() => void)[] = [];

  add(task: () => void): void {
    this.#tasks.push(task);
    if (this.#tasks.length === 1) setImmediate(this.#runNext);
  }

  readonly #runNext = (): void => {
    const task = this.#tasks[0];
    try {
      task?.();
    } finally {
      this.#tasks.shift();
      if (this.#tasks.length > 0) setImmediate(this.#runNext);
    }
  };
}
