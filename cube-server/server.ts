/** The assembly of a cube-server: store → held versions → services → one port. Owns nothing but the order of things. */
import type { ServerLimits } from '../lib/core/limits.ts';
import { systemClock } from '../lib/platform/clock.ts';
import type { Stoppable } from '../lib/platform/lifecycle.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { HttpFront } from '../lib/rpc/http-front.ts';
import { OnePortServer } from '../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import { ResidentStore } from '../lib/store/resident-store.ts';
import { DICT_METHOD, DICT_SERVICE } from '../proto/dict.ts';
import { LOOKUP_METHOD, LOOKUP_SERVICE } from '../proto/lookup.ts';
import { ControlAccess } from './control-access.ts';
import { ControlService } from './control-service.ts';
import { type CubeTable, DictService } from './dict-service.ts';
import { HeldVersions } from './held-versions.ts';
import { addHttpRoutes } from './http-routes.ts';
import { LookupService } from './lookup-service.ts';
import { createServerMetrics } from './server-metrics.ts';

export interface CubeServerOptions {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly dataFolder: string;
  readonly memoryBytes: number;
  /** What Cube clients read by seek; undefined: the only table there is. */
  readonly cubeTable: CubeTable | undefined;
  /** Undefined: control calls only from this host. */
  readonly controlTokenFile: string | undefined;
  readonly limits: ServerLimits;
  readonly logger: Logger;
}

/** How exactly idle times are known. */
const OBSERVE_USE_MS = 1000;

export class CubeServer implements Stoppable {
  readonly #store: ResidentStore;
  readonly #held: HeldVersions;
  readonly #server: OnePortServer;
  readonly #logger: Logger;
  #observer: NodeJS.Timeout | undefined;
  #stopping = false;

  constructor(options: CubeServerOptions) {
    const { shardIndex, shardNum, dataFolder, limits, logger } = options;
    const store = new ResidentStore({ budgetBytes: options.memoryBytes });
    const held = new HeldVersions({ store, shardIndex, shardNum, dataFolder, clock: systemClock });
    const lookup = new LookupService(held, limits);
    const dict = new DictService(held, limits, options.cubeTable);
    const routes = new RpcRoutes();
    routes.add(LOOKUP_SERVICE, LOOKUP_METHOD, lookup.handle);
    routes.add(DICT_SERVICE, DICT_METHOD, dict.handle, (text) => dict.answerJson(text));
    const http = new HttpFront(limits, logger);
    const ready = (): boolean => this.#notReady() === undefined;
    const metrics = createServerMetrics({
      ...{ held, routes, ready },
      app: http.app,
      server: () => this.#server,
    });
    const access = new ControlAccess(options.controlTokenFile);
    new ControlService({ held, access, logger, ready }).addRoutes(http.app);
    addHttpRoutes(http.app, { lookup, dict, metrics, notReady: () => this.#notReady() });
    this.#store = store;
    this.#held = held;
    this.#logger = logger;
    this.#server = new OnePortServer({ routes, http, limits, logger });
  }

  /** @returns the address, which is also logged. @throws CubeError IO when the port is taken */
  async listen(host: string, port: number): Promise<string> {
    const address = await this.#server.listen(host, port);
    const { shardIndex, shardNum } = this.#held;
    this.#logger.info({ address, shardIndex, shardNum }, 'listening');
    this.#observer = setInterval(() => this.#held.observeUse(), OBSERVE_USE_MS);
    this.#observer.unref();
    return address;
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    clearInterval(this.#observer);
    // A load under way fails now, so that its caller is not what we wait for; what is resident goes on answering.
    await Promise.all([this.#store.close(), this.#server.stop()]);
  }

  #notReady(): string | undefined {
    if (this.#stopping) return 'stopping';
    if (!this.#held.ready) return 'no version is active; load and activate one';
    return undefined;
  }
}
