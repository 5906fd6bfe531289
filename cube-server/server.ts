/** The assembly of a cube-server: store → held versions → services → one port, or two. Owns nothing but the order of things. */
import type { ServerLimits } from '../lib/core/limits.ts';
import { systemClock } from '../lib/platform/clock.ts';
import type { Stoppable } from '../lib/platform/lifecycle.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { MetricsRegistry } from '../lib/platform/metrics.ts';
import { ControlAccess } from '../lib/rpc/control-access.ts';
import { GrpcFront } from '../lib/rpc/grpc-front.ts';
import { HttpFront } from '../lib/rpc/http-front.ts';
import { OnePortServer } from '../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import { type TlsFiles, TlsIdentity } from '../lib/rpc/tls-identity.ts';
import { ResidentStore } from '../lib/store/resident-store.ts';
import { CmdService } from './cmd-service.ts';
import { addCmdCall } from './control-baidu.ts';
import { addControlCalls, CONTROL_PROTO } from './control-grpc.ts';
import { addControlRoutes, refuseControlRoutes } from './control-routes.ts';
import { ControlService } from './control-service.ts';
import { CubeDirectories } from './cube-directories.ts';
import { DataPort } from './data-port.ts';
import type { CubeTable } from './dict-service.ts';
import { HeldVersions } from './held-versions.ts';
import { addHealthRoutes, addMetricsRoute, answerCall } from './http-routes.ts';
import { limitsOfThread } from './limit-option.ts';
import { OwnVersions } from './own-versions.ts';
import { addDataPortMetrics, addHttpMetrics, addVersionMetrics } from './server-metrics.ts';
import { ServingThreadPool } from './serving-threads.ts';
import type { HttpCall, HttpResult } from './thread-protocol.ts';
import { VersionControl } from './version-control.ts';

export interface CubeServerOptions {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly dataFolder: string;
  readonly memoryBytes: number;
  /** That answer lookups; more than one where listeners can share a port. */
  readonly threads?: number;
  /** Rows stay in their files where the layout lets them. */
  readonly rowsOnDisk?: boolean;
  /** While lookups are answered; absent: as fast as possible. */
  readonly loadBytesPerSecond?: number;
  readonly retireGraceMs: number;
  /** What Cube clients read by seek; undefined: the only table there is. */
  readonly cubeTable: CubeTable | undefined;
  /** The folder that an agent of Cube deploys to; undefined: Cube's commands read the data folder. */
  readonly cubeFolder?: string | undefined;
  /** Undefined: control calls only from this host. */
  readonly controlTokenFile: string | undefined;
  /** Whose certificates, too, allow control calls; absent: TLS is not spoken. */
  readonly tls?: TlsFiles | undefined;
  readonly limits: ServerLimits;
  readonly logger: Logger;
}

export interface ListenOptions {
  readonly host: string;
  readonly port: number;
  /** Control and metrics have this port, and the data port refuses them. */
  readonly adminPort?: number;
}

/** What a dictionary of Cube is called here, unless --cube-table says so. */
const DEFAULT_CUBE_TABLE: CubeTable = { bundle: 'cube', table: 'dict' };
const MAIN_THREAD = 0;
/** How exactly idle times are known. */
const OBSERVE_USE_MS = 1000;

export class CubeServer implements Stoppable {
  readonly #options: CubeServerOptions;
  readonly #store: ResidentStore;
  readonly #held: HeldVersions;
  readonly #versions: VersionControl;
  readonly #control: ControlService;
  readonly #access: ControlAccess;
  readonly #tls: TlsIdentity | undefined;
  readonly #cubeDirectories: CubeDirectories | undefined;
  readonly #data: DataPort;
  #threads: ServingThreadPool | undefined;
  #admin: OnePortServer | undefined;
  #observer: NodeJS.Timeout | undefined;
  #stopping = false;

