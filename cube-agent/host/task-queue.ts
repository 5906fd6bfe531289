/**
 * Runs at most one task per resource: the disk of a bundle, or a server. Resources do not wait for
 * each other, so a long fetch does not keep a restarted server empty.
 */
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Operation } from '../fleet/problem.ts';

export interface RunningTask {
  readonly bundle: string;
  readonly operation: Operation;
}

export class TaskQueue {
  readonly #running = new Map<string, RunningTask>();
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #onIdle: (resource: string) => void;

  /** @param onIdle called whenever the task of a resource has ended */
  constructor(clock: Clock, logger: Logger, onIdle: (resource: string) => void) {
    this.#clock = clock;
    this.#logger = logger;
    this.#onIdle = onIdle;
  }

  get(resource: string): RunningTask | undefined {
    return this.#running.get(resource);
  }

  listForBundle(bundle: string): RunningTask[] {
    return [...this.#running.values()].filter((task) => task.bundle === bundle);
  }

  /** Starts a task on an idle resource. */
  start(resource: string, task: RunningTask, run: () => Promise<void>): void {
    this.#running.set(resource, task);
    run()
      .catch((error: unknown) => this.#logger.error({ err: error, resource }, 'task failed'))
      .finally(() => {
        this.#running.delete(resource);
        this.#onIdle(resource);
      });
  }

  /** Resolves when no task is running. */
  async waitUntilIdle(): Promise<void> {
    while (this.#running.size > 0) await this.#clock.sleep(10);
  }
}
