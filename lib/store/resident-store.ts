/**
 * What is in memory: versions as chains of reference-counted layers named by their content, so that versions share what
 * is equal: a delta costs itself, a graph-only version nothing. Loads run one at a time, beside lookups, and are all or
 * nothing: memory is accounted before the first byte is read, and a failed load leaves everything as it was.
 */
import { CubeError } from '../core/errors.ts';
import { bestKernelKind, type KernelKind } from '../core/kernels/kernels.ts';
import type { LayerRef, Manifest } from '../core/manifest.ts';
import { systemClock } from '../platform/clock.ts';
import { faultPoint } from '../platform/fault-point.ts';
import { DiskIo } from './disk-io.ts';
import { DiskRows } from './disk-rows.ts';
import { type InspectedLayer, LayerFiles } from './layer-files.ts';
import { LayerLoader } from './layer-loader.ts';
import { MemoryPool, type PooledMemory } from './memory-pool.ts';
import { prepareMemories, ResidentLayer } from './resident-layer.ts';
import { LoadedVersion, type ResidentVersion, type TableLayers } from './resident-version.ts';
import { layOutScratch, threadAddress } from './scratch.ts';
import { describeVersion, type SharedVersion } from './shared-version.ts';
import { checkHeader, type WantedLayer, wantedLayers } from './wanted-layers.ts';

export interface ResidentStoreOptions {
  /** Layers, used and pooled, never take more. */
  readonly budgetBytes: number;
  /** Threads that may look up at the same time, this one included: each takes about 64 KiB of every memory. */
  readonly threads?: number;
  /** Rows stay in their files where the layout lets them, unless a load says otherwise. */
  readonly rowsOnDisk?: boolean;
  /** Loads read no faster than this, unless they say otherwise. */
  readonly bytesPerSecond?: number;
  /** Called once for each block on disk that is found damaged. */
  readonly onDamage?: (error: CubeError) => void;
  /** For tests and benchmarks; otherwise the best there is. */
  readonly kernelKind?: KernelKind;
  /** Another store, of another shard, with which this one shares memory budget and load thread: either's `close` is both's. */
  readonly beside?: ResidentStore;
}

/** The area of the memories that the store's own thread uses. */
const MAIN_THREAD = 0;
/** A load must leave lookups their share of the cores and of the memory's bandwidth: measured in docs/performance.md. */
export const DEFAULT_LOAD_BYTES_PER_SECOND: number = 2 ** 28;

export interface LoadRequest {
  readonly manifest: Manifest;
  readonly shardIndex: number;
  readonly layerPath: (table: string, contentId: string) => string;
  readonly bytesPerSecond?: number;
  readonly rowsOnDisk?: boolean;
}

export interface LoadReport {
  readonly layersLoaded: number;
  /** Layers that another version, or this one, had in memory already. */
  readonly layersShared: number;
  /** Of the files that were loaded. */
  readonly bytes: number;
  /** Bases whose rows were to stay on disk and are in memory: their layout has them beside their keys. */
  readonly inMemory: readonly string[];
  readonly durationMs: number;
}

/** What a load would need, before anything is changed. */
export interface LoadPlan {
  /** Memory that it takes beside what is used now. */
  readonly neededBytes: number;
  /** Of the budget, not used by a version. */
  readonly unusedBytes: number;
  readonly fits: boolean;
  /** Memory that unloading these versions would free, if the load came next: layers that it shares stay. */
  freedBy(versions: readonly Pick<ResidentVersion, 'bundle' | 'version'>[]): number;
}

function versionKey({ bundle, version }: Pick<ResidentVersion, 'bundle' | 'version'>): string {
  return `${bundle}/${version}`;
}

function isInlineBase({ header }: ResidentLayer): boolean {
  return header.layout === 'inline' && header.kind === 'base' && header.rowCount > 0;
}

function nameOf({ header }: ResidentLayer): string {
  return `table ${header.table}, layer ${header.contentId}`;
}

