/**
 * One loaded version of a plain model: a graph without tables, whose requests are tensors. It is
 * loaded, used, drained and retired as a bundle is.
 */
import { CubeError } from '../../lib/core/errors.ts';
import {
  type GraphSignature,
  hasBatchDimension,
  type TensorSpec,
} from '../../lib/core/graph-signature.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { OnnxValueInfo, SessionTuning } from '../../lib/platform/onnx.ts';
import type { ProviderOrder } from '../../lib/platform/onnx-providers.ts';
import { readGraphSignature } from '../../proto/onnx-signature.ts';
import { Batcher } from './batcher.ts';
import { choosePlacements } from './choose-placements.ts';
import type { BatchingOptions } from './engine-options.ts';
import { EngineStats } from './engine-stats.ts';
import { GraphChannel, type GraphJob, type GraphResult } from './graph-channel.ts';
import { checkGraphInputs, type GraphInputs, type GraphRequest } from './graph-request.ts';
import type { GraphInfo, GraphWorkerOptions } from './graph-worker.ts';
import { InstancePool } from './instance-pool.ts';
import type { Prediction, PredictOptions } from './prediction.ts';
import { countTensorBytes, RequestCache, toGraphCacheKey } from './request-cache.ts';
import { GraphBatchRunner } from './run-graph-batch.ts';
import type { VersionUse } from './version-use.ts';
import { VersionUsers } from './version-users.ts';

export interface GraphLoadOptions {
  /** The name and the version that answers and metrics report. */
  readonly name: string;
  readonly version: string;
  /** The bytes of an ONNX file, and its external data by file name. */
  readonly model: Uint8Array;
  readonly data?: ReadonlyMap<string, Uint8Array>;
  readonly instances: number;
  /**
   * `maxBatch` undefined: that of `DEFAULT_BATCHING` if every tensor has a dynamic first dimension,
   * otherwise 0. 0: there is no batch dimension, and each request runs alone.
   */
  readonly batching: Omit<BatchingOptions, 'maxBatch'> & { readonly maxBatch: number | undefined };
  /** Size of the cache of responses to repeated requests; default 0, no cache. */
  readonly requestCacheBytes?: number;
  readonly tuning?: SessionTuning;
  /** The execution providers of instances, which are spread evenly over these; default: the CPU. */
  readonly placements?: readonly ProviderOrder[];
  readonly logger: Logger;
  readonly onStep?: (step: string) => void;
  /** The worker's script; tests replace it to make it exit. */
  readonly workerScript?: URL;
}

/** A request as a protocol has read it. */
export interface GraphCall {
  readonly inputs: readonly NamedTensor[];
  /** Names of the outputs to return; empty: all. */
  readonly outputs: readonly string[];
}

export interface GraphPrediction {
  readonly rowCount: number;
  readonly outputs: readonly NamedTensor[];
  readonly timings: Omit<Prediction['timings'], 'lookupMicros'>;
  /** Present when the model has tables. */
  readonly lookups?: GraphLookups;
}

export interface GraphLookups {
  readonly unseen: number;
  readonly unavailable: number;
  /** Some lookups were unavailable: their default rows were used. */
  readonly degraded: boolean;
  readonly lookupMicros: number;
}

type GraphPool = InstancePool<GraphInfo, GraphJob, GraphResult>;

const WORKER_SCRIPT = new URL('./graph-worker.js', import.meta.url);
const MAX_BATCH_DEFAULT = 64;

export class LoadedGraph implements VersionUse {
  readonly name: string;
  readonly version: string;
  readonly signature: GraphSignature;
  /** Whether the first dimension of every tensor is the batch. */
  readonly isBatched: boolean;
  /** `maxBatch` is 1 without a batch dimension. */
  readonly batching: BatchingOptions;
  readonly pool: GraphPool;
  readonly batcher: Batcher<GraphInputs, GraphRequest>;
  readonly stats: EngineStats;
  readonly #cache: RequestCache<GraphPrediction> | undefined;
  readonly #users = new VersionUsers();
  readonly #outputNames: readonly string[];

  private constructor(
    options: GraphLoadOptions,
    parts: Pick<LoadedGraph, 'signature' | 'isBatched' | 'batching' | 'pool'>,
  ) {
    const { requestCacheBytes = 0 } = options;
    const { signature, isBatched, batching, pool } = parts;
    this.name = options.name;
    this.version = options.version;
    this.signature = signature;
    this.#outputNames = signature.outputs.map(({ name }) => name);
    this.isBatched = isBatched;
    this.batching = batching;
    this.pool = pool;
    this.stats = new EngineStats(batching.maxBatch);
    this.#cache = requestCacheBytes > 0 ? new RequestCache(requestCacheBytes) : undefined;
    const { stats } = this;
    this.batcher = new Batcher({
      runner: new GraphBatchRunner({ pool, stats, signature, isBatched }),
      pool,
      batching,
      stats,
      clock: systemClock,
      waitsForLookups: false,
    });
  }

