/** Runs requests through a plan. Each op starts when all its inputs are there. */
import { CubeError } from '../../lib/core/errors.ts';
import { PIPELINE_ERROR, toPipelineErrNo } from '../../proto/pipeline.ts';
import { ConcurrencySlots } from './concurrency-slots.ts';
import {
  type HookResult,
  type Op,
  type OpContext,
  OpResult,
  type OpValues,
  type PipelineRequest,
  type ResponseOp,
} from './op.ts';
import { type PipelinePlan, type PlanStep, planPipeline } from './plan.ts';

export interface OpTiming {
  readonly op: string;
  /** Milliseconds from the start of the request. */
  readonly startMs: number;
  readonly endMs: number;
}

export interface PipelineAnswer {
  /** 0 or a code of `PIPELINE_ERROR` or of the user. */
  readonly errNo: number;
  /** Empty when `errNo` is 0. Names the op that failed. */
  readonly errMsg: string;
  /** Empty when `errNo` is not 0. */
  readonly values: OpValues;
  readonly dataId: number;
  /** The ops that ended, in that order. */
  readonly timings: readonly OpTiming[];
  /** Bundle → version that took part. */
  readonly versions: Readonly<Record<string, string>>;
}

export interface PipelineOptions {
  /** Requests in progress at most; further ones are refused with CLIENT_ERROR. Default 1024. */
  readonly maxRequests?: number;
}

const DEFAULT_MAX_REQUESTS = 1024;

/** Ends a request with a code. Never leaves the engine. */
class Stopped extends Error {
  readonly errNo: number;
  constructor(errNo: number, message: string) {
    super(message);
    this.errNo = errNo;
  }
}

/** Runs one pipeline. Call `init` once before the first `run`. */
export class PipelineEngine {
  readonly plan: PipelinePlan;
  readonly #slots: readonly ConcurrencySlots[];
  readonly #maxRequests: number;
  #running = 0;
  #nextDataId = 0;
  #closing = false;
  #drained: () => void = () => {};

