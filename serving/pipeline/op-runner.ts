/**
 * The queue of an op (its channel) and its slots. A queue counts complete inputs only: an output
 * that waits for other outputs of its request occupies no place, so a full queue always empties and
 * pushing back cannot deadlock.
 */
import { requireDefined } from '../../lib/core/errors.ts';
import type { OpExecutor } from './op-executor.ts';
import type { Channel, OpTask } from './pipeline-call.ts';
import type { ResolvedOpSettings } from './settings.ts';
import type { Stopped } from './stopped.ts';
import { TaskQueue } from './task-queue.ts';

/** Runs functions one after the other, never inside one another: chains of ops do not recurse. */
export class Trampoline {
  readonly #waiting: (() => void)[] = [];
  #isRunning = false;

  run(work: () => void): void {
    this.#waiting.push(work);
    if (this.#isRunning) return;
    this.#isRunning = true;
    for (let next = this.#waiting.shift(); next !== undefined; next = this.#waiting.shift()) next();
    this.#isRunning = false;
  }
}

export class OpRunner implements Channel {
  readonly #executor: OpExecutor;
  readonly #settings: ResolvedOpSettings;
  readonly #capacity: number;
  readonly #queue = new TaskQueue<OpTask>();
  /** Tasks that found the queue full. */
  readonly #blocked = new TaskQueue<OpTask>();
  readonly #free: number[];
  readonly #start: () => void;
  /** Requests and executions that have ended, and the time of those executions. */
  requests = 0;
  executions = 0;
  busyMs = 0;
  #batchTimer: NodeJS.Timeout | undefined;
  #onIdle: (() => void) | undefined;

  constructor(
    executor: OpExecutor,
    settings: ResolvedOpSettings,
    capacity: number,
    trampoline: Trampoline,
  ) {
    this.#executor = executor;
    this.#settings = settings;
    this.#capacity = capacity;
    const { concurrency } = settings;
    this.#free = Array.from({ length: concurrency }, (_, index) => concurrency - 1 - index);
    const start = (): void => this.#startTasks();
    this.#start = () => trampoline.run(start);
  }

  /** Executions in progress. */
  get running(): number {
    return this.#settings.concurrency - this.#free.length;
  }

  /** Complete inputs that wait, with those that found the queue full. */
  get queueLength(): number {
    return this.#queue.length + this.#blocked.length;
  }

  get capacity(): number {
    return this.#capacity;
  }

  get restarts(): number {
    return this.#executor.restarts;
  }

  offer(task: OpTask): Promise<void> | undefined {
    const { outage } = this.#executor;
    if (outage !== undefined) {
      task.call.fail(outage);
      return undefined;
    }
    if (this.#queue.length < this.#capacity) {
      this.#queue.push(task);
      this.#start();
      return undefined;
    }
    this.#blocked.push(task);
    return new Promise((resolve) => {
      task.onAccepted = resolve;
    });
  }

  remove(task: OpTask): void {
    task.queue?.remove(task);
    task.accept();
    if (this.#queue.length === 0) this.#stopTimer();
    this.#refill();
  }

  #stopTimer(): void {
    clearTimeout(this.#batchTimer);
    this.#batchTimer = undefined;
  }

  /** Resolves when no execution is in progress. */
  async waitUntilIdle(): Promise<void> {
    if (this.#free.length === this.#settings.concurrency) return;
    await new Promise<void>((resolve) => {
      this.#onIdle = resolve;
    });
  }

  #startTasks(): void {
    while (this.#free.length > 0 && this.#isBatchReady()) {
      const tasks = this.#takeBatch();
      this.#execute(tasks, requireDefined(this.#free.pop(), 'a free slot'));
    }
  }

  /** Sets a timer when the oldest request may still wait for more. */
  #isBatchReady(): boolean {
    const { first } = this.#queue;
    if (first === undefined) return false;
    const { batchSize, autoBatchingTimeoutMs } = this.#settings;
    if (this.#queue.length >= Math.min(batchSize, this.#capacity)) return true;
    const remainingMs = first.readyMs + autoBatchingTimeoutMs - performance.now();
    if (remainingMs <= 0) return true;
    this.#batchTimer ??= setTimeout(() => {
      this.#batchTimer = undefined;
      this.#start();
    }, Math.ceil(remainingMs));
    return false;
  }

  #takeBatch(): OpTask[] {
    const tasks: OpTask[] = [];
    this.#stopTimer();
    for (let next = this.#queue.shift(); next !== undefined; next = this.#queue.shift()) {
      tasks.push(next);
      if (tasks.length === this.#settings.batchSize) break;
    }
    this.#refill();
    return tasks;
  }

  /** Gives the places that became free to tasks that wait for one. */
  #refill(): void {
    if (this.#blocked.length === 0) return;
    while (this.#queue.length < this.#capacity) {
      const task = this.#blocked.shift();
      if (task === undefined) break;
      this.#queue.push(task);
      task.accept();
    }
    this.#start();
  }

  /** Fails the tasks that wait. */
  failAll(reason: Stopped): void {
    for (let { first } = this.#queue; first !== undefined; first = this.#queue.first) {
      // A request that ends leaves its queues.
      first.call.fail(reason);
    }
  }

  /** Holds the slot until all work of the execution has ended, also work that was given up. */
  #execute(tasks: OpTask[], slot: number): void {
    const startMs = performance.now();
    const executed = this.#executor.execute(tasks, slot);
    if (executed === undefined) {
      this.#end(tasks.length, slot, startMs);
      return;
    }
    void executed.then(() => {
      this.#end(tasks.length, slot, startMs);
      if (this.#queue.length > 0) this.#start();
    });
  }

  #end(requests: number, slot: number, startMs: number): void {
    this.requests += requests;
    this.executions++;
    this.busyMs += performance.now() - startMs;
    this.#free.push(slot);
    if (this.#free.length === this.#settings.concurrency) this.#onIdle?.();
  }
}
