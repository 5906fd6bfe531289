/** One execution of an op in one slot: the hooks for one request, or for a batch of requests. */
import { requireDefined } from '../../lib/core/errors.ts';
import { startTimer } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { PIPELINE_ERROR } from '../../proto/pipeline.ts';
import { CallContext, type ExecutionTask } from './call-context.ts';
import { toShapeKey } from './feed-shapes.ts';
import { LazyAbort } from './lazy-abort.ts';
import { OpResult, type OpValues, type ProcessContext, type StepOp } from './op.ts';
import type { RequestVersions } from './request-versions.ts';
import type { ResolvedOpSettings } from './settings.ts';
import { isPromise, readResult, Stopped, toStopped } from './stopped.ts';

type Later<T> = T | Promise<T>;

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

  /**
   * Ends each task with an output or a failure. Never rejects. Hooks that return no promises run at
   * once, without any.
   * @returns undefined when all hooks have ended
   */
  run(tasks: readonly ExecutionTask[]): Promise<void> | undefined {
    const [only] = tasks;
    if (tasks.length !== 1 || only === undefined) return this.#runBatch(tasks);
    const prepared = this.#prepare(only);
    if (!isPromise(prepared)) return prepared && this.#runGroup([prepared]);
    return prepared.then((sample) => sample && this.#runGroup([sample]));
  }

  /** Resolves when no work of the slot goes on. @returns undefined when none does */
  waitForUnfinished(): Promise<unknown> | undefined {
    if (this.#unfinished.length === 0) return undefined;
    return Promise.allSettled(this.#unfinished.splice(0));
  }

  async #runBatch(tasks: readonly ExecutionTask[]): Promise<void> {
    const prepared = await Promise.all(
      tasks.map((task) => {
        const sample = this.#prepare(task);
        return isPromise(sample) ? this.#untilEnd(task, sample) : sample;
      }),
    );
    const samples = prepared.filter((sample) => sample !== undefined);
    for (const group of groupByShape(samples)) {
      await this.#runGroup(group);
      await this.waitForUnfinished();
    }
  }

  /** @returns undefined when the request has ended, or is answered without `process` */
  #prepare(task: ExecutionTask): Later<Sample | undefined> {
    const context = new CallContext(task.call, this.#slot);
    const sample = { task, context, startMs: performance.now(), feed: undefined, processMs: 0 };
    try {
      const returned = this.#op.preprocess(task.inputs, context);
      if (!isPromise(returned)) return this.#readFeed(sample, returned);
      return Promise.resolve(returned)
        .then((raw) => this.#readFeed(sample, raw))
        .catch((error) => this.#fail(task, error));
    } catch (error) {
      return this.#fail(task, error);
    }
  }

  #readFeed(sample: Sample, raw: object): Later<Sample | undefined> {
    if (sample.task.call.hasEnded) return undefined;
    const { values, skipProcess } = readResult(this.#op.name, 'preprocess', raw);
    sample.feed = values;
    sample.processMs = performance.now();
    return skipProcess ? this.#finish(sample, values) : sample;
  }

  #fail({ call }: ExecutionTask, error: unknown): undefined {
    call.fail(toStopped(error, this.#op.name));
  }

  /** Processes feeds of equal shapes in one call; a list of parts in one call for each part. */
  #runGroup(samples: readonly Sample[]): Promise<void> | undefined {
    const processMs = performance.now();
    for (const sample of samples) sample.processMs = processMs;
    try {
      const first = requireDefined(samples[0], 'a sample');
      const results = Array.isArray(first.feed)
        ? this.#processParts(first, first.feed)
        : this.#tryProcess(
            samples.map(({ feed }) => feed as OpValues),
            samples,
          );
      if (!isPromise(results)) return this.#finishAll(samples, results);
      return results.then(
        (all) => this.#finishAll(samples, all),
        (error) => this.#failAll(samples, error),
      );
    } catch (error) {
      return this.#failAll(samples, error);
    }
  }

  #failAll(samples: readonly Sample[], error: unknown): undefined {
    const stopped = toStopped(error, this.#op.name);
    for (const { task } of samples) task.call.fail(stopped);
  }

  #finishAll(samples: readonly Sample[], results: readonly unknown[]): Promise<void> | undefined {
    const [sample] = samples;
    if (samples.length === 1 && sample !== undefined) return this.#finish(sample, results[0]);
    const all = samples.map((each, index) => this.#finish(each, results[index]));
    return Promise.all(all).then(() => undefined);
  }

  #finish(sample: Sample, fetched: unknown): Promise<undefined> | undefined {
    const { task, context } = sample;
    if (task.call.hasEnded) return undefined;
    try {
      const postMs = performance.now();
      const returned = this.#op.postprocess(task.inputs, fetched, context);
      if (!isPromise(returned)) return this.#complete(sample, returned, postMs);
      return this.#untilEnd(task, returned)
        .then((raw) => this.#complete(sample, raw, postMs))
        .catch((error) => this.#fail(task, error));
    } catch (error) {
      return this.#fail(task, error);
    }
  }

  #complete(sample: Sample, raw: OpValues | OpResult | undefined, postMs: number): undefined {
    const { task, startMs, processMs } = sample;
    const { call } = task;
    if (call.hasEnded) return;
    const { name } = this.#op;
    const { values } = readResult<OpValues>(name, 'postprocess', raw as OpValues);
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
  }

  /** The parts of a request, one after the other. */
  async #processParts(sample: Sample, feeds: readonly unknown[]): Promise<readonly unknown[]> {
    const parts: unknown[] = [];
    for (const feed of feeds) {
      if (sample.task.call.hasEnded) break;
      parts.push((await this.#tryProcess([feed as OpValues], [sample]))[0]);
    }
    return [parts];
  }

  #tryProcess(feeds: readonly OpValues[], samples: readonly Sample[]): Later<readonly unknown[]> {
    if (this.#settings.retry > 1) return this.#processWithRetries(feeds, samples);
    return this.#processOnce(feeds, samples);
  }

  async #processWithRetries(
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
  #processOnce(feeds: readonly OpValues[], samples: readonly Sample[]): Later<readonly unknown[]> {
    const abort = new BatchAbort(samples, this.#settings.timeoutMs, this.#op.name);
    if (abort.deadlineMs < Number.POSITIVE_INFINITY) this.#onTry?.(abort.deadlineMs);
    try {
      const returned = this.#op.process(feeds, new BatchContext(samples, this.#slot, abort));
      if (isPromise(returned)) return this.#awaitResults(abort, returned, feeds.length);
      const results = this.#readResults(returned, feeds.length);
      this.#endTry(abort);
      return results;
    } catch (error) {
      this.#endTry(abort);
      throw error;
    }
  }

  async #awaitResults(
    abort: BatchAbort,
    returned: Promise<unknown>,
    count: number,
  ): Promise<readonly unknown[]> {
    try {
      abort.startTimer();
      return this.#readResults(await this.#untilAbort(abort, returned), count);
    } finally {
      this.#endTry(abort);
    }
  }

  #endTry(abort: BatchAbort): void {
    abort.close();
    if (abort.deadlineMs < Number.POSITIVE_INFINITY) this.#onTry?.(Number.POSITIVE_INFINITY);
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
  readonly #op: string;
  readonly #timeoutMs: number;
  #timer: NodeJS.Timeout | undefined;
  /** Undefined: the abort of the only request serves. */
  readonly #own: LazyAbort | undefined;
  /** On the scale of `performance.now()`. */
  readonly deadlineMs: number;
  #running: number;

  constructor(samples: readonly Sample[], timeoutMs: number, op: string) {
    this.#samples = samples;
    this.#op = op;
    this.#timeoutMs = timeoutMs;
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
  }

  /** Call when `process` has returned a promise. */
  startTimer(): void {
    if (this.#own === undefined || this.#timeoutMs < 0) return;
    const end = (): void => {
      const message = `op ${this.#op}: process took longer than ${this.#timeoutMs} ms`;
      this.#own?.abort(new Stopped(PIPELINE_ERROR.TIMEOUT, message));
    };
    this.#timer = startTimer(end, Math.max(0, this.deadlineMs - performance.now()));
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
