/** Runs requests through a plan: admission, tries, deadlines, drain. */
import { requireDefined } from '../../lib/core/errors.ts';
import { startTimer } from '../../lib/platform/clock.ts';
import { createLogger, type Logger } from '../../lib/platform/logs.ts';
import { PIPELINE_ERROR } from '../../proto/pipeline.ts';
import { LazyAbort } from './lazy-abort.ts';
import type { PipelineRequest } from './op.ts';
import { LocalExecutor, type OpExecutor } from './op-executor.ts';
import { OpRunner, Trampoline } from './op-runner.ts';
import { OpThreads } from './op-threads.ts';
import type { PipelineAnswer } from './pipeline-answer.ts';
import { type CallRequest, type CallShared, PipelineCall } from './pipeline-call.ts';
import { PipelineStats } from './pipeline-stats.ts';
import type { PipelinePlan, PlanStep } from './plan.ts';
import { RequestVersions } from './request-versions.ts';
import {
  checkOpNames,
  type PipelineSettings,
  type ResolvedOpSettings,
  resolveLimits,
  resolveOpSettings,
} from './settings.ts';
import { Stopped } from './stopped.ts';
import type { OpGauge } from './tracer.ts';

/** An op while the pipeline runs. */
export interface OpStatus {
  readonly name: string;
  /** Length of the longest path from the request. */
  readonly stage: number;
  /** Names of the ops that it reads; none for the request. */
  readonly inputs: readonly string[];
  /** Executions at a time. */
  readonly concurrency: number;
  readonly requests: number;
  readonly executions: number;
  readonly busyMs: number;
  readonly running: number;
  readonly queued: number;
  /** Complete inputs that may wait before the predecessors wait. */
  readonly queueCapacity: number;
  /** Worker threads that were replaced. */
  readonly restarts: number;
}

/** A signal, or a cheaper stand-in. */
export type CancelSignal = AbortSignal | LazyAbort;

export interface RunOptions {
  /** The caller's cancellation: answered with CLOSED (3001). */
  readonly signal?: CancelSignal;
  /** Time left for the request in milliseconds: answered with TIMEOUT (6000). Default: none. */
  readonly timeoutMs?: number;
}

export class PipelineEngine {
  readonly plan: PipelinePlan;
  readonly opSettings: readonly ResolvedOpSettings[];
  readonly stats: PipelineStats;
  readonly #onAnswer: (answer: PipelineAnswer) => void;
  readonly #executors: readonly OpExecutor[];
  readonly #runners: readonly OpRunner[];
  readonly #shared: CallShared;
  readonly #limits: ReturnType<typeof resolveLimits>;
  readonly #running: Set<RunningRequest> = new Set();
  #nextDataId = 0;
  #isClosing = false;
  #onDrained: () => void = () => undefined;

