/** The store of models whose embeddings are in the graph: there is nothing to look up. */
import type { LookupGroup, LookupSummary } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { EmbeddingStore } from './embedding-store.ts';

export class NoneStore implements EmbeddingStore {
  readonly kind = 'none';
  readonly #prepared = new Set<string>();
  #closed = false;

  /** @throws CubeError INVALID_ARGUMENT for a version that has tables */
  async prepare(manifest: Manifest): Promise<void> {
    this.#requireOpen();
    const { bundle, version, tables } = manifest;
    if (tables.length > 0) {
      const names = tables.map(({ name }) => name).join(', ');
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${bundle} ${version} has tables (${names}): store none has no rows; choose memory, local, remote or redis`,
      );
    }
    this.#prepared.add(`${bundle}/${version}`);
  }

  async lookup(
    { bundle, version }: Manifest,
    groups: readonly LookupGroup[],
  ): Promise<LookupSummary> {
    this.#requireOpen();
    if (!this.#prepared.has(`${bundle}/${version}`)) {
      const text = `${bundle} ${version} was not prepared in this store`;
      throw new CubeError('VERSION_ABSENT', text);
    }
    if (groups.length === 0) return { version, unseen: 0, unavailable: 0 };
    const text = `${bundle} ${version} has no table ${JSON.stringify(groups[0]!.table)}: it has none`;
    throw new CubeError('NOT_FOUND', text);
  }

  async retire({ bundle, version }: Manifest): Promise<void> {
    this.#prepared.delete(`${bundle}/${version}`);
  }

  async close(): Promise<void> {
    this.#closed = true;
  }

  #requireOpen(): void {
    if (this.#closed) throw new CubeError('STOPPING', 'this store is closed');
  }
}