  constructor(options: CubeServerOptions) {
    const { shardIndex, shardNum, dataFolder, cubeTable, threads = 1, logger } = options;
    this.#options = options;
    this.#store = new ResidentStore({
      ...{ budgetBytes: options.memoryBytes, threads },
      rowsOnDisk: options.rowsOnDisk ?? false,
      onDamage: (error) => logger.error({ reason: error.message }, 'damaged rows on disk'),
    });
    this.#held = new HeldVersions({ shardIndex, shardNum, clock: systemClock });
    this.#versions = new VersionControl({
      ...{ held: this.#held, store: this.#store, dataFolder, clock: systemClock },
      retireGraceMs: options.retireGraceMs,
      loadBytesPerSecond: options.loadBytesPerSecond ?? Number.POSITIVE_INFINITY,
    });
    const ready = (): boolean => this.#notReady() === undefined;
    this.#control = new ControlService({ versions: this.#versions, logger, ready });
    const { controlTokenFile: tokenFile, tls } = options;
    this.#access = new ControlAccess({
      ...{ tokenFile, certificates: tls !== undefined, logger },
      flags: '--control-token-file or --tls-ca',
    });
    this.#tls = tls && new TlsIdentity(tls, logger);
    this.#cubeDirectories = this.#openCubeFolder();
    const limits = limitsOfThread(options.limits, threads);
    this.#data = new DataPort({
      held: this.#held,
      tls: this.#tls,
      limits,
      cubeTable,
      ready,
      logger,
    });
  }

  /** @returns the address, which is also logged. @throws CubeError IO when a port is taken; call `stop` then, too */
  async listen({ host, port, adminPort }: ListenOptions): Promise<string> {
    const { limits, logger, shardIndex, shardNum, threads = 1 } = this.#options;
    const admin = adminPort === undefined ? this.#data.http : new HttpFront(limits, logger);
    this.#data.answerControl((call) => answerCall(this.#data.http.app, call));
    this.#addRoutes(admin);
    const address = await this.#data.server.listen(host, port, threads > 1);
    if (threads > 1) await this.#startThreads(host, Number(/\d+$/.exec(address)?.[0]));
    if (adminPort !== undefined) {
      const ready = (): boolean => this.#notReady() === undefined;
      const grpc = new GrpcFront({ limits, logger, protoFiles: [CONTROL_PROTO], ready });
      const routes = new RpcRoutes();
      const answer = (call: HttpCall): Promise<HttpResult> => answerCall(admin.app, call);
      addControlCalls(grpc, answer);
      addCmdCall(routes, answer);
      this.#admin = new OnePortServer({
        ...{ routes, http: admin, grpc, tls: this.#tls, limits, logger },
      });
      const adminAddress = await this.#admin.listen(host, adminPort);
      logger.info({ adminAddress }, 'admin port');
    }
    logger.info({ address, shardIndex, shardNum, threads }, 'listening');
    this.#observer = setInterval(() => void this.#versions.observeUse(), OBSERVE_USE_MS);
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
    const servers = [this.#threads?.stop(), this.#data.server.stop(), this.#admin?.stop()];
    await Promise.all([this.#store.close(), ...servers]);
  }

  #addRoutes(admin: HttpFront): void {
    const { cubeTable, dataFolder, logger } = this.#options;
    const { http } = this.#data;
    const versions = this.#versions;
    const cube = this.#cubeDirectories ?? new OwnVersions(versions, dataFolder, cubeTable?.bundle);
    const cmd = new CmdService({ versions, cube, logger });
    const notReady = (): string | undefined => this.#notReady();
    addControlRoutes(admin.app, { control: this.#control, cmd, access: this.#access });
    const metrics = new MetricsRegistry();
    addDataPortMetrics(metrics, this.#data, MAIN_THREAD);
    addHttpMetrics(metrics, new Set([http.app, admin.app]));
    addVersionMetrics(metrics, versions, () => notReady() === undefined);
    addMetricsRoute(admin.app, metrics, async () => (await this.#threads?.metrics()) ?? []);
    addHealthRoutes(admin.app, notReady);
    if (admin === http) return;
    refuseControlRoutes(http.app);
    addHealthRoutes(http.app, notReady);
  }

  async #startThreads(host: string, port: number): Promise<void> {
    const { limits, tls, cubeTable, shardIndex, shardNum, threads = 1, logger } = this.#options;
    const { app } = this.#data.http;
    this.#threads = new ServingThreadPool({
      count: threads - 1,
      each: {
        ...{ shardIndex, shardNum, host, port, cubeTable, tls },
        ...{ limits: limitsOfThread(limits, threads), logLevel: logger.level },
      },
      ...{ store: this.#store, held: this.#held, logger },
      answer: (call) => answerCall(app, call),
    });
    this.#versions.threads = this.#threads;
    await this.#threads.start();
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
      rowsOnDisk: this.#options.rowsOnDisk ?? false,
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
