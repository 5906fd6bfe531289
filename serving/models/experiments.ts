/** Assigns requests to the variants of the experiments in the traffic file. */
import { CubeError } from '../../lib/core/errors.ts';
import {
  assignVariant,
  drawVariant,
  type Experiment,
  type VariantTarget,
} from '../../lib/core/experiment.ts';
import { type Logger, RateLimitedLog } from '../../lib/platform/logs.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import type { Models, VersionSelector } from './model-registry.ts';
import type { Traffic, TrafficFile } from './traffic.ts';

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
  readonly models: Models;
  readonly traffic: Pick<TrafficFile, 'current'>;
  readonly logger: Logger;
  /** A variant whose version is not loaded here: the request is not part of the experiment. */
  readonly onMissingTarget: (assignment: Assignment) => void;
}

export class Experiments {
  readonly #options: ExperimentsOptions;
  readonly #warnings: RateLimitedLog;
  #traffic: Traffic | undefined;
  #byModel: ReadonlyMap<string, readonly Experiment[]> = new Map();

  constructor(options: ExperimentsOptions) {
    this.#options = options;
    this.#warnings = new RateLimitedLog(options.logger);
  }

  /**
   * Begins a request. A request that names a version or a label is never assigned. @param key of
   * the user or session; without one variants are drawn at random
   */
  begin(key: string | undefined): ExperimentedRequest {
    this.#reread();
    if (this.#byModel.size === 0) return { finder: this.#options.models, assignments: [] };
    const assignments: Assignment[] = [];
    const request: { model?: string } = {};
    const find = (model: string, selector: VersionSelector = {}): LoadedVersion => {
      const isNamed = selector.version !== undefined || selector.label !== undefined;
      const experiments = isNamed ? undefined : this.#byModel.get(model);
      if (experiments === undefined) return this.#options.models.find(model, selector);
      request.model = model;
      return this.#assign(model, { experiments, key, assignments });
    };
    const findOnly = (): LoadedVersion => find(this.#options.models.findOnly().name);
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
    return this.#options.models.find(other.model ?? model, {
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
      this.#warnings.warn({ ...assignment, model, error: message }, 'variant cannot be served');
      this.#options.onMissingTarget(assignment);
      return false;
    }
  }

  #reread(): void {
    const traffic = this.#options.traffic.current();
    if (traffic === this.#traffic) return;
    this.#traffic = traffic;
    this.#byModel = groupByModel(traffic.experiments);
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
