/**
 * A resident version in another thread: the same memories, another area of each, files opened again. The description
 * can be posted to a worker thread; what is made of it there is read only.
 */
import { CubeError } from '../core/errors.ts';
import type { KernelKind } from '../core/kernels/kernels.ts';
import type { LayerHeader } from '../core/layer-format.ts';
import type { Manifest } from '../core/manifest.ts';
import { RandomReader } from '../platform/files.ts';
import { OpenFile } from '../platform/open-file.ts';
import { DiskIo } from './disk-io.ts';
import { DiskRows } from './disk-rows.ts';
import { readChecksums, readHeader } from './layer-reader.ts';
import { PooledMemory } from './memory-pool.ts';
import { ResidentLayer } from './resident-layer.ts';
import { LoadedVersion, type ResidentVersion } from './resident-version.ts';
import { placeLayer } from './section-placement.ts';

interface SharedLayer {
  readonly header: LayerHeader;
  readonly memories: readonly WebAssembly.Memory[];
  readonly filter: Uint32Array | undefined;
  /** When rows stay on disk. Held open where it was loaded, for as long as the version is. */
  readonly file: { readonly path: string; readonly descriptor: number } | undefined;
}

/** Structured-cloneable. */
export interface SharedVersion {
  readonly manifest: Manifest;
  readonly shardIndex: number;
  readonly threads: number;
  readonly kernelKind: KernelKind;
  /** Table by table as in the manifest, each base first. */
  readonly layers: readonly (readonly SharedLayer[])[];
}

export interface AttachedVersion extends ResidentVersion {
  /** Ends all lookups: before the version is unloaded where it was loaded. */
  detach(): void;
}

export function describeVersion(
  version: LoadedVersion,
  threads: number,
  kernelKind: KernelKind,
): SharedVersion {
  const { manifest, shardIndex, tables } = version;
  const layers = tables.map(({ layers: own }) =>
    own.map(({ header, memories, filter, disk }) => ({
      ...{ header, filter },
      memories: memories.map(({ memory }) => memory),
      file: disk === undefined ? undefined : { path: disk.path, descriptor: disk.descriptor },
    })),
  );
  return { manifest, shardIndex, threads, kernelKind, layers };
}

class Attached extends LoadedVersion implements AttachedVersion {
  detach(): void {
    for (const layer of this.ownLayers) {
      layer.references = 0;
      layer.disk?.close();
    }
  }
}

/**
 * Opens a version of another thread here.
 * @param thread 1 … threads − 1 of the store, each used by one thread only; 0 is the store's own
 * @throws CubeError NOT_FOUND or CORRUPT when a file whose rows stay on disk is gone or another one
 */
export function attachShared(
  shared: SharedVersion,
  thread: number,
  disk: DiskIo = new DiskIo(),
): AttachedVersion {
  const { manifest, shardIndex, threads, layers, kernelKind } = shared;
  if (!Number.isInteger(thread) || thread < 1 || thread >= threads) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `thread ${thread}: the store was made for threads 0 … ${threads - 1}, of which 0 is its own`,
    );
  }
  const attach = ({ header, memories, filter, file }: SharedLayer): ResidentLayer => {
    const placement = placeLayer(header, threads, file !== undefined);
    const pooled = memories.map((memory) => new PooledMemory(memory, kernelKind));
    const rows = file === undefined ? undefined : openRows(header, file, disk);
    const layer = new ResidentLayer(header, placement, pooled, filter, rows);
    layer.references = 1;
    return layer;
  };
  const tables = manifest.tables.map((table, i) => ({ table, layers: layers[i]!.map(attach) }));
  return new Attached(manifest, shardIndex, tables, thread);
}

/** The file again, which may have lost its name: that it is the one meant is looked at. */
function openRows(
  header: LayerHeader,
  { path, descriptor }: NonNullable<SharedLayer['file']>,
  disk: DiskIo,
): DiskRows {
  const file = new OpenFile(path, descriptor);
  try {
    const reader = new RandomReader(path, file.descriptor);
    const { contentId } = readHeader(reader);
    if (contentId !== header.contentId) {
      throw new CubeError('CORRUPT', `${path}: holds layer ${contentId}; load the version again`);
    }
    return new DiskRows(header, file, readChecksums(reader, header), disk);
  } catch (error) {
    file.close();
    throw error;
  }
}
