/** An execution of an op in one of its worker threads, as the pipeline's thread sees it. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { PIPELINE_ERROR } from '../../proto/pipeline.ts';
import { CallContext, type ExecutionTask } from './call-context.ts';
import { LazyAbort } from './lazy-abort.ts';
import type { OpClient, ProcessContext } from './op.ts';
import type {
  MessageFromThread,
  MessageToThread,
  ThreadTask,
  TryDeadline,
  UsedVersions,
} from './op-thread-protocol.ts';
import type { RequestVersions } from './request-versions.ts';
import { Stopped } from './stopped.ts';
import { postValues, prepareValues, toValuesError } from './thread-values.ts';

export interface ThreadExecutionOptions {
  readonly op: string;
  readonly slot: number;
  readonly client: OpClient | undefined;
  readonly movable: ReadonlySet<string>;
  readonly post: (message: MessageToThread, moved?: readonly ArrayBuffer[]) => void;
  /** Undefined: tries have no timeout. */
  readonly tryDeadline: TryDeadline | undefined;
  /** The thread computes on after a timeout, or after its requests have ended. */
  readonly onBlocked: (reason: Stopped) => void;
}

/** What a thread may need to see a timeout itself, which leaves it alive. */
const TIMEOUT_GRACE_MS = 200;
/** How long a thread may compute on after all its requests have ended. */
const ABORT_GRACE_MS = 5_000;

export class ThreadExecution {
  readonly #tasks: readonly ExecutionTask[];
  readonly #options: ThreadExecutionOptions;
  /** Positions of the tasks without a result. */
  readonly #open: Set<number>;
  readonly #forget: (() => void)[] = [];
  readonly #predictions: Map<number, LazyAbort> = new Map();
  /** Outputs that wait for room in the queues of the next ops, and predictions. */
  readonly #waiting: Promise<unknown>[] = [];
  #timeoutTimer: NodeJS.Timeout | undefined;
  #abortTimer: NodeJS.Timeout | undefined;
  #onEnd: () => void = () => undefined;
  /** Resolves when the thread does no more work for the execution, and its outputs have places. */
  readonly ended: Promise<void>;

  constructor(tasks: readonly ExecutionTask[], options: ThreadExecutionOptions) {
    this.#tasks = tasks;
    this.#options = options;
    this.#open = new Set(tasks.keys());
    this.ended = new Promise((resolve) => {
      this.#onEnd = resolve;
    });
  }

  start(): void {
    const sent = this.#send();
    if (!sent) {
      this.#finish();
      return;
    }
    for (const [index, { call }] of this.#tasks.entries()) {
      this.#forget.push(call.abort.onAbort(() => this.#abort(index, call.abort.reason)));
    }
    this.#watchTimeout();
  }

  handle(message: MessageFromThread): void {
    switch (message.type) {
      case 'output':
        this.#complete(message);
        break;
      case 'failure': {
        const { errNo, message: text, isProductError } = message.failure;
        this.#close(message.task, message.used)?.call.fail(
          new Stopped(errNo, text, isProductError),
        );
        break;
      }
      case 'predict':
        this.#waiting.push(this.#predict(message));
        break;
      case 'cancel':
        this.#predictions.get(message.id)?.abort(new Stopped(PIPELINE_ERROR.CLOSED, 'cancelled'));
        break;
      case 'aborted':
        clearTimeout(this.#abortTimer);
        break;
      default:
        this.#finish();
    }
  }

