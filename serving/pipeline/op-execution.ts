/** One execution of an op in one slot: the hooks for one request, or for a batch of requests. */
import { requireDefined } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { PIPELINE_ERROR } from '../../proto/pipeline.ts';
import { CallContext, type ExecutionTask } from './call-context.ts';
import { toShapeKey } from './feed-shapes.ts';
import { LazyAbort } from './lazy-abort.ts';
import { OpResult, type OpValues, type ProcessContext, type StepOp } from './op.ts';
import type { RequestVersions } from './request-versions.ts';
import type { ResolvedOpSettings } from './settings.ts';
import { isPromise, readResult, Stopped, toStopped } from './stopped.ts';

/** A request between preprocess and postprocess. */
interface Sample {
  readonly task: ExecutionTask;
  readonly context: CallContext;
  readonly startMs: number;
  feed: unknown;
  processMs: number;
}

/** The settings that an execution needs. */
export type ExecutionSettings = Pick<ResolvedOpSettings, 'timeoutMs' | 'retry'>;

export class OpExecution {
  /** Work that goes on although nobody waits for its result; it still occupies the slot. */
  readonly #unfinished: Promise<unknown>[] = [];
  readonly #op: StepOp;
  readonly #settings: ExecutionSettings;
  readonly #slot: number;
  readonly #onTry: ((deadlineMs: number) => void) | undefined;

  /**
   * @param onTry called when a try of `process` with a timeout begins, with the time at which it
   *   ends on the scale of `performance.now()`; and with Infinity when it has ended
   */
  constructor(
    op: StepOp,
    settings: ExecutionSettings,
    slot: number,
    onTry?: (deadlineMs: number) => void,
  ) {
    this.#op = op;
    this.#settings = settings;
    this.#slot = slot;
    this.#onTry = onTry;
  }

