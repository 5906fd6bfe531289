/**
 * The log of the rollout of one version, and the gate's reports: `rollouts/<version>/`. The newest
 * entry is the state. A second controller reads the first one's entries, and of two controllers
 * that write the same step one is told so. No decision depends on a clock.
 */
import { CubeError } from '../core/errors.ts';
import type { JsonReader } from '../core/json.ts';
import { canTransition, nextStates, ROLLOUT_STATES, type RolloutState } from '../core/rollout.ts';
import type { Clock } from '../platform/clock.ts';
import { faultPoint } from '../platform/fault-point.ts';
import type { Backend } from './backend.ts';
import { EntryLog } from './entry-log.ts';
import { gateReportPath, rolloutEntryPath, rolloutFolder } from './layout.ts';
import type { RepositoryKeys } from './signed-entry.ts';

const GATE_RUNS_MAX = 10_000;
const REPORT_BYTES_MAX = 64 << 20;

export interface RolloutEntry {
  readonly seq: number;
  readonly state: RolloutState;
  /** For people only. */
  readonly at: string;
  /** The controller or person that wrote the entry. */
  readonly holder: string;
  readonly reason: string;
  /** Results of the step: counts, hosts, the gate's verdict. */
  readonly detail?: unknown;
}

export interface RolloutStep {
  readonly state: RolloutState;
  readonly holder: string;
  readonly reason: string;
  readonly detail?: unknown;
}

export interface GateReportFiles {
  readonly json: string;
  readonly txt: string;
  readonly html: string;
}

export interface RolloutLogOptions {
  readonly backend: Backend;
  readonly keys: RepositoryKeys;
  readonly clock: Clock;
  readonly bundle: string;
  readonly version: string;
}

export class RolloutLog {
  readonly #options: RolloutLogOptions;
  readonly #log: EntryLog<RolloutEntry>;

  constructor(options: RolloutLogOptions) {
    const { backend, keys, bundle, version } = options;
    this.#options = options;
    this.#log = new EntryLog(backend, keys, {
      folder: rolloutFolder(bundle, version),
      entryPath: (seq) => rolloutEntryPath(bundle, version, seq),
      parse: parseRolloutEntry,
    });
  }

  /** Oldest first; the last is the state. */
  readHistory(): Promise<RolloutEntry[]> {
    return this.#log.readHistory();
  }

  /**
   * Appends the next state. A step into the current state adds no entry, so a step may be repeated.
   * @param expected seq of the entry that the step is based on; 0 for none
   * @throws CubeError CONFLICT if there is a newer entry, or the state cannot follow
   */
  async append(expected: number, step: RolloutStep): Promise<RolloutEntry> {
    const newest = (await this.readHistory()).at(-1);
    const { state, holder, reason, detail } = step;
    if (newest?.state === state) return newest;
    if ((newest?.seq ?? 0) !== expected) throw this.#overtaken(newest, step);
    if (!canTransition(newest?.state, state)) {
      throw new CubeError(
        'CONFLICT',
        `${this.#name}: ${state} cannot follow ${newest?.state ?? 'nothing'} ` +
          `(only ${nextStates(newest?.state).join(', ') || 'nothing'} can)`,
      );
    }
    const seq = expected + 1;
    const at = this.#options.clock.isoTime();
    const fields = { state, at, holder, reason, ...(detail === undefined ? {} : { detail }) };
    if (await this.#log.append(seq, fields)) return { seq, ...fields };
    const winner = await this.#log.readEntry(seq);
    if (winner.state === state) return winner;
    throw this.#overtaken(winner, step);
  }

  /** Stores a report of the gate. @returns its number, from 1 */
  async putGateReport(report: GateReportFiles): Promise<number> {
    const { backend, bundle, version } = this.#options;
    const encode = (text: string): Uint8Array => new TextEncoder().encode(text);
    for (let n = 1; n <= GATE_RUNS_MAX; n++) {
      // The JSON report claims the number; the other formats have the same content.
      const path = (kind: keyof GateReportFiles): string =>
        gateReportPath(bundle, version, n, kind);
      if (!(await backend.putIfAbsent(path('json'), encode(report.json)))) continue;
      faultPoint('gate.reported');
      await backend.putIfAbsent(path('txt'), encode(report.txt));
      await backend.putIfAbsent(path('html'), encode(report.html));
      return n;
    }
    throw new CubeError(
      'TOO_LARGE',
      `${this.#name} already has ${GATE_RUNS_MAX} reports of the gate`,
    );
  }

  /**
   * The number of the newest report; 0 if there is none.
   * @param known number of an existing report, from which the search starts
   */
  async findNewestGateReport(known = 0): Promise<number> {
    const { backend, bundle, version } = this.#options;
    let newest = known;
    while (
      (await backend.size(gateReportPath(bundle, version, newest + 1, 'json'))) !== undefined
    ) {
      newest += 1;
    }
    return newest;
  }

  /** @throws CubeError NOT_FOUND */
  async readGateReport(n: number, kind: keyof GateReportFiles): Promise<string> {
    const { backend, bundle, version } = this.#options;
    const path = gateReportPath(bundle, version, n, kind);
    return new TextDecoder().decode(await backend.read(path, REPORT_BYTES_MAX));
  }

  get #name(): string {
    const { bundle, version } = this.#options;
    return `rollout of ${bundle} ${version}`;
  }

  #overtaken(newest: RolloutEntry | undefined, { state }: RolloutStep): CubeError {
    const current =
      newest === undefined
        ? 'has no entry'
        : `is at entry ${newest.seq}: ${newest.state}, by ${newest.holder} ("${newest.reason}")`;
    return new CubeError(
      'CONFLICT',
      `${this.#name} ${current}; ${state} was based on another entry; check the rollout and retry`,
    );
  }
}

function parseRolloutEntry(json: JsonReader, seq: number): RolloutEntry {
  const detail = json.field('detail');
  return {
    seq,
    state: json.field('state').choice(ROLLOUT_STATES),
    at: json.field('at').string(),
    holder: json.field('holder').string(),
    reason: json.field('reason').string(),
    ...(detail.isMissing ? {} : { detail: detail.value }),
  };
}
