/**
 * The pipeline, workflows and services of a process, which a reload replaces as one unit: the
 * changed set is built beside the current one, then the next request takes it. Requests in progress
 * end on the set that they began with, which then stops. A set that cannot be built changes
 * nothing.
 */
import { isDeepStrictEqual } from 'node:util';
import { CubeError } from '../lib/core/errors.ts';
import { systemClock } from '../lib/platform/clock.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { MetricsRegistry } from '../lib/platform/metrics.ts';
import type { ServiceConfig, ServingConfig } from './config/serving-config.ts';
import type { PipelineHistory } from './pipeline/pipeline-history.ts';
import type { PipelineDefinition, StartedPipeline } from './pipeline-service.ts';
import type { MessageSource, ServedMessages } from './protocols/messages.ts';
import type { PaddleServices } from './protocols/paddle.ts';
import type { PipelineService, PipelineSource } from './protocols/pipeline.ts';
import type { WorkflowsDefinition } from './workflow-service.ts';

/** What one reading of the files gives. */
export interface GraphFiles {
  readonly config: ServingConfig;
  readonly pipeline?: PipelineDefinition | undefined;
  /** The services of a conf folder with messages of their own, instead of a pipeline. */
  readonly workflows?: WorkflowsDefinition | undefined;
}

export interface ServedGraphsOptions {
  /** Starts the pipeline or the workflows; undefined: the files have none. */
  readonly start: (files: GraphFiles) => Promise<StartedPipeline | undefined>;
  /** Reads the files again; undefined: they cannot change while the process runs. */
  readonly read?: (() => Promise<GraphFiles>) | undefined;
  /** Where pipelines add their figures; undefined: the process has none. */
  readonly history: PipelineHistory | undefined;
  readonly logger: Logger;
}

/** For status, console and metrics. */
export interface ReloadStatus {
  /** 1 for the set of the start; each reload adds 1. */
  readonly generation: number;
  /** Since when it answers requests. */
  readonly activeSince: string;
  /** Earlier sets that still answer requests. */
  readonly draining: number;
  readonly reloads: number;
  readonly failures: number;
  /** Why the last reload failed; undefined: it did not. */
  readonly problem?: string;
}

/** A set that is built but does not answer requests yet. */
export interface PreparedSet {
  commit(): void;
  /** @param problem why, for the status */
  discard(problem: string): Promise<void>;
}

/** Settings that a reload may change. */
const RELOADABLE: readonly string[] = ['services'];

export class ServedGraphs implements PipelineSource, MessageSource, PaddleServices {
  readonly #options: ServedGraphsOptions;
  readonly #draining = new Set<Promise<void>>();
  #current: GraphSet;
  #queue: Promise<unknown> = Promise.resolve();
  #generation = 1;
  #activeSince = systemClock.isoTime();
  #reloads = 0;
  #failures = 0;
  #problem: string | undefined;
  /** Built, but neither activated nor discarded. */
  #prepared: GraphSet | undefined;
  #isStopping = false;

  private constructor(options: ServedGraphsOptions, first: GraphSet) {
    this.#options = options;
    this.#current = first;
    first.activate(options.history);
  }

  /** @throws CubeError as the pipeline or a workflow failed to start */
  static async start(files: GraphFiles, options: ServedGraphsOptions): Promise<ServedGraphs> {
    return new ServedGraphs(options, new GraphSet(files, await options.start(files)));
  }

  get canReload(): boolean {
    return this.#options.read !== undefined;
  }

  get current(): GraphSet {
    return this.#current;
  }

  get services(): readonly ServiceConfig[] {
    return this.#current.services;
  }

  acquire(): GraphSet {
    return this.#current.acquire();
  }