/** A layer whose rows stay on disk is another one than the same in memory. */
function layerKey(contentId: string, onDisk: boolean): string {
  return onDisk ? `${contentId} on disk` : contentId;
}

export class ResidentStore {
  readonly #options: ResidentStoreOptions;
  readonly #threads: number;
  readonly #kernelKind: KernelKind;
  readonly #pool: MemoryPool;
  readonly #loader: LayerLoader;
  readonly #disk: DiskIo;
  readonly #layers = new Map<string, ResidentLayer>();
  readonly #versions = new Map<string, LoadedVersion>();
  readonly #loading = new Map<string, Promise<LoadReport>>();
  #lastLoad: Promise<unknown> = Promise.resolve();

  constructor(options: ResidentStoreOptions) {
    this.#options = options;
    this.#threads = options.threads ?? 1;
    this.#kernelKind = options.kernelKind ?? bestKernelKind();
    const { beside } = options;
    this.#pool = beside ? beside.#pool : new MemoryPool(options.budgetBytes, this.#kernelKind);
    this.#loader = beside ? beside.#loader : new LayerLoader();
    this.#disk = new DiskIo(options.onDamage);
  }

  /**
   * Makes a version resident; it answers pinned lookups from then on. Loading one that is resident or being loaded is
   * no second load.
   * @throws CubeError TOO_LARGE or OVERLOADED when it does not fit the budget; CORRUPT, UNSUPPORTED, NOT_FOUND for a file
   */
  load(request: LoadRequest): Promise<LoadReport> {
    const key = versionKey(request.manifest);
    const running = this.#loading.get(key);
    if (running !== undefined) return running;
    const load = this.#lastLoad
      .then(() => this.#loadVersion(request))
      .finally(() => this.#loading.delete(key));
    this.#lastLoad = load.catch(() => undefined);
    this.#loading.set(key, load);
    return load;
  }

  /**
   * What `load` would need now, from the headers of the files. A caller whose load does not fit may unload versions first.
   * @throws CubeError as `load` does for its files
   */
  async planLoad(request: LoadRequest): Promise<LoadPlan> {
    const { manifest, shardIndex } = request;
    const wanted = wantedLayers(manifest, shardIndex);
    const files = this.#layerFiles(request);
    let neededBytes = 0;
    try {
      for (const one of this.#missing(wanted, files.rowsOnDisk)) {
        const { placement } = await files.inspect(one);
        neededBytes += MemoryPool.bytesFor(placement.memories);
      }
    } finally {
      files.close();
    }
    const unusedBytes = this.#pool.budgetBytes - this.#pool.usedBytes;
    return {
      neededBytes,
      unusedBytes,
      fits: neededBytes <= unusedBytes,
      freedBy: (versions) => this.#freedBy(versions, wanted),
    };
  }

  version(bundle: string, version: string): ResidentVersion | undefined {
    return this.#versions.get(versionKey({ bundle, version }));
  }

  versions(): readonly ResidentVersion[] {
    return [...this.#versions.values()];
  }

  /**
   * A resident version as something to post to a worker thread, which looks up in the same memories by `attachShared`.
   * Let every thread forget it before it is unloaded.
   * @throws CubeError VERSION_ABSENT
   */
  share(bundle: string, version: string): SharedVersion {
    const loaded = this.#versions.get(versionKey({ bundle, version }));
    if (loaded === undefined) {
      throw new CubeError('VERSION_ABSENT', `${bundle} ${version} is not resident: load it first`);
    }
    return describeVersion(loaded, this.#threads, this.#kernelKind);
  }

  /** Forgets a version and frees the layers that no other names. @returns false when it is not resident */
  unload(bundle: string, version: string): boolean {
    const key = versionKey({ bundle, version });
    const loaded = this.#versions.get(key);
    if (loaded === undefined) return false;
    this.#versions.delete(key);
    for (const layer of loaded.ownLayers) this.#release(layer);
    return true;
  }

  /**
   * `pooledBytes` are memories kept for the next load; used and pooled together stay within the budget. Rows on disk
   * are beside it.
   */
  memory(): {
    budgetBytes: number;
    usedBytes: number;
    pooledBytes: number;
    bytesOnDisk: number;
    damagedBlocks: number;
  } {
    const { budgetBytes, usedBytes, pooledBytes } = this.#pool;
    const bytesOnDisk = [...this.#layers.values()].reduce((sum, one) => sum + one.bytesOnDisk, 0);
    const { damagedBlocks } = this.#disk;
    return { budgetBytes, usedBytes, pooledBytes, bytesOnDisk, damagedBlocks };
  }

  /** Ends loading for good: a load under way, waiting or asked later fails with STOPPING. Resident versions go on answering. */
  close(): Promise<void> {
    return this.#loader.stop();
  }

  async #loadVersion(request: LoadRequest): Promise<LoadReport> {
    const startMs = systemClock.nowMs();
    const { manifest, shardIndex } = request;
    const wanted = wantedLayers(manifest, shardIndex);
    const resident = this.#versions.get(versionKey(manifest));
    if (resident !== undefined) {
      return this.#alreadyLoaded(resident, wanted, shardIndex, startMs);
    }
    const files = this.#layerFiles(request);
    const shared = this.#sharedLayers(wanted, shardIndex, files.rowsOnDisk);
    for (const layer of shared) layer.references += 1;
    try {
      const missing = this.#missing(wanted, files.rowsOnDisk);
      const loaded = await this.#loadLayers(request, missing, files);
      this.#addVersion(request, wanted, [...shared, ...loaded]);
      return {
        layersLoaded: loaded.length,
        layersShared: shared.length,
        bytes: loaded.reduce((sum, { header }) => sum + header.fileBytes, 0),
        inMemory: files.rowsOnDisk ? loaded.filter(isInlineBase).map(nameOf) : [],
        durationMs: systemClock.nowMs() - startMs,
      };
    } catch (error) {
      for (const layer of shared) this.#release(layer);
      throw error;
    } finally {
      files.close();
    }
  }

  #alreadyLoaded(
    resident: LoadedVersion,
    wanted: readonly WantedLayer[],
    shardIndex: number,
    startMs: number,
  ): LoadReport {
    const { ownLayers } = resident;
    const same =
      resident.shardIndex === shardIndex &&
      ownLayers.length === wanted.length &&
      wanted.every(({ layer }, i) => ownLayers[i]!.header.contentId === layer.contentId);
    if (!same) {
      throw new CubeError(
        'CONFLICT',
        `${resident.bundle} ${resident.version} is resident with other layers; a version never changes, use a new name`,
      );
    }
    const durationMs = systemClock.nowMs() - startMs;
    return { layersLoaded: 0, layersShared: wanted.length, bytes: 0, inMemory: [], durationMs };
  }

  #layerFiles({ shardIndex, layerPath, rowsOnDisk }: LoadRequest): LayerFiles {
    return new LayerFiles({
      ...{ loader: this.#loader, shardIndex, layerPath, threads: this.#threads },
      rowsOnDisk: rowsOnDisk ?? this.#options.rowsOnDisk ?? false,
    });
  }

  /** A layer in memory serves who would have it on disk, too. */
  #resident({ contentId }: LayerRef, rowsOnDisk: boolean): ResidentLayer | undefined {
    return (
      this.#layers.get(layerKey(contentId, false)) ??
      (rowsOnDisk ? this.#layers.get(layerKey(contentId, true)) : undefined)
    );
  }

  #missing(wanted: readonly WantedLayer[], rowsOnDisk: boolean): WantedLayer[] {
    return wanted.filter(({ layer }) => this.#resident(layer, rowsOnDisk) === undefined);
  }

  #sharedLayers(
    wanted: readonly WantedLayer[],
    shardIndex: number,
    rowsOnDisk: boolean,
  ): ResidentLayer[] {
    return wanted.flatMap((one) => {
      const layer = this.#resident(one.layer, rowsOnDisk);
      if (layer === undefined) return [];
      checkHeader(layer.header, one, shardIndex);
      return [layer];
    });
  }

  #freedBy(
    versions: readonly Pick<ResidentVersion, 'bundle' | 'version'>[],
    wanted: readonly WantedLayer[],
  ): number {
    const kept = new Set(wanted.map(({ layer }) => layer.contentId));
    const named = new Map<ResidentLayer, number>();
    for (const key of new Set(versions.map(versionKey))) {
      for (const layer of this.#versions.get(key)?.ownLayers ?? []) {
        named.set(layer, (named.get(layer) ?? 0) + 1);
      }
    }
    let bytes = 0;
    for (const [layer, count] of named) {
      if (count === layer.references && !kept.has(layer.header.contentId)) bytes += layer.bytes;
    }
    return bytes;
  }

  /** Reads layers that are not resident, all or none. They come back with one reference each. */
  async #loadLayers(
    request: LoadRequest,
    missing: readonly WantedLayer[],
    files: LayerFiles,
  ): Promise<ResidentLayer[]> {
    const inspected: InspectedLayer[] = [];
    for (const one of missing) inspected.push(await files.inspect(one));
    const what = `${request.manifest.bundle} ${request.manifest.version}`;
    const sizes = inspected.flatMap(({ placement }) => placement.memories);
    const memories = this.#pool.acquireAll(sizes, what);
    try {
      const layers: ResidentLayer[] = [];
      let at = 0;
      for (const one of inspected) {
        const own = memories.slice(at, at + one.placement.memories.length);
        at += own.length;
        layers.push(await this.#loadLayer(request, one, own));
        faultPoint('server.layer');
      }
      for (const [i, layer] of layers.entries()) {
        const { file } = inspected[i]!;
        if (file !== undefined) files.keep(file);
        layer.references = 1;
        this.#layers.set(layerKey(layer.header.contentId, file !== undefined), layer);
      }
      return layers;
    } catch (error) {
      for (const memory of memories) this.#pool.release(memory);
      throw error;
    }
  }

  async #loadLayer(
    request: LoadRequest,
    { path, header, checksums, placement, file }: InspectedLayer,
    memories: readonly PooledMemory[],
  ): Promise<ResidentLayer> {
    let filter: Uint32Array | undefined;
    if (placement.sections.length > 0) {
      const filling = await this.#loader.fill({
        ...{ path, header, descriptor: file?.descriptor },
        sections: placement.sections,
        memories: memories.map(({ memory }) => memory),
        hashAt: threadAddress(layOutScratch(header), 0),
        kernelKind: this.#kernelKind,
        bytesPerSecond:
          request.bytesPerSecond ?? this.#options.bytesPerSecond ?? DEFAULT_LOAD_BYTES_PER_SECOND,
      });
      filter = filling.filter;
    }
    prepareMemories(header, placement, memories, path);
    const disk = file && new DiskRows(header, file, checksums, this.#disk);
    return new ResidentLayer(header, placement, memories, filter, disk);
  }

  #addVersion(
    request: LoadRequest,
    wanted: readonly WantedLayer[],
    layers: readonly ResidentLayer[],
  ): void {
    const { manifest, shardIndex } = request;
    const byContent = new Map(layers.map((layer) => [layer.header.contentId, layer]));
    const tables = manifest.tables.map((table): TableLayers => {
      const own = wanted.filter((one) => one.table === table);
      return { table, layers: own.map(({ layer }) => byContent.get(layer.contentId)!) };
    });
    const version = new LoadedVersion(manifest, shardIndex, tables, MAIN_THREAD);
    this.#versions.set(versionKey(manifest), version);
  }

  #release(layer: ResidentLayer): void {
    layer.references -= 1;
    if (layer.references > 0) return;
    this.#layers.delete(layerKey(layer.header.contentId, layer.disk !== undefined));
    layer.disk?.close();
    for (const memory of layer.memories) this.#pool.release(memory);
  }
}
