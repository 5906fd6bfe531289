/**
 * One loaded version: manifest, feature spec, graph instances and available tables. It is loaded,
 * used, drained and retired as one unit. A request acquires it from start to end, so it finishes
 * with the version it started with.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { KeyedRows } from '../../lib/core/feature-rows.ts';
import type { LookupGroup, LookupSummary } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { Precision } from '../../lib/core/precisions.ts';
import type { BagSpec, FeatureSpec, IdsSpec, SlotSpec } from '../../lib/core/slots.ts';
import { ComputedKeys } from '../../lib/features/computed-keys.ts';
import { type GraphPlan, planGraph } from '../../lib/features/graph-plan.ts';
import { addImpliedFeatures } from '../../lib/features/implied-features.ts';
import { RowKeys } from '../../lib/features/row-keys.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ProviderOrder } from '../../lib/platform/onnx-providers.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { type EmbeddingStore, requireNotCancelled } from '../stores/embedding-store.ts';
import { applyPrecision } from './apply-precision.ts';
import { Batcher } from './batcher.ts';
import { choosePlacements } from './choose-placements.ts';
import {
  type BatchingOptions,
  DEFAULT_BATCHING,
  DEFAULT_DEGRADATION,
  type DegradationPolicy,
} from './engine-options.ts';
import type { EngineRequest } from './engine-request.ts';
import { EngineStats } from './engine-stats.ts';
import { checkGoldenRows } from './golden-check.ts';
import { type LookupSlot, listLookupSlots } from './lookup-slots.ts';
import { ModelPool, type ModelPoolOptions } from './model-pool.ts';
import type { Prediction } from './prediction.ts';
import { RequestCache } from './request-cache.ts';
import { BundleBatchRunner } from './run-batch.ts';
import {
  checkKeysMatch,
  readVersionGraph,
  readVersionSlots,
  type VersionGraph,
} from './version-files.ts';
import type { VersionUse } from './version-use.ts';
import { VersionUsers } from './version-users.ts';
import { parseWarmUpRows, SyntheticRows, type WarmUpRows } from './warm-up-rows.ts';

/** What a version is loaded from, and how it is run. */
export interface BundleLoadOptions {
  readonly repository: Repository;
  readonly bundle: string;
  readonly store: EmbeddingStore;
  readonly instances: number;
  /** The execution providers of instances, which are spread evenly over these; default: the CPU. */
  readonly placements?: readonly ProviderOrder[];
  /** Default: DEFAULT_DEGRADATION and DEFAULT_BATCHING. */
  readonly policy?: DegradationPolicy;
  readonly batching?: BatchingOptions;
  /** Size of the cache of responses to repeated requests; default 0, no cache. */
  readonly requestCacheBytes?: number;
  /** Bits of the weights of the graph; default fp32, as they are. */
  readonly precision?: Precision;
  /**
   * Whether the part of the graph that depends only on user-side slots runs once for each user of a
   * batch; default true.
   */
  readonly splitsUsers?: boolean;
  readonly logger: Logger;
  /** Called with a description of each step, for the status. */
  readonly onStep?: (step: string) => void;
  /** Cancels the load. */
  readonly signal?: AbortSignal;
  /** The model worker's script; tests replace it to make it exit. */
  readonly workerScript?: URL;
}

const GOLDEN_FILE = 'golden.jsonl';

export class LoadedBundle implements VersionUse {
  readonly manifest: Manifest;
  readonly features: FeatureSpec;
  readonly plan: GraphPlan;
  readonly keys: ComputedKeys;
  /**
   * The ids inputs of the graph; defined when it was pruned without features.json, so that requests
   * name these inputs.
   */
  readonly ids: readonly IdsSpec[] | undefined;
  /** The ids inputs that list the ids of all rows, with their bag offsets. */
  readonly bags: ReadonlyMap<string, BagSpec>;
  readonly pool: ModelPool;
  readonly rowKeys: RowKeys;
  readonly batcher: Batcher<KeyedRows, EngineRequest>;
  readonly stats: EngineStats;
  readonly cache: RequestCache<Prediction> | undefined;
  readonly batching: BatchingOptions;
  /** The published golden rows, if any. */
  readonly golden: WarmUpRows | undefined;
  readonly synthetic: SyntheticRows;
  readonly lookupSlots: readonly LookupSlot[];
  readonly repository: Repository;
  readonly #store: EmbeddingStore;
  readonly #users = new VersionUsers();

