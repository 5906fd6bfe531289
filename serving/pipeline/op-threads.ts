/** The worker threads of an op, one for each slot. */
import { requireDefined } from '../../lib/core/errors.ts';
import type { Logger, LogLevel } from '../../lib/platform/logs.ts';
import { PIPELINE_ERROR } from '../../proto/pipeline.ts';
import type { ExecutionTask } from './call-context.ts';
import type { ModuleSnapshot } from './module-snapshot.ts';
import type { OpExecutor } from './op-executor.ts';
import { OpThread } from './op-thread.ts';
import { getClockOffsetMs } from './op-thread-protocol.ts';
import type { ResolvedOpSettings } from './settings.ts';
import { Stopped } from './stopped.ts';

export interface OpThreadsOptions {
  /** The file that exports the pipeline. */
  readonly file: string;
  readonly snapshot: ModuleSnapshot | undefined;
  readonly op: string;
  readonly settings: ResolvedOpSettings;
  /** Predecessors whose output nobody else reads. */
  readonly movable: ReadonlySet<string>;
  readonly logger: Logger;
  /** Called when no thread runs and the last replacement could not start. */
  readonly onOutage: (reason: Stopped) => void;
}

export class OpThreads implements OpExecutor {
  readonly #op: string;
  readonly #threads: readonly OpThread[];
  readonly #onOutage: (reason: Stopped) => void;
  outage: Stopped | undefined;

  constructor({ file, snapshot, op, settings, movable, logger, onOutage }: OpThreadsOptions) {
    const { concurrency, timeoutMs, retry, client } = settings;
    this.#op = op;
    this.#onOutage = onOutage;
    this.#threads = Array.from({ length: concurrency }, (_, slot) => {
      const data = {
        file,
        snapshot,
        op,
        slot,
        settings: { timeoutMs, retry },
        hasClient: client !== undefined,
        logLevel: logger.level as LogLevel,
        clockOffsetMs: getClockOffsetMs(),
      };
      const onChange = (): void => this.#update();
      return new OpThread({ data, movable, client, logger, onChange });
    });
  }

  get restarts(): number {
    return this.#threads.reduce((sum, { restarts }) => sum + restarts, 0);
  }

  async start(): Promise<void> {
    await Promise.all(this.#threads.map((thread) => thread.start()));
  }

  execute(tasks: readonly ExecutionTask[], slot: number): Promise<void> {
    return requireDefined(this.#threads[slot], 'the thread of a slot').execute(tasks);
  }

  drain(): void {
    for (const thread of this.#threads) thread.drain();
  }

  async stop(): Promise<void> {
    await Promise.all(this.#threads.map((thread) => thread.stop()));
  }

  #update(): void {
    const failure = this.#threads.find(({ startFailure }) => startFailure !== undefined);
    const isRunning = this.#threads.some(({ isReady }) => isReady);
    const hadOutage = this.outage !== undefined;
    this.outage =
      isRunning || failure === undefined
        ? undefined
        : new Stopped(
            PIPELINE_ERROR.CLIENT_ERROR,
            `op ${this.#op}: no worker thread can be started (${failure.startFailure?.message}); ` +
              'try again later',
          );
    if (this.outage !== undefined && !hadOutage) this.#onOutage(this.outage);
  }
}
