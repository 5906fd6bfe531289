/**
 * The models of a model repository in Triton's layout. Control modes: `none` loads every model at
 * the start; `poll` follows changes of the folder; `explicit` loads what requests or the
 * configuration name. A change is used when two successive looks at the folder are equal.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { NAME_RULE } from '../../lib/core/names.ts';
import { suggestNames } from '../../lib/core/nearest-name.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { RepositoryConfig } from '../config/repository-config.ts';
import {
  isSameModel,
  listInvalidNames,
  lookAtRepository,
  type ModelLook,
  type RepositoryLook,
  settleLooks,
} from './repository-looks.ts';
import { type ModelPlan, RepositoryModel, type ServedVersion } from './repository-model.ts';

export interface ModelRepositoryOptions<V> {
  readonly config: RepositoryConfig;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Reads the configuration of a model. @throws CubeError naming file and field */
  readonly plan: (look: ModelLook) => ModelPlan<V>;
  readonly onSwitch: (model: string, version: string) => void;
  readonly onLoadFailed: (model: string, error: CubeError) => void;
}

/** Time between two looks at the start and before an explicit load. */
const SETTLE_MS = 200;
/** Looks until files that keep changing are loaded as they are settled so far. */
const SETTLE_LOOKS_MAX = 50;
const NO_MODELS: RepositoryLook = new Map();

export class ModelRepository<V extends ServedVersion> {
  readonly #options: ModelRepositoryOptions<V>;
  readonly #models = new Map<string, RepositoryModel<V>>();
  readonly #stopping = new AbortController();
  #last: RepositoryLook = NO_MODELS;
  #settled: RepositoryLook = NO_MODELS;
  #problem: string | undefined;
  #invalidNames: ReadonlySet<string> = new Set();
  #loop: Promise<void> | undefined;
  /** Cycles, loads and unloads run one after another. */
  #lastTask: Promise<void> = Promise.resolve();

