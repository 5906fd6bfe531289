/** The REDIS store runs the whole conformance suite, against a real server and a real Cluster of three. */
import { test } from 'node:test';
import { RedisStore } from '../../../serving/stores/redis-store.ts';
import { type StoreUnderTest, storeConformance } from './conformance.ts';
import { RedisServers, redisMissing } from './redis-servers.ts';
import { TestRepository } from './test-repository.ts';

async function open(servers: RedisServers): Promise<StoreUnderTest> {
  const world = await TestRepository.make();
  const { repository } = world;
  const store = new RedisStore({ kind: 'redis', urls: servers.urls, fill: true }, { repository });
  return {
    store,
    publish: (version) => world.publish(version),
    close: async () => {
      await store.close();
      await servers.stop();
      await world.remove();
    },
  };
}

if (redisMissing === undefined) {
  storeConformance('REDIS', async () => open(await RedisServers.one()));
  storeConformance('REDIS Cluster', async () => open(await RedisServers.cluster()));
} else {
  test('REDIS stores', { skip: redisMissing }, () => undefined);
}
