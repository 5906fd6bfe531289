/**
 * The gates that were started in the console. They run one at a time for each bundle; their reports
 * are stored in the repository.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { BundleController } from '../rollout/bundle-controller.ts';
import type { GateOutcome } from '../rollout/rollout-view.ts';

/** The last run of a version, as the page shows it. */
interface GateRun {
  readonly version: string;
  readonly by: string;
  readonly reason: string;
  readonly startedAt: string;
  /** Undefined while it runs. */
  readonly outcome: GateOutcome | undefined;
}

/** Versions of a bundle whose last run is kept. */
const RUNS_MAX = 50;

export class GateRuns {
  readonly #runs = new Map<string, Map<string, GateRun>>();
  readonly #clock: Clock;
  readonly #onEnd: () => void;

  /** @param onEnd called after each run */
  constructor(onEnd: () => void, clock: Clock = systemClock) {
    this.#onEnd = onEnd;
    this.#clock = clock;
  }

  list(bundle: string): GateRun[] {
    return [...(this.#runs.get(bundle)?.values() ?? [])];
  }

  /**
   * Starts the gate of a version against the active one, and returns at once.
   * @throws CubeError CONFLICT when a gate of the bundle is running; NOT_FOUND without the version
   */
  async start(
    { options }: BundleController,
    version: string,
    { by, reason }: { readonly by: string; readonly reason: string },
  ): Promise<void> {
    const { bundle, repository, policy, fleet, logger } = options;
    await repository.readManifest(bundle, version);
    const channel = policy.channels.at(-1)?.channel ?? '';
    const { pointer, previous } = await repository.readChannel(bundle, channel);
    const active = pointer?.version === version ? previous?.version : pointer?.version;
    const running = this.list(bundle).find(({ outcome }) => outcome === undefined);
    if (running !== undefined) {
      throw new CubeError('CONFLICT', `the gate of ${bundle} ${running.version} is still running`);
    }
    const run = { version, by, reason, startedAt: this.#clock.isoTime() };
    this.#record(bundle, { ...run, outcome: undefined });
    logger.info({ bundle, version, against: active, by, reason }, 'gate started');
    const end = (outcome: GateOutcome): void => {
      this.#record(bundle, { ...run, outcome });
      const { verdict, summary } = outcome;
      logger.info({ bundle, version, verdict, reason: summary }, 'gate ended');
      this.#onEnd();
    };
    const fail = (error: unknown): void =>
      end({ verdict: 'error', summary: CubeError.from(error).message, isFinal: false });
    fleet.gate(version, active, by).then(end, fail);
  }

  #record(bundle: string, run: GateRun): void {
    const runs = this.#runs.get(bundle) ?? new Map<string, GateRun>();
    this.#runs.set(bundle, runs);
    runs.delete(run.version);
    runs.set(run.version, run);
    const [oldest] = runs.keys();
    if (runs.size > RUNS_MAX && oldest !== undefined) runs.delete(oldest);
  }
}
