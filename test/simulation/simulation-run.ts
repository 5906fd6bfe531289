/**
 * One simulated fleet: a repository, hosts, controllers and serving processes that share a seed.
 */
import { toLayerName } from '../../cube-agent/host/plan.ts';
import type { BundleController } from '../../cube-agent/rollout/bundle-controller.ts';
import type { RolloutPolicy } from '../../cube-agent/rollout/rollout-view.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import {
  loadGarbageCollection,
  loadPublication,
  Repository,
} from '../../lib/repository/repository.ts';
import { Invariants } from './invariants.ts';
import { MemoryStore, ProcessStore } from './memory-store.ts';
import { Publisher } from './publisher.ts';
import { type FleetEnvironment, type Health, POLICY, runController } from './sim-controller.ts';
import { type AgentBug, SimHost } from './sim-host.ts';
import type { SimServer } from './sim-server.ts';
import { SimServing } from './sim-serving.ts';
import { SimProcess, World } from './world.ts';

// Repositories load these at their first publication and collection. That takes real time, in which
// virtual time would go on, or end.
await loadPublication();
await loadGarbageCollection();

const RESTART_MS = 1000;
const CHANNELS = [...POLICY.channels.map(({ channel }) => channel)];
/** The third is the only one of its channel. */
const SERVINGS = [
  { channel: 'stable', store: 'remote' },
  { channel: 'stable', store: 'remote' },
  { channel: 'canary', store: 'remote' },
  { channel: 'stable', store: 'local' },
] as const;
const logger = createLogger('simulation', { level: 'silent' });

/** Bugs that are injected to test the invariants. */
export type InjectedBug =
  | AgentBug
  | 'client mixes'
  | 'serving ignores quarantines'
  | 'young processes differ'
  | 'goes back to what never served'
  | 'goes back to what is quarantined'
  | 'collector dies';

export class SimulationRun implements FleetEnvironment {
  readonly world: World;
  readonly invariants: Invariants;
  readonly store: MemoryStore;
  readonly hosts: readonly SimHost[];
  readonly servings: readonly SimServing[];
  /** Shard counts. Some fleets have two, with servers of their own. */
  readonly shardNums: readonly number[];
  readonly publisher: Publisher;
  /** Versions that have served in some process. */
  readonly everServed: Set<string> = new Set();
  readonly policy: RolloutPolicy;
  /** Controllers and serving processes, which restart after a kill. */
  readonly restartingProcesses: Map<string, SimProcess> = new Map();
  readonly bug: InjectedBug | undefined;
  readonly controllers: Map<string, BundleController> = new Map();
  gateBrokenUntilMs = 0;
  repositoryAwayUntilMs = 0;
  /** The faults are over. */
  isEnding = false;
  /** Killed processes do not restart any more. */
  isClosing = false;
  #lives = 0;

