/**
 * The loaded versions of one model of a model repository. Several versions may serve at once, as
 * the version policy says; requests without a version get the highest one. A version whose files
 * change is loaded anew beside the old one, which serves until then. Versions that are not wanted
 * any more stay while a wanted one cannot be loaded, so a broken version interrupts nothing.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { LoadFailures } from './load-failures.ts';
import { hideFolder, type ModelLook } from './repository-looks.ts';
import type { ModelStatus } from './version-manager.ts';

/** A version of a loaded model; requests in progress keep it until they end. */
export interface ServedVersion {
  readonly version: string;
  /** Why requests fail: a step of the ensemble is not served. */
  findMissingStep?(): string | undefined;
  /** Waits for the requests in progress and releases everything. */
  retire(): Promise<void>;
}

/** How to load the versions of a model, by its configuration. */
export interface ModelPlan<V> {
  /** Chooses the versions to serve among those in the folder. */
  chooseVersions(versions: readonly string[]): readonly string[];
  /**
   * Loads a version and warms it up. Releases everything when it throws.
   * @param signal aborted when the process stops
   */
  load(version: string, onStep: (step: string) => void, signal: AbortSignal): Promise<V>;
  /** Other models that must be served first: the steps of an ensemble. */
  readonly dependencies: readonly string[];
}

export interface RepositoryModelOptions<V> {
  readonly name: string;
  /** Nothing is loaded until the first call of `follow`, and the process does not wait for it. */
  readonly isUnloaded: boolean;
  readonly clock: Clock;
  readonly pollMs: number;
  readonly logger: Logger;
  /** Aborted when the process stops. */
  readonly signal: AbortSignal;
  /** Reads the model's configuration. @throws CubeError naming file and field */
  readonly plan: (look: ModelLook) => ModelPlan<V>;
  readonly onSwitch: (version: string) => void;
  readonly onLoadFailed: (error: CubeError) => void;
}

interface Loaded<V> {
  readonly value: V;
  readonly stamp: string;
  /** Those of its configuration; a later one may have others. */
  readonly dependencies: readonly string[];
}

/** The place of the repository's versions in the status, which other models have channels for. */
const CHANNEL = 'repository';
const NOT_LOADED = 'it is not loaded; load it to serve it';

export class RepositoryModel<V extends ServedVersion> {
  readonly #options: RepositoryModelOptions<V>;
  readonly #loaded = new Map<string, Loaded<V>>();
  readonly #retiring = new Set<Promise<void>>();
  readonly #failures: LoadFailures;
  /** The files of each failed version, so that it is tried again at once when they change. */
  readonly #failedStamps = new Map<string, string>();
  #plan: ModelPlan<V> | undefined;
  #settingsStamp: string | undefined;
  #loading: string | undefined;
  #loadingStep: string | undefined;
  #problem: string | undefined;
  #activeSince: string | undefined;
  #isUnloaded: boolean;

  constructor(options: RepositoryModelOptions<V>) {
    this.#options = options;
    this.#isUnloaded = options.isUnloaded;
    this.#problem = options.isUnloaded ? NOT_LOADED : 'it is being loaded';
    this.#failures = new LoadFailures(options.clock, options.pollMs);
  }

  /** The highest loaded version. @throws CubeError NOT_READY with the reason */
  get current(): V {
    const version = this.#highest;
    const loaded = version === undefined ? undefined : this.#loaded.get(version);
    if (loaded !== undefined) return loaded.value;
    const reason = this.#failures.list().at(-1)?.message ?? this.#problem ?? 'it is loading';
    throw new CubeError('NOT_READY', `no version of ${this.#options.name} is served: ${reason}`);
  }

