/**
 * Versions in memory. A version is a chain of reference-counted layers that are named by their
 * content, so that versions share equal layers: a delta costs only itself, a graph-only version
 * nothing. Loads run one at a time, concurrently with lookups, and are all or nothing: memory is
 * reserved before the first byte is read, and a failed load changes nothing.
 */

import { CubeError, requireDefined } from '../core/errors.ts';
import { detectKernelKind, type KernelKind } from '../core/kernels/kernels.ts';
import type { LayerRef, Manifest } from '../core/manifest.ts';
import { versionKey } from '../core/names.ts';
import { systemClock } from '../platform/clock.ts';
import { faultPoint } from '../platform/fault-point.ts';
import { DiskIo } from './disk-io.ts';
import { DiskRows } from './disk-rows.ts';
import { LayerLoader } from './layer-loader.ts';
import {
  checkLayerHeader,
  type InspectedLayer,
  LoadFiles,
  listRequiredLayers,
  type RequiredLayer,
} from './load-files.ts';
import type { LoadProgress } from './load-progress.ts';
import { MemoryPool, type PooledMemory } from './memory-pool.ts';
import { initializeMemories, ResidentLayer } from './resident-layer.ts';
import { ChainVersion, type ResidentVersion, type TableLayers } from './resident-version.ts';
import { computeScratchLayout, computeThreadAddress } from './scratch-layout.ts';
import { describeVersion, type SharedVersion } from './shared-version.ts';

export interface ResidentStoreOptions {
  /** Memory limit for layers, used and pooled, in bytes. */
  readonly budgetBytes: number;
  /**
   * Threads that may look up concurrently, this one included; each takes about 64 KiB of every
   * memory.
   */
  readonly threads?: number;
  /** Keep rows in their files where the layout allows it. A load may override this. */
  readonly rowsOnDisk?: boolean;
  /** Maximum read rate of loads. A load may override this. */
  readonly bytesPerSecond?: number;
  /** Called once for each damaged block on disk. */
  readonly onDamage?: (error: CubeError) => void;
  /** For tests and benchmarks; default: the fastest available. */
  readonly kernelKind?: KernelKind;
  /**
   * A store of another shard, with which this one shares memory budget and load thread. Closing one
   * store closes both.
   */
  readonly sharedWith?: ResidentStore;
}

/** Thread area that the store's own thread uses. */
const MAIN_THREAD = 0;
/** Leaves lookups enough of the cores and the memory bandwidth: measured in docs/performance.md. */
export const DEFAULT_LOAD_BYTES_PER_SECOND: number = 2 ** 28;

export interface LoadRequest {
  readonly manifest: Manifest;
  readonly shardIndex: number;
  readonly layerPath: (table: string, contentId: string) => string;
  readonly bytesPerSecond?: number;
  readonly rowsOnDisk?: boolean;
  /** Counts the bytes that this load reads. */
  readonly progress?: LoadProgress;
}

export interface LoadReport {
  readonly layersLoaded: number;
  /** Layers that were already in memory. */
  readonly layersShared: number;
  /** Size of the loaded files. */
  readonly bytes: number;
  /**
   * Bases that stay in memory although rows were to stay on disk, because their layout is inline.
   */
  readonly inMemory: readonly string[];
  readonly durationMs: number;
}

/** What a load would need; computing it changes nothing. */
export interface LoadPlan {
  /** Additional memory that the load needs. */
  readonly neededBytes: number;
  /** Budget not used by any version. */
  readonly unusedBytes: number;
  readonly fits: boolean;
  /**
   * Memory that unloading these versions would free before this load; layers that the load shares
   * stay.
   */
  computeFreedBytes(versions: readonly Pick<ResidentVersion, 'bundle' | 'version'>[]): number;
}

function countBytes(layers: readonly InspectedLayer[]): number {
  const sections = layers.flatMap(({ placement }) => placement.sections);
  return sections.reduce((sum, { bytes }) => sum + bytes, 0);
}

function isInlineBase({ header }: ResidentLayer): boolean {
  return header.layout === 'inline' && header.kind === 'base' && header.rowCount > 0;
}

function describeLayer({ header }: ResidentLayer): string {
  return `table ${header.table}, layer ${header.contentId}`;
}

