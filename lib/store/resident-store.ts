/**
 * The versions that answer from memory. A version is a list of reference-counted layers named by their content, so
 * versions share what is equal: a graph-only version loads nothing. Loads run one at a time, beside lookups, and are
 * all or nothing: memory is accounted before the first byte is read, and a failed load leaves everything as it was.
 */
import { CubeError } from '../core/errors.ts';
import { bestKernelKind, type KernelKind } from '../core/kernels/kernels.ts';
import type { LayerHeader } from '../core/layer-format.ts';
import type { LayerRef, Manifest, TableRef } from '../core/manifest.ts';
import { systemClock } from '../platform/clock.ts';
import { LayerLoader } from './layer-loader.ts';
import { MemoryPool, type PooledMemory } from './memory-pool.ts';
import { memorySizes, ResidentLayer, segmentAddress, WORK_AT } from './resident-layer.ts';
import { LayerTable, type ResidentTable } from './resident-table.ts';

export interface ResidentStoreOptions {
  /** Layers, used and pooled, never take more. */
  readonly budgetBytes: number;
  /** For tests and benchmarks; otherwise the best there is. */
  readonly kernelKind?: KernelKind;
}

export interface LoadRequest {
  readonly manifest: Manifest;
  readonly shardIndex: number;
  readonly layerPath: (table: string, contentId: string) => string;
  /** Read no faster than this, so that lookups keep their share of the machine. */
  readonly bytesPerSecond?: number;
}

export interface LoadReport {
  readonly layersLoaded: number;
  /** Layers that another version, or this one, had in memory already. */
  readonly layersShared: number;
  /** Read from files. */
  readonly bytes: number;
  readonly durationMs: number;
}

export interface ResidentVersion {
  readonly bundle: string;
  readonly version: string;
  readonly manifest: Manifest;
  readonly shardIndex: number;
  /** Of this shard, over all tables. */
  readonly rows: number;
  /** Memory of its layers, shared ones included. */
  readonly bytes: number;
  table(name: string): ResidentTable | undefined;
}

/** A layer that a version names, and the table it is of. */
interface WantedLayer {
  readonly table: TableRef;
  readonly layer: LayerRef;
}

class LoadedVersion implements ResidentVersion {
  readonly bundle: string;
  readonly version: string;
  readonly manifest: Manifest;
  readonly shardIndex: number;
  readonly rows: number;
  readonly bytes: number;
  readonly layers: readonly ResidentLayer[];
  readonly #tables: ReadonlyMap<string, LayerTable>;

  constructor(manifest: Manifest, shardIndex: number, tables: readonly LayerTable[]) {
    this.bundle = manifest.bundle;
    this.version = manifest.version;
    this.manifest = manifest;
    this.shardIndex = shardIndex;
    this.layers = tables.map((table) => table.layer);
    this.rows = this.layers.reduce((sum, layer) => sum + layer.header.rowCount, 0);
    this.bytes = this.layers.reduce((sum, layer) => sum + layer.bytes, 0);
    this.#tables = new Map(tables.map((table) => [table.name, table]));
  }

  table(name: string): ResidentTable | undefined {
    return this.#tables.get(name);
  }
}

function versionKey(bundle: string, version: string): string {
  return `${bundle}/${version}`;
}

