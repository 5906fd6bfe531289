/** Our own server for lookups and seeks in one chain of layers, over a real socket. */
import type { TestContext } from 'node:test';
import { DictService } from '../../../cube-server/dict-service.ts';
import { LoadedVersions } from '../../../cube-server/loaded-versions.ts';
import { LookupService } from '../../../cube-server/lookup-service.ts';
import type { Fleet } from '../../../lib/core/fleet.ts';
import { DEFAULT_SERVER_LIMITS } from '../../../lib/core/limits.ts';
import type { Manifest } from '../../../lib/core/manifest.ts';
import { systemClock } from '../../../lib/platform/clock.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { HttpServer } from '../../../lib/rpc/http-server.ts';
import { OnePortServer } from '../../../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../../../lib/rpc/rpc-routes.ts';
import { ResidentStore } from '../../../lib/store/resident-store.ts';
import { DICT_METHOD, DICT_SERVICE } from '../../../proto/dict.ts';
import { LOOKUP_METHOD, LOOKUP_SERVICE } from '../../../proto/lookup.ts';
import { type AnyChain, writeChain } from '../../store/support/arbitrary-chain.ts';
import { createLayerPath, temporaryFolder } from '../../store/support/layers.ts';
import { createReplica } from './test-fleet.ts';

/**
 * Starts a server with the chain as version 1 of the bundle `test`, and a small response limit for
 * values.
 */
export async function serveChain(
  context: TestContext,
  chain: AnyChain,
): Promise<{ manifest: Manifest; fleet: Fleet }> {
  const folder = temporaryFolder(context);
  const store = new ResidentStore({ budgetBytes: 64 << 20 });
  const manifest = writeChain(folder, chain);
  await store.load({ manifest, shardIndex: 0, layerPath: createLayerPath(folder) });
  const loadedVersions = new LoadedVersions({ shardIndex: 0, shardNum: 1, clock: systemClock });
  loadedVersions.add(store.version('test', '1')!);
  loadedVersions.activate({ bundle: 'test', version: '1' });
  const isBytes = chain.table.dtype === 'bytes';
  const limits = { ...DEFAULT_SERVER_LIMITS, ...(isBytes ? { responseBytes: 4_096 } : {}) };
  const logger = createLogger('test', { level: 'silent' });
  const routes = new RpcRoutes();
  routes.add(LOOKUP_SERVICE, LOOKUP_METHOD, new LookupService(loadedVersions, limits).handleFrame);
  routes.add(
    DICT_SERVICE,
    DICT_METHOD,
    new DictService(loadedVersions, limits, undefined).handleFrame,
  );
  const http = new HttpServer(limits, logger);
  const server = new OnePortServer({ routes, http, limits, logger });
  const replica = createReplica(await server.listen('127.0.0.1', 0));
  context.after(() => Promise.all([server.stop(), store.close()]));
  return {
    manifest,
    fleet: { bundles: new Map([['test', [{ shardNum: 1, shards: [[replica]] }]]]) },
  };
}