  /** Fails the requests without a result: the thread has ended. */
  fail(reason: Stopped): void {
    for (const index of [...this.#open]) this.#close(index)?.call.fail(reason);
    for (const abort of this.#predictions.values()) abort.abort(reason);
    this.#finish();
  }

  /** @returns false when no task could be sent */
  #send(): boolean {
    const moved = new Set<ArrayBuffer>();
    const tasks = this.#tasks.map((task) => this.#toThreadTask(task, moved));
    try {
      this.#post({ type: 'run', tasks }, moved);
      return true;
    } catch {
      return this.#sendOneByOne();
    }
  }

  /** Tasks whose inputs cannot be sent fail alone. */
  #sendOneByOne(): boolean {
    const tasks: ThreadTask[] = [];
    for (const [index, task] of this.#tasks.entries()) {
      const threadTask = this.#toThreadTask(task, new Set());
      try {
        structuredClone(threadTask);
        tasks.push(threadTask);
      } catch (error) {
        this.#close(index)?.call.fail(toValuesError(this.#options.op, 'input', error));
        // Positions must stay.
        tasks.push({ ...threadTask, inputs: {}, isClosed: true });
      }
    }
    if (this.#open.size === 0) return false;
    this.#post({ type: 'run', tasks });
    return true;
  }

  #toThreadTask({ call, inputs, readyMs }: ExecutionTask, moved: Set<ArrayBuffer>): ThreadTask {
    const { dataId, logId, deadlineMs } = call;
    const sent: Record<string, object> = {};
    for (const [name, values] of Object.entries(inputs)) {
      sent[name] = prepareValues(values, this.#options.movable.has(name) ? moved : undefined);
    }
    return { dataId, logId, deadlineMs, readyMs, inputs: sent as ThreadTask['inputs'] };
  }

  #post(message: MessageToThread, moved: ReadonlySet<ArrayBuffer> = new Set()): void {
    postValues({ postMessage: this.#options.post as never }, message, moved);
  }

  #complete(message: Extract<MessageFromThread, { type: 'output' }>): void {
    const task = this.#close(message.task, message.used);
    if (task === undefined) return;
    const { call, step } = task;
    const { timing } = message;
    const accepted = call.complete(step, message.values, {
      op: timing.op,
      slot: timing.slot,
      readyMs: call.sinceStart(timing.readyMs),
      startMs: call.sinceStart(timing.startMs),
      processMs: call.sinceStart(timing.processMs),
      postMs: call.sinceStart(timing.postMs),
      endMs: call.sinceStart(timing.endMs),
      outMs: call.sinceStart(timing.endMs),
    });
    if (accepted !== undefined) this.#waiting.push(accepted);
  }

  /** @returns undefined when the task has a result already */
  #close(index: number, used?: UsedVersions): ExecutionTask | undefined {
    const task = this.#tasks[index];
    if (task === undefined || !this.#open.delete(index)) return undefined;
    if (used !== undefined) {
      const { versions } = task.call;
      for (const [name, version] of Object.entries(used.versions)) versions.record(name, version);
      if (used.degraded) versions.markDegraded();
    }
    return task;
  }

  #abort(index: number, reason: unknown): void {
    if (!this.#open.delete(index)) return;
    const { errNo, message, isProductError } = reason as Stopped;
    this.#post({ type: 'abort', task: index, failure: { errNo, message, isProductError } });
    if (this.#open.size > 0) return;
    const { op, slot } = this.#options;
    const blocked = `op ${op}: worker thread ${slot} did not stop after its requests had ended`;
    this.#abortTimer = setTimeout(
      () => this.#options.onBlocked(new Stopped(PIPELINE_ERROR.CLOSED, blocked)),
      ABORT_GRACE_MS,
    );
  }

  /** A thread that computes sees no timer, so the pipeline looks at the end of its try. */
  #watchTimeout(): void {
    const { tryDeadline, op, slot, onBlocked } = this.#options;
    if (tryDeadline === undefined) return;
    const look = (): void => {
      const nowMs = performance.now();
      const endMs = tryDeadline.ms + TIMEOUT_GRACE_MS;
      if (nowMs >= endMs) {
        const message = `op ${op}: process blocked worker thread ${slot} beyond its timeout`;
        onBlocked(new Stopped(PIPELINE_ERROR.TIMEOUT, message));
        return;
      }
      const waitMs = Math.min(TIMEOUT_GRACE_MS, endMs - nowMs);
      this.#timeoutTimer = setTimeout(look, Math.ceil(waitMs));
    };
    this.#timeoutTimer = setTimeout(look, TIMEOUT_GRACE_MS);
  }

  async #predict({
    id,
    tasks,
    feeds,
    deadlineMs,
  }: Extract<MessageFromThread, { type: 'predict' }>): Promise<void> {
    const { client, op, slot } = this.#options;
    const abort = new LazyAbort();
    this.#predictions.set(id, abort);
    try {
      if (client === undefined) throw new CubeError('INTERNAL', `op ${op} has no client`);
      const contexts = tasks.flatMap((index) => {
        const task = this.#tasks[index];
        return task === undefined ? [] : [new CallContext(task.call, slot)];
      });
      const context = new PredictionContext(contexts, slot, abort, deadlineMs);
      // Models may keep their outputs, such as in a cache, so they are copied.
      const results = prepareValues(await client.predict(feeds, context));
      this.#post({ type: 'predicted', id, results });
    } catch (error) {
      const { code, message } = CubeError.from(error);
      this.#post({ type: 'predicted', id, error: { code, message } });
    } finally {
      this.#predictions.delete(id);
    }
  }

  #finish(): void {
    clearTimeout(this.#timeoutTimer);
    clearTimeout(this.#abortTimer);
    for (const forget of this.#forget.splice(0)) forget();
    const waiting = this.#waiting.splice(0);
    if (waiting.length === 0) this.#onEnd();
    // A full channel holds the slot, so that outputs do not pile up.
    else void Promise.allSettled(waiting).then(() => this.#onEnd());
  }
}

/** What the client learns about a prediction of a thread. */
class PredictionContext implements ProcessContext {
  readonly requests: readonly CallContext[];
  readonly concurrencyIndex: number;
  readonly #abort: LazyAbort;
  readonly #deadlineMs: number;
  readonly #first: CallContext;

  constructor(
    requests: readonly CallContext[],
    concurrencyIndex: number,
    abort: LazyAbort,
    deadlineMs: number,
  ) {
    const [first] = requests;
    if (first === undefined) throw new CubeError('INTERNAL', 'a prediction has no request');
    this.#first = first;
    this.requests = requests;
    this.concurrencyIndex = concurrencyIndex;
    this.#abort = abort;
    this.#deadlineMs = deadlineMs;
  }

  get logId(): bigint {
    return this.#first.logId;
  }

  get dataId(): number {
    return this.#first.dataId;
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  get isAborted(): boolean {
    return this.#abort.aborted;
  }

  get remainingMs(): number {
    return this.#deadlineMs - performance.now();
  }

  get versions(): RequestVersions {
    return this.#first.versions;
  }

  get logger(): Logger {
    return this.#first.logger;
  }
}
