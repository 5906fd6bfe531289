/** Everything of one run: a repository, hosts, controllers and serving processes, and the seed that they share. */
import type { BundleController } from '../../cube-agent/rollout/bundle-controller.ts';
import type { RolloutPolicy } from '../../cube-agent/rollout/rollout-view.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { Repository } from '../../lib/repository/repository.ts';
import { MemoryStore, ProcessStore } from './memory-store.ts';
import { Publisher } from './publisher.ts';
import { Rules } from './rules.ts';
import { type Health, POLICY, runController, type Surroundings } from './sim-controller.ts';
import { type BrokenAgent, SimHost } from './sim-host.ts';
import type { SimServer } from './sim-server.ts';
import { SimServing } from './sim-serving.ts';
import { SimProcess, World } from './world.ts';

const RESTART_MS = 1000;
const CHANNELS = [...POLICY.channels.map(({ channel }) => channel)];
const logger = createLogger('simulation', 'silent');

/** What is broken on purpose, to see that it is noticed. */
export type Broken =
  | BrokenAgent
  | 'client mixes'
  | 'goes back to what is quarantined'
  | 'collector dies';

export class FleetRun implements Surroundings {
  readonly world: World;
  readonly rules: Rules;
  readonly store: MemoryStore;
  readonly hosts: readonly SimHost[];
  readonly servings: readonly SimServing[];
  /** Some fleets have two: versions of either come, to servers of their own. */
  readonly shardNums: readonly number[];
  readonly publisher: Publisher;
  readonly policy: RolloutPolicy;
  /** Those that are killed and come back: controllers and serving processes. */
  readonly mortals: Map<string, SimProcess> = new Map();
  readonly broken: Broken | undefined;
  readonly controllers: Map<string, BundleController> = new Map();
  gateBrokenMs = 0;
  repositoryAwayMs = 0;
  /** Nobody comes back any more. */
  isClosing = false;
  #lives = 0;

