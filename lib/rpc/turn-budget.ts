/**
 * Limits the requests that are begun in one turn of the event loop. While more than a thousand
 * sockets are readable, libuv reads them again and again before it runs timers and immediates, so
 * that many small requests that are refused at once would keep admitted ones from being answered.
 */
export class TurnBudget {
  readonly #requestsMax: number;
  #left: number;
  #deferred: (() => void)[] = [];
  #isScheduled = false;

  /** @param requestsMax per turn */
  constructor(requestsMax: number) {
    this.#requestsMax = requestsMax;
    this.#left = requestsMax;
  }

  /** Takes one request of this turn. @returns false when it has to wait for the next */
  take(): boolean {
    this.#schedule();
    if (this.#left === 0) return false;
    this.#left--;
    return true;
  }

  /** Runs the task in a later turn, after those that were deferred before. */
  defer(task: () => void): void {
    this.#schedule();
    this.#deferred.push(task);
  }

  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(this.#nextTurn);
  }

  readonly #nextTurn = (): void => {
    this.#isScheduled = false;
    this.#left = this.#requestsMax;
    const tasks = this.#deferred;
    this.#deferred = [];
    // A task that finds no budget left defers itself again.
    for (const task of tasks) task();
  };
}
