/** The real controller with a simulated fleet and gate. */
import { BundleController } from '../../cube-agent/rollout/bundle-controller.ts';
import { listDamagedLayers } from '../../cube-agent/rollout/live-fleet.ts';
import { POLICY_DEFAULTS } from '../../cube-agent/rollout/rollout-config.ts';
import type { RolloutFleet } from '../../cube-agent/rollout/rollout-driver.ts';
import type {
  GateOutcome,
  HealthFailure,
  ReplicaView,
  RolloutPolicy,
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

/** The quality of a version. */
export type Health = 'good' | 'fails the gate' | 'fails its warm-up' | 'unhealthy' | 'damaged';

/** The environment of a controller. */
export interface FleetEnvironment {
  readonly hosts: readonly SimHost[];
  readonly servings: readonly SimServing[];
  /** By name, so that their problems can be printed. */
  readonly controllers: Map<string, BundleController>;
  readonly policy: RolloutPolicy;
  findShardNum(version: string): number;
  getHealth(version: string): Health;
  isGateBroken(): boolean;
}

export class SimFleet implements RolloutFleet {
  readonly #process: SimProcess;
  readonly #environment: FleetEnvironment;

  constructor(process: SimProcess, environment: FleetEnvironment) {
    this.#process = process;
    this.#environment = environment;
  }

  async replicas(version: string): Promise<ReplicaView[][]> {
    const { hosts } = this.#environment;
    const shardNum = this.#environment.findShardNum(version);
    const shards: ReplicaView[][] = Array.from({ length: shardNum }, () => []);
    for (const host of hosts) {
      const server = host.getServer(shardNum);
      const view = await this.#process.call(() => replicaView(host, server, version));
      shards[server.shardIndex]!.push(view);
    }
    return shards;
  }

  async gate(version: string): Promise<GateOutcome> {
    await this.#process.clock.sleep(GATE_MS);
    if (this.#environment.isGateBroken())
      return { verdict: 'error', summary: 'no port', isFinal: false };
    return ['fails the gate', 'fails its warm-up'].includes(this.#environment.getHealth(version))
      ? { verdict: 'fail', summary: 'AUC fell' }
      : { verdict: 'pass', summary: 'fine' };
  }

  async checkHealth(version: string): Promise<HealthFailure | undefined> {
    if (this.#environment.getHealth(version) !== 'unhealthy') return undefined;
    const isServed = this.#environment.servings.some((serving) => serving.version === version);
    return isServed ? { fault: 'version', reason: '40 % of the requests fail' } : undefined;
  }

  async notifyChannelMoved(): Promise<void> {
    for (const host of this.#environment.hosts) {
      await this.#process.call(() => {
        if (!host.hasFault('cutOffUntilMs')) host.poke();
      });
    }
  }
}

function replicaView(host: SimHost, server: SimServer, version: string): ReplicaView {
  const { address, loaded, active, isUp } = server;
  if (host.hasFault('cutOffUntilMs') || !isUp) {
    return {
      address,
      holds: false,
      isActive: false,
      damaged: [],
      problems: [],
      trouble: 'no answer',
    };
  }
  const problems = host.problems.flatMap((tracker) => tracker.list());
  const related = problems.filter((problem) => problem.version === version);
  return {
    address,
    holds: loaded.has(version),
    isActive: active === version,
    damaged: listDamagedLayers(related),
    problems: related,
    trouble: related.map(({ what }) => what).join('; '),
  };
}

export async function runController(
  process: SimProcess,
  repository: Repository,
  environment: FleetEnvironment,
  logger: Logger,
): Promise<void> {
  const controller = new BundleController({
    bundle: BUNDLE,
    repository,
    policy: environment.policy,
    holder: process.name,
    automatic: true,
    fleet: new SimFleet(process, environment),
    clock: process.clock,
    logger,
  });
  environment.controllers.set(process.name, controller);
  for (;;) {
    process.decidedAtCall = process.world.calls;
    const isBusy = await controller.advance();
    await process.clock.sleep(isBusy ? 10 : POLL_MS * (0.8 + 0.4 * process.random.next()));
  }
}
