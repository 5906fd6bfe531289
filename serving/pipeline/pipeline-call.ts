/**
 * One try of a request on its way through the plan. It carries all its state (inputs that wait for
 * other inputs, tasks in queues), so nothing remains of a request when it has ended.
 */
import { requireDefined } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { PIPELINE_ERROR } from '../../proto/pipeline.ts';
import {
  CallContext,
  type ExecutionCall,
  type ExecutionTask,
  type RunningTiming,
} from './call-context.ts';
import { LazyAbort } from './lazy-abort.ts';
import type { OpInputs, OpResult, OpValues, PipelineRequest } from './op.ts';
import type { OpTiming, PipelineAnswer } from './pipeline-answer.ts';
import type { PipelinePlan } from './plan.ts';
import type { RequestVersions } from './request-versions.ts';
import { isPromise, readResult, Stopped, toStopped } from './stopped.ts';
import type { QueueNode, TaskQueue } from './task-queue.ts';

/** The complete inputs of an op for one request. */
export class OpTask implements ExecutionTask, QueueNode<OpTask> {
  readonly call: PipelineCall;
  /** Position of the op in the plan. */
  readonly step: number;
  readonly inputs: OpInputs;
  /** On the scale of `performance.now()`. */
  readonly readyMs: number = performance.now();
  queue: TaskQueue<OpTask> | undefined;
  previous: OpTask | undefined;
  next: OpTask | undefined;
  /** Called when a full channel has room for the task, or its request has ended. */
  onAccepted: (() => void) | undefined;
  /** The execution whose output waits while the channel is full. */
  sender: RunningTiming | undefined;

  constructor(call: PipelineCall, step: number, inputs: OpInputs) {
    this.call = call;
    this.step = step;
    this.inputs = inputs;
  }

  /** Ends the wait for room in a full channel. */
  accept(): void {
    const { sender, onAccepted, call } = this;
    if (sender !== undefined) sender.outMs = call.sinceStart(performance.now());
    this.sender = undefined;
    this.onAccepted = undefined;
    onAccepted?.();
  }
}

/** Where complete inputs go: the queue of an op. */
export interface Channel {
  /** @returns a promise when the channel is full: it resolves when the task has a place */
  offer(task: OpTask): Promise<void> | undefined;
  remove(task: OpTask): void;
}

/** What all requests of a pipeline share. */
export interface CallShared {
  readonly plan: PipelinePlan;
  readonly channels: readonly Channel[];
  readonly firstArrival: boolean;
  readonly logger: Logger;
}

/** Why the signal of an answered request aborts. One for all: errors are expensive. */
const ANSWERED = new Stopped(PIPELINE_ERROR.CLOSED, 'the request has been answered');

/** What all tries of a request share. */
export interface CallRequest {
  readonly request: PipelineRequest;
  readonly dataId: number;
  /** On the scale of `performance.now()`; Infinity for none. */
  readonly deadlineMs: number;
  readonly versions: RequestVersions;
}

/** The outputs that have come for an op, until all are there. */
interface PendingInputs {
  readonly inputs: Record<string, OpValues>;
  /** 0 once the op's task is made. */
  missing: number;
}

export class PipelineCall implements ExecutionCall {
  readonly dataId: number;
  readonly request: PipelineRequest;
  /** On the scale of `performance.now()`. */
  readonly deadlineMs: number;
  readonly versions: RequestVersions;
  readonly abort: LazyAbort = new LazyAbort();
  readonly #shared: CallShared;
  readonly #startMs = performance.now();
  readonly #timings: OpTiming[] = [];
  /** By position, of ops with several predecessors. */
  #pending: PendingInputs[] | undefined;
  /** All so far; those that wait are in a queue. */
  readonly #tasks: OpTask[] = [];
  readonly #onEnd: (answer: PipelineAnswer) => void;
  #logId: bigint;
  #logger: Logger | undefined;

  constructor(
    shared: CallShared,
    { request, dataId, deadlineMs, versions }: CallRequest,
    onEnd: (answer: PipelineAnswer) => void,
  ) {
    this.#shared = shared;
    this.request = request;
    this.dataId = dataId;
    this.deadlineMs = deadlineMs;
    this.versions = versions;
    this.#logId = request.logId ?? 0n;
    this.#onEnd = onEnd;
  }

  get logId(): bigint {
    return this.#logId;
  }

