/**
 * The client `local_predictor`: models of this process. A request keeps the version that it used
 * first until it is answered.
 */
import { createHash } from 'node:crypto';
import { toInputTensor } from '../../lib/client/feed-tensors.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { DEFAULT_BATCHING } from '../engine/engine-options.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { LoadedGraph } from '../engine/loaded-graph.ts';
import { isTensorModel, type LoadedVersion } from '../engine/loaded-version.ts';
import type { PredictOptions } from '../engine/prediction.ts';
import { Predictor } from '../engine/predictor.ts';
import { type PinnedModel, pinModel, type TensorModel } from '../engine/tensor-model.ts';
import { FileSource } from '../models/file-source.ts';
import type { Models, VersionSelector } from '../models/model-registry.ts';
import type { OpClient, OpContext, OpValues, ProcessContext } from './op.ts';
import { fromByteTensor, type PipelineTensor } from './pipeline-tensor.ts';
import type { PinnedVersion } from './request-versions.ts';
import type { VariableNames } from './variable-names.ts';

/**
 * Reads rows of features from the tensors of a feed, as KServe requests have them, or from
 * tab-separated lines, as CTR requests have them.
 */
export type ReadRows = (
  feed: readonly NamedTensor[] | string,
  bundle: LoadedBundle,
) => FeatureRows | KeyedRows;

export interface LocalPredictorOptions {
  readonly models: Pick<Models, 'find'>;
  /** The model's name in this process. */
  readonly model: string;
  /** Default: the version of the model's first channel. */
  readonly selector?: VersionSelector;
  readonly predictor: Pick<Predictor, 'predict'>;
  readonly readRows: ReadRows;
  /** Aliases, and the outputs to return; default: no aliases, all outputs. */
  readonly names?: VariableNames;
}

/** A feed for a bundle may have rows instead of tensors: `{ rows }`, as columns or lines. */
const ROWS = 'rows';
/** For requests without a deadline. */
const DAY_MS = 86_400_000;

/** Shared by all ops that name the model; aliases and fetch lists are those of each op. */
interface PinnedLoaded extends PinnedVersion {
  readonly loaded: LoadedBundle | { readonly model: TensorModel; readonly pinned: PinnedModel };
}

/** Predicts with a model of this process. Requests share the batches of the model itself. */
export class LocalPredictor implements OpClient {
  readonly #options: LocalPredictorOptions;
  readonly #reportedName: string;

  constructor(options: LocalPredictorOptions) {
    const { model, selector: { version, label } = {} } = options;
    this.#options = options;
    // Ops that select different versions of a model on purpose are reported apart.
    this.#reportedName = [model, version ?? label].filter((part) => part !== undefined).join('@');
  }

  async predict(feeds: readonly OpValues[], context: ProcessContext): Promise<readonly OpValues[]> {
    const { requests } = context;
    const [only] = requests;
    if (requests.length === 1 && only !== undefined) {
      return [await this.#predict(feeds[0] ?? {}, only, context)];
    }
    return Promise.all(
      requests.map((request, index) => this.#predict(feeds[index] ?? {}, request, context)),
    );
  }

  #predict(feed: OpValues, request: OpContext, batch: ProcessContext): Promise<OpValues> {
    const remainingMs = Math.min(request.remainingMs, batch.remainingMs, DAY_MS);
    const options: PredictOptions = {
      deadlineMs: systemClock.nowMs() + remainingMs,
      signal: {
        get aborted() {
          return request.isAborted || batch.isAborted;
        },
      },
    };
    const { models, model, selector } = this.#options;
    const pin = (): PinnedLoaded => pinVersion(models.find(model, selector));
    return request.versions.use(this.#reportedName, pin, ({ loaded }) =>
      'pinned' in loaded
        ? this.#predictTensors(loaded.model, loaded.pinned, feed, options)
        : this.#predictRows(loaded, feed, options, request),
    );
  }

  async #predictRows(
    bundle: LoadedBundle,
    feed: OpValues,
    options: PredictOptions,
    request: OpContext,
  ): Promise<OpValues> {
    const { predictor, readRows, names } = this.#options;
    const rows = readFeedRows(feed, bundle, names, readRows);
    const { outputs, rowCount, degraded } = await predictor.predict(bundle, rows, options);
    if (degraded) request.versions.markDegraded();
    const values: Record<string, PipelineTensor> = {};
    for (const { name, width, data } of outputs) {
      values[name] = { dataType: 'FP32', shape: [rowCount, width], data };
    }
    return names === undefined ? values : names.selectOutputs(values);
  }