  /** Ends each task with an output or a failure. Never rejects. */
  async run(tasks: readonly ExecutionTask[]): Promise<void> {
    const [only] = tasks;
    if (tasks.length === 1 && only !== undefined) {
      const sample = await this.#prepare(only);
      if (sample !== undefined) await this.#runGroup([sample]);
      return;
    }
    const prepared = await Promise.all(
      tasks.map((task) => this.#untilEnd(task, this.#prepare(task))),
    );
    const samples = prepared.filter((sample) => sample !== undefined);
    for (const group of groupByShape(samples)) {
      await this.#runGroup(group);
      await this.waitForUnfinished();
    }
  }

  /** Resolves when no work of the slot goes on. */
  async waitForUnfinished(): Promise<void> {
    if (this.#unfinished.length > 0) await Promise.allSettled(this.#unfinished.splice(0));
  }

  /** @returns undefined when the request has ended, or is answered without `process` */
  async #prepare(task: ExecutionTask): Promise<Sample | undefined> {
    const context = new CallContext(task.call, this.#slot);
    const startMs = performance.now();
    try {
      const returned = this.#op.preprocess(task.inputs, context);
      const raw = isPromise(returned) ? await returned : returned;
      if (task.call.hasEnded) return undefined;
      const { values, skipProcess } = readResult(this.#op.name, 'preprocess', raw);
      const processMs = performance.now();
      const sample = { task, context, startMs, feed: values, processMs };
      if (!skipProcess) return sample;
      await this.#finish(sample, values);
    } catch (error) {
      task.call.fail(toStopped(error, this.#op.name));
    }
    return undefined;
  }

  /** Processes feeds of equal shapes in one call; a list of parts in one call for each part. */
  async #runGroup(samples: readonly Sample[]): Promise<void> {
    const processMs = performance.now();
    for (const sample of samples) sample.processMs = processMs;
    try {
      const first = requireDefined(samples[0], 'a sample');
      let results: readonly unknown[];
      if (Array.isArray(first.feed)) {
        const parts: unknown[] = [];
        for (const part of first.feed) {
          if (first.task.call.hasEnded) return;
          parts.push((await this.#tryProcess([part as OpValues], samples))[0]);
        }
        results = [parts];
      } else {
        results = await this.#tryProcess(
          samples.map(({ feed }) => feed as OpValues),
          samples,
        );
      }
      const [sample] = samples;
      if (samples.length === 1 && sample !== undefined) await this.#finish(sample, results[0]);
      else await Promise.all(samples.map((each, index) => this.#finish(each, results[index])));
    } catch (error) {
      const stopped = toStopped(error, this.#op.name);
      for (const { task } of samples) task.call.fail(stopped);
    }
  }

  async #finish(sample: Sample, fetched: unknown): Promise<void> {
    const { task, context, startMs, processMs } = sample;
    const { call } = task;
    if (call.hasEnded) return;
    const { name } = this.#op;
    try {
      const postMs = performance.now();
      const returned = this.#op.postprocess(task.inputs, fetched, context);
      const raw = isPromise(returned) ? await this.#untilEnd(task, returned) : returned;
      if (call.hasEnded) return;
      const { values } = readResult<OpValues>(name, 'postprocess', raw);
      const endMs = call.sinceStart(performance.now());
      const accepted = call.complete(task.step, values, {
        op: name,
        slot: this.#slot,
        readyMs: call.sinceStart(task.readyMs),
        startMs: call.sinceStart(startMs),
        processMs: call.sinceStart(processMs),
        postMs: call.sinceStart(postMs),
        endMs,
        outMs: endMs,
      });
      // A full channel holds the slot, so that outputs do not pile up.
      if (accepted !== undefined) this.#unfinished.push(accepted);
    } catch (error) {
      call.fail(toStopped(error, name));
    }
  }

  async #tryProcess(
    feeds: readonly OpValues[],
    samples: readonly Sample[],
  ): Promise<readonly unknown[]> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#processOnce(feeds, samples);
      } catch (error) {
        const stopped = toStopped(error, this.#op.name);
        const isLast = attempt >= this.#settings.retry || stopped.isProductError;
        if (isLast || samples.every(({ task }) => task.call.hasEnded)) throw stopped;
      }
    }
  }

  /** Ends at the timeout, or when all requests have ended; the work then counts as unfinished. */
  async #processOnce(
    feeds: readonly OpValues[],
    samples: readonly Sample[],
  ): Promise<readonly unknown[]> {
    const abort = new BatchAbort(samples, this.#settings.timeoutMs, this.#op.name);
    if (abort.deadlineMs < Number.POSITIVE_INFINITY) this.#onTry?.(abort.deadlineMs);
    try {
      const context = new BatchContext(samples, this.#slot, abort);
      const returned = this.#op.process(feeds, context);
      const raw = isPromise(returned) ? await this.#untilAbort(abort, returned) : returned;
      return this.#readResults(raw, feeds.length);
    } finally {
      abort.close();
      if (abort.deadlineMs < Number.POSITIVE_INFINITY) this.#onTry?.(Number.POSITIVE_INFINITY);
    }
  }

  #readResults(raw: unknown, count: number): readonly unknown[] {
    const { name } = this.#op;
    const values = raw instanceof OpResult ? readResult(name, 'process', raw).values : raw;
    if (Array.isArray(values) && values.length === count) return values;
    // Older operators return the result of their only feed itself.
    if (count === 1 && typeof values === 'object' && values !== null && !Array.isArray(values)) {
      return [values];
    }
    const found = Array.isArray(values) ? `a list of ${values.length}` : typeof values;
    throw new Stopped(
      PIPELINE_ERROR.TYPE_ERROR,
      `op ${name}: process returned ${found}; return a list of ${count}, a result for each feed`,
    );
  }

  #untilAbort<T>(abort: BatchAbort, work: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      abort.onAbort((reason) => {
        this.#unfinished.push(work);
        reject(reason);
      });
      work.then(resolve, reject);
    });
  }

  /** The work, or undefined as soon as the request ends: others of a batch do not wait for it. */
  #untilEnd<T>(task: ExecutionTask, work: Promise<T>): Promise<T | undefined> {
    return new Promise((resolve, reject) => {
      const forget = task.call.abort.onAbort(() => {
        this.#unfinished.push(work);
        resolve(undefined);
      });
      work.then(resolve, reject).finally(forget);
    });
  }
}

