/**
 * The layers that a shard of a version requires, and their files during one load: opened if rows
 * stay on disk, inspected, and closed unless a layer keeps them.
 */
import { CubeError } from '../core/errors.ts';
import type { LayerHeader } from '../core/layer-format.ts';
import {
  type LayerRef,
  type Manifest,
  requireStoredForm,
  type TableRef,
} from '../core/manifest.ts';
import { OpenFile } from '../platform/open-file.ts';
import type { LayerLoader } from './layer-loader.ts';
import { canStayOnDisk, type LayerPlacement, placeLayer } from './section-placement.ts';

/** A layer file that matches its manifest, and the planned placement of its sections. */
export interface InspectedLayer {
  readonly path: string;
  readonly header: LayerHeader;
  readonly checksums: Uint32Array;
  readonly placement: LayerPlacement;
  /** Set when the rows stay on disk. */
  readonly file: OpenFile | undefined;
  /** The key of a sealed file; overwritten when the files are closed. */
  readonly dataKey: Uint8Array | undefined;
}

export interface LoadFilesOptions {
  readonly loader: LayerLoader;
  readonly manifest: Manifest;
  readonly shardIndex: number;
  readonly layerPath: (table: string, contentId: string) => string;
  readonly threads: number;
  readonly rowsOnDisk: boolean;
}

export class LoadFiles {
  readonly rowsOnDisk: boolean;
  readonly #options: LoadFilesOptions;
  readonly #open = new Set<OpenFile>();
  readonly #dataKeys = new Set<Uint8Array>();

  constructor(options: LoadFilesOptions) {
    this.#options = options;
    this.rowsOnDisk = options.rowsOnDisk;
  }

  /** @throws CubeError NOT_FOUND, CORRUPT or UNSUPPORTED */
  async inspect(required: RequiredLayer): Promise<InspectedLayer> {
    const { loader, manifest, shardIndex, layerPath, threads, rowsOnDisk } = this.#options;
    const path = layerPath(required.table.name, required.layer.contentId);
    const file = rowsOnDisk ? this.#openFile(path) : undefined;
    const { header, checksums, dataKey } = await loader.inspect(path, file?.descriptor);
    if (dataKey !== undefined) this.#dataKeys.add(dataKey);
    requireStoredForm(manifest, dataKey !== undefined, path);
    if (dataKey !== undefined && rowsOnDisk) throw createRowsOnDiskError(required);
    checkLayerHeader(header, required, shardIndex);
    const stays = rowsOnDisk && canStayOnDisk(header);
    const placement = placeLayer(header, threads, stays);
    return { path, header, checksums, placement, file: stays ? file : undefined, dataKey };
  }

  /** Keeps the file open after this load. */
  keep(file: OpenFile): void {
    this.#open.delete(file);
  }

  close(): void {
    for (const file of this.#open) file.close();
    this.#open.clear();
    for (const key of this.#dataKeys) key.fill(0);
    this.#dataKeys.clear();
  }

  #openFile(path: string): OpenFile {
    const file = new OpenFile(path);
    this.#open.add(file);
    return file;
  }
}

function createRowsOnDiskError({ table, layer }: RequiredLayer): CubeError {
  return new CubeError(
    'DENIED',
    `table ${table.name}, layer ${layer.contentId} is encrypted, and rows of encrypted layers ` +
      'stay in memory only; load without rows on disk',
  );
}

/** A layer of a version, with its table. */
export interface RequiredLayer {
  readonly table: TableRef;
  readonly layer: LayerRef;
  /** Content id of the layer below; '' for a base. */
  readonly parentContentId: string;
}

/**
 * All layers of one shard, table by table, each base first.
 * @throws CubeError INVALID_ARGUMENT when the shard does not exist
 */
export function listRequiredLayers(manifest: Manifest, shardIndex: number): RequiredLayer[] {
  return manifest.tables.flatMap((table) => {
    const layers = table.shards[shardIndex];
    if (layers === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${manifest.bundle} ${manifest.version}: table ${table.name} has ` +
          `${table.shardNum} shards; there is no shard ${shardIndex}`,
      );
    }
    return layers.map((layer, depth) => ({
      table,
      layer,
      parentContentId: layers[depth - 1]?.contentId ?? '',
    }));
  });
}

/**
 * Checks a layer's header against the manifest. A mismatch is treated as corruption, and so is a
 * delta with a different parent.
 * @throws CubeError CORRUPT naming both values
 */
export function checkLayerHeader(
  header: LayerHeader,
  required: RequiredLayer,
  shardIndex: number,
): void {
  const { table, layer, parentContentId } = required;
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
      `table ${table.name}, layer ${layer.contentId}: ${field} is ${found}, ` +
        `the manifest says ${value}; fetch it again`,
      { details: { table: table.name, contentId: layer.contentId } },
    );
  }
  if (header.parentContentId === parentContentId) return;
  throw new CubeError(
    'CORRUPT',
    `table ${table.name}, delta ${layer.contentId}: its parent is ${header.parentContentId}, ` +
      `but the manifest says ${parentContentId}; publish the version again`,
    { details: { table: table.name, contentId: layer.contentId } },
  );
}
