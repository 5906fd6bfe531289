/** A host: its disk, its server, and its agent, which is the real one from the channels down to each action. */
import { BundleKeeper } from '../../cube-agent/host/bundle-keeper.ts';
import { Fetcher } from '../../cube-agent/host/fetcher.ts';
import { Lanes } from '../../cube-agent/host/lanes.ts';
import { Problems } from '../../cube-agent/host/problems.ts';
import { ServerWatch } from '../../cube-agent/host/server-watch.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef } from '../../lib/core/manifest.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { Repository } from '../../lib/repository/repository.ts';
import { BUNDLE, HostDisk, HostFiles, sha256Of } from './host-disk.ts';
import { type MemoryStore, ProcessStore } from './memory-store.ts';
import { SimControl, SimServer } from './sim-server.ts';
import { SimProcess, type World } from './world.ts';

const POLL_MS = 3000;
/** As in the real agent's tick. */
const PATIENCE_MS = 500;
const RETIRE_GRACE_MS = 5000;
const RESTART_MS = 1000;
const FETCH_MS = 300;
const PLENTY = 2 ** 40;

/** Until when each trouble lasts. */
export interface HostTroubles {
  cutOffMs: number;
  repositoryAwayMs: number;
  slowMs: number;
  fetchFailsMs: number;
  fetchCorruptsMs: number;
  diskFullMs: number;
}

export type BrokenAgent =
  | 'activates what is not staged'
  | 'removes what is held'
  | 'agents never come back';

export class SimHost {
  readonly files: HostFiles = new HostFiles();
  /** One for each number of shards that the fleet has. */
  readonly servers: readonly SimServer[];
  readonly troubles: HostTroubles = {
    ...{ cutOffMs: 0, repositoryAwayMs: 0, slowMs: 0 },
    ...{ fetchFailsMs: 0, fetchCorruptsMs: 0, diskFullMs: 0 },
  };
  agent: SimProcess;
  problems: Problems[] = [];
  clockStepMs = 0;
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

  /** @throws Error where no server has so many shards */
  serverOf(shardNum: number): SimServer {
    const server = this.servers.find((some) => some.shardNum === shardNum);
    if (server === undefined) throw new Error(`no server of ${shardNum} shards`);
    return server;
  }

  /** All of them begin anew, empty. */
  restart(): void {
    for (const server of this.servers) server.restart();
  }

  /** Looks at once. */
  poke(): void {
    for (const problems of this.problems) problems.retryNow();
    this.#wake.abort('');
  }

  /** Kills the agent for good. */
  close(): void {
    this.#isClosed = true;
    this.agent.kill();
  }

  isIn(trouble: keyof HostTroubles): boolean {
    return this.#world.nowMs < this.troubles[trouble];
  }

