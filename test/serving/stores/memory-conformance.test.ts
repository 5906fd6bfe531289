/**
 * The MEMORY store runs the whole conformance suite: from the repository's own files, and from
 * fetched ones.
 */
import { join } from 'node:path';
import { MemoryStore } from '../../../serving/stores/memory-store.ts';
import { testStoreConformance } from './support/conformance.ts';
import { TestRepository } from './support/test-repository.ts';

for (const isFetched of [false, true]) {
  testStoreConformance(isFetched ? 'MEMORY (fetched)' : 'MEMORY', async () => {
    const source = await TestRepository.create();
    const { repository } = source;
    const store = new MemoryStore({
      repository: {
        location: repository.location,
        fetchLayer: (...args) => repository.fetchLayer(...args),
        localLayerPath: (...args) => (isFetched ? undefined : repository.localLayerPath(...args)),
      },
      folder: join(source.folder, 'fetched'),
      budgetBytes: 2 ** 30,
    });
    return {
      store,
      publish: (version) => source.publish(version),
      close: async () => {
        await store.close();
        await source.remove();
      },
    };
  });
}
