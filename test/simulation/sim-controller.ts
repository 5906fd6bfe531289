/** A controller: the real one, with what it sees of the fleet and hears of the gate made up. */
import { BundleController } from '../../cube-agent/rollout/bundle-controller.ts';
import { damagedLayers } from '../../cube-agent/rollout/live-fleet.ts';
import { POLICY_DEFAULTS } from '../../cube-agent/rollout/rollout-config.ts';
import type { RolloutFleet } from '../../cube-agent/rollout/rollout-driver.ts';
import type {
  GateOutcome,
  ReplicaView,
  RolloutPolicy,
  Sickness,
} from '../../cube-agent/rollout/rollout-view.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { BUNDLE } from './host-disk.ts';
import type { SimHost } from './sim-host.ts';
import type { SimServer } from './sim-server.ts';
import type { SimServing } from './sim-serving.ts';
import type { SimProcess } from './world.ts';

const POLL_MS = 1000;
const GATE_MS = 500;

export const POLICY: RolloutPolicy = {
  ...POLICY_DEFAULTS,
  channels: [
    { channel: 'canary', holdMs: 1000 },
    { channel: 'stable', holdMs: 0 },
  ],
  watchMs: 3000,
  stagingMs: 15_000,
  gatingMs: 10_000,
  activatingMs: 8_000,
};

/** How a version turns out. */
export type Health = 'good' | 'fails the gate' | 'sick' | 'damaged';

/** What a controller sees and hears. */
export interface Surroundings {
  readonly hosts: readonly SimHost[];
  readonly servings: readonly SimServing[];
  /** Made up here, so that what they cannot do can be told. */
  readonly controllers: Map<string, BundleController>;
  readonly policy: RolloutPolicy;
  shardNumOf(version: string): number;
  health(version: string): Health;
  gateIsBroken(): boolean;
}

export class SimFleet implements RolloutFleet {
  readonly #process: SimProcess;
  readonly #around: Surroundings;

  constructor(process: SimProcess, around: Surroundings) {
    this.#process = process;
    this.#around = around;
  }

  async replicas(version: string): Promise<ReplicaView[][]> {
    const { hosts } = this.#around;
    const shardNum = this.#around.shardNumOf(version);
    const shards: ReplicaView[][] = Array.from({ length: shardNum }, () => []);
    for (const host of hosts) {
      const server = host.serverOf(shardNum);
      const view = await this.#process.call(() => replicaView(host, server, version));
      shards[server.shardIndex]!.push(view);
    }
    return shards;
  }

  async gate(version: string): Promise<GateOutcome> {
    await this.#process.clock.sleep(GATE_MS);
    if (this.#around.gateIsBroken())
      return { verdict: 'error', summary: 'no port', isFinal: false };
    return this.#around.health(version) === 'fails the gate'
      ? { verdict: 'fail', summary: 'AUC fell' }
      : { verdict: 'pass', summary: 'fine' };
  }

  async sickness(version: string): Promise<Sickness | undefined> {
    if (this.#around.health(version) !== 'sick') return undefined;
    const isServed = this.#around.servings.some((serving) => serving.version === version);
    return isServed ? { fault: 'version', why: '40 % of the requests fail' } : undefined;
  }

  async moved(): Promise<void> {
    for (const host of this.#around.hosts) {
      await this.#process.call(() => {
        if (!host.isIn('cutOffMs')) host.poke();
      });
    }
  }
}

function replicaView(host: SimHost, server: SimServer, version: string): ReplicaView {
  const { address, held, active, isUp } = server;
  if (host.isIn('cutOffMs') || !isUp) {
    return { address, holds: false, isActive: false, damaged: [], trouble: 'no answer' };
  }
  const problems = host.problems.flatMap((some) => some.list());
  const concerning = problems.filter(({ what }) => what.split(' ').includes(version));
  return {
    address,
    holds: held.has(version),
    isActive: active === version,
    damaged: damagedLayers(concerning),
    trouble: concerning.map(({ what }) => what).join('; '),
  };
}

export async function runController(
  process: SimProcess,
  repository: Repository,
  around: Surroundings,
  logger: Logger,
): Promise<void> {
  const controller = new BundleController({
    ...{ bundle: BUNDLE, repository, policy: around.policy, holder: process.name, automatic: true },
    ...{ fleet: new SimFleet(process, around), clock: process.clock, logger },
  });
  around.controllers.set(process.name, controller);
  for (;;) {
    process.decidedFrom = process.world.calls;
    const isBusy = await controller.advance();
    await process.clock.sleep(isBusy ? 10 : POLL_MS * (0.8 + 0.4 * process.random.next()));
  }
}
