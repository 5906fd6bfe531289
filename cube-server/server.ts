/** Assembles a cube-server: store → loaded versions → services → one port or two. */
import type { AccessGate } from '../lib/access/access-gate.ts';
import {
  type AccessConfig,
  openProcessAccess,
  type ProcessAccess,
  warnIfOpen,
} from '../lib/access/process-access.ts';
import { CubeError } from '../lib/core/errors.ts';
import type { ServerLimits } from '../lib/core/limits.ts';
import { systemClock } from '../lib/platform/clock.ts';
import type { Stoppable } from '../lib/platform/lifecycle.ts';
import { getLogFormat, type Logger, type LogLevel } from '../lib/platform/logs.ts';
import { HUGE_PAGES_FILE, readHugePageMode } from '../lib/platform/machine.ts';
import { MetricsRegistry } from '../lib/platform/metrics.ts';
import { ControlAccess } from '../lib/rpc/control-access.ts';
import { GrpcServer } from '../lib/rpc/grpc-server.ts';
import { HttpServer } from '../lib/rpc/http-server.ts';
import { OnePortServer } from '../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import { type TlsFiles, TlsIdentity } from '../lib/rpc/tls-identity.ts';
import { ResidentStore } from '../lib/store/resident-store.ts';
import { addGrpcControlCalls, CONTROL_PROTO } from './control-grpc.ts';
import { addControlRoutes, refuseControlRoutes } from './control-routes.ts';
import { ControlService } from './control-service.ts';
import { CubeCommandService } from './cube-command-service.ts';
import { addCubeCommandCall } from './cube-commands-baidu.ts';
import { CubeDirectoryLoader } from './cube-directory-loader.ts';
import { DataFolderLoader } from './data-folder-loader.ts';
import { DataPort } from './data-port.ts';
import type { CubeTable } from './dict-service.ts';
import { addHealthRoutes, addMetricsRoute, handleForwardedCall } from './http-routes.ts';
import { LoadedVersions } from './loaded-versions.ts';
import { divideLimits } from './option-parsers.ts';
import { findRouteAccess } from './route-access.ts';
import { addDataPortMetrics, addHttpMetrics, addVersionMetrics } from './server-metrics.ts';
import { ServingThreadPool } from './serving-threads.ts';
import type { HttpCall, HttpResult } from './thread-protocol.ts';
import { VersionControl } from './version-control.ts';

export interface CubeServerOptions {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly dataFolder: string;
  readonly memoryBytes: number;
  /** Threads that answer lookups; more than one needs listeners that can share a port. */
  readonly threads?: number;
  /** Keep rows in their files where the layout allows it. */
  readonly rowsOnDisk?: boolean;
  /** Maximum read rate of loads while lookups are answered; absent: unlimited. */
  readonly loadBytesPerSecond?: number;
  readonly retireGraceMs: number;
  /** Table that Cube clients read by seek; undefined: the only table. */
  readonly cubeTable: CubeTable | undefined;
  /** Folder that an agent of Cube deploys to; undefined: Cube's commands read the data folder. */
  readonly cubeFolder?: string | undefined;
  /** Undefined: control calls only from this host. */
  readonly controlTokenFile: string | undefined;
  /** Keys, address rules and audit; absent: none. */
  readonly access?: AccessConfig | undefined;
  /** A certificate of these authorities also allows control calls; absent: no TLS. */
  readonly tls?: TlsFiles | undefined;
  readonly limits: ServerLimits;
  readonly logger: Logger;
}

export interface ListenOptions {
  readonly host: string;
  readonly port: number;
  /** Port of control calls and metrics, which the data port then refuses. */
  readonly adminPort?: number;
}

/** Bundle and table of Cube's dictionary, unless --cube-table is given. */
const DEFAULT_CUBE_TABLE: CubeTable = { bundle: 'cube', table: 'dict' };
const MAIN_THREAD = 0;
/** Resolution of idle times. */
const UPDATE_LAST_USED_MS = 1000;