  /** @throws CubeError NOT_FOUND when the repository is not a folder */
  constructor(options: ModelRepositoryOptions<V>) {
    this.#options = options;
    this.#last = lookAtRepository(options.config.folder);
    this.#reportInvalidNames();
    for (const name of this.#last.keys()) this.#addModel(name);
    for (const name of this.#namesAtStart()) this.#getModel(name);
  }

  /** The models of the folder by name; unloaded ones too. */
  get models(): ReadonlyMap<string, RepositoryModel<V>> {
    return this.#models;
  }

  /** Begins to load; returns at once. */
  start(): void {
    this.#loop = this.#run();
  }

  /**
   * Loads a model, or loads it again when its files changed.
   * @throws CubeError UNSUPPORTED in other modes, NOT_FOUND, NOT_READY with the reason
   */
  async load(name: string): Promise<void> {
    this.#requireExplicit();
    await this.#queue(async () => {
      await this.#settle([name]);
      if (!this.#settled.has(name)) this.#failUnknown(name);
      const model = this.#getModel(name);
      // Steps of an ensemble may have changed too, or failed before.
      const [, ...steps] = this.#listWithDependencies(name, new Set());
      if (steps.length > 0) await this.#settle([name, ...steps]);
      for (const one of [name, ...steps]) this.#models.get(one)?.retryFailures();
      await this.#follow(name, new Set());
      const { problem } = model.status;
      if (problem !== undefined) {
        throw new CubeError('NOT_READY', `${name} was not loaded: ${problem}`);
      }
    });
  }

  /**
   * @param withDependencies also unloads the steps of an ensemble
   * @throws CubeError UNSUPPORTED in other modes, NOT_FOUND
   */
  async unload(name: string, withDependencies: boolean): Promise<void> {
    this.#requireExplicit();
    await this.#queue(() => this.#unload(name, withDependencies));
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#loop;
    await this.#lastTask;
    await Promise.all([...this.#models.values()].map((model) => model.unload()));
  }

  async #run(): Promise<void> {
    const { config, clock } = this.#options;
    const { signal } = this.#stopping;
    await this.#queue(async () => {
      await this.#settle(undefined);
      await this.#followAll(this.#namesAtStart());
    });
    while (config.mode === 'poll' && !signal.aborted) {
      await clock.sleep(config.pollMs, signal);
      if (signal.aborted) return;
      await this.#queue(async () => {
        this.#look();
        await this.#followAll(this.#settled.keys());
        await this.#removeMissing();
      });
    }
  }

  /** @throws what the task throws; later tasks run nevertheless */
  #queue(task: () => Promise<void>): Promise<void> {
    const done = this.#lastTask.then(task);
    this.#lastTask = done.catch(() => undefined);
    return done;
  }

  #namesAtStart(): Iterable<string> {
    const { mode, load } = this.#options.config;
    const isListed = mode === 'explicit' && !load.includes('*');
    return isListed ? load : this.#last.keys();
  }

  /** A folder that cannot be read leaves the models as they are. */
  #look(): void {
    const { config, logger } = this.#options;
    try {
      const now = lookAtRepository(config.folder);
      this.#settled = settleLooks(this.#settled, this.#last, now);
      this.#last = now;
      this.#problem = undefined;
      this.#reportInvalidNames();
    } catch (error) {
      const { message } = CubeError.from(error);
      if (message !== this.#problem) {
        logger.warn({ problem: message }, 'cannot read the model repository');
      }
      this.#problem = message;
    }
  }

  #reportInvalidNames(): void {
    const { config, logger } = this.#options;
    const invalid = listInvalidNames(config.folder);
    for (const name of invalid) {
      if (this.#invalidNames.has(name)) continue;
      const problem = `not a model name: expected ${NAME_RULE}; rename the folder`;
      logger.warn({ folder: name, problem }, 'folder is not served');
    }
    this.#invalidNames = new Set(invalid);
  }

  /** Looks until these models, or all, stay equal. */
  async #settle(given: readonly string[] | undefined): Promise<void> {
    const { clock, config } = this.#options;
    const { signal } = this.#stopping;
    for (let looks = 0; looks < SETTLE_LOOKS_MAX && !signal.aborted; looks++) {
      const before = this.#last;
      await clock.sleep(Math.min(SETTLE_MS, config.pollMs), signal);
      this.#look();
      const names = given ?? [...before.keys(), ...this.#last.keys()];
      if (names.every((one) => isSameModel(before.get(one), this.#last.get(one)))) return;
    }
  }

  /** @returns the model, and all that it depends on, as far as their files are known */
  #listWithDependencies(name: string, found: Set<string>): Set<string> {
    const look = this.#settled.get(name) ?? this.#last.get(name);
    if (found.has(name)) return found;
    found.add(name);
    if (look === undefined) return found;
    for (const dependency of this.#getModel(name).readDependencies(look)) {
      this.#listWithDependencies(dependency, found);
    }
    return found;
  }

  async #followAll(names: Iterable<string>): Promise<void> {
    const followed = new Set<string>();
    for (const name of [...names]) await this.#follow(name, followed);
  }

  /** Follows a model after those that it depends on. */
  async #follow(name: string, followed: Set<string>): Promise<void> {
    if (followed.has(name) || this.#stopping.signal.aborted) return;
    followed.add(name);
    const look = this.#settled.get(name);
    const model = this.#models.get(name) ?? (look && this.#addModel(name));
    if (model === undefined) return;
    if (look === undefined) {
      const { folder } = this.#options.config;
      const problem = `has no folder ${name}, or its files keep changing`;
      model.fail(`the repository ${problem}`, `${folder} ${problem}`);
      return;
    }
    for (const dependency of model.readDependencies(look)) await this.#follow(dependency, followed);
    await model.follow(look);
  }

  /**
   * Refuses an ensemble before it is served, because requests to a cycle would never end.
   * @throws CubeError INVALID_ARGUMENT naming the models of the cycle
   */
  #refuseCycle(name: string, dependencies: Iterable<string>): void {
    const seen = new Set<string>();
    const visit = (path: readonly string[], next: Iterable<string>): void => {
      for (const dependency of next) {
        const longer = [...path, dependency];
        if (dependency === name) {
          const cycle = longer.join(' -> ');
          throw new CubeError('INVALID_ARGUMENT', `ensemble ${name} contains itself: ${cycle}`);
        }
        if (seen.has(dependency)) continue;
        seen.add(dependency);
        visit(longer, this.#models.get(dependency)?.allDependencies ?? []);
      }
    };
    visit([name], dependencies);
  }

  async #removeMissing(): Promise<void> {
    for (const [name, model] of this.#models) {
      if (this.#settled.has(name) || this.#last.has(name)) continue;
      this.#models.delete(name);
      this.#options.logger.info({ model: name }, 'model removed');
      await model.unload();
    }
  }

  async #unload(name: string, withDependencies: boolean): Promise<void> {
    const model = this.#models.get(name) ?? this.#failUnknown(name);
    const dependencies = withDependencies ? model.dependencies : [];
    await model.unload();
    for (const dependency of dependencies) {
      if (this.#models.get(dependency)?.status.unloaded === false) {
        await this.#unload(dependency, true);
      }
    }
  }

  #getModel(name: string): RepositoryModel<V> {
    return this.#models.get(name) ?? this.#addModel(name);
  }

  #addModel(name: string): RepositoryModel<V> {
    const { config, clock, logger, plan, onSwitch, onLoadFailed } = this.#options;
    const isStarted = config.mode !== 'explicit' || [...this.#namesAtStart()].includes(name);
    const model = new RepositoryModel<V>({
      name,
      isUnloaded: !isStarted,
      clock,
      pollMs: config.pollMs,
      logger,
      signal: this.#stopping.signal,
      plan: (look) => {
        const planned = plan(look);
        const load: typeof planned.load = async (...args) => {
          this.#refuseCycle(name, planned.dependencies);
          return planned.load(...args);
        };
        return { ...planned, load };
      },
      onSwitch: (version) => onSwitch(name, version),
      onLoadFailed: (error) => onLoadFailed(name, error),
    });
    this.#models.set(name, model);
    return model;
  }

  #requireExplicit(): void {
    const { mode } = this.#options.config;
    if (mode === 'explicit') return;
    throw new CubeError(
      'UNSUPPORTED',
      `models cannot be loaded or unloaded by requests with --model-control-mode ${mode}; start ` +
        'serving with --model-control-mode explicit',
    );
  }

  #failUnknown(name: string): never {
    const hint = suggestNames(name, this.#last.keys());
    throw new CubeError('NOT_FOUND', `the repository has no model ${quoteInput(name)}; ${hint}`);
  }
}
