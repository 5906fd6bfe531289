/**
 * A simulated host: its disk and its server, with the real agent logic from channels to actions.
 */
import { BundleReconciler } from '../../cube-agent/host/bundle-reconciler.ts';
import { LayerFetcher } from '../../cube-agent/host/layer-fetcher.ts';
import { ProblemTracker } from '../../cube-agent/host/problem-tracker.ts';
import { ServerMonitor } from '../../cube-agent/host/server-monitor.ts';
import { TaskQueue } from '../../cube-agent/host/task-queue.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef } from '../../lib/core/manifest.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { Repository } from '../../lib/repository/repository.ts';
import { BUNDLE, computeSha256, HostDisk, HostFiles } from './host-disk.ts';
import { type MemoryStore, ProcessStore } from './memory-store.ts';
import { SimControl, SimServer } from './sim-server.ts';
import { SimProcess, type World } from './world.ts';

const POLL_MS = 3000;
/** As in the real agent. */
const POLL_WAIT_MS = 500;
const RETIRE_GRACE_MS = 5000;
const RESTART_MS = 1000;
const FETCH_MS = 300;
const AMPLE_BYTES = 2 ** 40;

/** The virtual time at which each fault ends. */
export interface HostFaults {
  cutOffUntilMs: number;
  repositoryAwayUntilMs: number;
  slowUntilMs: number;
  fetchFailsUntilMs: number;
  fetchCorruptsUntilMs: number;
  diskFullUntilMs: number;
}

export type AgentBug =
  | 'activates what is not staged'
  | 'removes what is held'
  | 'agents never come back';

export class SimHost {
  readonly files: HostFiles = new HostFiles();
  /** One for each shard count of the fleet. */
  readonly servers: readonly SimServer[];
  readonly faults: HostFaults = {
    cutOffUntilMs: 0,
    repositoryAwayUntilMs: 0,
    slowUntilMs: 0,
    fetchFailsUntilMs: 0,
    fetchCorruptsUntilMs: 0,
    diskFullUntilMs: 0,
  };
  agent: SimProcess;
  problems: ProblemTracker[] = [];
  clockOffsetMs = 0;
  readonly #world: World;
  readonly #store: MemoryStore;
  readonly #logger: Logger;
  readonly #name: string;
  readonly #broken: string | undefined;
  #lives = 0;
  #isClosed = false;
  #wake = new AbortController();

  constructor(
    options: { world: World; store: MemoryStore; logger: Logger; broken?: string | undefined },
    host: number,
    shardNums: readonly number[],
  ) {
    this.#world = options.world;
    this.#store = options.store;
    this.#logger = options.logger;
    this.#broken = options.broken;
    this.#name = `agent-${host}`;
    this.servers = shardNums.map((num) => new SimServer(this.#world, this.files, host, num));
    this.agent = this.#start();
  }

  /** @throws Error when no server has this shard count */
  getServer(shardNum: number): SimServer {
    const server = this.servers.find((candidate) => candidate.shardNum === shardNum);
    if (server === undefined) throw new Error(`no server of ${shardNum} shards`);
    return server;
  }

  /** Restarts all servers, which lose their versions. */
  restart(): void {
    for (const server of this.servers) server.restart();
  }

  /** Polls now. */
  poke(): void {
    for (const problems of this.problems) problems.retryNow();
    this.#wake.abort('');
  }

  /** Kills the agent for good. */
  close(): void {
    this.#isClosed = true;
    this.agent.kill();
  }

  hasFault(trouble: keyof HostFaults): boolean {
    return this.#world.nowMs < this.faults[trouble];
  }

  #start(): SimProcess {
    const process = new SimProcess(this.#world, this.#name, this.#lives++, () => {
      if (this.#isClosed || this.#broken === 'agents never come back') return;
      const atMs = this.#world.nowMs + RESTART_MS;
      this.#world.schedule(atMs, () => {
        this.agent = this.#start();
      });
    });
    process.clockOffsetMs = this.clockOffsetMs;
    process.start(() => this.#run(process));
    return process;
  }

