/**
 * The rollouts of one bundle: continues those in progress, and starts the newest version when none
 * is.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { shouldPause } from './next-step.ts';
import { RolloutDriver, type RolloutFleet, type RolloutProgress } from './rollout-driver.ts';
import type { RolloutPolicy } from './rollout-view.ts';

export interface BundleControllerOptions {
  readonly bundle: string;
  readonly repository: Repository;
  readonly policy: RolloutPolicy;
  readonly fleet: RolloutFleet;
  readonly holder: string;
  /** Roll out new versions as soon as they are published. */
  readonly automatic: boolean;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** A problem of one version's rollout, or of the bundle as a whole. */
export interface RolloutProblem {
  readonly version: string | undefined;
  readonly code: string;
  readonly message: string;
}

export class BundleController {
  readonly options: BundleControllerOptions;
  readonly #drivers = new Map<string, RolloutDriver>();
  readonly #begun = new Set<string>();
  /**
   * The version whose rollout waits to start. Its driver measures how long it has been waiting; its
   * problem, if it has one, is logged once.
   */
  #waiting: string | undefined;
  readonly #progress = new Map<string, RolloutProgress>();
  readonly #problems = new Map<string, RolloutProblem>();
  /** Number of steps taken, by kind. */
  readonly steps: Map<string, number> = new Map();
  #lastLookMs: number;

  constructor(options: BundleControllerOptions) {
    this.options = options;
    this.#lastLookMs = options.clock.nowMs();
  }

  /** When the last inspection ended, of any version; at first the start of this process. */
  get lastLookMs(): number {
    return this.#lastLookMs;
  }

  /** A step is running that may take many minutes, such as a gate. */
  get isInLongStep(): boolean {
    return [...this.#drivers.values()].some(({ isInLongStep }) => isInLongStep);
  }

  get progress(): ReadonlyMap<string, RolloutProgress> {
    return this.#progress;
  }

  get problems(): readonly RolloutProblem[] {
    return [...this.#problems.values()];
  }

  /** @returns whether a step was taken: the next one may be due at once */
  async advance(): Promise<boolean> {
    const { bundle, repository } = this.options;
    try {
      const begun = await this.#listBegun();
      this.#forgetAllBut(begun);
      const candidate = (await repository.readChannel(bundle, CANDIDATE_CHANNEL)).pointer?.version;
      let isBusy = false;
      for (const version of begun) {
        if (this.#isSettled(version) && version !== candidate) continue;
        isBusy = (await this.#drive(version)) || isBusy;
      }
      const isFree = !isBusy && this.#isFree();
      const next = isFree && this.options.automatic ? await this.#newVersion(begun) : undefined;
      this.#problems.delete('');
      // Only what is tried again now can show whether the old problem is still there.
      const before = this.#waiting;
      if (before !== undefined && before !== next) this.#problems.delete(before);
      if (!isFree) return isBusy;
      this.#waiting = next;
      return next === undefined ? false : await this.#drive(next);
    } catch (error) {
      this.#failed(undefined, error);
      return false;
    } finally {
      this.#lastLookMs = this.options.clock.nowMs();
    }
  }

  /** Versions whose rollout has an entry: a gate report alone begins no rollout. */
  async #listBegun(): Promise<string[]> {
    const { bundle, repository } = this.options;
    const listed = await repository.listRollouts(bundle);
    for (const version of listed) {
      if (this.#begun.has(version)) continue;
      const history = await repository.rolloutLog(bundle, version).readHistory();
      if (history.length > 0) this.#begun.add(version);
    }
    return listed.filter((version) => this.#begun.has(version));
  }

  /** Drops versions that were overtaken before their rollout started, or deleted. */
  #forgetAllBut(begun: readonly string[]): void {
    if (this.#waiting !== undefined && begun.includes(this.#waiting)) this.#waiting = undefined;
    for (const known of [this.#drivers, this.#progress, this.#problems]) {
      for (const version of known.keys()) {
        const isKept = known !== this.#progress && version === this.#waiting;
        if (version !== '' && !begun.includes(version) && !isKept) known.delete(version);
      }
    }
  }

  /**
   * No rollout is in progress, and the state of all is known. The problems of the bundle as a whole
   * and of the version that waits are those of the last inspection.
   */
  #isFree(): boolean {
    const isEarlier = (version: string): boolean => ['', this.#waiting].includes(version);
    if (![...this.#problems.keys()].every(isEarlier)) return false;
    return [...this.#progress.values()].every(({ step }) => step.kind === 'done');
  }

  /** The rollout is over, whatever happens to other versions. */
  #isSettled(version: string): boolean {
    const progress = this.#progress.get(version);
    if (progress?.step.kind !== 'done' || progress.state === 'active') return false;
    // A failed rollout may still wait for a version to roll back to.
    const isPointedTo = progress.fleet.channels.some(({ pointer }) => pointer === version);
    return !(progress.state === 'failed' && isPointedTo);
  }

  /**
   * The newest published version, unless it was already rolled out, activated or quarantined.
   * Versions that it overtook are skipped.
   */
  async #newVersion(begun: readonly string[]): Promise<string | undefined> {
    const { bundle, repository, policy } = this.options;
    const newest = (await repository.listVersions(bundle)).at(-1);
    if (newest === undefined || begun.includes(newest)) return undefined;
    for (const { channel } of policy.channels) {
      const { history, quarantined, pointer } = await repository.readChannel(bundle, channel);
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
      return !shouldPause(progress.step);
    } catch (error) {
      this.#failed(version, error);
      return false;
    } finally {
      // Also here: other versions follow, and the step may have taken long.
      this.#lastLookMs = this.options.clock.nowMs();
    }
  }

  #failed(version: string | undefined, error: unknown): void {
    const { code, message } = CubeError.from(error);
    const known = this.#problems.get(version ?? '');
    this.#problems.set(version ?? '', { version, code, message });
    if (known?.message === message) return;
    const { bundle, logger } = this.options;
    logger.warn({ bundle, version, code, error: message }, 'cannot advance the rollout');
  }
}
