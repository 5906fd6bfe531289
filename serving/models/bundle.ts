/**
 * One version, ready to answer: manifest, feature spec, graph instances and the store's promise of its tables. It is loaded, used,
 * drained and retired as one unit; a request holds it from start to end, so it finishes on the version it began with.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import {
  type BagSpec,
  type FeatureSpec,
  type IdsSpec,
  readSlotSpec,
  type SlotSpec,
} from '../../lib/core/slots.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { Batcher } from '../engine/batcher.ts';
import {
  type BatchingOptions,
  DEFAULT_BATCHING,
  DEFAULT_POLICY,
  type DegradationPolicy,
} from '../engine/batching.ts';
import { EngineStats } from '../engine/engine-stats.ts';
import { ModelPool } from '../engine/model-pool.ts';
import { RequestCache } from '../engine/request-cache.ts';
import { ComputedKeys } from '../features/computed-keys.ts';
import { type GraphPlan, planGraph } from '../features/graph-plan.ts';
import { withFeatures } from '../features/implied-features.ts';
import { RowKeys } from '../features/row-keys.ts';
import type { EmbeddingStore } from '../stores/embedding-store.ts';
import { readWarmUpRows, syntheticRows, type WarmUpRows } from './warm-up-rows.ts';

/** Where bundles come from and what they are loaded into. */
export interface BundleSource {
  readonly repository: Repository;
  readonly bundle: string;
  readonly store: EmbeddingStore;
  readonly instances: number;
  /** Default: what DEFAULT_POLICY and DEFAULT_BATCHING say. */
  readonly policy?: DegradationPolicy;
  readonly batching?: BatchingOptions;
  /** For answers to requests that come again; absent or 0: none is kept. */
  readonly requestCacheBytes?: number;
  readonly logger: Logger;
  /** Told what is done now, in words. */
  readonly onStep?: (step: string) => void;
  /** The model worker's script; tests wrap it to make it die. */
  readonly workerScript?: URL;
}

const MODEL_FILE = 'model.onnx';
const SLOTS_FILE = 'slots.json';
/** Tensors of the graph that are not in its own bytes. */
const DATA_FILE = 'model.onnx.data';
const GOLDEN_FILE = 'golden.jsonl';

export class LoadedBundle {
  readonly manifest: Manifest;
  readonly features: FeatureSpec;
  readonly plan: GraphPlan;
  readonly keys: ComputedKeys;
  /** Set when requests give ids by the names of the graph's ids inputs: it was pruned without features.json. */
  readonly ids: readonly IdsSpec[] | undefined;
  /** Of those inputs the ones that list the ids of all rows, and where their bags begin. */
  readonly bags: ReadonlyMap<string, BagSpec>;
  readonly pool: ModelPool;
  readonly rowKeys: RowKeys;
  readonly batcher: Batcher;
  readonly stats: EngineStats;
  readonly cache: RequestCache | undefined;
  readonly batching: BatchingOptions;
  /** Rows to try before the version answers anybody: the published golden rows, or a row of missing values. */
  readonly golden: WarmUpRows;
  readonly #store: EmbeddingStore;
  #users = 0;
  #onDrained: (() => void) | undefined;

  private constructor(
    parts: Pick<
      LoadedBundle,
      'manifest' | 'features' | 'plan' | 'keys' | 'ids' | 'bags' | 'pool' | 'golden'
    >,
    source: BundleSource,
  ) {
    const { store, policy = DEFAULT_POLICY, batching = DEFAULT_BATCHING } = source;
    const { requestCacheBytes = 0 } = source;
    this.cache = requestCacheBytes > 0 ? new RequestCache(requestCacheBytes) : undefined;
    this.manifest = parts.manifest;
    this.features = parts.features;
    this.plan = parts.plan;
    this.keys = parts.keys;
    this.ids = parts.ids;
    this.bags = parts.bags;
    this.pool = parts.pool;
    this.golden = parts.golden;
    this.rowKeys = new RowKeys(parts.features);
    this.batching = batching;
    this.stats = new EngineStats(batching.maxBatch);
    const { manifest, plan, pool } = parts;
    const shape = {
      ...{ plan, rowsMax: batching.maxBatch, outputs: pool.outputs },
      looksUp: pool.looksUp,
    };
    this.batcher = new Batcher({
      ...{ manifest, shape, store, pool, policy, batching },
      stats: this.stats,
    });
    this.#store = store;
  }