  async #run(process: SimProcess): Promise<void> {
    const { clock } = process;
    const logger = this.#logger;
    const stopping = new AbortController().signal;
    const hostProblems = new ProblemTracker(clock, POLL_MS);
    const controls = this.servers.map((server) => new SimControl(server, process));
    const away = (): boolean => this.hasFault('repositoryAwayUntilMs');
    const repository = new HostRepository(
      this,
      process,
      new ProcessStore(this.#store, process, away),
    );
    const servers = new ServerMonitor({
      servers: controls,
      problems: hostProblems,
      clock,
      logger,
      onReturn: (address) => keeper.clearServerProblems(address),
    });
    const keeper = new BundleReconciler({
      bundle: BUNDLE,
      channels: ['stable', 'canary'],
      clock,
      logger,
      hostProblems,
      pollIn: (ms) => void clock.sleep(ms).then(() => this.#wake.abort('')),
      stopping,
      otherBundles: () => [],
      repository: () => repository,
      servers,
      retireGraceMs: RETIRE_GRACE_MS,
      copyLayer: ({ bundle, table, layer, target }) =>
        repository.fetchLayer(bundle, table, layer, target),
      data: new HostDisk(this.files, (layer) => this.#checkRemoval(layer)),
      clients: new Map(controls.map((control) => [control.address, control])),
      tasks: new TaskQueue(clock, logger, () => this.#wake.abort('')),
      fetcher: new HostFetcher(this, process),
      retention: { maxVersions: 3, maxBytes: AMPLE_BYTES },
      firstBackoffMs: POLL_MS,
    });
    this.problems = [hostProblems, keeper.problems];
    await this.#loop(process, keeper, servers);
  }

  /** A copy of the real agent's loop, without its sockets and folders. */
  async #loop(
    process: SimProcess,
    keeper: BundleReconciler,
    servers: ServerMonitor,
  ): Promise<void> {
    const { clock, random } = process;
    const { signal } = new AbortController();
    let looking: Promise<void> | undefined;
    let fullPollMs = Number.NEGATIVE_INFINITY;
    const ask = async (): Promise<void> => {
      if (clock.nowMs() < fullPollMs) return servers.pollChanged(signal);
      fullPollMs = clock.nowMs() + POLL_MS * (0.8 + 0.4 * random.next());
      looking ??= keeper.observer.refresh().finally(() => {
        looking = undefined;
      });
      await Promise.all([servers.poll(signal), looking]);
    };
    for (;;) {
      this.#wake = new AbortController();
      const patience = new AbortController();
      let isSlow = true;
      const answers = ask().then(() => {
        isSlow = false;
      });
      await Promise.race([answers, clock.sleep(POLL_WAIT_MS, patience.signal)]);
      patience.abort('');
      if (isSlow) void answers.then(() => this.#wake.abort(''));
      keeper.reconcile();
      await this.#break(process, keeper);
      await clock.sleep(Math.max(0, fullPollMs - clock.nowMs()), this.#wake.signal);
    }
  }

  /** Injects a bug that an invariant must detect. */
  async #break(process: SimProcess, keeper: BundleReconciler): Promise<void> {
    const { candidate } = keeper.channels;
    if (this.#broken === 'activates what is not staged' && candidate !== undefined) {
      const control = new SimControl(this.servers[0]!, process);
      await control.activate({ bundle: BUNDLE, version: candidate }).catch(() => undefined);
    }
    if (this.#broken === 'removes what is held') {
      const [layer] = this.files.layers.keys();
      if (layer !== undefined) keeper.data.removeLayer(layer);
    }
  }

  /** Files of loaded and loading versions must stay for a restart. */
  #checkRemoval(layer: string): void {
    for (const { loaded, loading, shardIndex } of this.servers) {
      for (const version of [...loaded.keys(), ...loading.keys()]) {
        const tables = this.files.manifests.get(version)?.tables ?? [];
        const isNeeded = tables.some(({ name, shards }) =>
          (shards[shardIndex] ?? []).some(({ contentId }) => `${name}/${contentId}` === layer),
        );
        this.#world.require(!isNeeded, 'no file that a server needs is removed', () => {
          return `${this.#name} removes ${layer} of ${version}, which its server holds or loads`;
        });
      }
    }
  }
}

/** Fetches over a network that loses, damages and delays layers, to a disk that may be full. */
class HostRepository extends Repository {
  readonly #host: SimHost;
  readonly #process: SimProcess;
  readonly #backend: ProcessStore;

  constructor(host: SimHost, process: SimProcess, backend: ProcessStore) {
    super(backend, process.clock);
    this.#host = host;
    this.#process = process;
    this.#backend = backend;
  }

  override async fetchLayer(
    bundle: string,
    table: string,
    layer: LayerRef,
    target: string,
  ): Promise<void> {
    const host = this.#host;
    const { files } = host;
    if (files.layers.has(target)) return;
    const process = this.#process;
    const bytes = await this.#backend.read(layerPath(bundle, table, layer.contentId), AMPLE_BYTES);
    await process.call(() => files.partialLayers.add(target));
    await process.clock.sleep(
      FETCH_MS * process.random.next() * (host.hasFault('slowUntilMs') ? 50 : 1),
    );
    await process.call(() => {
      if (host.hasFault('fetchFailsUntilMs'))
        throw new CubeError('UNAVAILABLE', 'connection reset');
      if (host.hasFault('diskFullUntilMs'))
        throw new CubeError('IO', 'ENOSPC: no space left on device');
      files.partialLayers.delete(target);
      if (host.hasFault('fetchCorruptsUntilMs') || computeSha256(bytes) !== layer.sha256) {
        throw new CubeError('CORRUPT', `${target}: SHA-256 is not that of the manifest`);
      }
      files.layers.set(target, bytes);
    });
  }
}

class HostFetcher extends LayerFetcher {
  readonly #host: SimHost;

  constructor(host: SimHost, { clock }: SimProcess) {
    super({ dataFolder: '', parallel: 2, bytesPerSecond: undefined, keepFreeBytes: 0, clock });
    this.#host = host;
  }

  override freeBytes(): number {
    return this.#host.hasFault('diskFullUntilMs') ? 0 : AMPLE_BYTES;
  }
}
