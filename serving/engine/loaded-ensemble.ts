/**
 * An ensemble: a request runs through several models, each as soon as its inputs are there. All
 * models stay as they are at the start of the request until its end. Batches form inside the steps.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { GraphSignature } from '../../lib/core/graph-signature.ts';
import type { NamedTensor, Tensor } from '../../lib/core/tensor.ts';
import { type BatchingOptions, DEFAULT_BATCHING } from './engine-options.ts';
import { EngineStats } from './engine-stats.ts';
import { type EnsembleStep, planEnsemble } from './ensemble-plan.ts';
import { checkGraphInputs } from './graph-request.ts';
import type { GraphCall, GraphPrediction } from './loaded-graph.ts';
import type { PredictOptions } from './prediction.ts';
import { type PinnedModel, pinModel, type TensorModel } from './tensor-model.ts';
import type { EngineLoad } from './version-use.ts';
import { VersionUsers } from './version-users.ts';

export interface EnsembleOptions {
  readonly name: string;
  readonly version: string;
  readonly signature: GraphSignature;
  readonly isBatched: boolean;
  /** As declared; steps split larger requests. */
  readonly maxBatch: number;
  readonly steps: readonly EnsembleStep[];
  /** File of the ensemble, for errors. */
  readonly source: string;
  readonly labels: ReadonlyMap<string, readonly string[]>;
  /** The version that serves a step now. @throws CubeError NOT_FOUND, NOT_READY */
  readonly find: (step: EnsembleStep) => TensorModel;
}

/** Ensembles in ensembles; deeper ones contain themselves. */
const DEPTH_MAX = 16;
let depth = 0;

export class LoadedEnsemble implements TensorModel {
  readonly name: string;
  readonly version: string;
  readonly signature: GraphSignature;
  readonly isBatched: boolean;
  readonly labels: ReadonlyMap<string, readonly string[]>;
  readonly batching: BatchingOptions;
  readonly stats: EngineStats;
  readonly batcher: EngineLoad;
  readonly #options: EnsembleOptions;
  /** Each step comes after those that it needs. */
  readonly #steps: readonly EnsembleStep[];
  readonly #users = new VersionUsers();
  /** The models that were checked last, which may be retired since. */
  #checked: ReadonlyMap<EnsembleStep, WeakRef<TensorModel>>;
  /** Why the models that were checked last do not fit. */
  #misfit: string | undefined;

  /** @throws CubeError INVALID_ARGUMENT for steps that do not fit, NOT_READY for a missing model */
  constructor(options: EnsembleOptions) {
    const { name, version, signature, isBatched, labels, steps, source } = options;
    this.name = name;
    this.version = version;
    this.signature = signature;
    this.isBatched = isBatched;
    this.labels = labels;
    const { maxBatch } = options;
    this.batching = { ...DEFAULT_BATCHING, maxBatch, preferredSizes: [] };
    this.stats = new EngineStats(maxBatch);
    this.#options = options;
    const models = new Map(steps.map((step) => [step, this.#findStep(step)]));
    this.#steps = planEnsemble({ signature, isBatched }, steps, models, source);
    this.#checked = toWeakRefs(models);
    this.batcher = {
      estimateWaitMs: (priority, isHead) =>
        this.#listModels().reduce(
          (sum, one) => sum + one.batcher.estimateWaitMs(priority, isHead),
          0,
        ),
      estimateRowsMs: (rowCount) =>
        this.#listModels().reduce((sum, { batcher }) => sum + batcher.estimateRowsMs(rowCount), 0),
      recordOffer: () =>
        Math.max(0, ...this.#listModels().map(({ batcher }) => batcher.recordOffer())),
      announce: () => {
        const ends = this.#listModels().map(({ batcher }) => batcher.announce());
        return () => {
          for (const end of ends) end();
        };
      },
    };
  }

  get steps(): readonly object[] {
    return this.#options.steps.map(({ model, version, inputMap, outputMap }) => ({
      model_name: model,
      model_version: version === undefined ? -1 : Number(version),
      input_map: Object.fromEntries(inputMap),
      output_map: Object.fromEntries(outputMap),
    }));
  }

  /** Counters of all steps' models. */
  get pool(): TensorModel['pool'] {
    const pools = this.#listModels().map(({ pool }) => pool);
    const sum = (key: 'workerDeaths' | 'queuedBatches'): number =>
      pools.reduce((total, pool) => total + pool[key], 0);
    return {
      aliveInstances: pools.length === 0 ? 0 : Math.min(...pools.map((p) => p.aliveInstances)),
      workerDeaths: 0,
      queuedBatches: sum('queuedBatches'),
      placements: pools.flatMap(({ placements }) => placements),
    };
  }

  async predict(call: GraphCall, options: PredictOptions): Promise<GraphPrediction> {
    const pinned = this.pin();
    try {
      return await pinned.predict(call, options);
    } finally {
      pinned.release();
    }
  }

