/** The rollouts of one bundle: goes on with those that are under way, begins the newest version when none is. */
import { CubeError } from '../../lib/core/errors.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { isPause } from './next-step.ts';
import { type Progress, RolloutDriver, type RolloutFleet } from './rollout-driver.ts';
import type { RolloutPolicy } from './rollout-view.ts';

export interface BundleControllerOptions {
  readonly bundle: string;
  readonly repository: Repository;
  readonly policy: RolloutPolicy;
  readonly fleet: RolloutFleet;
  readonly holder: string;
  /** Versions begin by themselves. */
  readonly automatic: boolean;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** What does not work now: of a version, or of the bundle as a whole. */
export interface RolloutProblem {
  readonly version: string | undefined;
  readonly code: string;
  readonly message: string;
}

export class BundleController {
  readonly options: BundleControllerOptions;
  readonly #drivers = new Map<string, RolloutDriver>();
  /** The version that waits to begin: its driver knows since when it waits for which other one. */
  #waiting: string | undefined;
  readonly #progress = new Map<string, Progress>();
  readonly #problems = new Map<string, RolloutProblem>();
  /** Steps taken, by kind. */
  readonly steps: Map<string, number> = new Map();

  constructor(options: BundleControllerOptions) {
    this.options = options;
  }

  get progress(): ReadonlyMap<string, Progress> {
    return this.#progress;
  }

  get problems(): readonly RolloutProblem[] {
    return [...this.#problems.values()];
  }

  /** @returns whether something was done: there may be more to do at once */
  async advance(): Promise<boolean> {
    const { bundle, repository } = this.options;
    try {
      const begun = await repository.rollouts(bundle);
      this.#forgetAllBut(begun);
      const candidate = (await repository.channel(bundle, CANDIDATE_CHANNEL)).pointer?.version;
      let isBusy = false;
      for (const version of begun) {
        if (this.#isSettled(version) && version !== candidate) continue;
        isBusy = (await this.#drive(version)) || isBusy;
      }
      this.#problems.delete('');
      if (isBusy || !this.#isFree()) return isBusy;
      const next = this.options.automatic ? await this.#newVersion(begun) : undefined;
      this.#waiting = next;
      return next === undefined ? false : await this.#drive(next);
    } catch (error) {
      this.#failed(undefined, error);
      return false;
    }
  }

  /** A version that waited to begin until a newer one overtook it, or that is collected, holds up nobody. */
  #forgetAllBut(begun: readonly string[]): void {
    for (const known of [this.#drivers, this.#progress, this.#problems]) {
      for (const version of known.keys()) {
        const isKept = known === this.#drivers && version === this.#waiting;
        if (version !== '' && !begun.includes(version) && !isKept) known.delete(version);
      }
    }
  }

  /** Nothing of it is under way or unknown. */
  #isFree(): boolean {
    if (this.#problems.size > 0) return false;
    return [...this.#progress.values()].every(({ step }) => step.kind === 'done');
  }

  /** Nothing that happens to others changes anything for it. */
  #isSettled(version: string): boolean {
    const progress = this.#progress.get(version);
    if (progress?.step.kind !== 'done' || progress.state === 'active') return false;
    // It failed, and there was nothing to go back to yet.
    const isPointedTo = progress.fleet.channels.some(({ pointer }) => pointer === version);
    return !(progress.state === 'failed' && isPointedTo);
  }

  /** The newest published one, unless somebody has had to do with it. Those that it overtook are left out. */
  async #newVersion(begun: readonly string[]): Promise<string | undefined> {
    const { bundle, repository, policy } = this.options;
    const newest = (await repository.versions(bundle)).at(-1);
    if (newest === undefined || begun.includes(newest)) return undefined;
    for (const { channel } of policy.channels) {
      const { history, quarantined, pointer } = await repository.channel(bundle, channel);
      if (pointer?.pinned || quarantined.has(newest)) return undefined;
      if (history.some(({ version }) => version === newest)) return undefined;
    }
    return newest;
  }

  async #drive(version: string): Promise<boolean> {
    const driver = this.#drivers.get(version) ?? new RolloutDriver({ ...this.options, version });
    this.#drivers.set(version, driver);
    try {
      const progress = await driver.advance();
      this.#progress.set(version, progress);
      this.#problems.delete(version);
      const { kind } = progress.step;
      if (kind === 'wait' || kind === 'done') return false;
      this.steps.set(kind, (this.steps.get(kind) ?? 0) + 1);
      return !isPause(progress.step);
    } catch (error) {
      this.#failed(version, error);
      return false;
    }
  }

  #failed(version: string | undefined, error: unknown): void {
    const { code, message } = CubeError.from(error);
    const known = this.#problems.get(version ?? '');
    this.#problems.set(version ?? '', { version, code, message });
    if (known?.message === message) return;
    const { bundle, logger } = this.options;
    logger.warn({ bundle, version, code, error: message }, 'cannot go on with the rollout');
  }
}
