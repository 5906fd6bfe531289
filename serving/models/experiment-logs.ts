/**
 * Follows the experiment logs of the served bundles and joins them with the experiments of
 * serving.yaml and of the traffic file. An entry that is invalid, not signed by a trusted key, or
 * contradicts the others changes nothing: the previous experiments continue, and the log says why.
 */
import { setMaxListeners } from 'node:events';
import { CubeError } from '../../lib/core/errors.ts';
import { type Experiment, findConflict } from '../../lib/core/experiment.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ExperimentEntry, ExperimentLog } from '../../lib/repository/experiment-log.ts';
import type { Traffic, TrafficFile } from './traffic.ts';

/** A start waits this long for the first look at the logs. */
const FIRST_LOOK_MS = 5_000;

/** The log of a bundle that is served as `model`. */
export interface FollowedLog {
  readonly model: string;
  readonly log: Pick<ExperimentLog, 'readNewest'>;
  readonly pollMs: number;
}

export interface ExperimentLogsOptions {
  readonly logs: readonly FollowedLog[];
  /** Experiments and shadows of files. */
  readonly files: Pick<TrafficFile, 'current'> & Partial<Pick<TrafficFile, 'pollMs'>>;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** Who wrote the experiments of a log that run now. */
export interface ExperimentOrigin extends Omit<ExperimentEntry, 'experiments'> {
  readonly model: string;
}

interface LogState {
  readonly followed: FollowedLog;
  entry: ExperimentEntry | undefined;
  experiments: readonly Experiment[];
  problem: string | undefined;
}

export class ExperimentLogs {
  readonly #options: ExperimentLogsOptions;
  readonly #states: readonly LogState[];
  readonly #stopping = new AbortController();
  #loops: Promise<unknown> = Promise.resolve();
  /** What `current` returned for this content of the files. */
  #joined: { readonly files: Traffic; readonly traffic: Traffic } | undefined;

  constructor(options: ExperimentLogsOptions) {
    this.#options = options;
    // Each loop waits with this signal, and Node warns of more than ten listeners.
    setMaxListeners(options.logs.length + 2, this.#stopping.signal);
    this.#states = options.logs.map((followed) => ({
      followed,
      entry: undefined,
      experiments: [],
      problem: undefined,
    }));
  }

  /**
   * Starts polling. Resolves after the first look at every log, or a few seconds; never rejects.
   */
  async start(): Promise<void> {
    const { clock } = this.#options;
    const looks = this.#states.map((state) => this.#look(state));
    const loops = this.#states.map((state, i) => this.#follow(state, looks[i]));
    this.#loops = Promise.all([...loops, this.#followFiles()]);
    if (looks.length === 0) return;
    await Promise.race([Promise.all(looks), clock.sleep(FIRST_LOOK_MS, this.#stopping.signal)]);
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#loops;
  }

  /** The same object while nothing changes. */
  current(): Traffic {
    const files = this.#options.files.current();
    if (this.#joined?.files !== files) {
      const experiments = [...files.experiments, ...this.#listExperiments()];
      this.#joined = { files, traffic: { experiments, shadows: files.shadows } };
    }
    return this.#joined.traffic;
  }

  /** @throws CubeError if experiments of the files contradict those of the logs */
  requireCompatible({ experiments }: Traffic): void {
    requireNoConflict([...experiments, ...this.#listExperiments()]);
  }

  /** The entries that apply, by model. */
  get origins(): readonly ExperimentOrigin[] {
    return this.#states.flatMap(({ followed: { model }, entry }) => {
      if (entry === undefined) return [];
      const { experiments: _, ...origin } = entry;
      return [{ model, ...origin }];
    });
  }

  /** Why the newest entry of a log does not apply. */
  get problems(): readonly { readonly model: string; readonly problem: string }[] {
    return this.#states.flatMap(({ followed: { model }, problem }) =>
      problem === undefined ? [] : [{ model, problem }],
    );
  }

  async #follow(state: LogState, first: Promise<void> | undefined): Promise<void> {
    const { signal } = this.#stopping;
    await first;
    while (!signal.aborted) {
      await this.#options.clock.sleep(state.followed.pollMs, signal);
      if (!signal.aborted) await this.#look(state);
    }
  }

  /** Requests read changed files too; this reports a change to the log before the next request. */
  async #followFiles(): Promise<void> {
    const { files, clock } = this.#options;
    const { signal } = this.#stopping;
    while (files.pollMs !== undefined && !signal.aborted) {
      await clock.sleep(files.pollMs, signal);
      if (!signal.aborted) files.current();
    }
  }

  async #look(state: LogState): Promise<void> {
    try {
      const { entry, problem } = await state.followed.log.readNewest();
      this.#apply(state, entry);
      this.#report(state, problem?.message);
    } catch (error) {
      this.#report(state, CubeError.from(error).message);
    }
  }

  /** @throws CubeError if the entry contradicts other experiments */
  #apply(state: LogState, entry: ExperimentEntry | undefined): void {
    if (isSameEntry(entry, state.entry)) return;
    const { model } = state.followed;
    const experiments = (entry?.experiments ?? []).map((each) => ({ ...each, model }));
    const others = this.#states.filter((other) => other !== state);
    requireNoConflict([
      ...this.#options.files.current().experiments,
      ...others.flatMap((other) => other.experiments),
      ...experiments,
    ]);
    state.entry = entry;
    state.experiments = experiments;
    this.#joined = undefined;
    const names = experiments.map(({ name }) => name);
    const { seq, by, reason } = entry ?? {};
    this.#options.logger.info(
      { model, seq, by, reason, experiments: names },
      'experiments changed',
    );
  }

  #report(state: LogState, problem: string | undefined): void {
    if (problem !== undefined && problem !== state.problem) {
      const { model } = state.followed;
      const text = 'the experiment log cannot be used; the previous experiments continue';
      this.#options.logger.error({ model, error: problem }, text);
    }
    state.problem = problem;
  }

  #listExperiments(): Experiment[] {
    return this.#states.flatMap(({ experiments }) => experiments);
  }
}

function isSameEntry(a: ExperimentEntry | undefined, b: ExperimentEntry | undefined): boolean {
  return a?.seq === b?.seq && a?.at === b?.at && a?.by === b?.by && a?.reason === b?.reason;
}

function requireNoConflict(experiments: readonly Experiment[]): void {
  const conflict = findConflict(experiments);
  if (conflict === undefined) return;
  const name = experiments[conflict.index]?.name;
  throw new CubeError('CONFLICT', `experiment ${name}: ${conflict.reason}`);
}