  /** @throws CubeError INVALID_ARGUMENT for an invalid graph or setting */
  constructor(ops: readonly Op[], response: ResponseOp, options: PipelineOptions = {}) {
    this.plan = planPipeline(ops, response);
    for (const { name, concurrency, retry } of ops) {
      checkPositive(`concurrency of op ${name}`, concurrency);
      checkPositive(`retry of op ${name}`, retry);
    }
    this.#maxRequests = options.maxRequests ?? DEFAULT_MAX_REQUESTS;
    checkPositive('maxRequests', this.#maxRequests);
    this.#slots = this.plan.steps.map((step) => new ConcurrencySlots(step.op.concurrency));
  }

  /** Calls `initOp` of every op. Rejects with the first failure. */
  async init(): Promise<void> {
    await this.plan.request.initOp();
    for (const { op } of this.plan.steps) await op.initOp();
    await this.plan.response.initOp();
  }

  /**
   * Answers a request; never rejects. Hooks that ignore their signal keep their slot until they
   * end, but the answer does not wait for them.
   * @param signal the caller's cancellation: answered with CLOSED
   * @param deadlineMs time left in milliseconds; Infinity for none
   */
  async run(
    request: PipelineRequest,
    signal: AbortSignal,
    deadlineMs: number,
  ): Promise<PipelineAnswer> {
    const dataId = this.#nextDataId++;
    const refused = this.#findRefusal();
    if (refused !== undefined) return failedAnswer(refused, dataId, []);
    this.#running++;
    const call = new PipelineCall(this.plan, this.#slots, request, dataId);
    try {
      return await call.answer(signal, deadlineMs);
    } finally {
      this.#running--;
      if (this.#running === 0) this.#drained();
    }
  }

  /** Refuses new requests and resolves when the running ones are answered. */
  async close(): Promise<void> {
    this.#closing = true;
    if (this.#running > 0) await new Promise<void>((resolve) => (this.#drained = resolve));
  }

  #findRefusal(): Stopped | undefined {
    if (this.#closing) return new Stopped(PIPELINE_ERROR.CLOSED, 'the pipeline is stopping');
    if (this.#running < this.#maxRequests) return undefined;
    const limit = `${this.#maxRequests} requests are in progress`;
    return new Stopped(
      PIPELINE_ERROR.CLIENT_ERROR,
      `the pipeline is overloaded: ${limit}; retry later`,
    );
  }
}

/** One request on its way through the plan. */
class PipelineCall {
  readonly #plan: PipelinePlan;
  readonly #slots: readonly ConcurrencySlots[];
  readonly #request: PipelineRequest;
  readonly #dataId: number;
  readonly #stop = new AbortController();
  readonly #timings: OpTiming[] = [];
  readonly #startMs = performance.now();

  constructor(
    plan: PipelinePlan,
    slots: readonly ConcurrencySlots[],
    request: PipelineRequest,
    dataId: number,
  ) {
    this.#plan = plan;
    this.#slots = slots;
    this.#request = request;
    this.#dataId = dataId;
  }

  async answer(signal: AbortSignal, deadlineMs: number): Promise<PipelineAnswer> {
    const cancel = (): void => this.#end(PIPELINE_ERROR.CLOSED, 'the caller cancelled the request');
    const timer = startTimer(deadlineMs, () =>
      this.#end(PIPELINE_ERROR.TIMEOUT, `the request's deadline of ${deadlineMs} ms passed`),
    );
    signal.addEventListener('abort', cancel);
    if (signal.aborted) cancel();
    try {
      const values = await untilAborted(this.#stop.signal, () => this.#runPlan());
      const { timings } = this;
      return { errNo: 0, errMsg: '', values, dataId: this.#dataId, timings, versions: {} };
    } catch (error) {
      const stopped = error instanceof Stopped ? error : toStopped(error, 'pipeline');
      return failedAnswer(stopped, this.#dataId, this.timings);
    } finally {
      clearTimeout(timer);
      signal.removeEventListener('abort', cancel);
      this.#stop.abort();
    }
  }

  /** A copy: ops that ignore their signal must not change an answer. */
  get timings(): readonly OpTiming[] {
    return [...this.#timings];
  }

  #end(errNo: number, message: string): void {
    this.#stop.abort(new Stopped(errNo, message));
  }

  async #runPlan(): Promise<OpValues> {
    const { request, response, steps, last } = this.#plan;
    const context = this.#context(0, this.#stop.signal);
    const first = await checked(request.name, () => request.unpackRequest(this.#request, context));
    const outputs: Promise<OpValues>[] = [];
    for (const [index, step] of steps.entries()) {
      const inputs = step.predecessors.map((from) => outputs[from] ?? first.values);
      outputs.push(this.#runStep(index, step, inputs));
    }
    // The first failure ends the request, wherever it is in the graph.
    const all = await Promise.all(outputs);
    const packed = await checked(response.name, () =>
      response.packResponse(all[last] ?? {}, context),
    );
    return packed.values;
  }

  async #runStep(
    index: number,
    { op }: PlanStep,
    pending: readonly (OpValues | Promise<OpValues>)[],
  ): Promise<OpValues> {
    const outputs = await Promise.all(pending);
    const slots = this.#slots[index];
    if (slots === undefined) throw new CubeError('INTERNAL', `op ${op.name} has no slots`);
    const slot = await slots.acquire(this.#stop.signal);
    try {
      // The slot may have come after the request ended.
      this.#stop.signal.throwIfAborted();
      const startMs = performance.now() - this.#startMs;
      const inputs = Object.fromEntries(
        op.inputs.map((from, at) => [from.name, outputs[at] ?? {}]),
      );
      const values = await this.#runHooks(op, inputs, slot);
      this.#timings.push({ op: op.name, startMs, endMs: performance.now() - this.#startMs });
      return values;
    } finally {
      slots.release(slot);
    }
  }

  async #runHooks(op: Op, inputs: Record<string, OpValues>, slot: number): Promise<OpValues> {
    const context = this.#context(slot, this.#stop.signal);
    const prepared = await checked(op.name, () => op.preprocess(inputs, context));
    this.#stop.signal.throwIfAborted();
    const fetched = prepared.skipProcess
      ? prepared.values
      : await this.#tryProcess(op, prepared.values, slot);
    this.#stop.signal.throwIfAborted();
    return (await checked(op.name, () => op.postprocess(inputs, fetched, context))).values;
  }

  async #tryProcess(op: Op, input: OpValues, slot: number): Promise<OpValues> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#processOnce(op, input, slot);
      } catch (error) {
        this.#stop.signal.throwIfAborted();
        if (attempt >= op.retry) throw error instanceof Stopped ? error : toStopped(error, op.name);
      }
    }
  }

  async #processOnce(op: Op, input: OpValues, slot: number): Promise<OpValues> {
    if (op.timeoutMs < 0) return op.process(input, this.#context(slot, this.#stop.signal));
    const limit = new AbortController();
    const message = `op ${op.name}: process took longer than ${op.timeoutMs} ms`;
    const timer = startTimer(op.timeoutMs, () =>
      limit.abort(new Stopped(PIPELINE_ERROR.TIMEOUT, message)),
    );
    const follow = (): void => limit.abort(this.#stop.signal.reason);
    this.#stop.signal.addEventListener('abort', follow);
    try {
      const context = this.#context(slot, limit.signal);
      return await untilAborted(limit.signal, async () => op.process(input, context));
    } finally {
      clearTimeout(timer);
      this.#stop.signal.removeEventListener('abort', follow);
    }
  }

  #context(concurrencyIndex: number, signal: AbortSignal): OpContext {
    return { logId: this.#request.logId, dataId: this.#dataId, concurrencyIndex, signal };
  }
}

function failedAnswer(
  { errNo, message }: Stopped,
  dataId: number,
  timings: readonly OpTiming[],
): PipelineAnswer {
  return { errNo, errMsg: message, values: {}, dataId, timings, versions: {} };
}

/** Calls a hook and ends the request for a product error. Bare values become a result. */
async function checked(name: string, hook: () => HookResult): Promise<OpResult> {
  let result: OpValues | OpResult;
  try {
    result = await hook();
  } catch (error) {
    throw toStopped(error, name);
  }
  if (!(result instanceof OpResult)) return new OpResult(result);
  if (result.errNo !== 0) throw new Stopped(result.errNo, result.errMsg);
  return result;
}

function toStopped(error: unknown, name: string): Stopped {
  const message = error instanceof Error ? error.message : String(error);
  return new Stopped(toErrNo(error), `op ${name}: ${message}`);
}

/** The code of an error that a hook threw; foreign errors are UNKNOWN, as in the original. */
function toErrNo(error: unknown): number {
  return error instanceof CubeError ? toPipelineErrNo(error) : PIPELINE_ERROR.UNKNOWN;
}

/** Settles with the work, or rejects with the signal's reason as soon as it aborts. */
function untilAborted<T>(signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) {
      reject(signal.reason);
      return;
    }
    const stop = (): void => reject(signal.reason);
    signal.addEventListener('abort', stop);
    work()
      .then(resolve, reject)
      .finally(() => signal.removeEventListener('abort', stop));
  });
}

/** No timer for limits that a timer cannot express (above 24 days). */
function startTimer(ms: number, done: () => void): NodeJS.Timeout | undefined {
  return ms < 2 ** 31 ? setTimeout(done, Math.max(0, ms)) : undefined;
}

function checkPositive(what: string, value: number): void {
  if (Number.isSafeInteger(value) && value >= 1) return;
  throw new CubeError('INVALID_ARGUMENT', `${what} is ${value}; it must be an integer from 1`);
}
