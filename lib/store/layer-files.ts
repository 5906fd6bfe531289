/** The files of one load: opened where their rows stay on disk, inspected, and closed unless a layer keeps them. */
import type { LayerHeader } from '../core/layer-format.ts';
import { OpenFile } from '../platform/open-file.ts';
import type { LayerLoader } from './layer-loader.ts';
import { canStayOnDisk, type LayerPlacement, placeLayer } from './section-placement.ts';
import { checkHeader, type WantedLayer } from './wanted-layers.ts';

/** A layer file that is what the manifest says, and where its parts would go. */
export interface InspectedLayer {
  readonly path: string;
  readonly header: LayerHeader;
  readonly checksums: Uint32Array;
  readonly placement: LayerPlacement;
  /** When its rows stay on disk. */
  readonly file: OpenFile | undefined;
}

export interface LayerFilesOptions {
  readonly loader: LayerLoader;
  readonly shardIndex: number;
  readonly layerPath: (table: string, contentId: string) => string;
  readonly threads: number;
  readonly rowsOnDisk: boolean;
}

export class LayerFiles {
  readonly rowsOnDisk: boolean;
  readonly #options: LayerFilesOptions;
  readonly #open = new Set<OpenFile>();

  constructor(options: LayerFilesOptions) {
    this.#options = options;
    this.rowsOnDisk = options.rowsOnDisk;
  }

  /** @throws CubeError NOT_FOUND, CORRUPT or UNSUPPORTED */
  async inspect(wanted: WantedLayer): Promise<InspectedLayer> {
    const { loader, shardIndex, layerPath, threads, rowsOnDisk } = this.#options;
    const path = layerPath(wanted.table.name, wanted.layer.contentId);
    const file = rowsOnDisk ? this.#openFile(path) : undefined;
    const { header, checksums } = await loader.inspect(path, file?.descriptor);
    checkHeader(header, wanted, shardIndex);
    const stays = rowsOnDisk && canStayOnDisk(header);
    const placement = placeLayer(header, threads, stays);
    return { path, header, checksums, placement, file: stays ? file : undefined };
  }

  /** The file outlives this load. */
  keep(file: OpenFile): void {
    this.#open.delete(file);
  }

  close(): void {
    for (const file of this.#open) file.close();
    this.#open.clear();
  }

  #openFile(path: string): OpenFile {
    const file = new OpenFile(path);
    this.#open.add(file);
    return file;
  }
}
