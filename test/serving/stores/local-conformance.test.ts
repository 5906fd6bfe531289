/** The LOCAL store runs the whole conformance suite. */
import { join } from 'node:path';
import { LocalStore } from '../../../serving/stores/local-store.ts';
import { testStoreConformance } from './support/conformance.ts';
import { TestRepository } from './support/test-repository.ts';

testStoreConformance('LOCAL', async () => {
  const source = await TestRepository.create();
  const { repository } = source;
  const store = await LocalStore.open({ repository, folder: join(source.folder, 'local') });
  return {
    store,
    publish: (version) => source.publish(version),
    close: async () => {
      await store.close();
      await source.remove();
    },
  };
});
