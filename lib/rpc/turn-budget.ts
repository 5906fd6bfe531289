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

  /** Runs the task, which begins a request, in a later turn, after those deferred before. */
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
    // The others are not touched: with thousands of them, deferring them again would take longer
    // than the requests that are begun.
    const tasks = this.#deferred.splice(0, this.#requestsMax);
    for (const task of tasks) task();
    if (this.#deferred.length > 0) this.#schedule();
  };
}
