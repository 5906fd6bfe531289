/**
 * The experiments of a bundle: an append-only log, `experiments/<seq>.json`. Its newest entry holds
 * all experiments that run, so that one write changes them together and two writers cannot leave
 * experiments that contradict each other.
 */
import { CubeError } from '../core/errors.ts';
import type { Experiment } from '../core/experiment.ts';
import type { JsonReader } from '../core/json.ts';
import type { Clock } from '../platform/clock.ts';
import { readExperiments } from '../platform/experiment-fields.ts';
import { JsonNode } from '../platform/json-node.ts';
import type { Backend } from './backend.ts';
import type { AuditedAction } from './channel-log.ts';
import { EntryLog, type NewestEntry } from './entry-log.ts';
import { experimentEntryPath, experimentsFolder } from './layout.ts';
import type { RepositoryKeys } from './signed-entry.ts';

export interface ExperimentEntry extends AuditedAction {
  readonly seq: number;
  /** All that run; none: no experiment. Their model is the bundle's name. */
  readonly experiments: readonly Experiment[];
}

export interface ExperimentLogOptions {
  readonly backend: Backend;
  readonly keys: RepositoryKeys;
  readonly clock: Clock;
  readonly bundle: string;
}

export class ExperimentLog {
  readonly #options: ExperimentLogOptions;
  readonly #log: EntryLog<ExperimentEntry>;

  constructor(options: ExperimentLogOptions) {
    const { backend, keys, bundle } = options;
    this.#options = options;
    this.#log = new EntryLog(backend, keys, {
      folder: experimentsFolder(bundle),
      entryPath: (seq) => experimentEntryPath(bundle, seq),
      parse: (json, seq) => parseEntry(json, seq, bundle),
    });
  }

  /** Oldest first; the last one applies. @throws CubeError CORRUPT or DENIED naming a bad entry */
  readHistory(): Promise<ExperimentEntry[]> {
    return this.#log.readHistory();
  }

  /**
   * The newest entry that is valid, and why newer ones are not: what a process serves.
   * @throws CubeError when the repository does not answer
   */
  readNewest(): Promise<NewestEntry<ExperimentEntry>> {
    return this.#log.readNewest();
  }

  /**
   * Replaces all experiments. Experiments equal to the current ones add no entry.
   * @param before the entry that the change is based on; undefined for none
   * @throws CubeError CONFLICT if they were changed since then
   */
  async append(
    before: ExperimentEntry | undefined,
    change: Omit<ExperimentEntry, 'seq' | 'at'>,
  ): Promise<ExperimentEntry> {
    const { by, reason } = change;
    const experiments = change.experiments.map(toExperimentFields);
    const known = before?.experiments.map(toExperimentFields);
    if (before !== undefined && JSON.stringify(known) === JSON.stringify(experiments))
      return before;
    const seq = (before?.seq ?? 0) + 1;
    const at = this.#options.clock.isoTime();
    if (await this.#log.append(seq, { experiments, at, by, reason })) {
      return { seq, experiments: change.experiments, at, by, reason };
    }
    const winner = await this.#log.readEntry(seq);
    throw new CubeError(
      'CONFLICT',
      `experiments of ${this.#options.bundle}: ${winner.by} wrote entry ${seq} first ` +
        `("${winner.reason}"); check the experiments and retry`,
    );
  }
}

/** An experiment as it is written, without its model. */
export function toExperimentFields({
  name,
  salt,
  slot,
  variants,
  overrides,
}: Experiment): Record<string, unknown> {
  return {
    name,
    ...(salt !== name && { salt }),
    ...(slot !== undefined && { slot }),
    variants: variants.map(({ target, ...variant }) => ({ ...variant, ...target })),
    ...(overrides.size > 0 && { overrides: Object.fromEntries(overrides) }),
  };
}

function parseEntry(json: JsonReader, seq: number, bundle: string): ExperimentEntry {
  const source = `entry ${seq} of the experiments of ${bundle}`;
  const node = new JsonNode(json.field('experiments').value, 'experiments', source);
  return {
    seq,
    experiments: readExperiments(node, bundle),
    at: json.field('at').string(),
    by: json.field('by').string(),
    reason: json.field('reason').string(),
  };
}
