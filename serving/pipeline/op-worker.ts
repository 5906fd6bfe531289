/**
 * A worker thread of an op: it loads the file of the pipeline, calls `initOp` of its op, and runs
 * one execution at a time. Its op's client is the one in the pipeline's thread, so predictions use
 * the models of the process.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { createForwardingLogger, type Logger } from '../../lib/platform/logs.ts';
import {
  CallContext,
  type ExecutionCall,
  type ExecutionTask,
  type RunningTiming,
} from './call-context.ts';
import { findOps } from './find-ops.ts';
import { LazyAbort } from './lazy-abort.ts';
import { loadPipelineModule } from './module.ts';
import type { OpClient, OpValues, ProcessContext, StepOp } from './op.ts';
import { OpExecution } from './op-execution.ts';
import {
  getClockOffsetMs,
  type MessageFromThread,
  type MessageToThread,
  type OpThreadData,
  type ThreadTask,
  TryDeadline,
  type UsedVersions,
} from './op-thread-protocol.ts';
import { RequestVersions } from './request-versions.ts';
import { Stopped } from './stopped.ts';
import { postValues, prepareValues, toValuesError } from './thread-values.ts';

if (parentPort === null) throw new Error('op-worker runs as a worker thread');
const port = parentPort;
const data = workerData as OpThreadData;
/** What the pipeline's clock is ahead of the clock of this thread. */
const shiftMs = getClockOffsetMs() - data.clockOffsetMs;
const tryDeadline = new TryDeadline(data.tryDeadline);
const logger = createForwardingLogger(data.logLevel, (line) => post({ type: 'log', line }));

function post(message: MessageFromThread, moved: ReadonlySet<ArrayBuffer> = new Set()): void {
  postValues(port, message, moved);
}

/** A request of the running execution. */
class ThreadCall implements ExecutionCall {
  readonly dataId: number;
  readonly logId: bigint;
  readonly deadlineMs: number;
  readonly versions = new RequestVersions();
  readonly abort = new LazyAbort();
  /** Its position in the execution. */
  readonly index: number;
  #logger: Logger | undefined;

  constructor({ dataId, logId, deadlineMs }: ThreadTask, index: number) {
    this.dataId = dataId;
    this.logId = logId;
    this.deadlineMs = deadlineMs - shiftMs;
    this.index = index;
  }

  get logger(): Logger {
    this.#logger ??= logger.child({ data_id: this.dataId, log_id: String(this.logId) });
    return this.#logger;
  }

  get hasEnded(): boolean {
    return this.abort.aborted;
  }

  /** On the pipeline's clock, which makes it relative to the start of the request. */
  sinceStart(nowMs: number): number {
    return nowMs + shiftMs;
  }

