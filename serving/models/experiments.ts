/**
 * Assigns requests to the variants of experiments. The file of experiments is read again when it
 * changes; while a changed file is invalid, the previous experiments continue.
 */
import { CubeError } from '../../lib/core/errors.ts';
import {
  assignVariant,
  drawVariant,
  type Experiment,
  type VariantTarget,
} from '../../lib/core/experiment.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { getFileStamp } from '../../lib/platform/files.ts';
import { type Logger, RateLimitedLog } from '../../lib/platform/logs.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import type { Models, VersionSelector } from './model-registry.ts';

const CHECK_INTERVAL_MS = 1_000;

/** How a protocol finds the version that serves a request. */
export type VersionFinder = Pick<Models, 'find' | 'findOnly'>;

/** The variant of a request in an experiment. */
export interface Assignment {
  readonly experiment: string;
  readonly variant: string;
}

/** One request: its version, and the variants that it was assigned to. */
export interface ExperimentedRequest {
  readonly finder: VersionFinder;
  readonly key?: string | undefined;
  /** The model that the request names, which another may answer; undefined: not assigned. */
  readonly model?: string | undefined;
  readonly assignments: readonly Assignment[];
}

export interface ExperimentsOptions {
  readonly path: string;
  readonly read: (path: string) => readonly Experiment[];
  readonly clock: Clock;
  readonly logger: Logger;
  /** A variant whose version is not loaded here: the request is not part of the experiment. */
  readonly onMissingTarget?: (assignment: Assignment) => void;
}

export class Experiments {
  readonly #models: Models;
  readonly #options: ExperimentsOptions | undefined;
  readonly #warnings: RateLimitedLog | undefined;
  #byModel: ReadonlyMap<string, readonly Experiment[]> = new Map();
  #stamp: string | undefined;
  #checkAtMs = 0;

  /**
   * @param options undefined: no experiments
   * @throws CubeError when the file cannot be read or is invalid
   */
  constructor(models: Models, options?: ExperimentsOptions) {
    this.#models = models;
    this.#options = options;
    if (options === undefined) return;
    this.#warnings = new RateLimitedLog(options.logger);
    this.#stamp = getFileStamp(options.path);
    this.#byModel = groupByModel(options.read(options.path));
    this.#checkAtMs = options.clock.nowMs() + CHECK_INTERVAL_MS;
  }

  /**
   * Begins a request. A request that names a version or a label is never assigned. @param key of
   * the user or session; without one variants are drawn at random
   */
  begin(key: string | undefined): ExperimentedRequest {
    this.#reread();
    if (this.#byModel.size === 0) return { finder: this.#models, assignments: [] };
    const assignments: Assignment[] = [];
    const request: { model?: string } = {};
    const find = (model: string, selector: VersionSelector = {}): LoadedVersion => {
      const isNamed = selector.version !== undefined || selector.label !== undefined;
      const experiments = isNamed ? undefined : this.#byModel.get(model);
      if (experiments === undefined) return this.#models.find(model, selector);
      request.model = model;
      return this.#assign(model, { experiments, key, assignments });
    };
    const findOnly = (): LoadedVersion => find(this.#models.findOnly().name);
    return Object.assign(request, { finder: { find, findOnly }, key, assignments });
  }

  #assign(
    model: string,
    request: {
      readonly experiments: readonly Experiment[];
      readonly key: string | undefined;
      readonly assignments: Assignment[];
    },
  ): LoadedVersion {
    const { experiments, key, assignments } = request;
    assignments.length = 0;
    let target: VariantTarget = {};
    for (const experiment of experiments) {
      const { variants } = experiment;
      const variant =
        key === undefined
          ? drawVariant(variants, () => 1 - Math.random())
          : assignVariant(experiment, key);
      const assignment = { experiment: experiment.name, variant: variant.name };
      if (this.#isLoaded(model, variant.target, assignment)) {
        assignments.push(assignment);
        target = { ...target, ...variant.target };
      }
    }
    return this.#findTarget(model, target);
  }

  #findTarget(model: string, { channel, version, ...other }: VariantTarget): LoadedVersion {
    return this.#models.find(other.model ?? model, {
      ...(channel !== undefined && { label: channel }),
      ...(version !== undefined && { version }),
    });
  }

  #isLoaded(model: string, target: VariantTarget, assignment: Assignment): boolean {
    if (Object.keys(target).length === 0) return true;
    try {
      this.#findTarget(model, target);
      return true;
    } catch (error) {
      const { message } = CubeError.from(error);
      this.#warnings?.warn({ ...assignment, model, error: message }, 'variant cannot be served');
      this.#options?.onMissingTarget?.(assignment);
      return false;
    }
  }

  #reread(): void {
    const { path, read, clock, logger } = this.#options ?? {};
    if (path === undefined || read === undefined || clock === undefined) return;
    const nowMs = clock.nowMs();
    if (nowMs < this.#checkAtMs) return;
    this.#checkAtMs = nowMs + CHECK_INTERVAL_MS;
    // The stamp is taken before the read, so that a change in between is noticed later.
    const stamp = getFileStamp(path);
    if (stamp === this.#stamp) return;
    this.#stamp = stamp;
    try {
      const experiments = read(path);
      this.#byModel = groupByModel(experiments);
      const names = experiments.map(({ name }) => name);
      logger?.info({ path, experiments: names }, 'experiments changed');
    } catch (error) {
      const { message } = CubeError.from(error);
      logger?.error({ error: message }, 'experiments are invalid; the previous ones continue');
    }
  }
}

function groupByModel(experiments: readonly Experiment[]): Map<string, Experiment[]> {
  const groups = new Map<string, Experiment[]>();
  for (const experiment of experiments) {
    const group = groups.get(experiment.model) ?? [];
    group.push(experiment);
    groups.set(experiment.model, group);
  }
  return groups;
}
