/** A pipeline in this process: `import { Op, PipelineServer, … } from 'hypercube/pipeline'`. */
import { CubeError } from '../../lib/core/errors.ts';
import { type OpStatus, PipelineEngine, type RunOptions } from './engine.ts';
import { findOps } from './find-ops.ts';
import type { AnyOp, AnyResponseOp, OpClient, PipelineRequest } from './op.ts';
import type { PipelineAnswer } from './pipeline-answer.ts';
import { PipelineLogFiles } from './pipeline-logs.ts';
import type { PipelineStats } from './pipeline-stats.ts';
import { type PipelinePlan, planPipeline } from './plan.ts';
import type { PipelineSettings } from './settings.ts';

export interface StopOptions {
  /**
   * How long running requests may take, in milliseconds; then they are answered with CLOSED.
   * Default: until they end.
   */
  readonly drainTimeoutMs?: number;
}

export class PipelineServer {
  readonly plan: PipelinePlan;
  readonly #engine: PipelineEngine;
  readonly #logFiles: PipelineLogFiles;
  #state: 'new' | 'started' | 'stopped' = 'new';

  /**
   * @param ops the response op, from which all other ops are found; or all ops, so that one that
   *   does not reach the response is an error
   * @throws CubeError INVALID_ARGUMENT naming the op, the edge or the setting
   */
  constructor(
    ops: AnyResponseOp | readonly (AnyOp | AnyResponseOp)[],
    settings: PipelineSettings = {},
  ) {
    const { steps, response } = findOps(ops);
    this.plan = planPipeline(steps, response);
    this.#logFiles = new PipelineLogFiles(settings);
    const { logger } = this.#logFiles;
    const withLogger = logger === undefined ? settings : { ...settings, logger };
    this.#engine = new PipelineEngine(this.plan, withLogger, (answer) =>
      this.#logFiles.record(answer),
    );
  }

  /**
   * Starts the clients, then calls `initOp` of every op in the order of the graph.
   * @throws the first failure; what was started is stopped again
   */
  async start(): Promise<void> {
    if (this.#state !== 'new') {
      throw new CubeError('INVALID_ARGUMENT', `the pipeline was ${this.#state} before`);
    }
    this.#state = 'started';
    const { request, steps, response } = this.plan;
    try {
      for (const [index, { op }] of steps.entries()) {
        op.client = this.#engine.opSettings[index]?.client;
      }
      for (const client of this.#clients) await client.start?.();
      await request.initOp();
      await this.#engine.start();
      await response.initOp();
      this.#logFiles.start(this.#engine);
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  /**
   * Answers a request; never rejects. Every failure is `errNo` and `errMsg` of the answer.
   * Requests after `stop` are answered with CLOSED (3001).
   */
  run(request: PipelineRequest, options: RunOptions = {}): Promise<PipelineAnswer> {
    return this.#engine.run(request, options);
  }

  /** Requests in progress, and the ops with their counts since the start. */
  describe(): { readonly running: number; readonly ops: readonly OpStatus[] } {
    return { running: this.#engine.running, ops: this.#engine.describeOps() };
  }

  /** Counters since the start, for metrics. */
  get stats(): PipelineStats {
    return this.#engine.stats;
  }

  /** Ops may share a client. */
  get #clients(): ReadonlySet<OpClient> {
    return new Set(this.#engine.opSettings.flatMap(({ client }) => client ?? []));
  }

  /** Refuses new requests, answers the running ones, then stops the clients. */
  async stop({ drainTimeoutMs }: StopOptions = {}): Promise<void> {
    if (this.#state === 'stopped') return;
    this.#state = 'stopped';
    const timer =
      drainTimeoutMs === undefined
        ? undefined
        : setTimeout(() => this.#engine.cancelAll('the pipeline has stopped'), drainTimeoutMs);
    await this.#engine.close();
    clearTimeout(timer);
    for (const client of this.#clients) await client.stop?.();
    this.#logFiles.close();
  }
}