  /** @throws CubeError NOT_FOUND naming the loaded versions, NOT_READY when none is */
  findByVersion(version: string): V {
    const loaded = this.#loaded.get(version);
    if (loaded !== undefined) return loaded.value;
    if (this.#loaded.size === 0) void this.current;
    const known = sortVersions([...this.#loaded.keys()]).join(', ');
    throw new CubeError(
      'NOT_FOUND',
      `version ${quoteInput(version)} of ${this.#options.name} is not served here (served: ` +
        `${known})`,
    );
  }

  /** @throws CubeError NOT_FOUND: versions in a model repository have no labels */
  findByChannel(label: string): V {
    throw new CubeError(
      'NOT_FOUND',
      `label ${quoteInput(label)} of ${this.#options.name}: models of a model repository have no ` +
        'labels; name a version',
    );
  }

  get loadedVersions(): readonly V[] {
    return [...this.#loaded.values()].map(({ value }) => value);
  }

  get dependencies(): readonly string[] {
    return this.#plan?.dependencies ?? [];
  }

  /** Those of the last configuration, and of every loaded version. */
  get allDependencies(): ReadonlySet<string> {
    const loaded = [...this.#loaded.values()].flatMap(({ dependencies }) => dependencies);
    return new Set([...this.dependencies, ...loaded]);
  }

  get status(): ModelStatus {
    const active = this.#highest;
    const loaded = active === undefined ? undefined : this.#loaded.get(active);
    const missingStep = loaded?.value.findMissingStep?.();
    const channel = {
      channel: CHANNEL,
      active,
      activeSince: active === undefined ? undefined : this.#activeSince,
      target: active,
      problem: this.#problem ?? missingStep,
      unavailable: undefined,
    };
    return {
      model: this.#options.name,
      ...channel,
      channels: [channel],
      loading: this.#loading,
      loadingStep: this.#loadingStep,
      held: sortVersions([...this.#loaded.keys()]),
      failed: this.#failures.list(),
      unloaded: this.#isUnloaded,
      missingStep,
    };
  }

  /** The models that must be followed before this one. Never throws. */
  readDependencies(look: ModelLook): readonly string[] {
    return this.#readPlan(look)?.dependencies ?? [];
  }

  /**
   * Records why the model cannot be loaded.
   * @param problem for callers
   * @param logged the same with folders of the server
   */
  fail(problem: string, logged: string = problem): void {
    if (problem !== this.#problem) {
      const { name: model, logger } = this.#options;
      logger.warn({ model, problem: logged }, 'model cannot be loaded');
    }
    this.#problem = problem;
  }

  /** Serves what a look found. Never rejects: failures are in the status. */
  async follow(look: ModelLook): Promise<void> {
    this.#isUnloaded = false;
    const plan = this.#readPlan(look);
    if (plan === undefined) return;
    const wanted = plan.chooseVersions([...look.versions.keys()]);
    this.#forgetFailures(wanted);
    // The highest first: it serves requests without a version.
    for (const version of sortVersions(wanted).reverse()) {
      const stamp = `${look.settingsStamp}\n\n${look.versions.get(version) ?? ''}`;
      if (this.#loaded.get(version)?.stamp !== stamp) await this.#load(plan, version, stamp, look);
    }
    if (this.#isUnloaded) return;
    if (wanted.every((version) => this.#loaded.has(version))) {
      for (const version of this.#loaded.keys()) {
        if (!wanted.includes(version)) this.#retire(version);
      }
    }
    if (wanted.length === 0) this.#failLook(explainNoVersion(look), look);
    else this.#problem = this.#findProblem();
  }

  /** Tries failed versions again without the pause after failures. */
  retryFailures(): void {
    this.#failures.clear();
  }

  /** Stops serving, and waits for the requests in progress. */
  async unload(): Promise<void> {
    this.#isUnloaded = true;
    this.#problem = NOT_LOADED;
    this.#settingsStamp = undefined;
    this.#failures.clear();
    for (const version of [...this.#loaded.keys()]) this.#retire(version);
    await Promise.all(this.#retiring);
  }

  get #highest(): string | undefined {
    return sortVersions([...this.#loaded.keys()]).at(-1);
  }

  #findProblem(): string | undefined {
    const [failure] = this.#failures.list();
    return failure && `version ${failure.version}: ${failure.message}`;
  }

  /** @returns undefined for an unreadable configuration: loaded versions go on with the old one */
  #readPlan(look: ModelLook): ModelPlan<V> | undefined {
    if (this.#settingsStamp === look.settingsStamp && this.#plan !== undefined) return this.#plan;
    try {
      this.#plan = this.#options.plan(look);
      this.#settingsStamp = look.settingsStamp;
      return this.#plan;
    } catch (error) {
      this.#failLook(CubeError.from(error).message, look);
      return undefined;
    }
  }

  #failLook(problem: string, look: ModelLook): void {
    this.fail(hideFolder(problem, look), problem);
  }

  #forgetFailures(wanted: readonly string[]): void {
    this.#failures.keepOnly((version) => wanted.includes(version));
    for (const version of this.#failedStamps.keys()) {
      if (!wanted.includes(version)) this.#failedStamps.delete(version);
    }
  }

  async #load(plan: ModelPlan<V>, version: string, stamp: string, look: ModelLook): Promise<void> {
    if (this.#failedStamps.get(version) !== stamp) this.#failures.delete(version);
    if (!this.#failures.canTry(version)) return;
    const { name: model, logger, signal } = this.#options;
    this.#loading = version;
    const onStep = (step: string): void => {
      this.#loadingStep = step;
    };
    try {
      const value = await plan.load(version, onStep, signal);
      if (this.#isUnloaded) await value.retire();
      else this.#serve(version, { value, stamp, dependencies: plan.dependencies });
    } catch (caught) {
      const error = CubeError.from(caught);
      this.#failedStamps.set(version, stamp);
      const shown = new CubeError(error.code, hideFolder(error.message, look));
      const isNews = this.#failures.record(version, shown, false);
      this.#options.onLoadFailed(error);
      if (isNews) logger.warn({ model, version, error: error.message }, 'version cannot be loaded');
    } finally {
      this.#loading = undefined;
      this.#loadingStep = undefined;
    }
  }

  #serve(version: string, loaded: Loaded<V>): void {
    const { name: model, logger, clock } = this.#options;
    this.#failures.delete(version);
    if (this.#loaded.has(version)) this.#retire(version);
    this.#loaded.set(version, loaded);
    this.#activeSince = clock.isoTime();
    this.#options.onSwitch(version);
    logger.info({ model, version }, 'serving version');
  }

  #retire(version: string): void {
    const loaded = this.#loaded.get(version);
    if (loaded === undefined) return;
    this.#loaded.delete(version);
    const { name: model, logger } = this.#options;
    const done = loaded.value
      .retire()
      .then(
        () => logger.info({ model, version }, 'version retired'),
        (error: unknown) => {
          const { message } = CubeError.from(error);
          logger.error({ model, version, error: message }, 'cannot retire the version');
        },
      )
      .finally(() => this.#retiring.delete(done));
    this.#retiring.add(done);
  }
}

/** By number, the highest last. */
export function sortVersions(versions: readonly string[]): string[] {
  return [...versions].sort((a, b) => Number(a) - Number(b));
}

function explainNoVersion({ folder, versions }: ModelLook): string {
  if (versions.size === 0) {
    return (
      `${folder} has no version; put each one into a folder named by its number, such as ` +
      `${folder}/1`
    );
  }
  const names = sortVersions([...versions.keys()]).join(', ');
  return `the version policy of ${folder} allows none of its versions (${names})`;
}
