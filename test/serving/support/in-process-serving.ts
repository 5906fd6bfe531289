/** Serving in the process of the test, where tests can see its spans. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { formatFleet } from '../../../lib/core/fleet.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { completeConfig, type ServingSettings } from '../../../serving/config/serving-config.ts';
import { startServing } from '../../../serving/server.ts';
import { waitUntil } from '../../rpc/support/echo-server.ts';
import { CubeServers } from '../stores/support/cube-servers.ts';
import { BUNDLE, ToyBundle } from './toy-bundle.ts';
import { ToyRepository } from './toy-service.ts';

/** @returns a repository with version 1, which is active */
export async function publishToy(t: TestContext, shardNum: number): Promise<ToyRepository> {
  const toys = new ToyRepository(t);
  await toys.publish(new ToyBundle({ version: '1', seed: 5, shardNum }));
  await toys.activate('1');
  return toys;
}

/** Serves a bundle of two shards on cube-servers. @returns the address */
export async function startRemote(t: TestContext): Promise<string> {
  const toys = await publishToy(t, 2);
  const servers = new CubeServers(BUNDLE, toys.location);
  t.after(() => servers.stop());
  await servers.load(await toys.repository.readManifest(BUNDLE, '1'));
  const fleet = join(toys.folder, 'fleet.json');
  writeFileSync(fleet, formatFleet(servers.fleet));
  const model = { repository: toys.location, bundle: BUNDLE, fleet, instances: 1 };
  return startInProcess(t, [{ ...model, store: 'remote' }]);
}

/** @returns the address */
export async function startInProcess(
  t: TestContext,
  models: ServingSettings['models'],
): Promise<string> {
  const config = completeConfig({ port: 0, timeoutMs: 60_000, models });
  const serving = await startServing({ config, logger: createLogger('serving') });
  t.after(() => serving.stop());
  const url = `http://${serving.address}`;
  await waitUntil(async () => (await fetch(`${url}/readyz`)).ok);
  return serving.address;
}