export class CubeServer implements Stoppable {
  readonly #options: CubeServerOptions;
  readonly #store: ResidentStore;
  readonly #loaded: LoadedVersions;
  readonly #versions: VersionControl;
  readonly #control: ControlService;
  readonly #access: ControlAccess;
  readonly #processAccess: ProcessAccess;
  readonly #tls: TlsIdentity | undefined;
  readonly #cubeDirectories: CubeDirectoryLoader | undefined;
  readonly #data: DataPort;
  #threads: ServingThreadPool | undefined;
  #admin: OnePortServer | undefined;
  #useTimer: NodeJS.Timeout | undefined;
  #stopping = false;
  #isLoadingAtStart = false;

  constructor(options: CubeServerOptions) {
    const { shardIndex, shardNum, dataFolder, cubeTable, threads = 1, logger } = options;
    this.#options = options;
    this.#store = new ResidentStore({
      budgetBytes: options.memoryBytes,
      threads,
      rowsOnDisk: options.rowsOnDisk ?? false,
      onDamage: (error) =>
        logger.error({ reason: error.message }, 'damaged block on disk; reads of its rows fail'),
    });
    this.#loaded = new LoadedVersions({ shardIndex, shardNum, clock: systemClock });
    this.#versions = new VersionControl({
      loaded: this.#loaded,
      store: this.#store,
      dataFolder,
      clock: systemClock,
      retireGraceMs: options.retireGraceMs,
      loadBytesPerSecond: options.loadBytesPerSecond ?? Number.POSITIVE_INFINITY,
    });
    const ready = (): boolean => this.#notReady() === undefined;
    this.#control = new ControlService({ versions: this.#versions, logger, ready });
    const { controlTokenFile: tokenFile, tls, access = {} } = options;
    this.#processAccess = openProcessAccess({
      config: access,
      processName: 'cube-server',
      findRequirement: findRouteAccess,
      logger,
    });
    this.#access = new ControlAccess({
      tokenFile,
      acceptCertificates: tls?.ca !== undefined,
      gate: this.#processAccess.gate,
      audit: this.#processAccess.audit,
      logger,
      authFlags: '--control-token-file, --key-file or --tls-ca',
    });
    this.#tls = tls && new TlsIdentity(tls, logger);
    this.#cubeDirectories = this.#openCubeFolder();
    const limits = divideLimits(options.limits, threads);
    this.#data = new DataPort({
      versions: this.#loaded,
      tls: this.#tls,
      gate: this.#gate,
      limits,
      cubeTable,
      ready,
      logger,
    });
  }

  /**
   * Listens on the admin port, does the load that is due at start, and then, whether it succeeded
   * or not, listens on the data port: callers that connect to the port find the server as ready as
   * it gets by itself.
   * @returns the address, which is also logged
   * @throws CubeError IO when a port is taken, STOPPING after `cancelStart`; call `stop` in both
   *   cases too
   */
  async listen({ host, port, adminPort }: ListenOptions): Promise<string> {
    const { limits, logger, shardIndex, shardNum, threads = 1 } = this.#options;
    const admin =
      adminPort === undefined
        ? this.#data.http
        : new HttpServer(limits, logger, '', { gate: this.#gate });
    this.#data.addControlCalls((call) => handleForwardedCall(this.#data.http.app, call));
    this.#addRoutes(admin);
    if (adminPort !== undefined) await this.#listenForControl(admin, host, adminPort);
    await this.#loadAtStart();
    const address = await this.#data.server.listen(host, port, threads > 1);
    if (threads > 1) await this.#startThreads(host, Number(/\d+$/.exec(address)?.[0]));
    warnIfOpen(host, this.#processAccess, logger);
    logger.info({ address, shardIndex, shardNum, threads }, 'listening');
    logHugePages(logger);
    this.#useTimer = setInterval(() => void this.#versions.updateLastUsed(), UPDATE_LAST_USED_MS);
    this.#useTimer.unref();
    return address;
  }

  /** Makes `listen` fail soon where it still loads; has no effect once it listens. */
  cancelStart(): void {
    if (!this.#isLoadingAtStart) return;
    this.#stopping = true;
    this.#cubeDirectories?.close();
    void this.#store.close();
  }

  /** Becomes not ready and refuses lookups until the control call `undrain`. */
  async drain(): Promise<void> {
    await this.#control.drain(true);
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    clearInterval(this.#useTimer);
    // Loads in progress fail now, so that stopping does not wait for their callers; loaded versions
    // keep answering.
    this.#cubeDirectories?.close();
    const servers = [this.#threads?.stop(), this.#data.server.stop(), this.#admin?.stop()];
    await Promise.all([this.#store.close(), ...servers]);
    this.#processAccess.close();
  }

  async #listenForControl(http: HttpServer, host: string, port: number): Promise<void> {
    const { limits, logger } = this.#options;
    const isReady = (): boolean => this.#notReady() === undefined;
    const gate = this.#gate;
    const grpc = new GrpcServer({ limits, logger, protoFiles: [CONTROL_PROTO], isReady, gate });
    const routes = new RpcRoutes();
    const answer = (call: HttpCall): Promise<HttpResult> => handleForwardedCall(http.app, call);
    addGrpcControlCalls(grpc, answer);
    addCubeCommandCall(routes, answer);
    this.#admin = new OnePortServer({ routes, http, grpc, tls: this.#tls, gate, limits, logger });
    const adminAddress = await this.#admin.listen(host, port);
    logger.info({ adminAddress }, 'listening on the admin port');
  }

  /** @throws CubeError STOPPING when the server was stopped meanwhile */
  async #loadAtStart(): Promise<void> {
    if (this.#cubeDirectories === undefined) return;
    this.#isLoadingAtStart = true;
    this.#loaded.startFailure = await this.#cubeDirectories.loadFirst();
    this.#isLoadingAtStart = false;
    if (this.#stopping)
      throw new CubeError('STOPPING', 'stopped before the load at start was done');
  }

  #addRoutes(admin: HttpServer): void {
    const { cubeTable, dataFolder, logger } = this.#options;
    const { http } = this.#data;
    const versions = this.#versions;
    const cube =
      this.#cubeDirectories ?? new DataFolderLoader(versions, dataFolder, cubeTable?.bundle);
    const cmd = new CubeCommandService({ versions, loader: cube, logger });
    const notReady = (): string | undefined => this.#notReady();
    addControlRoutes(admin.app, {
      control: this.#control,
      cubeCommands: cmd,
      access: this.#access,
    });
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
      threadOptions: {
        shardIndex,
        shardNum,
        host,
        port,
        cubeTable,
        startFailure: this.#loaded.startFailure,
        tls,
        // One thread writes the audit log.
        access: { ...this.#options.access, audit: undefined },
        limits: divideLimits(limits, threads),
        logLevel: logger.level as LogLevel,
        logFormat: getLogFormat(),
      },
      store: this.#store,
      versions: this.#loaded,
      logger,
      handleCall: (call) => handleForwardedCall(app, call),
    });
    this.#versions.threads = this.#threads;
    await this.#threads.start();
  }

  get #gate(): AccessGate | undefined {
    const { gate } = this.#processAccess;
    return gate.isRestrictive ? gate : undefined;
  }

  #openCubeFolder(): CubeDirectoryLoader | undefined {
    const { cubeFolder, cubeTable, dataFolder, shardIndex, shardNum, logger } = this.#options;
    if (cubeFolder === undefined) return undefined;
    return new CubeDirectoryLoader({
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
    if (this.#loaded.draining) return 'draining; end it with the control call "undrain"';
    if (this.#isLoadingAtStart) return `loading ${this.#cubeDirectories?.folder}`;
    if (!this.#loaded.ready) return this.#loaded.explainNotReady();
    return undefined;
  }
}

/** Says once at the start that lookups of large tables could cost less on this machine. */
function logHugePages(logger: Logger): void {
  const hugePages = readHugePageMode();
  if (hugePages === undefined || hugePages === 'always') return;
  logger.info(
    { hugePages, file: HUGE_PAGES_FILE },
    'transparent huge pages are not on for tables: lookups in large tables take more CPU time ' +
      '(docs/operations.md#huge-pages)',
  );
}
