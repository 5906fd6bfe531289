/** The assembly of a cube-server: store → held versions → services → one port, or two. Owns nothing but the order of things. */
import type { ServerLimits } from '../lib/core/limits.ts';
import { systemClock } from '../lib/platform/clock.ts';
import type { Stoppable } from '../lib/platform/lifecycle.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { GrpcFront } from '../lib/rpc/grpc-front.ts';
import { HttpFront } from '../lib/rpc/http-front.ts';
import { OnePortServer } from '../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import { ResidentStore } from '../lib/store/resident-store.ts';
import { DICT_METHOD, DICT_SERVICE } from '../proto/dict.ts';
import { LOOKUP_METHOD, LOOKUP_SERVICE, LOOKUP_STREAM_METHOD } from '../proto/lookup.ts';
import { CmdService } from './cmd-service.ts';
import { ControlAccess } from './control-access.ts';
import { addControlRoutes, refuseControlRoutes } from './control-routes.ts';
import { ControlService } from './control-service.ts';
import { CubeDirectories } from './cube-directories.ts';
import { type CubeTable, DictService } from './dict-service.ts';
import { HeldVersions } from './held-versions.ts';
import { addHealthRoutes, addLookupRoutes, addMetricsRoute } from './http-routes.ts';
import { LookupService } from './lookup-service.ts';
import { OwnVersions } from './own-versions.ts';
import { createServerMetrics } from './server-metrics.ts';
import { VersionControl } from './version-control.ts';

export interface CubeServerOptions {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly dataFolder: string;
  readonly memoryBytes: number;
  /** Undefined: as fast as possible. */
  readonly loadBytesPerSecond?: number | undefined;
  readonly retireGraceMs: number;
  /** What Cube clients read by seek; undefined: the only table there is. */
  readonly cubeTable: CubeTable | undefined;
  /** The folder that an agent of Cube deploys to; undefined: Cube's commands read the data folder. */
  readonly cubeFolder?: string | undefined;
  /** Undefined: control calls only from this host. */
  readonly controlTokenFile: string | undefined;
  readonly limits: ServerLimits;
  readonly logger: Logger;
}

export interface ListenOptions {
  readonly host: string;
  readonly port: number;
  /** Control and metrics have this port, and the data port refuses them. */
  readonly adminPort?: number;
}

/** What speaks to callers. */
interface Fronts {
  readonly routes: RpcRoutes;
  readonly grpc: GrpcFront;
  readonly http: HttpFront;
  /** The same as `http` when control has no port of its own. */
  readonly adminHttp: HttpFront;
}

/** What gRPC's reflection shows. */
const GRPC_PROTO_FILES = ['lookup.proto', 'dict.proto'];
/** What a dictionary of Cube is called here, unless --cube-table says so. */
const DEFAULT_CUBE_TABLE: CubeTable = { bundle: 'cube', table: 'dict' };
/** How exactly idle times are known. */
const OBSERVE_USE_MS = 1000;

export class CubeServer implements Stoppable {
  readonly #options: CubeServerOptions;
  readonly #store: ResidentStore;
  readonly #held: HeldVersions;
  readonly #versions: VersionControl;
  readonly #control: ControlService;
  readonly #access: ControlAccess;
  readonly #cubeDirectories: CubeDirectories | undefined;
  #data: OnePortServer | undefined;
  #admin: OnePortServer | undefined;
  #observer: NodeJS.Timeout | undefined;
  #stopping = false;