/** Aborts at the timeout of a try of `process`, or when all requests of its batch have ended. */
class BatchAbort {
  readonly #samples: readonly Sample[];
  readonly #forget: (() => void)[] = [];
  readonly #timer: NodeJS.Timeout | undefined;
  /** Undefined: the abort of the only request serves. */
  readonly #own: LazyAbort | undefined;
  /** On the scale of `performance.now()`. */
  readonly deadlineMs: number;
  #running: number;

  constructor(samples: readonly Sample[], timeoutMs: number, op: string) {
    this.#samples = samples;
    this.#running = samples.length;
    this.deadlineMs = timeoutMs < 0 ? Number.POSITIVE_INFINITY : performance.now() + timeoutMs;
    if (samples.length === 1 && timeoutMs < 0) return;
    const own = new LazyAbort();
    this.#own = own;
    for (const { task } of samples) {
      const { abort } = task.call;
      const ended = (): void => {
        this.#running--;
        if (this.#running === 0) own.abort(abort.reason);
      };
      this.#forget.push(abort.onAbort(ended));
    }
    // A timer cannot express more than 24 days.
    if (timeoutMs < 0 || timeoutMs >= 2 ** 31) return;
    const message = `op ${op}: process took longer than ${timeoutMs} ms`;
    this.#timer = setTimeout(
      () => own.abort(new Stopped(PIPELINE_ERROR.TIMEOUT, message)),
      timeoutMs,
    );
  }

  get #abort(): LazyAbort {
    return this.#own ?? requireDefined(this.#samples[0], 'a sample').task.call.abort;
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  get aborted(): boolean {
    return this.#abort.aborted;
  }

  onAbort(listener: (reason: unknown) => void): void {
    const abort = this.#abort;
    this.#forget.push(abort.onAbort(() => listener(abort.reason)));
  }

  close(): void {
    clearTimeout(this.#timer);
    for (const forget of this.#forget) forget();
  }
}

class BatchContext implements ProcessContext {
  readonly requests: readonly CallContext[];
  readonly concurrencyIndex: number;
  readonly #abort: BatchAbort;
  #logger: Logger | undefined;

  constructor(samples: readonly Sample[], concurrencyIndex: number, abort: BatchAbort) {
    this.requests = samples.map(({ context }) => context);
    this.concurrencyIndex = concurrencyIndex;
    this.#abort = abort;
  }

  get #first(): CallContext {
    return requireDefined(this.requests[0], 'a request');
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
    const requestMs = Math.max(...this.requests.map(({ remainingMs }) => remainingMs));
    return Math.min(requestMs, this.#abort.deadlineMs - performance.now());
  }

  get versions(): RequestVersions {
    return this.#first.versions;
  }

  /** A batch is logged under the ids of its first request, with all ids listed. */
  get logger(): Logger {
    if (this.requests.length === 1) return this.#first.logger;
    this.#logger ??= this.#first.logger.child({
      data_ids: this.requests.map(({ dataId }) => dataId),
      log_ids: this.requests.map(({ logId }) => String(logId)),
    });
    return this.#logger;
  }
}

/** Lists of parts are groups of their own. */
function groupByShape(samples: readonly Sample[]): readonly Sample[][] {
  const groups = new Map<unknown, Sample[]>();
  for (const sample of samples) {
    const key = Array.isArray(sample.feed) ? sample : toShapeKey(sample.feed as OpValues);
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [sample]);
    else group.push(sample);
  }
  return [...groups.values()];
}