  /** @throws CubeError INVALID_ARGUMENT for an invalid setting */
  constructor(
    plan: PipelinePlan,
    settings: PipelineSettings = {},
    onAnswer: (answer: PipelineAnswer) => void = () => undefined,
  ) {
    this.plan = plan;
    this.stats = new PipelineStats(plan.steps.map(({ op }) => op.name));
    this.#onAnswer = onAnswer;
    this.#limits = resolveLimits(settings);
    checkOpNames(
      settings.ops,
      plan.steps.map(({ op }) => op),
    );
    this.opSettings = plan.steps.map(({ op }) => resolveOpSettings(op, settings.ops?.[op.name]));
    const trampoline = new Trampoline();
    const { channelSize } = this.#limits;
    let logger: Logger | undefined = settings.logger;
    const getLogger = (): Logger => {
      logger ??= createLogger('pipeline', { level: 'silent' });
      return logger;
    };
    this.#executors = plan.steps.map((step, index) => {
      const resolved = requireDefined(this.opSettings[index], 'the settings of an op');
      const { threadFile: file, threadSnapshot: snapshot } = settings;
      if (file === undefined) return new LocalExecutor(step.op, resolved);
      const movable = findMovable(plan, step);
      const onOutage = (reason: Stopped): void => this.#runners[index]?.failAll(reason);
      const parts = { file, snapshot, op: step.op.name, settings: resolved, movable, onOutage };
      return new OpThreads({ ...parts, logger: getLogger() });
    });
    this.#runners = this.#executors.map((executor, index) => {
      const resolved = requireDefined(this.opSettings[index], 'the settings of an op');
      return new OpRunner(executor, resolved, channelSize, trampoline);
    });
    this.#shared = {
      plan,
      channels: this.#runners,
      firstArrival: settings.firstArrival ?? false,
      get logger() {
        return getLogger();
      },
    };
  }

  /** Calls `initOp` of every op where it runs. @throws the first failure */
  async start(): Promise<void> {
    if (this.#executors.every((executor) => executor instanceof OpThreads)) {
      await Promise.all(this.#executors.map((executor) => executor.start()));
      return;
    }
    for (const executor of this.#executors) await executor.start();
  }

  get maxRequests(): number {
    return this.#limits.maxRequests;
  }

  get opGauges(): readonly OpGauge[] {
    return this.plan.steps.map(({ op: { name } }, index) => {
      const runner = requireDefined(this.#runners[index], 'the runner of an op');
      const { concurrency = 1 } = this.opSettings[index] ?? {};
      const { queueLength, capacity: queueCapacity } = runner;
      return { name, concurrency, queueLength, queueCapacity };
    });
  }

  /** Answers a request; never rejects. Hooks that ignore their signal do not delay the answer. */
  run(
    request: PipelineRequest,
    { signal, timeoutMs = Number.POSITIVE_INFINITY }: RunOptions = {},
  ): Promise<PipelineAnswer> {
    const dataId = this.#nextDataId++;
    const refused = this.#findRefusal();
    if (refused !== undefined) return Promise.resolve(toRefusal(refused, request, dataId));
    const deadlineMs = performance.now() + timeoutMs;
    const call = { request, dataId, deadlineMs, versions: new RequestVersions() };
    return new Promise((resolve) => {
      const running = new RunningRequest(this.#shared, call, this.#limits.retry, (answer) => {
        this.#running.delete(running);
        this.stats.record(answer);
        this.#onAnswer(answer);
        resolve(answer);
        if (this.#running.size === 0) this.#onDrained();
      });
      this.#running.add(running);
      running.start(signal, timeoutMs);
    });
  }

  /** Requests in progress. */
  get running(): number {
    return this.#running.size;
  }

  /** The ops in the order of the plan, with their counts since the start. */
  describeOps(): readonly OpStatus[] {
    const { steps } = this.plan;
    return steps.map(({ op, stage, predecessors }, index) => {
      const runner = requireDefined(this.#runners[index], 'the runner of an op');
      const { requests, executions, busyMs, running, queueLength: queued, restarts } = runner;
      const { capacity: queueCapacity } = runner;
      return {
        name: op.name,
        stage,
        inputs: predecessors.flatMap((at) => steps[at]?.op.name ?? []),
        concurrency: requireDefined(this.opSettings[index], 'the settings of an op').concurrency,
        requests,
        executions,
        busyMs: Math.round(busyMs),
        running,
        queued,
        queueCapacity,
        restarts,
      };
    });
  }

  /** Refuses new requests; resolves when the running ones are answered and all work has ended. */
  async close(): Promise<void> {
    this.#isClosing = true;
    if (this.#running.size > 0) {
      await new Promise<void>((resolve) => {
        this.#onDrained = resolve;
      });
    }
    for (const executor of this.#executors) executor.drain();
    await Promise.all(this.#runners.map((runner) => runner.waitUntilIdle()));
    await Promise.all(this.#executors.map((executor) => executor.stop()));
  }

  /** Ends the running requests with CLOSED. */
  cancelAll(message: string): void {
    for (const running of this.#running) {
      running.stop(new Stopped(PIPELINE_ERROR.CLOSED, message));
    }
  }

  #findRefusal(): Stopped | undefined {
    if (this.#isClosing) return new Stopped(PIPELINE_ERROR.CLOSED, 'the pipeline is stopping');
    const { maxRequests } = this.#limits;
    if (this.#running.size < maxRequests) return undefined;
    return new Stopped(
      PIPELINE_ERROR.CLIENT_ERROR,
      `the pipeline is overloaded: ${maxRequests} requests are in progress; retry later`,
    );
  }
}

/** A request with its tries, until it is answered. */
class RunningRequest {
  readonly #shared: CallShared;
  readonly #request: CallRequest;
  readonly #onAnswer: (answer: PipelineAnswer) => void;
  #triesLeft: number;
  #call: PipelineCall | undefined;
  #timer: NodeJS.Timeout | undefined;
  #forget: (() => void) | undefined;

  constructor(
    shared: CallShared,
    request: CallRequest,
    tries: number,
    onAnswer: (answer: PipelineAnswer) => void,
  ) {
    this.#shared = shared;
    this.#request = request;
    this.#triesLeft = tries;
    this.#onAnswer = onAnswer;
  }

  /** A request that has ended already is answered without a start. */
  start(signal: CancelSignal | undefined, timeoutMs: number): void {
    this.#call = this.#createCall();
    if (signal?.aborted === true) this.#cancel();
    else if (timeoutMs <= 0) this.#expire(timeoutMs);
    else this.#call.start();
    if (this.#call === undefined) return;
    if (signal !== undefined) this.#follow(signal);
    this.#timer = startTimer(() => this.#expire(timeoutMs), timeoutMs);
  }

  /** Ends the request; it is not tried again. */
  stop(reason: Stopped): void {
    this.#triesLeft = 0;
    this.#call?.fail(reason);
  }

  readonly #cancel = (): void => {
    this.stop(new Stopped(PIPELINE_ERROR.CLOSED, 'the caller cancelled the request'));
  };

  #expire(timeoutMs: number): void {
    const message = `the request's deadline of ${timeoutMs} ms passed`;
    this.stop(new Stopped(PIPELINE_ERROR.TIMEOUT, message));
  }

  #follow(signal: CancelSignal): void {
    if (signal instanceof LazyAbort) {
      this.#forget = signal.onAbort(this.#cancel);
      return;
    }
    signal.addEventListener('abort', this.#cancel, { once: true });
    this.#forget = () => signal.removeEventListener('abort', this.#cancel);
  }

  #createCall(): PipelineCall {
    this.#triesLeft--;
    return new PipelineCall(this.#shared, this.#request, (answer) => this.#finish(answer));
  }

  #finish(answer: PipelineAnswer): void {
    if (answer.errNo === PIPELINE_ERROR.TIMEOUT && this.#triesLeft > 0) {
      this.#call = this.#createCall();
      this.#call.start();
      return;
    }
    this.#call = undefined;
    clearTimeout(this.#timer);
    this.#forget?.();
    this.#request.versions.end();
    this.#onAnswer(answer);
  }
}

/**
 * Predecessors whose output only this op reads. The values of the request belong to the caller, and
 * another try needs them again.
 */
function findMovable({ steps }: PipelinePlan, { predecessors }: PlanStep): ReadonlySet<string> {
  const names = predecessors.flatMap((index) => {
    const step = steps[index];
    return step?.successors.length === 1 ? [step.op.name] : [];
  });
  return new Set(names);
}

function toRefusal(
  { errNo, message }: Stopped,
  { logId = 0n }: PipelineRequest,
  dataId: number,
): PipelineAnswer {
  return {
    errNo,
    errMsg: message,
    values: {},
    dataId,
    logId,
    timings: [],
    versions: {},
    degraded: false,
    durationMs: 0,
  };
}
