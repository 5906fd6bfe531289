/** Our own server's lookups and seeks over a real socket, of one chain of layers. */
import type { TestContext } from 'node:test';
import { DictService } from '../../cube-server/dict-service.ts';
import { HeldVersions } from '../../cube-server/held-versions.ts';
import { LookupService } from '../../cube-server/lookup-service.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import { DEFAULT_SERVER_LIMITS } from '../../lib/core/limits.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { HttpFront } from '../../lib/rpc/http-front.ts';
import { OnePortServer } from '../../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../../lib/rpc/rpc-routes.ts';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import { DICT_METHOD, DICT_SERVICE } from '../../proto/dict.ts';
import { LOOKUP_METHOD, LOOKUP_SERVICE } from '../../proto/lookup.ts';
import { type AnyChain, writeChain } from '../store/chains.ts';
import { layerPathIn, temporaryFolder } from '../store/layers.ts';
import { replicaAt } from './test-fleet.ts';

/** One server that holds the chain as version 1 of the bundle `test`, and answers little at once. */
export async function serveChain(
  context: TestContext,
  chain: AnyChain,
): Promise<{ manifest: Manifest; fleet: Fleet }> {
  const folder = temporaryFolder(context);
  const store = new ResidentStore({ budgetBytes: 64 << 20 });
  const manifest = writeChain(folder, chain);
  await store.load({ manifest, shardIndex: 0, layerPath: layerPathIn(folder) });
  const held = new HeldVersions({ shardIndex: 0, shardNum: 1, clock: systemClock });
  held.hold(store.version('test', '1')!);
  held.activate({ bundle: 'test', version: '1' });
  const isBytes = chain.table.dtype === 'bytes';
  const limits = { ...DEFAULT_SERVER_LIMITS, ...(isBytes ? { responseBytes: 4_096 } : {}) };
  const logger = createLogger('test', 'silent');
  const routes = new RpcRoutes();
  routes.add(LOOKUP_SERVICE, LOOKUP_METHOD, new LookupService(held, limits).handle);
  routes.add(DICT_SERVICE, DICT_METHOD, new DictService(held, limits, undefined).handle);
  const http = new HttpFront(limits, logger);
  const server = new OnePortServer({ routes, http, limits, logger });
  const replica = replicaAt(await server.listen('127.0.0.1', 0));
  context.after(() => Promise.all([server.stop(), store.close()]));
  return {
    manifest,
    fleet: { bundles: new Map([['test', [{ shardNum: 1, shards: [[replica]] }]]]) },
  };
}