  #start(): SimProcess {
    const process = new SimProcess(this.#world, this.#name, this.#lives++, () => {
      if (this.#isClosed || this.#broken === 'agents never come back') return;
      const atMs = this.#world.nowMs + RESTART_MS;
      this.#world.at(atMs, () => {
        this.agent = this.#start();
      });
    });
    process.clockStepMs = this.clockStepMs;
    process.start(() => this.#run(process));
    return process;
  }

  async #run(process: SimProcess): Promise<void> {
    const { clock } = process;
    const logger = this.#logger;
    const stopping = new AbortController().signal;
    const hostProblems = new Problems(clock, POLL_MS);
    const controls = this.servers.map((server) => new SimControl(server, process));
    const away = (): boolean => this.isIn('repositoryAwayMs');
    const repository = new HostRepository(
      this,
      process,
      new ProcessStore(this.#store, process, away),
    );
    const servers = new ServerWatch({
      ...{ servers: controls, problems: hostProblems, clock, logger },
      onBack: (address) => keeper.forgetFailuresOf(address),
    });
    const keeper = new BundleKeeper({
      ...{ bundle: BUNDLE, channels: ['stable', 'canary'], clock, logger, hostProblems, stopping },
      beside: () => [],
      ...{ repository: () => repository, servers, retireGraceMs: RETIRE_GRACE_MS },
      copyLayer: ({ bundle, table, layer, target }) =>
        repository.fetchLayer(bundle, table, layer, target),
      host: new HostDisk(this.files, (layer) => this.#checkRemoval(layer)),
      clients: new Map(controls.map((control) => [control.address, control])),
      lanes: new Lanes(clock, logger, (lane) => {
        servers.changed(lane);
        this.#wake.abort('');
      }),
      fetcher: new HostFetcher(this, process),
      keep: { versions: 3, bytes: PLENTY },
      firstBackoffMs: POLL_MS,
    });
    this.problems = [hostProblems, keeper.problems];
    await this.#loop(process, keeper, servers);
  }

  /** The real agent's loop, which is bound to its sockets and folders. */
  async #loop(process: SimProcess, keeper: BundleKeeper, servers: ServerWatch): Promise<void> {
    const { clock, random } = process;
    const { signal } = new AbortController();
    let looking: Promise<void> | undefined;
    for (;;) {
      this.#wake = new AbortController();
      looking ??= keeper.observer.look().finally(() => {
        looking = undefined;
      });
      const patience = new AbortController();
      let isSlow = true;
      const answers = Promise.all([servers.ask(signal), looking]).then(() => {
        isSlow = false;
      });
      await Promise.race([answers, clock.sleep(PATIENCE_MS, patience.signal)]);
      patience.abort('');
      if (isSlow) void answers.then(() => this.#wake.abort(''));
      keeper.act();
      await this.#break(process, keeper);
      await clock.sleep(POLL_MS * (0.8 + 0.4 * random.next()), this.#wake.signal);
    }
  }

  /** What must be noticed: an agent that does what it must not. */
  async #break(process: SimProcess, keeper: BundleKeeper): Promise<void> {
    const { candidate } = keeper.channels;
    if (this.#broken === 'activates what is not staged' && candidate !== undefined) {
      const control = new SimControl(this.servers[0]!, process);
      await control.activate({ bundle: BUNDLE, version: candidate }).catch(() => undefined);
    }
    if (this.#broken === 'removes what is held') {
      const [layer] = this.files.layers.keys();
      if (layer !== undefined) keeper.host.removeLayer(layer);
    }
  }

  /** What a server holds or loads must be there for its restart. */
  #checkRemoval(layer: string): void {
    for (const { held, loading, shardIndex } of this.servers) {
      for (const version of [...held.keys(), ...loading.keys()]) {
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

/** Layers come over a network that loses, damages and delays them, to a disk that may be full. */
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
    const bytes = await this.#backend.read(layerPath(bundle, table, layer.contentId), PLENTY);
    await process.call(() => files.parts.add(target));
    await process.clock.sleep(FETCH_MS * process.random.next() * (host.isIn('slowMs') ? 50 : 1));
    await process.call(() => {
      if (host.isIn('fetchFailsMs')) throw new CubeError('UNAVAILABLE', 'connection reset');
      if (host.isIn('diskFullMs')) throw new CubeError('IO', 'ENOSPC: no space left on device');
      files.parts.delete(target);
      if (host.isIn('fetchCorruptsMs') || sha256Of(bytes) !== layer.sha256) {
        throw new CubeError('CORRUPT', `${target}: SHA-256 is not that of the manifest`);
      }
      files.layers.set(target, bytes);
    });
  }
}

class HostFetcher extends Fetcher {
  readonly #host: SimHost;

  constructor(host: SimHost, { clock }: SimProcess) {
    super({ dataFolder: '', parallel: 2, bytesPerSecond: undefined, keepFreeBytes: 0, clock });
    this.#host = host;
  }

  override freeBytes(): number {
    return this.#host.isIn('diskFullMs') ? 0 : PLENTY;
  }
}