  pin(): PinnedModel {
    if (depth >= DEPTH_MAX) {
      throw new CubeError('INVALID_ARGUMENT', `ensemble ${this.name} contains itself`);
    }
    depth++;
    const pinned = new Map<EnsembleStep, PinnedModel>();
    try {
      for (const [step, model] of this.#findModels()) pinned.set(step, pinModel(model));
    } catch (error) {
      for (const step of pinned.values()) step.release();
      throw error;
    } finally {
      depth--;
    }
    this.acquire();
    return {
      predict: (call, options) => this.#run(call, options, pinned),
      release: () => {
        for (const step of pinned.values()) step.release();
        this.release();
      },
    };
  }

  findMissingStep(): string | undefined {
    try {
      this.pin().release();
      return undefined;
    } catch (error) {
      return CubeError.from(error).message;
    }
  }

  /**
   * The models of the steps, each after those that it needs.
   * @throws CubeError NOT_READY naming a step that is not served, or does not fit any more
   */
  #findModels(): ReadonlyMap<EnsembleStep, TensorModel> {
    const models = new Map<EnsembleStep, TensorModel>();
    let isChecked = true;
    for (const step of this.#steps) {
      const model = this.#findStep(step);
      models.set(step, model);
      isChecked &&= this.#checked.get(step)?.deref() === model;
    }
    if (!isChecked) this.#check(models);
    if (this.#misfit === undefined) return models;
    throw new CubeError('NOT_READY', `a step of ${this.name} does not fit: ${this.#misfit}`);
  }

  /** Versions that replaced those at the load may have other tensors. */
  #check(models: ReadonlyMap<EnsembleStep, TensorModel>): void {
    this.#misfit = undefined;
    try {
      planEnsemble(this, this.#steps, models, this.#options.source);
    } catch (error) {
      this.#misfit = CubeError.from(error).message;
    }
    this.#checked = toWeakRefs(models);
  }

  /** @throws CubeError NOT_READY naming a step that is not served */
  #findStep(step: EnsembleStep): TensorModel {
    try {
      return this.#options.find(step);
    } catch (error) {
      const { message } = CubeError.from(error);
      throw new CubeError('NOT_READY', `step ${step.model} of ${this.name}: ${message}`);
    }
  }

  /** The steps are checked when a request pins them. */
  async checkAvailable(): Promise<void> {
    this.pin().release();
  }

  acquire(): void {
    this.#users.acquire();
  }

  release(): void {
    this.#users.release();
  }

  async close(): Promise<void> {
    await this.#users.drain();
  }

  retire(): Promise<void> {
    return this.close();
  }

  async #run(
    call: GraphCall,
    options: PredictOptions,
    pinned: ReadonlyMap<EnsembleStep, PinnedModel>,
  ): Promise<GraphPrediction> {
    const { tensors, rowCount } = checkGraphInputs(call.inputs, this.signature, this.isBatched);
    this.stats.pendingRequests++;
    const values = new Map<string, Promise<Tensor>>();
    this.signature.inputs.forEach(({ name }, i) => {
      const tensor = tensors[i];
      if (tensor !== undefined) values.set(name, Promise.resolve(tensor));
    });
    const timings = { queueMicros: 0, inferMicros: 0, outputMicros: 0 };
    const runs = this.#steps.map((step) => {
      const run = this.#runStep(step, pinned, values, options);
      for (const [output, tensor] of step.outputMap) {
        const value = run.then(({ outputs }) => requireOutput(outputs, output));
        // A failure is reported by the run itself.
        value.catch(() => undefined);
        values.set(tensor, value);
      }
      return run.then((prediction) => {
        timings.queueMicros += prediction.timings.queueMicros;
        timings.inferMicros += prediction.timings.inferMicros;
        timings.outputMicros += prediction.timings.outputMicros;
      });
    });
    try {
      await Promise.all(runs);
      const names = call.outputs.length > 0 ? call.outputs : this.#outputNames;
      const outputs = await Promise.all(
        names.map(async (name) => ({ ...(await requireTensor(values, name)), name })),
      );
      this.stats.recordAnswer(rowCount, timings.queueMicros);
      this.stats.executions++;
      this.stats.inferMicros += timings.inferMicros;
      return { rowCount, outputs, timings };
    } catch (error) {
      this.stats.recordFailure(CubeError.from(error).code);
      throw error;
    } finally {
      // Steps that run keep their models until they end.
      await Promise.allSettled(runs);
      this.stats.pendingRequests--;
    }
  }

  async #runStep(
    step: EnsembleStep,
    pinned: ReadonlyMap<EnsembleStep, PinnedModel>,
    values: ReadonlyMap<string, Promise<Tensor>>,
    options: PredictOptions,
  ): Promise<GraphPrediction> {
    const inputs = await Promise.all(
      [...step.inputMap].map(async ([name, tensor]) => ({
        ...(await requireTensor(values, tensor)),
        name,
      })),
    );
    const model = pinned.get(step);
    if (model === undefined) throw new CubeError('INTERNAL', `${step.model} is not pinned`);
    try {
      return await model.predict({ inputs, outputs: [...step.outputMap.keys()] }, options);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      throw new CubeError(code, `step ${step.model}: ${message}`, { cause: error });
    }
  }

  get #outputNames(): readonly string[] {
    return this.signature.outputs.map(({ name }) => name);
  }

  /** The models of the steps that are loaded. */
  #listModels(): TensorModel[] {
    return this.#options.steps.flatMap((step) => {
      try {
        return [this.#options.find(step)];
      } catch {
        return [];
      }
    });
  }
}

function toWeakRefs(
  models: ReadonlyMap<EnsembleStep, TensorModel>,
): Map<EnsembleStep, WeakRef<TensorModel>> {
  return new Map([...models].map(([step, model]) => [step, new WeakRef(model)]));
}

function requireTensor(
  values: ReadonlyMap<string, Promise<Tensor>>,
  name: string,
): Promise<Tensor> {
  return values.get(name) ?? Promise.reject(new CubeError('INTERNAL', `no tensor ${name}`));
}

function requireOutput(outputs: readonly NamedTensor[], name: string): Tensor {
  const found = outputs.find((output) => output.name === name);
  if (found !== undefined) return found;
  throw new CubeError('INTERNAL', `the model returned no output ${name}`);
}