  /** @throws CubeError saying which part of the version is missing, wrong or not answerable yet; nothing stays behind */
  static async load(source: BundleSource, version: string): Promise<LoadedBundle> {
    const { repository, bundle, store, instances, logger } = source;
    const manifest = await repository.manifest(bundle, version);
    const found = await readSpec(repository, manifest);
    const spec = withFeatures(found, `${bundle} ${version}`);
    const keys = new ComputedKeys(spec);
    const plan = planGraph(spec, manifest, keys);
    const features = spec.features!;
    checkSameKeys(found.features ?? { ...features, slots: [] }, manifest);
    const ids = found.features === undefined ? spec.ids! : undefined;
    const bags = bagsOf(spec);
    const golden = await readGolden(repository, manifest, features);
    const model = await repository.readVersionFile(bundle, version, MODEL_FILE);
    const data = await readData(repository, manifest);
    source.onStep?.('tables');
    await store.prepare(manifest);
    source.onStep?.('model instances');
    try {
      const script = source.workerScript;
      const { maxBatch: rowsMax } = source.batching ?? DEFAULT_BATCHING;
      const shards = plan.tables.length === 0 ? undefined : store.share?.(manifest);
      const pool = await ModelPool.start({
        ...{ model, data, plan, rowsMax, instances, logger },
        ...(shards && store.threads && { resident: { shards, threads: store.threads } }),
        ...(script === undefined ? {} : { script }),
      });
      return new LoadedBundle({ manifest, features, plan, keys, ids, bags, pool, golden }, source);
    } catch (error) {
      await store.retire(manifest);
      throw error;
    }
  }

  get version(): string {
    return this.manifest.version;
  }

  /** Asks the store again whether it can answer this version. @throws CubeError NOT_READY naming what is missing */
  confirm(): Promise<void> {
    return this.#store.prepare(this.manifest);
  }

  /** A request begins on this version; `leave` must follow. */
  enter(): void {
    this.#users++;
  }

  leave(): void {
    this.#users--;
    if (this.#users === 0) this.#onDrained?.();
  }

  /** Waits for the requests that began on it, then releases the graph. Nobody may enter any more. */
  async close(): Promise<void> {
    if (this.#users > 0) {
      await new Promise<void>((resolve) => {
        this.#onDrained = resolve;
      });
    }
    await this.pool.stop();
  }

  /** Closes it, and lets the store forget its tables: another version is served instead. */
  async retire(): Promise<void> {
    await this.close();
    await this.#store.retire(this.manifest);
  }
}

/** The files that the graph's tensors are in beside its own. */
async function readData(
  repository: Repository,
  { bundle, version, files }: Manifest,
): Promise<ReadonlyMap<string, Uint8Array>> {
  if (!files.some(({ path }) => path === DATA_FILE)) return new Map();
  return new Map([[DATA_FILE, await repository.readVersionFile(bundle, version, DATA_FILE)]]);
}

/** @throws CubeError UNSUPPORTED when one list of ids has several bags */
function bagsOf({ embeddings }: SlotSpec): Map<string, BagSpec> {
  const found = new Map<string, BagSpec>();
  for (const { ids, bags } of embeddings) {
    // A Paddle program's bags have their places (a LoD) in the tensor itself.
    if (bags === undefined || bags.offsets === ids) continue;
    const known = found.get(ids);
    if (
      known !== undefined &&
      (known.offsets !== bags.offsets || known.offsetsRow !== bags.offsetsRow)
    ) {
      throw new CubeError(
        'UNSUPPORTED',
        `the ids ${ids} are cut into bags by ${known.offsets} and by ${bags.offsets}: one list, one way`,
      );
    }
    found.set(ids, bags);
  }
  return found;
}

async function readSpec(repository: Repository, manifest: Manifest) {
  const { bundle, version } = manifest;
  const bytes = await repository.readVersionFile(bundle, version, SLOTS_FILE);
  return readSlotSpec(
    JsonReader.parse(new TextDecoder().decode(bytes), `${bundle} ${version}: ${SLOTS_FILE}`),
  );
}

/** The tables were built with the manifest's keys: a slot spec that makes others would answer from wrong rows. */
function checkSameKeys({ hash, slots }: FeatureSpec, manifest: Manifest): void {
  const sameHash =
    hash.scheme === manifest.hash.scheme &&
    hash.seed === manifest.hash.seed &&
    hash.modulo === manifest.hash.modulo;
  const sameSlots =
    slots.length === manifest.slots.length &&
    slots.every(({ name, index }, i) => {
      const other = manifest.slots[i]!;
      return name === other.name && index === other.index;
    });
  if (sameHash && sameSlots) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${manifest.bundle} ${manifest.version}: ${sameHash ? 'slots' : 'hash'} of slots.json and of manifest.json differ; build the version again`,
  );
}

async function readGolden(
  repository: Repository,
  { bundle, version, files }: Manifest,
  features: FeatureSpec,
): Promise<WarmUpRows> {
  if (!files.some(({ path }) => path === GOLDEN_FILE)) return syntheticRows(features);
  const bytes = await repository.readVersionFile(bundle, version, GOLDEN_FILE);
  return readWarmUpRows(new TextDecoder().decode(bytes), `${bundle} ${version}: ${GOLDEN_FILE}`);
}