/** The layers of one shard of a version, one for each table. */
function wantedLayers(manifest: Manifest, shardIndex: number): WantedLayer[] {
  const name = `${manifest.bundle} ${manifest.version}`;
  return manifest.tables.map((table) => {
    const layers = table.shards[shardIndex];
    if (layers === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${name}: table ${table.name} has ${table.shardNum} shards; there is no shard ${shardIndex}`,
      );
    }
    const [layer, delta] = layers;
    if (layer === undefined || delta !== undefined || layer.kind !== 'base') {
      throw new CubeError(
        'UNSUPPORTED',
        `${name}: table ${table.name}: deltas are not loaded by this version of the software`,
      );
    }
    if (table.dtype !== 'f32') {
      throw new CubeError(
        'UNSUPPORTED',
        `${name}: table ${table.name}: dtype ${table.dtype} is not loaded by this version of the software`,
      );
    }
    return { table, layer };
  });
}

/** A file with another content than its manifest says is as bad as a damaged one. */
function checkHeader(header: LayerHeader, wanted: WantedLayer, shardIndex: number): void {
  const { table, layer } = wanted;
  if (header.layout === 'indexed') {
    throw new CubeError(
      'UNSUPPORTED',
      `table ${table.name}, layer ${layer.contentId}: layout indexed is not loaded by this version of the software`,
    );
  }
  const expected = {
    table: table.name,
    kind: layer.kind,
    dim: table.dim,
    dtype: table.dtype,
    shardIndex,
    shardNum: table.shardNum,
    contentId: layer.contentId,
    rowCount: layer.rows,
  };
  for (const [field, value] of Object.entries(expected)) {
    const found = header[field as keyof typeof expected];
    if (found === value) continue;
    throw new CubeError(
      'CORRUPT',
      `table ${table.name}, layer ${layer.contentId}: ${field} is ${found}, the manifest says ${value}; fetch it again`,
    );
  }
}

export class ResidentStore {
  readonly #pool: MemoryPool;
  readonly #kernelKind: KernelKind;
  readonly #loader = new LayerLoader();
  readonly #layers = new Map<string, ResidentLayer>();
  readonly #versions = new Map<string, LoadedVersion>();
  readonly #loading = new Map<string, Promise<LoadReport>>();
  #lastLoad: Promise<unknown> = Promise.resolve();

  constructor(options: ResidentStoreOptions) {
    this.#kernelKind = options.kernelKind ?? bestKernelKind();
    this.#pool = new MemoryPool(options.budgetBytes, this.#kernelKind);
  }

  /**
   * Makes a version resident; it answers pinned lookups from then on. Loading one that is resident or being loaded is
   * no second load.
   * @throws CubeError TOO_LARGE or OVERLOADED when it does not fit the budget; CORRUPT, UNSUPPORTED, NOT_FOUND for a file
   */
  load(request: LoadRequest): Promise<LoadReport> {
    const key = versionKey(request.manifest.bundle, request.manifest.version);
    const running = this.#loading.get(key);
    if (running !== undefined) return running;
    const load = this.#lastLoad
      .then(() => this.#loadVersion(request))
      .finally(() => this.#loading.delete(key));
    this.#lastLoad = load.catch(() => undefined);
    this.#loading.set(key, load);
    return load;
  }

  version(bundle: string, version: string): ResidentVersion | undefined {
    return this.#versions.get(versionKey(bundle, version));
  }

  versions(): readonly ResidentVersion[] {
    return [...this.#versions.values()];
  }

  /** Forgets a version and frees the layers that no other names. @returns false when it is not resident */
  unload(bundle: string, version: string): boolean {
    const key = versionKey(bundle, version);
    const loaded = this.#versions.get(key);
    if (loaded === undefined) return false;
    this.#versions.delete(key);
    for (const layer of loaded.layers) this.#release(layer);
    return true;
  }

  /** `pooledBytes` are memories kept for the next load; used and pooled together stay within the budget. */
  memory(): { budgetBytes: number; usedBytes: number; pooledBytes: number } {
    const { budgetBytes, usedBytes, pooledBytes } = this.#pool;
    return { budgetBytes, usedBytes, pooledBytes };
  }

  /** Ends loading for good: a load under way, waiting or asked later fails with STOPPING. Resident versions go on answering. */
  close(): Promise<void> {
    return this.#loader.stop();
  }

  async #loadVersion(request: LoadRequest): Promise<LoadReport> {
    const startMs = systemClock.nowMs();
    const { manifest, shardIndex } = request;
    const wanted = wantedLayers(manifest, shardIndex);
    const resident = this.#versions.get(versionKey(manifest.bundle, manifest.version));
    if (resident !== undefined) {
      return this.#alreadyLoaded(resident, wanted, shardIndex, startMs);
    }
    const shared = this.#sharedLayers(wanted, shardIndex);
    for (const layer of shared) layer.references += 1;
    try {
      const missing = wanted.filter(({ layer }) => !this.#layers.has(layer.contentId));
      const loaded = await this.#loadLayers(request, missing);
      this.#addVersion(request, wanted, [...shared, ...loaded]);
      return {
        layersLoaded: loaded.length,
        layersShared: shared.length,
        bytes: loaded.reduce((sum, { header }) => sum + header.fileBytes, 0),
        durationMs: systemClock.nowMs() - startMs,
      };
    } catch (error) {
      for (const layer of shared) this.#release(layer);
      throw error;
    }
  }

  #alreadyLoaded(
    resident: LoadedVersion,
    wanted: readonly WantedLayer[],
    shardIndex: number,
    startMs: number,
  ): LoadReport {
    const same =
      resident.shardIndex === shardIndex &&
      resident.layers.length === wanted.length &&
      wanted.every(({ layer }, i) => resident.layers[i]!.header.contentId === layer.contentId);
    if (!same) {
      throw new CubeError(
        'CONFLICT',
        `${resident.bundle} ${resident.version} is resident with other layers; a version never changes, use a new name`,
      );
    }
    const durationMs = systemClock.nowMs() - startMs;
    return { layersLoaded: 0, layersShared: wanted.length, bytes: 0, durationMs };
  }

  #sharedLayers(wanted: readonly WantedLayer[], shardIndex: number): ResidentLayer[] {
    return wanted.flatMap((one) => {
      const layer = this.#layers.get(one.layer.contentId);
      if (layer === undefined) return [];
      checkHeader(layer.header, one, shardIndex);
      return [layer];
    });
  }

  /** Reads layers that are not resident, all or none. They come back with one reference each. */
  async #loadLayers(
    request: LoadRequest,
    missing: readonly WantedLayer[],
  ): Promise<ResidentLayer[]> {
    const { manifest, shardIndex, layerPath } = request;
    const paths = missing.map(({ table, layer }) => layerPath(table.name, layer.contentId));
    const headers: LayerHeader[] = [];
    for (const [i, path] of paths.entries()) {
      const header = await this.#loader.inspect(path);
      checkHeader(header, missing[i]!, shardIndex);
      headers.push(header);
    }
    const what = `${manifest.bundle} ${manifest.version}`;
    const memories = this.#pool.acquireAll(headers.flatMap(memorySizes), what);
    try {
      const layers: ResidentLayer[] = [];
      const unfilled = memories.values();
      for (const [i, header] of headers.entries()) {
        const own = header.segments.map(() => unfilled.next().value!);
        layers.push(await this.#loadLayer(request, paths[i]!, header, own));
      }
      for (const layer of layers) {
        layer.references = 1;
        this.#layers.set(layer.header.contentId, layer);
      }
      return layers;
    } catch (error) {
      for (const memory of memories) this.#pool.release(memory);
      throw error;
    }
  }

  async #loadLayer(
    request: LoadRequest,
    path: string,
    header: LayerHeader,
    memories: readonly PooledMemory[],
  ): Promise<ResidentLayer> {
    if (memories.length > 0) {
      await this.#loader.fill({
        path,
        header,
        memories: memories.map(({ memory }) => memory),
        address: segmentAddress(header),
        hashAt: WORK_AT,
        kernelKind: this.#kernelKind,
        bytesPerSecond: request.bytesPerSecond,
      });
    }
    return new ResidentLayer(header, memories, path);
  }

  #addVersion(
    request: LoadRequest,
    wanted: readonly WantedLayer[],
    layers: readonly ResidentLayer[],
  ): void {
    const { manifest, shardIndex } = request;
    const byContent = new Map(layers.map((layer) => [layer.header.contentId, layer]));
    const tables = wanted.map(
      ({ table, layer }) => new LayerTable(table, byContent.get(layer.contentId)!),
    );
    const version = new LoadedVersion(manifest, shardIndex, tables);
    this.#versions.set(versionKey(manifest.bundle, manifest.version), version);
  }

  #release(layer: ResidentLayer): void {
    layer.references -= 1;
    if (layer.references > 0) return;
    this.#layers.delete(layer.header.contentId);
    for (const memory of layer.memories) this.#pool.release(memory);
  }
}