  async #predictTensors(
    { signature }: TensorModel,
    pinned: PinnedModel,
    feed: OpValues,
    options: PredictOptions,
  ): Promise<OpValues> {
    const { names } = this.#options;
    const inputs = Object.entries(feed).map(([alias, value]) => {
      const name = names?.toInput(alias) ?? alias;
      const spec = signature.inputs.find((input) => input.name === name);
      return toInputTensor(name, value, spec ?? {});
    });
    const outputs = names?.requestedOutputs ?? [];
    const prediction = await pinned.predict({ inputs, outputs }, options);
    const values: Record<string, PipelineTensor> = {};
    for (const output of prediction.outputs) values[output.name] = fromByteTensor(output);
    return names === undefined ? values : names.selectOutputs(values);
  }
}

function pinVersion(loaded: LoadedVersion): PinnedLoaded {
  const { version } = loaded;
  if (isTensorModel(loaded)) {
    const pinned = pinModel(loaded);
    return { version, release: () => pinned.release(), loaded: { model: loaded, pinned } };
  }
  loaded.acquire();
  return { version, release: () => loaded.release(), loaded };
}

function readFeedRows(
  feed: OpValues,
  bundle: LoadedBundle,
  names: VariableNames | undefined,
  readRows: ReadRows,
): FeatureRows | KeyedRows {
  const ready = feed[ROWS];
  if (isRows(ready)) return ready;
  if (typeof ready === 'string') return readRows(ready, bundle);
  const tensors = Object.entries(feed).map(([alias, value]) => {
    return toInputTensor(names?.toInput(alias) ?? alias, value, {});
  });
  return readRows(tensors, bundle);
}

function isRows(value: unknown): value is FeatureRows | KeyedRows {
  if (typeof value !== 'object' || value === null) return false;
  return 'rowCount' in value && 'dense' in value && ('features' in value || 'keys' in value);
}

export interface OnnxFileOptions {
  /** Path of an ONNX file. */
  readonly file: string;
  /** Its name in answers; default: the path. */
  readonly name?: string;
  /** Graph instances, one thread each; default 1. */
  readonly instances?: number;
  readonly names?: VariableNames;
  readonly logger: Logger;
}

/** Predicts with an ONNX file that is loaded at `start`. Its version is the hash of the file. */
export class OnnxFilePredictor implements OpClient {
  readonly #options: OnnxFileOptions;
  #client: LocalPredictor | undefined;
  #loaded: LoadedGraph | undefined;

  constructor(options: OnnxFileOptions) {
    this.#options = options;
  }

  /** @throws CubeError naming the file and what is wrong with it */
  async start(): Promise<void> {
    const { file, name = file, instances = 1, names, logger } = this.#options;
    const { model, data } = await new FileSource(file).readModel();
    const version = createHash('sha256').update(model).digest('hex').slice(0, 16);
    const batching = { ...DEFAULT_BATCHING, maxBatch: undefined };
    const parts = { name, version, model, data, instances, batching, logger };
    const loaded = await LoadedGraph.load(parts);
    this.#loaded = loaded;
    this.#client = new LocalPredictor({
      models: { find: (): LoadedVersion => loaded },
      model: name,
      predictor: new Predictor(),
      readRows: () => {
        throw new CubeError('INTERNAL', `${name} has no rows`);
      },
      ...(names === undefined ? {} : { names }),
    });
  }

  async predict(feeds: readonly OpValues[], context: ProcessContext): Promise<readonly OpValues[]> {
    if (this.#client === undefined) throw new CubeError('NOT_READY', 'the model is not loaded');
    return this.#client.predict(feeds, context);
  }

  async stop(): Promise<void> {
    await this.#loaded?.close();
  }
}