  constructor(seed: number, hosts: number, broken?: InjectedBug) {
    this.world = new World(seed);
    this.bug = broken;
    // Some fleets have no gate.
    this.policy = { ...POLICY, gate: seed % 4 !== 0 };
    const half = Math.max(1, hosts >> 1);
    this.shardNums = seed % 3 === 0 && half > 1 ? [half, half - 1] : [half];
    const isStaged = (version: string): boolean =>
      this.hosts.every((host) => this.#getServer(host, version).everLoaded.has(version));
    const isDamaged = (version: string): boolean => this.publisher.isDamaged(version);
    this.invariants = new Invariants(this.world, {
      isStaged,
      isDamaged,
      hasServed: (version) => this.everServed.has(version),
      store: () => this.store,
    });
    this.store = new MemoryStore(this.world, this.invariants);
    const { world, store } = this;
    const parts = { world, store, logger, broken };
    this.hosts = Array.from({ length: hosts }, (_, i) => new SimHost(parts, i, this.shardNums));
    this.publisher = new Publisher(this.shardNums);
    this.servings = SERVINGS.map(({ channel, store }) => {
      const { hosts, everServed } = this;
      const findShardNum = (version: string) => this.findShardNum(version);
      const findTag = (version: string) => this.publisher.versions.get(version)?.tag;
      return new SimServing({
        channel,
        store,
        hosts,
        findShardNum,
        findTag: findTag,
        failsWarmUp: (version) => this.getHealth(version) === 'fails its warm-up',
        isDamaged,
        quarantined: this.invariants.quarantined,
        everServed,
        logger,
        ignoresVersion: broken === 'client mixes',
        ignoresQuarantine: broken === 'serving ignores quarantines',
        prefersPrevious: () => broken === 'young processes differ' && this.isEnding,
      });
    });
    for (const [i, serving] of this.servings.entries()) {
      this.#keepUp(`serving-${i}`, (process, repository) => {
        return serving.run(process, repository);
      });
    }
    for (const name of ['controller-a', 'controller-b']) {
      this.#keepUp(name, (process, repository) => runController(process, repository, this, logger));
    }
  }

  findShardNum(version: string): number {
    return this.publisher.findShardNum(version);
  }

  getHealth(version: string): Health {
    return this.publisher.versions.get(version)?.health ?? 'good';
  }

  isGateBroken(): boolean {
    return this.world.nowMs < this.gateBrokenUntilMs;
  }

  /** Runs one action in a process of its own. */
  runOnce(
    name: string,
    act: (process: SimProcess, repository: Repository) => Promise<void>,
  ): SimProcess {
    const process = new SimProcess(this.world, name, this.#lives++, () => undefined);
    const store = this.openStore(process);
    process.decidedAtCall = this.world.calls;
    process.start(() => act(process, new Repository(store, process.clock)));
    return process;
  }

  openStore(process: SimProcess): ProcessStore {
    return new ProcessStore(
      this.store,
      process,
      () => this.world.nowMs < this.repositoryAwayUntilMs,
    );
  }

  /** Ends all faults. */
  heal(): void {
    this.isEnding = true;
    this.gateBrokenUntilMs = 0;
    this.repositoryAwayUntilMs = 0;
    for (const host of this.hosts) {
      for (const name of Object.keys(host.faults)) {
        host.faults[name as keyof typeof host.faults] = 0;
      }
      for (const server of host.servers) server.isUp = true;
    }
    for (const process of [
      ...this.restartingProcesses.values(),
      ...this.hosts.map(({ agent }) => agent),
    ]) {
      process.killIn = undefined;
      process.slowUntilMs = 0;
      process.lossyUntilMs = 0;
    }
    this.world.record('', 'faults are over');
  }

  /** Processes of one channel serve one version, whether they are old or have just started. */
  servesSameVersions(): boolean {
    const byChannel = new Map<string, Set<string | undefined>>();
    for (const { options, version } of this.servings) {
      const versions = byChannel.get(options.channel) ?? new Set();
      byChannel.set(options.channel, versions.add(version));
    }
    return [...byChannel.values()].every(({ size }) => size === 1);
  }

  /** Every process has `version`, and disks have only needed files. */
  hasConverged(version: string): boolean {
    const { pointers, rollouts } = this.invariants;
    return (
      rollouts.get(version)?.state === 'active' &&
      CHANNELS.every((channel) => pointers.get(channel)?.version === version) &&
      this.servings.every((serving) => serving.version === version) &&
      this.hosts.every(
        (host) => this.#getServer(host, version).active === version && hasOnlyNeededFiles(host),
      )
    );
  }

  /** The state of the fleet, for messages. */
  describeState(): string {
    const { pointers, rollouts } = this.invariants;
    const channels = [...pointers].map(([channel, { version }]) => `${channel} ${version}`);
    const states = [...rollouts].map(([version, { state }]) => `${version} ${state}`);
    const servers = this.hosts
      .flatMap((host) => host.servers)
      .map(({ active, loaded }) => `${active}/${[...loaded.keys()]}`);
    const servings = this.servings.map(({ version }) => version);
    const problems = this.hosts.flatMap((host) =>
      host.problems.flatMap((tracker) =>
        tracker.list().map(({ what, message }) => `${what}: ${message}`),
      ),
    );
    const untidy = this.hosts.flatMap((host, i) => (hasOnlyNeededFiles(host) ? [] : [i]));
    const waits = [...this.controllers].flatMap(([name, { problems, progress }]) => [
      ...problems.map(({ message }) => `${name}: ${message}`),
      ...[...progress].flatMap(([version, { step }]) =>
        step.kind === 'done' ? [] : [`${name}: ${version} ${JSON.stringify(step)}`],
      ),
    ]);
    return (
      `channels ${channels.join(', ')}; rollouts ${states.slice(-4).join(', ')}; ` +
      `servers ${servers.join(' ')}; serving ${servings.join(' ')}; untidy ${untidy.join(' ')}; ` +
      `controllers ${waits.join(', ')}; problems ${problems.join(', ')}`
    );
  }

  close(): void {
    this.isClosing = true;
    for (const host of this.hosts) host.close();
    for (const process of this.restartingProcesses.values()) process.kill();
  }

  #getServer(host: SimHost, version: string): SimServer {
    return host.getServer(this.findShardNum(version));
  }

  #keepUp(name: string, act: (process: SimProcess, repository: Repository) => Promise<void>): void {
    const before = this.restartingProcesses.get(name);
    const process = new SimProcess(this.world, name, this.#lives++, () => {
      if (this.isClosing) return;
      this.world.schedule(this.world.nowMs + RESTART_MS, () => this.#keepUp(name, act));
    });
    process.clockOffsetMs = before?.clockOffsetMs ?? 0;
    this.restartingProcesses.set(name, process);
    process.start(() => act(process, new Repository(this.openStore(process), process.clock)));
  }
}

/**
 * The disk has only layers of versions with a manifest, and partial layers of fetches that fail.
 */
function hasOnlyNeededFiles({ files, problems }: SimHost): boolean {
  const named = new Set<string>();
  for (const { tables } of files.manifests.values()) {
    for (const { name, shards } of tables) {
      for (const { contentId } of shards.flat()) named.add(`${name}/${contentId}`);
    }
  }
  const failing = problems
    .flatMap((tracker) => tracker.list())
    .map(({ table = '', contentId = '' }) => toLayerName(table, contentId));
  const hasLeftover = [...files.partialLayers].some((layer) => !failing.includes(layer));
  return !hasLeftover && [...files.layers.keys()].every((layer) => named.has(layer));
}
