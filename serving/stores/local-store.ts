/** The LOCAL store: layers of a repository in an embedded database. */
import type { LookupGroup, LookupSummary } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { EmbeddingStore } from './embedding-store.ts';

/** The part of a repository that the store needs. */
export interface LayerSource {
  fetchLayer(
    bundle: string,
    table: string,
    layer: Manifest['tables'][number]['shards'][number][number],
    target: string,
  ): Promise<void>;
}

export interface LocalStoreOptions {
  readonly repository: LayerSource;
  /** The store's own folder; kept between starts. */
  readonly folder: string;
  readonly logger?: Logger;
  /** Rows written so far of all rows that a `prepare` fills. */
  readonly onProgress?: (rows: number, rowsTotal: number) => void;
}

export class LocalStore implements EmbeddingStore {
  readonly kind = 'local';

  /** @throws CubeError CONFLICT when another process has the folder open, CORRUPT when the database is damaged */
  static async open(_options: LocalStoreOptions): Promise<LocalStore> {
    return new LocalStore();
  }

  prepare(_manifest: Manifest): Promise<void> {
    throw new CubeError('UNSUPPORTED', 'prepare');
  }

  lookup(
    _manifest: Manifest,
    _groups: readonly LookupGroup[],
    _timeoutMs: number,
  ): Promise<LookupSummary> {
    throw new CubeError('UNSUPPORTED', 'lookup');
  }

  retire(_manifest: Manifest): Promise<void> {
    throw new CubeError('UNSUPPORTED', 'retire');
  }

  async close(): Promise<void> {}
}
