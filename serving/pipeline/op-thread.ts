/**
 * One worker thread of an op. It runs one execution at a time. When it dies, or computes on without
 * answering, its requests fail and it is replaced.
 */
import { SHARE_ENV, Worker } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { type Logger, writeForwardedLine } from '../../lib/platform/logs.ts';
import { PIPELINE_ERROR } from '../../proto/pipeline.ts';
import type { ExecutionTask } from './call-context.ts';
import type { OpClient } from './op.ts';
import { type MessageFromThread, type OpThreadData, TryDeadline } from './op-thread-protocol.ts';
import { Stopped } from './stopped.ts';
import { ThreadExecution } from './thread-execution.ts';

const BACKOFF_MIN_MS = 100;
const BACKOFF_MAX_MS = 10_000;
/** After a run of this length the restart delay is reset. */
const STABLE_RUN_MS = 10_000;

export interface OpThreadOptions {
  readonly data: Omit<OpThreadData, 'tryDeadline'>;
  /** Which inputs nobody else reads, so that they may move to the thread. */
  readonly movable: ReadonlySet<string>;
  readonly client: OpClient | undefined;
  readonly logger: Logger;
  /** The thread runs, or it has died, or its replacement could not start. */
  readonly onChange: () => void;
}

export class OpThread {
  readonly #options: OpThreadOptions;
  readonly #stop = new AbortController();
  readonly #tryDeadline = new TryDeadline();
  #worker: Worker | undefined;
  #execution: ThreadExecution | undefined;
  /** Why the pipeline ended the thread. */
  #terminated: Stopped | undefined;
  #whenReady: Promise<void>;
  #onReady: () => void = () => undefined;
  #ended: Promise<void> = Promise.resolve();
  /** Undefined: it runs, or its first start has not ended. */
  startFailure: CubeError | undefined;
  isReady = false;
  #isDraining = false;
  restarts = 0;

  constructor(options: OpThreadOptions) {
    this.#options = options;
    this.#whenReady = this.#createReady();
    // What waits for a thread must not wait for ever.
    this.#stop.signal.addEventListener('abort', () => this.#onReady(), { once: true });
  }

  /** @throws CubeError as the file or `initOp` failed */
  start(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#ended = this.#keepRunning(resolve).catch(reject);
    });
  }

  /** Resolves when the thread has ended the execution and runs, or its replacement does. */
  async execute(tasks: readonly ExecutionTask[]): Promise<void> {
    const { data, movable, client } = this.#options;
    const worker = this.#worker;
    if (worker === undefined || !this.isReady) {
      for (const { call } of tasks) call.fail(this.#describeEnd(undefined));
    } else {
      const { op, slot, settings } = data;
      const { timeoutMs } = settings;
      const execution = new ThreadExecution(tasks, {
        op,
        slot,
        client,
        movable,
        post: (message, moved) => worker.postMessage(message, moved),
        tryDeadline: timeoutMs < 0 ? undefined : this.#tryDeadline,
        onBlocked: (reason) => this.#terminate(worker, reason),
      });
      this.#execution = execution;
      execution.start();
      await execution.ended;
      this.#execution = undefined;
    }
    await this.#whenReady;
  }

  /** No more executions come: a thread that ends is not replaced. */
  drain(): void {
    this.#isDraining = true;
    if (!this.isReady) this.#stop.abort();
  }

  /** Call when no execution is in progress. */
  async stop(): Promise<void> {
    this.#stop.abort();
    await this.#worker?.terminate();
    await this.#ended;
  }

  #createReady(): Promise<void> {
    return new Promise((resolve) => {
      this.#onReady = resolve;
    });
  }

  /** Its slot stays occupied until a thread runs again. */
  #markEnded(): void {
    if (!this.isReady) return;
    this.isReady = false;
    this.#whenReady = this.#createReady();
    if (this.#isDraining) this.#stop.abort();
  }

  #terminate(worker: Worker, reason: Stopped): void {
    this.#terminated = reason;
    this.#markEnded();
    this.#execution?.fail(reason);
    void worker.terminate();
  }

  async #keepRunning(onFirstReady: () => void): Promise<void> {
    const { logger, onChange, data } = this.#options;
    const { op, slot } = data;
    const { signal } = this.#stop;
    let waitMs = BACKOFF_MIN_MS;
    let hasStarted = false;
    while (!signal.aborted) {
      const startMs = performance.now();
      let isReplaced = false;
      const failure = await this.#run(() => {
        [hasStarted, isReplaced] = [true, true];
        this.isReady = true;
        this.startFailure = undefined;
        onChange();
        this.#onReady();
        onFirstReady();
      });
      if (signal.aborted) return;
      if (!hasStarted) throw failure;
      if (!isReplaced) this.startFailure = failure;
      this.restarts++;
      if (performance.now() - startMs > STABLE_RUN_MS) waitMs = BACKOFF_MIN_MS;
      logger.error({ op, thread: slot, err: failure, waitMs }, 'worker thread of an op ended');
      onChange();
      await systemClock.sleep(waitMs, signal);
      waitMs = Math.min(2 * waitMs, BACKOFF_MAX_MS);
    }
  }

  /** Resolves when the thread has ended, with the reason. */
  #run(onReady: () => void): Promise<CubeError> {
    const { data, logger } = this.#options;
    this.#tryDeadline.ms = Number.POSITIVE_INFINITY;
    this.#terminated = undefined;
    const workerData: OpThreadData = { ...data, tryDeadline: this.#tryDeadline.buffer };
    const worker = new Worker(new URL('./op-worker.js', import.meta.url), {
      workerData,
      name: `op ${data.op} ${data.slot}`,
      env: SHARE_ENV,
    });
    this.#worker = worker;
    let failure: CubeError | undefined;
    worker.on('message', (message: MessageFromThread) => {
      if (message.type === 'ready') {
        onReady();
      } else if (message.type === 'failed') {
        failure = new CubeError(message.error.code, message.error.message);
        void worker.terminate();
      } else if (message.type === 'log') {
        writeForwardedLine(logger, message.line);
      } else {
        this.#execution?.handle(message);
      }
    });
    worker.on('error', (error) => {
      failure ??= new CubeError('UNAVAILABLE', error.message, { cause: error });
    });
    return new Promise((resolve) => {
      worker.on('exit', (code) => {
        this.#worker = undefined;
        this.#markEnded();
        const reason = failure?.message ?? this.#terminated?.message ?? `exit code ${code}`;
        const error = failure ?? new CubeError('UNAVAILABLE', reason);
        this.#execution?.fail(this.#describeEnd(reason));
        resolve(error);
      });
    });
  }

  #describeEnd(reason = this.startFailure?.message ?? 'it is being replaced'): Stopped {
    const { op, slot } = this.#options.data;
    return new Stopped(
      PIPELINE_ERROR.CLIENT_ERROR,
      `op ${op}: worker thread ${slot} ended (${reason}); try again`,
    );
  }
}