  constructor(seed: number, hosts: number, broken?: Broken) {
    this.world = new World(seed);
    this.broken = broken;
    // Some fleets do without a gate.
    this.policy = { ...POLICY, gate: seed % 4 !== 0 };
    const half = Math.max(1, hosts >> 1);
    this.shardNums = seed % 3 === 0 && half > 1 ? [half, half - 1] : [half];
    const isStaged = (version: string): boolean =>
      this.hosts.every((host) => this.#serverOf(host, version).everHeld.has(version));
    const isDamaged = (version: string): boolean => this.publisher.isDamaged(version);
    this.rules = new Rules(this.world, isStaged, isDamaged, () => this.store);
    this.store = new MemoryStore(this.world, this.rules);
    const { world, store } = this;
    const parts = { world, store, logger, broken };
    this.hosts = Array.from({ length: hosts }, (_, i) => new SimHost(parts, i, this.shardNums));
    this.publisher = new Publisher(this.shardNums);
    this.servings = ['stable', 'stable', 'canary'].map((channel) => {
      const { hosts } = this;
      const shardNumOf = (version: string) => this.shardNumOf(version);
      const tagOf = (version: string) => this.publisher.versions.get(version)?.tag;
      return new SimServing({
        channel,
        hosts,
        shardNumOf,
        tagOf,
        mixes: broken === 'client mixes',
      });
    });
    for (const [i, serving] of this.servings.entries()) {
      this.#keepUp(`serving-${i}`, (process, repository) => {
        serving.version = undefined;
        return serving.run(process, repository);
      });
    }
    for (const name of ['controller-a', 'controller-b']) {
      this.#keepUp(name, (process, repository) => runController(process, repository, this, logger));
    }
  }

  shardNumOf(version: string): number {
    return this.publisher.shardNumOf(version);
  }

  health(version: string): Health {
    return this.publisher.versions.get(version)?.health ?? 'good';
  }

  gateIsBroken(): boolean {
    return this.world.nowMs < this.gateBrokenMs;
  }

  /** Somebody who does one thing and is gone. */
  once(
    name: string,
    act: (process: SimProcess, repository: Repository) => Promise<void>,
  ): SimProcess {
    const process = new SimProcess(this.world, name, this.#lives++, () => undefined);
    const store = this.storeOf(process);
    process.decidedFrom = this.world.calls;
    process.start(() => act(process, new Repository(store, process.clock)));
    return process;
  }

  storeOf(process: SimProcess): ProcessStore {
    return new ProcessStore(this.store, process, () => this.world.nowMs < this.repositoryAwayMs);
  }

  /** Faults are over: everything is back, and stays. */
  heal(): void {
    this.gateBrokenMs = 0;
    this.repositoryAwayMs = 0;
    for (const host of this.hosts) {
      for (const name of Object.keys(host.troubles)) {
        host.troubles[name as keyof typeof host.troubles] = 0;
      }
      for (const server of host.servers) server.isUp = true;
    }
    for (const process of [...this.mortals.values(), ...this.hosts.map(({ agent }) => agent)]) {
      process.killIn = undefined;
      process.slowMs = 0;
      process.lossyMs = 0;
    }
    this.world.note('', 'faults are over');
  }

  /** Everybody is where `version` is wanted, and holds nothing that nobody wants. */
  hasConverged(version: string): boolean {
    const { pointers, rollouts } = this.rules;
    return (
      rollouts.get(version)?.state === 'active' &&
      CHANNELS.every((channel) => pointers.get(channel)?.version === version) &&
      this.servings.every((serving) => serving.version === version) &&
      this.hosts.every((host) => this.#serverOf(host, version).active === version && isTidy(host))
    );
  }

  /** Why not yet, for people. */
  whereabouts(): string {
    const { pointers, rollouts } = this.rules;
    const channels = [...pointers].map(([channel, { version }]) => `${channel} ${version}`);
    const states = [...rollouts].map(([version, { state }]) => `${version} ${state}`);
    const servers = this.hosts
      .flatMap((host) => host.servers)
      .map(({ active, held }) => `${active}/${[...held.keys()]}`);
    const servings = this.servings.map(({ version }) => version);
    const problems = this.hosts.flatMap((host) =>
      host.problems.flatMap((some) =>
        some.list().map(({ what, message }) => `${what}: ${message}`),
      ),
    );
    const untidy = this.hosts.flatMap((host, i) => (isTidy(host) ? [] : [i]));
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
    for (const process of this.mortals.values()) process.kill();
  }

  #serverOf(host: SimHost, version: string): SimServer {
    return host.serverOf(this.shardNumOf(version));
  }

  #keepUp(name: string, act: (process: SimProcess, repository: Repository) => Promise<void>): void {
    const before = this.mortals.get(name);
    const process = new SimProcess(this.world, name, this.#lives++, () => {
      if (this.isClosing) return;
      this.world.at(this.world.nowMs + RESTART_MS, () => this.#keepUp(name, act));
    });
    process.clockStepMs = before?.clockStepMs ?? 0;
    this.mortals.set(name, process);
    process.start(() => act(process, new Repository(this.storeOf(process), process.clock)));
  }
}

/** Nothing on the disk but layers of versions that are there, and pieces of what is tried again and again. */
function isTidy({ files, problems }: SimHost): boolean {
  const named = new Set<string>();
  for (const { tables } of files.manifests.values()) {
    for (const { name, shards } of tables) {
      for (const { contentId } of shards.flat()) named.add(`${name}/${contentId}`);
    }
  }
  const wanted = problems.flatMap((some) => some.list().map(({ what }) => what.split(' ').at(-1)));
  const isLeftOver = [...files.parts].some((part) => !wanted.includes(part));
  return !isLeftOver && [...files.layers.keys()].every((layer) => named.has(layer));
}