  /** @throws CubeError naming the file and what is wrong with it; nothing stays behind */
  static async load(options: GraphLoadOptions): Promise<LoadedGraph> {
    const { data = new Map(), instances, logger, tuning = {} } = options;
    const { workerScript: script = WORKER_SCRIPT } = options;
    const source = `${options.name} ${options.version}: model.onnx`;
    const declared = readGraphSignature(options.model, source);
    // Only plain models need what edits graphs: it is not part of every start.
    const { exchangeBfloat16 } = await import('../../proto/onnx-bfloat16.ts');
    const model = exchangeBfloat16(options.model, declared, source);
    const { isBatched, batching } = chooseBatching(options.batching, declared, source);
    const placements = await choosePlacements(options.placements, { logger, source });
    options.onStep?.('model instances');
    const pool = await InstancePool.start<GraphInfo, GraphJob, GraphResult>({
      instances,
      logger,
      source,
      script,
      placements,
      createChannel: () => new GraphChannel(declared, isBatched),
      createWorkerData: (providers) => {
        const { inputs, outputs } = declared;
        const session = { model, data, source, tuning: { ...tuning, providers } };
        const options = { ...session, inputs, outputs, isBatched };
        return { data: options satisfies GraphWorkerOptions };
      },
    });
    const signature = completeSignature(declared, pool.ready);
    return new LoadedGraph(options, { signature, isBatched, batching, pool });
  }

  /**
   * Runs the graph on the tensors of one request. The version is not unloaded before the last batch
   * has ended.
   * @throws CubeError INVALID_ARGUMENT naming the tensor, OVERLOADED, DEADLINE_EXCEEDED,
   *   UNAVAILABLE
   */
  async predict(call: GraphCall, options: PredictOptions): Promise<GraphPrediction> {
    const inputs: GraphInputs = {
      outputs: call.outputs.length > 0 ? call.outputs : this.#outputNames,
      ...checkGraphInputs(call.inputs, this.signature, this.isBatched),
    };
    if (this.#cache === undefined) return this.#run(inputs, options);
    const startMs = systemClock.nowMs();
    const key = toGraphCacheKey(inputs);
    const cached = this.#cache.get(key);
    const cacheMicros = 1_000 * (systemClock.nowMs() - startMs);
    this.stats.recordCacheLookup(cached, cacheMicros);
    if (cached !== undefined) {
      options.onScheduled?.();
      return { ...cached, timings: { cacheMicros, ...cached.timings } };
    }
    const prediction = await this.#run(inputs, options);
    const timings = { queueMicros: 0, inferMicros: 0, outputMicros: 0 };
    this.#cache.put(key, { ...prediction, timings }, countTensorBytes(prediction.outputs));
    return { ...prediction, timings: { cacheMicros, ...prediction.timings } };
  }

  async #run(inputs: GraphInputs, options: PredictOptions): Promise<GraphPrediction> {
    this.acquire();
    try {
      const request = await this.batcher.submit(inputs, options, () => this.release());
      const { rowCount, queueMicros, inferMicros, outputMicros } = request;
      const timings = { queueMicros, inferMicros, outputMicros };
      return { rowCount, outputs: request.collectOutputs(), timings };
    } catch (error) {
      // The graph refused the caller's tensors: their values or dynamic dimensions do not fit it.
      const { code, message } = CubeError.from(error);
      if (code !== 'INTERNAL') throw error;
      throw new CubeError('INVALID_ARGUMENT', message, { cause: error });
    }
  }

  /** Nothing besides the file is needed. */
  async checkAvailable(): Promise<void> {}

  acquire(): void {
    this.#users.acquire();
  }

  release(): void {
    this.#users.release();
  }

  async close(): Promise<void> {
    await this.#users.drain();
    await this.pool.stop();
  }

  retire(): Promise<void> {
    return this.close();
  }
}

function chooseBatching(
  { maxBatch: given, ...options }: GraphLoadOptions['batching'],
  signature: GraphSignature,
  source: string,
): Pick<LoadedGraph, 'isBatched' | 'batching'> {
  const chosen = given ?? (hasBatchDimension(signature) ? MAX_BATCH_DEFAULT : 0);
  const maxBatch = Math.max(1, chosen);
  if (chosen > 0) checkBatched(signature, source);
  const preferredSizes = options.preferredSizes.filter((size) => size <= maxBatch);
  return { isBatched: chosen > 0, batching: { ...options, maxBatch, preferredSizes } };
}

/** A dimension of unknown rank is checked when the graph runs. */
function checkBatched({ inputs, outputs }: GraphSignature, source: string): void {
  const fixed = [...inputs, ...outputs].find(
    ({ dims }) => dims !== undefined && typeof dims[0] !== 'string',
  );
  if (fixed === undefined && inputs.length > 0) return;
  const reason =
    fixed === undefined
      ? 'it has no inputs'
      : `the first dimension of ${JSON.stringify(fixed.name)}, shape ` +
        `[${fixed.dims?.join(', ')}], is not dynamic`;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${source}: ${reason}, so requests cannot share a batch; serve the model with max-batch 0`,
  );
}

/** Ranks that the file does not declare, as the runtime has inferred them. */
function completeSignature({ inputs, outputs }: GraphSignature, info: GraphInfo): GraphSignature {
  return {
    inputs: inputs.map((spec) => completeSpec(spec, info.inputs)),
    outputs: outputs.map((spec) => completeSpec(spec, info.outputs)),
  };
}

function completeSpec(spec: TensorSpec, values: readonly OnnxValueInfo[]): TensorSpec {
  const shape = values.find(({ name }) => name === spec.name)?.shape ?? [];
  // The runtime reports an unknown rank as a scalar.
  return spec.dims !== undefined || shape.length === 0 ? spec : { ...spec, dims: shape };
}