  complete(_step: number, output: OpValues, timing: RunningTiming): undefined {
    if (this.hasEnded) return;
    const moved = new Set<ArrayBuffer>();
    const values = prepareValues(output, moved);
    try {
      post({ type: 'output', task: this.index, values, timing, ...this.#listUsed() }, moved);
    } catch (error) {
      this.fail(toValuesError(data.op, 'output', error));
      return;
    }
    this.end(new Stopped(0, 'the op has ended'));
  }

  fail(stopped: Stopped): void {
    if (this.hasEnded) return;
    const { errNo, message, isProductError } = stopped;
    const failure = { errNo, message, isProductError };
    post({ type: 'failure', task: this.index, failure, ...this.#listUsed() });
    this.end(stopped);
  }

  end(reason: Stopped): void {
    this.abort.abort(reason);
    this.versions.end();
  }

  #listUsed(): { readonly used?: UsedVersions } {
    const versions = this.versions.report();
    const { degraded } = this.versions;
    return degraded || Object.keys(versions).length > 0 ? { used: { versions, degraded } } : {};
  }
}

/** Sends predictions to the client in the pipeline's thread. */
class ForwardingClient implements OpClient {
  readonly #pending = new Map<
    number,
    { resolve: (results: readonly OpValues[]) => void; reject: (error: unknown) => void }
  >();
  #lastId = 0;

  async predict(feeds: readonly OpValues[], context: ProcessContext): Promise<readonly OpValues[]> {
    const { signal } = context;
    signal.throwIfAborted();
    const id = ++this.#lastId;
    const tasks = context.requests.map((request) => getThreadCall(request).index);
    const deadlineMs = performance.now() + shiftMs + context.remainingMs;
    // Hooks may read the feeds again, such as in another try, so they are copied.
    const message = {
      type: 'predict',
      id,
      tasks,
      feeds: prepareValues(feeds),
      deadlineMs,
    } as const;
    try {
      post(message);
    } catch (error) {
      throw toValuesError(data.op, 'feed', error);
    }
    const cancel = (): void => {
      post({ type: 'cancel', id });
      this.#pending.get(id)?.reject(signal.reason);
    };
    signal.addEventListener('abort', cancel, { once: true });
    try {
      return await new Promise((resolve, reject) => this.#pending.set(id, { resolve, reject }));
    } finally {
      this.#pending.delete(id);
      signal.removeEventListener('abort', cancel);
    }
  }

  settle({ id, results, error }: Extract<MessageToThread, { type: 'predicted' }>): void {
    const pending = this.#pending.get(id);
    if (results !== undefined) pending?.resolve(results);
    else if (error !== undefined) pending?.reject(new CubeError(error.code, error.message));
  }
}

function getThreadCall(request: unknown): ThreadCall {
  if (request instanceof CallContext && request.call instanceof ThreadCall) return request.call;
  throw new CubeError('INVALID_ARGUMENT', `op ${data.op}: pass the context of process to predict`);
}

class OpWorker {
  readonly #op: StepOp;
  readonly #client: ForwardingClient;
  #calls: readonly ThreadCall[] = [];

  constructor(op: StepOp, client: ForwardingClient) {
    this.#op = op;
    this.#client = client;
  }

  handle(message: MessageToThread): void {
    if (message.type === 'predicted') {
      this.#client.settle(message);
    } else if (message.type === 'abort') {
      const { errNo, message: text, isProductError } = message.failure;
      this.#calls[message.task]?.end(new Stopped(errNo, text, isProductError));
      if (this.#calls.every(({ hasEnded }) => hasEnded)) post({ type: 'aborted' });
    } else {
      void this.#run(message.tasks);
    }
  }

  async #run(threadTasks: readonly ThreadTask[]): Promise<void> {
    const calls = threadTasks.map((task, index) => new ThreadCall(task, index));
    this.#calls = calls;
    const tasks = threadTasks.flatMap(({ inputs, readyMs, isClosed }, index): ExecutionTask[] => {
      const call = requireDefined(calls[index], 'a request');
      return isClosed ? [] : [{ call, step: 0, inputs, readyMs: readyMs - shiftMs }];
    });
    const execution = new OpExecution(this.#op, data.settings, data.slot, (deadlineMs) => {
      tryDeadline.ms = deadlineMs + shiftMs;
    });
    await execution.run(tasks);
    await execution.waitForUnfinished();
    post({ type: 'done' });
  }
}

/** @throws CubeError as the file or `initOp` failed */
async function createOp(client: ForwardingClient): Promise<StepOp> {
  const { ops } = await loadPipelineModule(data.file, {}, data.snapshot);
  const op = findOps(ops).steps.find(({ name }) => name === data.op);
  if (op === undefined) {
    throw new CubeError('INVALID_ARGUMENT', `${data.file} has no op ${data.op} in worker threads`);
  }
  op.client = data.hasClient ? client : undefined;
  await op.initOp();
  return op;
}

async function start(): Promise<void> {
  const client = new ForwardingClient();
  const worker = new OpWorker(await createOp(client), client);
  port.on('message', (message: MessageToThread) => worker.handle(message));
  post({ type: 'ready' });
}

start().catch((error: unknown) => {
  const { code, message } = CubeError.from(error);
  post({ type: 'failed', error: { code, message } });
});
