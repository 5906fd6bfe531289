/**
 * A resident version in another thread: the same memories with another thread area, and its files
 * opened again. The description can be posted to a worker thread; the attached version is
 * read-only.
 */
import { CubeError } from '../core/errors.ts';
import type { KernelKind } from '../core/kernels/kernels.ts';
import type { LayerHeader } from '../core/layer-format.ts';
import type { Manifest } from '../core/manifest.ts';
import { RandomAccessReader } from '../platform/files.ts';
import { OpenFile } from '../platform/open-file.ts';
import { DiskIo } from './disk-io.ts';
import { DiskRows } from './disk-rows.ts';
import { readChecksums, readHeader } from './layer-reader.ts';
import { PooledMemory } from './memory-pool.ts';
import { ResidentLayer } from './resident-layer.ts';
import { ChainVersion, type ResidentVersion } from './resident-version.ts';
import { placeLayer } from './section-placement.ts';

interface SharedLayer {
  readonly header: LayerHeader;
  readonly memories: readonly WebAssembly.Memory[];
  readonly filter: Uint32Array | undefined;
  /**
   * Set when rows stay on disk. The loading thread keeps the file open as long as the version
   * exists.
   */
  readonly file: { readonly path: string; readonly descriptor: number } | undefined;
}

/** Structured-cloneable. */
export interface SharedVersion {
  readonly manifest: Manifest;
  readonly shardIndex: number;
  readonly threads: number;
  readonly kernelKind: KernelKind;
  /** In the order of the manifest's tables, each base first. */
  readonly layers: readonly (readonly SharedLayer[])[];
}

export interface AttachedVersion extends ResidentVersion {
  /** Ends all lookups; call it before the version is unloaded. */
  detach(): void;
}

export function describeVersion(
  version: ChainVersion,
  threads: number,
  kernelKind: KernelKind,
): SharedVersion {
  const { manifest, shardIndex, tables } = version;
  const layers = tables.map(({ layers: own }) =>
    own.map(({ header, memories, filter, disk }) => ({
      header,
      filter,
      memories: memories.map(({ memory }) => memory),
      file: disk === undefined ? undefined : { path: disk.path, descriptor: disk.descriptor },
    })),
  );
  return { manifest, shardIndex, threads, kernelKind, layers };
}

class AttachedChainVersion extends ChainVersion implements AttachedVersion {
  detach(): void {
    for (const layer of this.allLayers) {
      layer.references = 0;
      layer.disk?.close();
    }
  }
}

/**
 * Attaches a version of another thread.
 * @param thread 1 … threads − 1 of the store, each used by one thread only; 0 is the store's own
 * @throws CubeError NOT_FOUND or CORRUPT when a file whose rows stay on disk is missing or
 *   different
 */
export function attachSharedVersion(
  shared: SharedVersion,
  thread: number,
  disk: DiskIo = new DiskIo(),
): AttachedVersion {
  const { manifest, shardIndex, threads, layers, kernelKind } = shared;
  if (!Number.isInteger(thread) || thread < 1 || thread >= threads) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `thread ${thread}: expected 1 … ${threads - 1}; thread 0 is the store's own`,
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
  return new AttachedChainVersion(manifest, shardIndex, tables, thread);
}

/** Opens a file again and checks that it is the same layer; its path may no longer exist. */
function openRows(
  header: LayerHeader,
  { path, descriptor }: NonNullable<SharedLayer['file']>,
  disk: DiskIo,
): DiskRows {
  const file = new OpenFile(path, descriptor);
  try {
    const reader = new RandomAccessReader(path, file.descriptor);
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
