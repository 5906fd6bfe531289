/** Where an op runs: the event loop of this thread, or worker threads (`op-threads.ts`). */
import type { ExecutionTask } from './call-context.ts';
import type { StepOp } from './op.ts';
import { OpExecution } from './op-execution.ts';
import type { ResolvedOpSettings } from './settings.ts';
import type { Stopped } from './stopped.ts';

export interface OpExecutor {
  /** Why no slot can run anything at present; undefined: some can. */
  readonly outage: Stopped | undefined;
  /** Threads that were replaced since the start. */
  readonly restarts: number;
  /** Calls `initOp` of the op. @throws what it throws */
  start(): Promise<void>;
  /**
   * Ends each task with an output or a failure. Never rejects.
   * @returns a promise that resolves when the slot is free again; undefined: it is
   */
  execute(tasks: readonly ExecutionTask[], slot: number): Promise<unknown> | undefined;
  /** Call when no more tasks come, before `stop`. */
  drain(): void;
  stop(): Promise<void>;
}

export class LocalExecutor implements OpExecutor {
  readonly outage: undefined;
  readonly restarts: number = 0;
  readonly #op: StepOp;
  readonly #settings: ResolvedOpSettings;

  constructor(op: StepOp, settings: ResolvedOpSettings) {
    this.#op = op;
    this.#settings = settings;
  }

  async start(): Promise<void> {
    await this.#op.initOp();
  }

  /** Work that was given up, such as after a timeout, occupies the slot until it ends. */
  execute(tasks: readonly ExecutionTask[], slot: number): Promise<unknown> | undefined {
    const execution = new OpExecution(this.#op, this.#settings, slot);
    const running = execution.run(tasks);
    if (running === undefined) return execution.waitForUnfinished();
    return running.then(() => execution.waitForUnfinished());
  }

  drain(): void {}

  async stop(): Promise<void> {}
}