  private constructor(
    parts: Pick<
      LoadedBundle,
      'manifest' | 'features' | 'plan' | 'keys' | 'ids' | 'bags' | 'pool' | 'golden' | 'synthetic'
    >,
    options: BundleLoadOptions,
  ) {
    const { store, policy = DEFAULT_DEGRADATION, batching = DEFAULT_BATCHING } = options;
    const { requestCacheBytes = 0 } = options;
    this.cache =
      requestCacheBytes > 0 ? new RequestCache<Prediction>(requestCacheBytes) : undefined;
    this.manifest = parts.manifest;
    this.features = parts.features;
    this.plan = parts.plan;
    this.keys = parts.keys;
    this.ids = parts.ids;
    this.bags = parts.bags;
    this.pool = parts.pool;
    this.golden = parts.golden;
    this.synthetic = parts.synthetic;
    this.rowKeys = new RowKeys(parts.features);
    this.lookupSlots = listLookupSlots(parts.plan, parts.features);
    this.repository = options.repository;
    this.batching = batching;
    this.stats = new EngineStats(batching.maxBatch, parts.plan.keyNum);
    const { manifest, plan, pool } = parts;
    const shape = {
      plan,
      rowsMax: batching.maxBatch,
      outputs: pool.outputs,
      lookupThread: pool.lookupThread,
    };
    const { stats } = this;
    const clock = systemClock;
    this.batcher = new Batcher({
      runner: new BundleBatchRunner({ manifest, shape, store, pool, policy, stats, clock }),
      pool,
      batching,
      stats,
      clock,
      waitsForLookups: pool.lookupThread === 'main',
    });
    this.#store = store;
  }

  /**
   * @throws CubeError saying which part of the version is missing, wrong or not answerable yet;
   *   nothing stays behind
   */
  static async load(options: BundleLoadOptions, version: string): Promise<LoadedBundle> {
    const { repository, bundle, store, instances, logger } = options;
    const manifest = await repository.readManifest(bundle, version);
    const slotSpec = await readVersionSlots(repository, manifest);
    const spec = addImpliedFeatures(slotSpec, `${bundle} ${version}`);
    const keys = new ComputedKeys(spec);
    const wholePlan = planGraph(spec, manifest, keys);
    const { features } = spec;
    checkKeysMatch(slotSpec.features ?? { ...features, slots: [] }, manifest);
    const ids = slotSpec.features === undefined ? spec.ids : undefined;
    const bags = findBags(spec);
    const golden = await readGolden(repository, manifest, features);
    const synthetic = new SyntheticRows(spec);
    const wholeGraph = await readVersionGraph(repository, manifest);
    const { graph, plan } = await splitUserSide(wholeGraph, wholePlan, features, options);
    const { data } = graph;
    const { precision = 'fp32' } = options;
    const { source } = graph;
    const placements = await choosePlacements(options.placements, { logger, source });
    const model = await applyPrecision(graph, { precision, logger });
    options.onStep?.('tables');
    await store.prepare(manifest, options.signal);
    options.onStep?.('model instances');
    try {
      requireNotCancelled(manifest, options.signal);
      const script = options.workerScript;
      const { maxBatch: rowsMax } = options.batching ?? DEFAULT_BATCHING;
      const shards = plan.tables.length === 0 ? undefined : store.share?.(manifest);
      const start = (own: Pick<ModelPoolOptions, 'model' | 'instances' | 'resident'>) =>
        ModelPool.startBundle({
          data,
          plan,
          rowsMax,
          placements,
          logger,
          ...(script === undefined ? {} : { script }),
          ...own,
        });
      const pool = await start({
        model,
        instances,
        ...(shards && store.threads && { resident: { shards, threads: store.threads } }),
      });
      const parts = { manifest, features, plan, keys, ids, bags, pool, golden, synthetic };
      const loaded = new LoadedBundle(parts, options);
      const startOriginal = async (): Promise<LoadedBundle> => {
        const pool = await start({ model: graph.model, instances: 1 });
        return new LoadedBundle({ ...parts, pool }, { ...options, requestCacheBytes: 0 });
      };
      await checkPrecision(loaded, startOriginal, options);
      return loaded;
    } catch (error) {
      await store.retire(manifest);
      throw error;
    }
  }