  /** Resolves when requests take the changed set. @throws CubeError why they do not */
  reload(): Promise<void> {
    return this.#enqueue(async () => {
      const prepared = await this.#prepare();
      prepared.commit();
    });
  }

  /** Builds the changed set, where several processes reload together. @throws CubeError */
  prepare(): Promise<PreparedSet> {
    return this.#enqueue(() => this.#prepare());
  }

  async #prepare(): Promise<PreparedSet> {
    let set: GraphSet;
    try {
      set = await this.#build();
    } catch (error) {
      this.#fail(CubeError.from(error).message);
      throw error;
    }
    await this.#prepared?.stop();
    this.#prepared = set;
    return {
      commit: () => this.#activate(set),
      discard: async (problem) => {
        this.#prepared = undefined;
        this.#fail(problem);
        await set.stop();
      },
    };
  }

  /** Records why a reload failed. */
  #fail(problem: string): void {
    this.#reloads++;
    this.#failures++;
    this.#problem = problem;
    this.#options.logger.error({ error: problem }, 'reload failed; the previous files stay active');
  }

  get status(): ReloadStatus {
    return {
      generation: this.#generation,
      activeSince: this.#activeSince,
      draining: this.#draining.size,
      reloads: this.#reloads,
      failures: this.#failures,
      ...(this.#problem !== undefined && { problem: this.#problem }),
    };
  }

  /** The running requests are answered first, and a reload in progress ends. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    await this.#queue.catch(() => undefined);
    const prepared = this.#prepared?.stop();
    await Promise.all([this.#current.drain(), prepared, ...this.#draining]);
  }

  #enqueue<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#queue.catch(() => undefined).then(work);
    this.#queue = result;
    return result;
  }

  async #build(): Promise<GraphSet> {
    const { read, start } = this.#options;
    if (read === undefined) {
      throw new CubeError('UNSUPPORTED', 'this process has no files that can be reloaded');
    }
    this.#checkRunning();
    const files = await read();
    checkUnchanged(this.#current.files, files);
    const set = new GraphSet(files, await start(files));
    try {
      this.#checkRunning();
      return set;
    } catch (error) {
      await set.stop();
      throw error;
    }
  }

  #checkRunning(): void {
    if (this.#isStopping) throw new CubeError('STOPPING', 'the process is stopping');
  }

  #activate(set: GraphSet): void {
    const { history, logger } = this.#options;
    const previous = this.#current;
    this.#prepared = undefined;
    this.#current = set;
    set.activate(history);
    this.#generation++;
    this.#reloads++;
    this.#activeSince = systemClock.isoTime();
    this.#problem = undefined;
    const generation = this.#generation;
    logger.info({ generation }, 'files reloaded');
    const draining = previous
      .drain()
      .catch((error: unknown) => logger.error({ err: error }, 'a replaced set could not stop'))
      .finally(() => {
        this.#draining.delete(draining);
        logger.info({ generation: generation - 1 }, 'replaced set stopped');
      });
    this.#draining.add(draining);
  }
}

/** What the requests of one generation use. */
export class GraphSet {
  readonly files: GraphFiles;
  readonly #graph: StartedPipeline | undefined;
  #history: PipelineHistory | undefined;
  #users = 0;
  #onIdle: (() => void) | undefined;

  constructor(files: GraphFiles, graph: StartedPipeline | undefined) {
    this.files = files;
    this.#graph = graph;
  }

  get graph(): StartedPipeline | undefined {
    return this.#graph;
  }

  get services(): readonly ServiceConfig[] {
    return this.files.config.services;
  }

  get service(): PipelineService | undefined {
    return this.#graph?.service;
  }

  get messages(): ServedMessages | undefined {
    return this.#graph?.messages;
  }

  activate(history: PipelineHistory | undefined): void {
    this.#history = history;
    if (this.#graph !== undefined) history?.add(this.#graph.figures);
  }

  acquire(): this {
    this.#users++;
    return this;
  }

  release(): void {
    this.#users--;
    if (this.#users === 0) this.#onIdle?.();
  }

  /** Stops when no request uses it. */
  async drain(): Promise<void> {
    if (this.#users > 0) {
      await new Promise<void>((resolve) => {
        this.#onIdle = resolve;
      });
    }
    await this.stop();
  }

  async stop(): Promise<void> {
    await this.#graph?.stop();
    if (this.#graph !== undefined) this.#history?.end(this.#graph.figures);
  }
}

/** @throws CubeError INVALID_ARGUMENT naming what needs a restart */
function checkUnchanged(before: GraphFiles, after: GraphFiles): void {
  const names = Object.keys({ ...before.config, ...after.config }) as (keyof ServingConfig)[];
  const changed: string[] = names.filter(
    (name) =>
      !RELOADABLE.includes(name) && !isDeepStrictEqual(before.config[name], after.config[name]),
  );
  const differs = (read: (files: GraphFiles) => unknown): boolean =>
    !isDeepStrictEqual(read(before), read(after));
  const addWhen = (isChanged: boolean, name: string): void => {
    if (isChanged) changed.push(name);
  };
  addWhen(
    differs(({ pipeline }) => pipeline?.config.server),
    'rpc_port, http_port, worker_num or build_dag_each_worker',
  );
  addWhen(
    differs(({ pipeline, workflows }) => (pipeline ?? workflows)?.messages?.definitions),
    'the .proto files',
  );
  addWhen(
    after.pipeline?.worker !== undefined && differs(({ pipeline }) => pipeline?.services),
    'the services that local_service_conf starts',
  );
  const known = before.config.services.map(({ name }) => name);
  const added = after.config.services.filter(({ name }) => !known.includes(name));
  for (const { name } of added) changed.push(`the new service ${name}`);
  if (changed.length === 0) return;
  throw new CubeError('INVALID_ARGUMENT', `a reload cannot change ${changed.join(', ')}; restart`);
}

export function registerReloadMetrics(registry: MetricsRegistry, graphs: ServedGraphs): void {
  registry.collectedCounter({
    name: 'hypercube_serving_reloads_total',
    help: 'Reloads of pipelines, workflows and services, by result.',
    labels: ['result'],
    collect: (set) => {
      const { reloads, failures } = graphs.status;
      set({ result: 'ok' }, reloads - failures);
      set({ result: 'failed' }, failures);
    },
  });
  registry.collectedGauge({
    name: 'hypercube_serving_reload_successful',
    help: '1 unless the last reload failed, so that the previous files stay active.',
    collect: (set) => set({}, graphs.status.problem === undefined ? 1 : 0),
  });
  registry.collectedGauge({
    name: 'hypercube_serving_replaced_sets',
    help: 'Replaced pipelines, workflows and services that still answer requests.',
    collect: (set) => set({}, graphs.status.draining),
  });
}
