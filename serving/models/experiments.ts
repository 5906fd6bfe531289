/** Assigns requests to the variants of the running experiments. */
import { CubeError } from '../../lib/core/errors.ts';
import {
  assignVariant,
  drawVariant,
  type Experiment,
  type VariantTarget,
} from '../../lib/core/experiment.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import type { FeatureSpec } from '../../lib/core/slots.ts';
import { SlotKeyReader } from '../../lib/features/slot-key.ts';
import { type Logger, RateLimitedLog } from '../../lib/platform/logs.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import type { Models, VersionSelector } from './model-registry.ts';
import type { Traffic } from './traffic.ts';

/** How a protocol finds the version that serves a request. */
export type VersionFinder = Pick<Models, 'find' | 'findOnly' | 'findOnlyName'>;

/** The variant of a request in an experiment. */
export interface Assignment {
  readonly experiment: string;
  readonly variant: string;
}

/** The rows of a request, as the version without experiments parsed them. */
export interface ParsedRows {
  readonly bundle: LoadedBundle;
  readonly rows: FeatureRows | KeyedRows;
}

/**
 * One request: its version, and the variants that it was assigned to. Until it is assigned,
 * `finder` finds the version without experiments.
 */
export interface ExperimentedRequest {
  readonly finder: VersionFinder;
  /** What it was assigned by; undefined: at random. */
  readonly key: string | undefined;
  /** The model that the request names, which another may answer; undefined: not assigned. */
  readonly model: string | undefined;
  readonly assignments: readonly Assignment[];
  /**
   * Assigns the request, unless it is assigned already or waits for the key of its rows.
   * @param key the key in its body; undefined: it has none
   * @returns whether it was assigned: its version must be found again
   */
  assign(key: string | undefined): boolean;
  /**
   * Assigns a request that sends no key. @param parsed undefined: it has tensors
   * @returns whether it was assigned: its version must be found again
   */
  assignByRows(parsed: ParsedRows | undefined): boolean;
}

export interface ExperimentsOptions {
  readonly models: Models;
  readonly traffic: { current(): Traffic };
  readonly logger: Logger;
  /** A variant whose version is not loaded here: the request is not part of the experiment. */
  readonly onMissingTarget: (assignment: Assignment) => void;
}

type ExperimentsByModel = ReadonlyMap<string, readonly Experiment[]>;

interface SlotReader {
  readonly slot: string;
  readonly reader: SlotKeyReader | undefined;
}

interface AssignedRequest {
  /** Experiments of the model that the request names. */
  readonly experiments: readonly Experiment[];
  readonly getKey: (experiment: Experiment) => string | undefined;
  /** Receives the variants. */
  readonly assignments: Assignment[];
}

export class Experiments {
  readonly #options: ExperimentsOptions;
  readonly #warnings: RateLimitedLog;
  #traffic: Traffic | undefined;
  #byModel: ExperimentsByModel = new Map();
  readonly #unassigned: ExperimentedRequest;
  /** The experiments of a model name one slot. */
  readonly #readers = new WeakMap<FeatureSpec, SlotReader>();

  constructor(options: ExperimentsOptions) {
    this.#options = options;
    this.#unassigned = {
      finder: options.models,
      key: undefined,
      model: undefined,
      assignments: [],
      assign: () => false,
      assignByRows: () => false,
    };
    this.#warnings = new RateLimitedLog(options.logger);
  }

  /**
   * Begins a request. A request that names a version or a label is never assigned. @param key of
   * the user or session, if the head of the request has one
   */
  begin(key: string | undefined): ExperimentedRequest {
    this.#reread();
    if (this.#byModel.size === 0) return this.#unassigned;
    return new RequestAssignment(key, {
      models: this.#options.models,
      byModel: this.#byModel,
      assign: (model, request) => this.#assign(model, request),
      readSlot: (slot, parsed) => this.#readSlot(slot, parsed),
    });
  }

  #assign(model: string, { experiments, getKey, assignments }: AssignedRequest): LoadedVersion {
    let target: VariantTarget = {};
    for (const experiment of experiments) {
      const { variants } = experiment;
      const key = getKey(experiment);
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

  #readSlot(slot: string, parsed: ParsedRows | undefined): string | undefined {
    const reader = parsed === undefined ? undefined : this.#getReader(parsed.bundle, slot);
    if (parsed !== undefined && reader !== undefined) return reader.read(parsed.rows)?.toString();
    this.#warnings.warn(
      { slot, ...(parsed !== undefined && { model: parsed.bundle.name }) },
      'the model has no such slot; variants are drawn at random',
    );
    return undefined;
  }

  #getReader({ features }: LoadedBundle, slot: string): SlotKeyReader | undefined {
    let known = this.#readers.get(features);
    if (known?.slot !== slot) {
      known = { slot, reader: SlotKeyReader.find(features, slot) };
      this.#readers.set(features, known);
    }
    return known.reader;
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

interface AssignmentRules {
  readonly models: Models;
  readonly byModel: ExperimentsByModel;
  readonly assign: (model: string, request: AssignedRequest) => LoadedVersion;
  readonly readSlot: (slot: string, parsed: ParsedRows | undefined) => string | undefined;
}

class RequestAssignment implements ExperimentedRequest {
  readonly #rules: AssignmentRules;
  readonly assignments: Assignment[] = [];
  readonly finder: VersionFinder;
  model: string | undefined;
  /** Experiments of the model that the request names; undefined: none, or it names a version. */
  #experiments: readonly Experiment[] | undefined;
  #isAssigned: boolean;
  #key: string | undefined;
  #slotKey: string | undefined;

  constructor(key: string | undefined, rules: AssignmentRules) {
    this.#rules = rules;
    this.#key = key;
    this.#isAssigned = key !== undefined;
    this.finder = {
      find: (model, selector = {}) => this.#find(model, selector),
      findOnly: () => this.#find(rules.models.findOnlyName(), {}),
      findOnlyName: () => rules.models.findOnlyName(),
    };
  }

  get key(): string | undefined {
    return this.#key ?? this.#slotKey;
  }

  assign(key: string | undefined): boolean {
    if (!this.#isOpen) return false;
    if (key === undefined && this.#slot !== undefined) return false;
    this.#key = key;
    this.#isAssigned = true;
    return true;
  }

  assignByRows(parsed: ParsedRows | undefined): boolean {
    if (!this.#isOpen) return false;
    const slot = this.#slot;
    if (slot !== undefined) this.#slotKey = this.#rules.readSlot(slot, parsed);
    this.#isAssigned = true;
    return true;
  }

  get #isOpen(): boolean {
    return !this.#isAssigned && this.#experiments !== undefined;
  }

  get #slot(): string | undefined {
    return this.#experiments?.find(({ slot }) => slot !== undefined)?.slot;
  }

  #find(model: string, selector: VersionSelector): LoadedVersion {
    const { models, byModel, assign } = this.#rules;
    const isNamed = selector.version !== undefined || selector.label !== undefined;
    const experiments = isNamed ? undefined : byModel.get(model);
    this.#experiments = experiments;
    this.model = experiments === undefined ? undefined : model;
    this.assignments.length = 0;
    if (experiments === undefined || !this.#isAssigned) return models.find(model, selector);
    const getKey = ({ slot }: Experiment): string | undefined =>
      this.#key ?? (slot === undefined ? undefined : this.#slotKey);
    return assign(model, { experiments, getKey, assignments: this.assignments });
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