  get name(): string {
    return this.manifest.bundle;
  }

  get version(): string {
    return this.manifest.version;
  }

  /**
   * Checks again that the store can serve this version. @throws CubeError NOT_READY naming what is
   * missing
   */
  checkAvailable(): Promise<void> {
    return this.#store.prepare(this.manifest);
  }

  /** Looks keys up outside of requests. @throws CubeError as the store does */
  lookUp(groups: readonly LookupGroup[], timeoutMs: number): Promise<LookupSummary> {
    return this.#store.lookup(this.manifest, groups, timeoutMs);
  }

  /** Keeps the version in use for a request; `release` must follow. */
  acquire(): void {
    this.#users.acquire();
  }

  release(): void {
    this.#users.release();
  }

  /**
   * Waits for the requests in progress, then stops the graph instances. `acquire` must not be
   * called any more.
   */
  async close(): Promise<void> {
    await this.#users.drain();
    await this.pool.stop();
  }

  /** Closes the version and releases its tables in the store. */
  async retire(): Promise<void> {
    await this.close();
    await this.#store.retire(this.manifest);
  }
}

/** @returns the graph and its plan as they are, when no slot belongs to users */
async function splitUserSide(
  graph: VersionGraph,
  plan: GraphPlan,
  features: FeatureSpec,
  { splitsUsers = true, logger }: BundleLoadOptions,
): Promise<{ graph: VersionGraph; plan: GraphPlan }> {
  if (!splitsUsers || features.slots.every(({ side }) => side !== 'user')) return { graph, plan };
  const { splitUsers } = await import('./split-users.ts');
  return splitUsers(graph, plan, { features, logger });
}

/**
 * Compares golden rows with the original graph, whose instance looks rows up in the main thread: no
 * area of shared memories is reserved for it. Closes the version when it fails.
 */
async function checkPrecision(
  converted: LoadedBundle,
  startOriginal: () => Promise<LoadedBundle>,
  { precision = 'fp32', logger, onStep, signal }: BundleLoadOptions,
): Promise<void> {
  const { golden } = converted;
  if (precision === 'fp32' || golden === undefined) return;
  onStep?.(`golden rows with precision ${precision}`);
  const onRow = (): void => requireNotCancelled(converted.manifest, signal);
  try {
    const original = await startOriginal();
    try {
      await checkGoldenRows({ golden, original, converted, precision, logger, onRow });
    } finally {
      await original.close();
    }
  } catch (error) {
    await converted.close();
    throw error;
  }
}

/** @throws CubeError UNSUPPORTED when one list of ids has several bags */
function findBags({ embeddings }: SlotSpec): Map<string, BagSpec> {
  const found = new Map<string, BagSpec>();
  for (const { ids, bags } of embeddings) {
    // The tensors of a Paddle program contain their bag boundaries (a LoD).
    if (bags === undefined || bags.offsets === ids) continue;
    const known = found.get(ids);
    if (
      known !== undefined &&
      (known.offsets !== bags.offsets || known.offsetsRow !== bags.offsetsRow)
    ) {
      throw new CubeError(
        'UNSUPPORTED',
        `the ids ${ids} have two bag offsets, ${known.offsets} and ${bags.offsets}; ` +
          'only one is supported',
      );
    }
    found.set(ids, bags);
  }
  return found;
}

async function readGolden(
  repository: Repository,
  manifest: Manifest,
  features: FeatureSpec,
): Promise<WarmUpRows | undefined> {
  const { bundle, version, files } = manifest;
  if (!files.some(({ path }) => path === GOLDEN_FILE)) return undefined;
  const bytes = await repository.readManifestFile(manifest, GOLDEN_FILE);
  const source = `${bundle} ${version}: ${GOLDEN_FILE}`;
  return parseWarmUpRows(new TextDecoder().decode(bytes), source, features);
}