  constructor(options: CubeServerOptions) {
    const { shardIndex, shardNum, dataFolder, logger } = options;
    this.#options = options;
    this.#store = new ResidentStore({ budgetBytes: options.memoryBytes });
    this.#held = new HeldVersions({ shardIndex, shardNum, clock: systemClock });
    this.#versions = new VersionControl({
      ...{ held: this.#held, store: this.#store, dataFolder, clock: systemClock },
      retireGraceMs: options.retireGraceMs,
      loadBytesPerSecond: options.loadBytesPerSecond,
    });
    const ready = (): boolean => this.#notReady() === undefined;
    this.#control = new ControlService({ versions: this.#versions, logger, ready });
    this.#access = new ControlAccess(options.controlTokenFile, logger);
    this.#cubeDirectories = this.#openCubeFolder();
  }

  /** @returns the address, which is also logged. @throws CubeError IO when a port is taken */
  async listen({ host, port, adminPort }: ListenOptions): Promise<string> {
    const { limits, logger, shardIndex, shardNum } = this.#options;
    const routes = new RpcRoutes();
    const http = new HttpFront(limits, logger);
    const adminHttp = adminPort === undefined ? http : new HttpFront(limits, logger);
    const ready = (): boolean => this.#notReady() === undefined;
    const grpc = new GrpcFront({ limits, logger, protoFiles: GRPC_PROTO_FILES, ready });
    this.#addServices({ routes, grpc, http, adminHttp });
    const data = new OnePortServer({ routes, http, grpc, limits, logger });
    this.#data = data;
    const address = await data.listen(host, port);
    if (adminPort !== undefined) {
      this.#admin = new OnePortServer({
        ...{ routes: new RpcRoutes(), http: adminHttp, limits, logger },
      });
      const adminAddress = await this.#admin.listen(host, adminPort);
      logger.info({ adminAddress }, 'admin port');
    }
    logger.info({ address, shardIndex, shardNum }, 'listening');
    this.#observer = setInterval(() => this.#held.observeUse(), OBSERVE_USE_MS);
    this.#observer.unref();
    void this.#cubeDirectories?.loadFirst();
    return address;
  }

  /** Not ready and refusing lookups, until control says `undrain`. */
  async drain(): Promise<void> {
    await this.#control.drain(true);
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    clearInterval(this.#observer);
    // A load under way fails now, so that its caller is not what we wait for; what is resident goes on answering.
    await Promise.all([this.#store.close(), this.#data?.stop(), this.#admin?.stop()]);
  }

  #addServices({ routes, grpc, http, adminHttp }: Fronts): void {
    const { limits, cubeTable, dataFolder, logger } = this.#options;
    const lookup = new LookupService(this.#held, limits);
    const dict = new DictService(this.#held, limits, cubeTable);
    routes.add(LOOKUP_SERVICE, LOOKUP_METHOD, lookup.handle);
    routes.add(DICT_SERVICE, DICT_METHOD, dict.handle, (text) => dict.answerJson(text));
    grpc.addUnary(LOOKUP_SERVICE, LOOKUP_METHOD, (request) => lookup.answer(request));
    grpc.addBidi(LOOKUP_SERVICE, LOOKUP_STREAM_METHOD, (request) => lookup.answer(request));
    grpc.addUnary(DICT_SERVICE, DICT_METHOD, (request) => dict.answer(request));
    const metrics = createServerMetrics({
      ...{ versions: this.#versions, routes, apps: new Set([http.app, adminHttp.app]) },
      ready: () => this.#notReady() === undefined,
      server: () => this.#data,
    });
    addLookupRoutes(http.app, lookup, dict);
    const cube =
      this.#cubeDirectories ?? new OwnVersions(this.#versions, dataFolder, cubeTable?.bundle);
    const cmd = new CmdService({ versions: this.#versions, cube, logger });
    const notReady = (): string | undefined => this.#notReady();
    addControlRoutes(adminHttp.app, { control: this.#control, cmd, access: this.#access });
    addMetricsRoute(adminHttp.app, metrics);
    addHealthRoutes(adminHttp.app, notReady);
    if (adminHttp === http) return;
    refuseControlRoutes(http.app);
    addHealthRoutes(http.app, notReady);
  }

  #openCubeFolder(): CubeDirectories | undefined {
    const { cubeFolder, cubeTable, dataFolder, shardIndex, shardNum, logger } = this.#options;
    if (cubeFolder === undefined) return undefined;
    return new CubeDirectories({
      versions: this.#versions,
      folder: cubeFolder.replaceAll('{shard}', String(shardIndex)),
      // Several servers may share a data folder.
      workFolder: `${dataFolder}/.cube-${shardIndex}-of-${shardNum}`,
      table: cubeTable ?? DEFAULT_CUBE_TABLE,
      logger,
    });
  }

  #notReady(): string | undefined {
    if (this.#stopping) return 'stopping';
    if (this.#held.draining) return 'draining; control call "undrain" ends it';
    if (!this.#held.ready) return 'no version is active; load and activate one';
    return undefined;
  }
}
