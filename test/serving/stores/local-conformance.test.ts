/** The LOCAL store runs the whole conformance suite. */
import { join } from 'node:path';
import { LocalStore } from '../../../serving/stores/local-store.ts';
import { storeConformance } from './conformance.ts';
import { TestRepository } from './test-repository.ts';

storeConformance('LOCAL', async () => {
  const world = await TestRepository.make();
  const { repository } = world;
  const store = await LocalStore.open({ repository, folder: join(world.folder, 'local') });
  return {
    store,
    publish: (version) => world.publish(version),
    close: async () => {
      await store.close();
      await world.remove();
    },
  };
});