  get logger(): Logger {
    this.#logger ??= this.#shared.logger.child({
      data_id: this.dataId,
      log_id: String(this.#logId),
    });
    return this.#logger;
  }

  get hasEnded(): boolean {
    return this.abort.aborted;
  }

  /** Unpacks the request and starts the first ops. Never throws. */
  start(): void {
    const { request } = this.#shared.plan;
    try {
      const returned = request.unpackRequest(this.request, new CallContext(this, 0));
      if (!isPromise(returned)) this.#begin(returned);
      else this.#await(returned, (result) => this.#begin(result), request.name);
    } catch (error) {
      this.fail(toStopped(error, request.name));
    }
  }

  #begin(result: object): void {
    if (this.hasEnded) return;
    const { request, firsts } = this.#shared.plan;
    const { values, logId } = readResult(request.name, 'unpackRequest', result) as OpResult;
    if (logId !== undefined) this.#logId = logId;
    // Nothing holds a slot yet, so the request itself waits when a channel is full.
    this.#deliver(firsts, request.name, values);
  }

  #await<T>(returned: Promise<T>, next: (value: T) => void, op: string): void {
    Promise.resolve(returned)
      .then(next)
      .catch((error) => this.fail(toStopped(error, op)));
  }

  /**
   * Takes the output of an op and passes it on. Ignored after the end.
   * @returns a promise when a channel is full: it resolves when the output has a place
   */
  complete(step: number, values: OpValues, timing: RunningTiming): Promise<unknown> | undefined {
    if (this.hasEnded) return undefined;
    const { steps, last } = this.#shared.plan;
    const { op, successors } = requireDefined(steps[step], 'a step');
    this.#timings.push(timing);
    if (step === last) {
      this.#pack(values);
      return undefined;
    }
    return this.#deliver(successors, op.name, values, timing);
  }

  /** Ends the request with a code. Ignored after the end. */
  fail({ errNo, message }: Stopped): void {
    this.#end(errNo, message, {});
  }

  /** Milliseconds since the start of the request. */
  sinceStart(nowMs: number): number {
    return nowMs - this.#startMs;
  }

  #deliver(
    steps: readonly number[],
    from: string,
    values: OpValues,
    sender?: RunningTiming,
  ): Promise<unknown> | undefined {
    const full: Promise<void>[] = [];
    for (const step of steps) {
      const inputs = this.#collect(step, from, values);
      if (inputs === undefined) continue;
      const task = new OpTask(this, step, inputs);
      this.#tasks.push(task);
      const accepted = this.#channel(step).offer(task);
      if (accepted !== undefined) {
        task.sender = sender;
        full.push(accepted);
      }
      if (this.hasEnded) break;
    }
    return full.length === 0 ? undefined : Promise.all(full);
  }

  /** @returns the inputs of the op when they are complete; undefined before and after that */
  #collect(step: number, from: string, values: OpValues): OpInputs | undefined {
    const { plan, firstArrival } = this.#shared;
    const { predecessors } = requireDefined(plan.steps[step], 'a step');
    if (predecessors.length === 1) return { [from]: values };
    this.#pending ??= [];
    this.#pending[step] ??= { inputs: {}, missing: firstArrival ? 1 : predecessors.length };
    const pending = this.#pending[step];
    // A later arrival, where the first one counts.
    if (pending.missing === 0) return undefined;
    pending.inputs[from] = values;
    pending.missing--;
    return pending.missing === 0 ? pending.inputs : undefined;
  }

  #channel(step: number): Channel {
    return requireDefined(this.#shared.channels[step], 'a channel');
  }

  #pack(values: OpValues): void {
    const { response } = this.#shared.plan;
    try {
      const returned = response.packResponse(values, new CallContext(this, 0));
      if (!isPromise(returned)) this.#succeed(returned);
      else this.#await(returned, (result) => this.#succeed(result), response.name);
    } catch (error) {
      this.fail(toStopped(error, response.name));
    }
  }

  #succeed(result: OpValues | OpResult): void {
    const { name } = this.#shared.plan.response;
    this.#end(0, '', readResult<OpValues>(name, 'packResponse', result).values);
  }

  #end(errNo: number, errMsg: string, values: OpValues): void {
    if (this.hasEnded) return;
    const { dataId, logId } = this;
    const timings = this.#timings;
    this.abort.abort(errNo === 0 ? ANSWERED : new Stopped(errNo, errMsg));
    for (const task of this.#tasks) {
      if (task.queue !== undefined) this.#channel(task.step).remove(task);
    }
    const { degraded } = this.versions;
    const versions = this.versions.report();
    const durationMs = this.sinceStart(performance.now());
    this.#onEnd({
      errNo,
      errMsg,
      values,
      dataId,
      logId,
      durationMs,
      timings,
      versions,
      degraded,
    });
  }
}