/** The same layer in memory and on disk is two entries. */
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
  readonly #versions = new Map<string, ChainVersion>();
  readonly #loading = new Map<string, Promise<LoadReport>>();
  #lastLoad: Promise<unknown> = Promise.resolve();

  constructor(options: ResidentStoreOptions) {
    this.#options = options;
    this.#threads = options.threads ?? 1;
    this.#kernelKind = options.kernelKind ?? detectKernelKind();
    const { sharedWith } = options;
    this.#pool = sharedWith
      ? sharedWith.#pool
      : new MemoryPool(options.budgetBytes, this.#kernelKind);
    this.#loader = sharedWith ? sharedWith.#loader : new LayerLoader();
    this.#disk = new DiskIo(options.onDamage);
  }

  /**
   * Makes a version resident, after which it answers pinned lookups. A version that is resident or
   * being loaded is not loaded again.
   * @throws CubeError TOO_LARGE or OVERLOADED when it does not fit the budget; CORRUPT, UNSUPPORTED
   *   or NOT_FOUND for a file
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
   * Computes what `load` would need now, from file headers. If it does not fit, the caller may
   * unload versions first.
   * @throws CubeError as `load` does for its files
   */
  async planLoad(request: LoadRequest): Promise<LoadPlan> {
    const { manifest, shardIndex } = request;
    const required = listRequiredLayers(manifest, shardIndex);
    const files = this.#layerFiles(request);
    let neededBytes = 0;
    try {
      for (const one of this.#listMissing(required, files.rowsOnDisk)) {
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
      computeFreedBytes: (versions) => this.#computeFreedBytes(versions, required),
    };
  }

  version(bundle: string, version: string): ResidentVersion | undefined {
    return this.#versions.get(versionKey({ bundle, version }));
  }

  versions(): readonly ResidentVersion[] {
    return [...this.#versions.values()];
  }

  /**
   * A description of a resident version for a worker thread, which looks up in the same memories
   * through `attachSharedVersion`. All threads must detach before the version is unloaded.
   * @throws CubeError VERSION_ABSENT
   */
  share(bundle: string, version: string): SharedVersion {
    const loaded = this.#versions.get(versionKey({ bundle, version }));
    if (loaded === undefined) {
      throw new CubeError('VERSION_ABSENT', `${bundle} ${version} is not resident: load it first`);
    }
    return describeVersion(loaded, this.#threads, this.#kernelKind);
  }

  /**
   * Unloads a version and frees layers that no other version uses. @returns false when it is not
   * resident
   */
  unload(bundle: string, version: string): boolean {
    const key = versionKey({ bundle, version });
    const loaded = this.#versions.get(key);
    if (loaded === undefined) return false;
    this.#versions.delete(key);
    for (const layer of loaded.allLayers) this.#release(layer);
    return true;
  }

  /**
   * `pooledBytes` is memory kept for the next load; used plus pooled bytes stay within the budget.
   * Rows on disk are not counted.
   */
  getMemoryUsage(): {
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

  /**
   * Ends loading for good: loads in progress, waiting or later fail with STOPPING. Resident
   * versions keep answering.
   */
  close(): Promise<void> {
    return this.#loader.stop();
  }

  async #loadVersion(request: LoadRequest): Promise<LoadReport> {
    const startMs = systemClock.nowMs();
    const { manifest, shardIndex } = request;
    const required = listRequiredLayers(manifest, shardIndex);
    const resident = this.#versions.get(versionKey(manifest));
    if (resident !== undefined) {
      return this.#reportAlreadyLoaded(resident, required, shardIndex, startMs);
    }
    const files = this.#layerFiles(request);
    const shared = this.#findSharedLayers(required, shardIndex, files.rowsOnDisk);
    for (const layer of shared) layer.references += 1;
    const held = [...shared];
    try {
      const missing = this.#listMissing(required, files.rowsOnDisk);
      const loaded = await this.#loadLayers(request, missing, files);
      held.push(...loaded);
      this.#addVersion(request, required, held);
      return {
        layersLoaded: loaded.length,
        layersShared: shared.length,
        bytes: loaded.reduce((sum, { header }) => sum + header.fileBytes, 0),
        inMemory: files.rowsOnDisk ? loaded.filter(isInlineBase).map(describeLayer) : [],
        durationMs: systemClock.nowMs() - startMs,
      };
    } catch (error) {
      for (const layer of held) this.#release(layer);
      throw error;
    } finally {
      files.close();
    }
  }

  #reportAlreadyLoaded(
    resident: ChainVersion,
    required: readonly RequiredLayer[],
    shardIndex: number,
    startMs: number,
  ): LoadReport {
    const { allLayers } = resident;
    const same =
      resident.shardIndex === shardIndex &&
      allLayers.length === required.length &&
      required.every(({ layer }, i) => allLayers[i]!.header.contentId === layer.contentId);
    if (!same) {
      throw new CubeError(
        'CONFLICT',
        `${resident.bundle} ${resident.version} is resident with other layers; ` +
          'a version never changes, publish it under a new name',
      );
    }
    const durationMs = systemClock.nowMs() - startMs;
    return { layersLoaded: 0, layersShared: required.length, bytes: 0, inMemory: [], durationMs };
  }

  #layerFiles({ manifest, shardIndex, layerPath, rowsOnDisk }: LoadRequest): LoadFiles {
    return new LoadFiles({
      loader: this.#loader,
      manifest,
      shardIndex,
      layerPath,
      threads: this.#threads,
      rowsOnDisk: rowsOnDisk ?? this.#options.rowsOnDisk ?? false,
    });
  }

  /** A layer in memory also serves versions with rows on disk. */
  #findResident({ contentId }: LayerRef, rowsOnDisk: boolean): ResidentLayer | undefined {
    return (
      this.#layers.get(layerKey(contentId, false)) ??
      (rowsOnDisk ? this.#layers.get(layerKey(contentId, true)) : undefined)
    );
  }

  #listMissing(required: readonly RequiredLayer[], rowsOnDisk: boolean): RequiredLayer[] {
    return required.filter(({ layer }) => this.#findResident(layer, rowsOnDisk) === undefined);
  }

  #findSharedLayers(
    required: readonly RequiredLayer[],
    shardIndex: number,
    rowsOnDisk: boolean,
  ): ResidentLayer[] {
    return required.flatMap((one) => {
      const layer = this.#findResident(one.layer, rowsOnDisk);
      if (layer === undefined) return [];
      checkLayerHeader(layer.header, one, shardIndex);
      return [layer];
    });
  }

  #computeFreedBytes(
    versions: readonly Pick<ResidentVersion, 'bundle' | 'version'>[],
    required: readonly RequiredLayer[],
  ): number {
    const kept = new Set(required.map(({ layer }) => layer.contentId));
    const named = new Map<ResidentLayer, number>();
    for (const key of new Set(versions.map(versionKey))) {
      for (const layer of this.#versions.get(key)?.allLayers ?? []) {
        named.set(layer, (named.get(layer) ?? 0) + 1);
      }
    }
    let bytes = 0;
    for (const [layer, count] of named) {
      if (count === layer.references && !kept.has(layer.header.contentId)) bytes += layer.bytes;
    }
    return bytes;
  }

  /** Reads missing layers, all or none. Each returned layer has one reference. */
  async #loadLayers(
    request: LoadRequest,
    missing: readonly RequiredLayer[],
    files: LoadFiles,
  ): Promise<ResidentLayer[]> {
    const inspected: InspectedLayer[] = [];
    for (const one of missing) inspected.push(await files.inspect(one));
    if (request.progress !== undefined) request.progress.totalBytes = countBytes(inspected);
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
    { path, header, checksums, placement, file, dataKey }: InspectedLayer,
    memories: readonly PooledMemory[],
  ): Promise<ResidentLayer> {
    let filter: Uint32Array | undefined;
    if (placement.sections.length > 0) {
      const filling = await this.#loader.fill({
        path,
        header,
        descriptor: file?.descriptor,
        dataKey,
        sections: placement.sections,
        memories: memories.map(({ memory }) => memory),
        hashAddress: computeThreadAddress(computeScratchLayout(header), 0),
        kernelKind: this.#kernelKind,
        bytesPerSecond:
          request.bytesPerSecond ?? this.#options.bytesPerSecond ?? DEFAULT_LOAD_BYTES_PER_SECOND,
        progress: request.progress?.words,
      });
      filter = filling.filter;
    }
    initializeMemories(header, placement, memories, path);
    const disk = file && new DiskRows(header, file, checksums, this.#disk);
    return new ResidentLayer(header, placement, memories, filter, disk);
  }

  #addVersion(
    request: LoadRequest,
    required: readonly RequiredLayer[],
    layers: readonly ResidentLayer[],
  ): void {
    const { manifest, shardIndex } = request;
    const byContent = new Map(layers.map((layer) => [layer.header.contentId, layer]));
    const tables = manifest.tables.map((table): TableLayers => {
      const own = required.filter((one) => one.table === table);
      const find = ({ layer: { contentId } }: RequiredLayer): ResidentLayer =>
        requireDefined(byContent.get(contentId), `layer ${contentId}`);
      return { table, layers: own.map(find) };
    });
    const version = new ChainVersion(manifest, shardIndex, tables, MAIN_THREAD);
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
