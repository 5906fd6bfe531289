/**
 * The REDIS store runs the whole conformance suite, with a real server and a real Cluster of three.
 */
import { test } from 'node:test';
import { RedisStore } from '../../../serving/stores/redis-store.ts';
import { type StoreUnderTest, testStoreConformance } from './support/conformance.ts';
import { RedisServers, redisMissing } from './support/redis-servers.ts';
import { TestRepository } from './support/test-repository.ts';

async function open(servers: RedisServers): Promise<StoreUnderTest> {
  const source = await TestRepository.create();
  const { repository } = source;
  const store = new RedisStore({ kind: 'redis', urls: servers.urls, fill: true }, { repository });
  return {
    store,
    publish: (version) => source.publish(version),
    close: async () => {
      await store.close();
      await servers.stop();
      await source.remove();
    },
  };
}

if (redisMissing === undefined) {
  testStoreConformance('REDIS', async () => open(await RedisServers.one()));
  testStoreConformance('REDIS Cluster', async () => open(await RedisServers.cluster()));
} else {
  test('REDIS stores', { skip: redisMissing }, () => undefined);
}
