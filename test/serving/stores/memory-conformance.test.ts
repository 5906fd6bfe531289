/** The store in memory runs the whole conformance suite: from the repository's own files, and from fetched ones. */
import { join } from 'node:path';
import { MemoryStore } from '../../../serving/stores/memory-store.ts';
import { storeConformance } from './conformance.ts';
import { TestRepository } from './test-repository.ts';

for (const isFetched of [false, true]) {
  storeConformance(isFetched ? 'MEMORY (fetched)' : 'MEMORY', async () => {
    const world = await TestRepository.make();
    const { repository } = world;
    const store = new MemoryStore({
      repository: {
        location: repository.location,
        fetchLayer: (...args) => repository.fetchLayer(...args),
        localLayer: (...args) => (isFetched ? undefined : repository.localLayer(...args)),
      },
      folder: join(world.folder, 'fetched'),
      budgetBytes: 2 ** 30,
    });
    return {
      store,
      publish: (version) => world.publish(version),
      close: async () => {
        await store.close();
        await world.remove();
      },
    };
  });
}
