/**
 * One version, ready to answer: manifest, feature spec, graph instances and the store's promise of its tables. It is loaded, used,
 * drained and retired as one unit; a request holds it from start to end, so it finishes on the version it began with.
 */
import { CubeError } from '../lib/core/errors.ts';
import { parseJsonRows, type RowColumns } from '../lib/core/features.ts';
import { RowHasher } from '../lib/core/hash.ts';
import { JsonReader } from '../lib/core/json.ts';
import type { Manifest } from '../lib/core/manifest.ts';
import { type FeatureSpec, type IdsSpec, readSlotSpec } from '../lib/core/slots.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { Repository } from '../lib/repository/repository.ts';
import { BatchBufferPool } from './batch-buffers.ts';
import { ComputedKeys } from './computed-keys.ts';
import { type GraphPlan, planGraph } from './graph-plan.ts';
import { withFeatures } from './implied-features.ts';
import { ModelPool } from './model-pool.ts';
import type { EmbeddingStore } from './stores/embedding-store.ts';

/** Where bundles come from and what they are loaded into. */
export interface BundleSource {
  readonly repository: Repository;
  readonly bundle: string;
  readonly store: EmbeddingStore;
  readonly instances: number;
  readonly logger: Logger;
  /** The model worker's script; tests wrap it to make it die. */
  readonly workerScript?: URL;
}

const MODEL_FILE = 'model.onnx';
const SLOTS_FILE = 'slots.json';
/** Tensors of the graph that are not in its own bytes. */
const DATA_FILE = 'model.onnx.data';
const GOLDEN_FILE = 'golden.jsonl';
const GOLDEN_ROWS_MAX = 1_000;

export class LoadedBundle {
  readonly manifest: Manifest;
  readonly features: FeatureSpec;
  readonly plan: GraphPlan;
  readonly keys: ComputedKeys;
  /** Set when requests give ids by the names of the graph's ids inputs: it was pruned without features.json. */
  readonly ids: readonly IdsSpec[] | undefined;
  readonly pool: ModelPool;
  readonly hasher: RowHasher;
  readonly buffers: BatchBufferPool;
  /** Rows to try before the version answers anybody: the published golden rows, or a row of missing values. */
  readonly goldenRows: RowColumns;
  readonly #store: EmbeddingStore;
  #users = 0;
  #onDrained: (() => void) | undefined;

  private constructor(
    parts: Pick<
      LoadedBundle,
      'manifest' | 'features' | 'plan' | 'keys' | 'ids' | 'pool' | 'goldenRows'
    >,
    store: EmbeddingStore,
  ) {
    this.manifest = parts.manifest;
    this.features = parts.features;
    this.plan = parts.plan;
    this.keys = parts.keys;
    this.ids = parts.ids;
    this.pool = parts.pool;
    this.goldenRows = parts.goldenRows;
    this.hasher = new RowHasher(parts.features.hash, parts.features.slots);
    this.buffers = new BatchBufferPool(parts.plan, parts.pool.outputNum);
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
    const goldenRows = await readGoldenRows(repository, manifest, features);
    const model = await repository.readVersionFile(bundle, version, MODEL_FILE);
    const data = await readData(repository, manifest);
    await store.prepare(manifest);
    try {
      const script = source.workerScript;
      const pool = await ModelPool.start({
        model,
        data,
        plan,
        instances,
        logger,
        ...(script === undefined ? {} : { script }),
      });
      return new LoadedBundle({ manifest, features, plan, keys, ids, pool, goldenRows }, store);
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

async function readGoldenRows(
  repository: Repository,
  { bundle, version, files }: Manifest,
  features: FeatureSpec,
): Promise<RowColumns> {
  const source = `${bundle} ${version}: ${GOLDEN_FILE}`;
  if (!files.some(({ path }) => path === GOLDEN_FILE)) {
    // "0" is a feature under every hash scheme; raw has no missing ones.
    const categorical = features.slots.map(() => '0');
    const dense = features.dense?.features.map(() => null) ?? [];
    return parseJsonRows(JsonReader.of([{ dense, categorical }], source), features, 1);
  }
  const text = new TextDecoder().decode(
    await repository.readVersionFile(bundle, version, GOLDEN_FILE),
  );
  const lines = text.split('\n').filter((line) => line !== '');
  const rows = lines
    .slice(0, GOLDEN_ROWS_MAX)
    .map((line, i) => JsonReader.parse(line, `${source} line ${i + 1}`).value);
  return parseJsonRows(JsonReader.of(rows, source), features, GOLDEN_ROWS_MAX);
}
