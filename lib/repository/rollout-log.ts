/**
 * The log of one version's rollout, and the gate's reports beside it: `rollouts/<version>/`. The newest entry is the state; a
 * second controller reads the first one's, and of two that write the same step one is told so. Nothing depends on a clock.
 */
import { CubeError } from '../core/errors.ts';
import type { JsonReader } from '../core/json.ts';
import { mayFollow, ROLLOUT_STATES, type RolloutState, statesAfter } from '../core/rollout.ts';
import type { Clock } from '../platform/clock.ts';
import { faultPoint } from '../platform/fault-point.ts';
import type { Backend } from './backend.ts';
import type { Keys } from './entries.ts';
import { EntryLog } from './entry-log.ts';
import { gateReportPath, rolloutEntryPath, rolloutFolder } from './layout.ts';

const GATE_RUNS_MAX = 10_000;
const REPORT_BYTES_MAX = 64 << 20;

export interface RolloutEntry {
  readonly seq: number;
  readonly state: RolloutState;
  /** For people. */
  readonly at: string;
  /** Which controller or person. */
  readonly holder: string;
  readonly reason: string;
  /** Whatever the step found out: counts, hosts, the gate's verdict. */
  readonly detail?: unknown;
}

export interface RolloutStep {
  readonly state: RolloutState;
  readonly holder: string;
  readonly reason: string;
  readonly detail?: unknown;
}

export interface GateReport {
  readonly json: string;
  readonly txt: string;
  readonly html: string;
}

export interface RolloutPlace {
  readonly backend: Backend;
  readonly keys: Keys;
  readonly clock: Clock;
  readonly bundle: string;
  readonly version: string;
}

export class RolloutLog {
  readonly #place: RolloutPlace;
  readonly #log: EntryLog<RolloutEntry>;

  constructor(place: RolloutPlace) {
    const { backend, keys, bundle, version } = place;
    this.#place = place;
    this.#log = new EntryLog(backend, keys, {
      folder: rolloutFolder(bundle, version),
      pathOf: (seq) => rolloutEntryPath(bundle, version, seq),
      read: toRolloutEntry,
    });
  }

  /** Oldest first; the last is the state. */
  history(): Promise<RolloutEntry[]> {
    return this.#log.history();
  }

  /**
   * The next state. A step into the state that the rollout has already adds nothing: a step may be taken twice.
   * @param expected seq of the entry that the decision was made on; 0 for none
   * @throws CubeError CONFLICT when somebody went on since then, or the state may not follow
   */
  async append(expected: number, step: RolloutStep): Promise<RolloutEntry> {
    const newest = (await this.history()).at(-1);
    const { state, holder, reason, detail } = step;
    if (newest?.state === state) return newest;
    if ((newest?.seq ?? 0) !== expected) throw this.#overtaken(newest, step);
    if (!mayFollow(newest?.state, state)) {
      throw new CubeError(
        'CONFLICT',
        `${this.#name}: ${state} cannot follow ${newest?.state ?? 'nothing'} ` +
          `(only ${statesAfter(newest?.state).join(', ') || 'nothing'} can)`,
      );
    }
    const seq = expected + 1;
    const at = this.#place.clock.isoTime();
    const fields = { state, at, holder, reason, ...(detail === undefined ? {} : { detail }) };
    if (await this.#log.append(seq, fields)) return { seq, ...fields };
    const winner = await this.#log.read(seq);
    if (winner.state === state) return winner;
    throw this.#overtaken(winner, step);
  }

  /** Stores a gate's report beside the log. @returns its number, from 1 */
  async putGateReport(report: GateReport): Promise<number> {
    const { backend, bundle, version } = this.#place;
    const encode = (text: string): Uint8Array => new TextEncoder().encode(text);
    for (let n = 1; n <= GATE_RUNS_MAX; n++) {
      // The one for programs takes the number; the others are the same for people.
      const path = (kind: keyof GateReport): string => gateReportPath(bundle, version, n, kind);
      if (!(await backend.putIfAbsent(path('json'), encode(report.json)))) continue;
      faultPoint('gate.reported');
      await backend.putIfAbsent(path('txt'), encode(report.txt));
      await backend.putIfAbsent(path('html'), encode(report.html));
      return n;
    }
    throw new CubeError('TOO_LARGE', `${this.#name} has ${GATE_RUNS_MAX} reports of gates already`);
  }

  /** The number of the gate's newest report; 0 when there is none. */
  async newestGateReport(): Promise<number> {
    const { backend, bundle, version } = this.#place;
    let newest = 0;
    while (
      (await backend.size(gateReportPath(bundle, version, newest + 1, 'json'))) !== undefined
    ) {
      newest += 1;
    }
    return newest;
  }

  /** @throws CubeError NOT_FOUND */
  async gateReport(n: number, kind: keyof GateReport): Promise<string> {
    const { backend, bundle, version } = this.#place;
    const path = gateReportPath(bundle, version, n, kind);
    return new TextDecoder().decode(await backend.read(path, REPORT_BYTES_MAX));
  }

  get #name(): string {
    const { bundle, version } = this.#place;
    return `rollout of ${bundle} ${version}`;
  }

  #overtaken(newest: RolloutEntry | undefined, { state }: RolloutStep): CubeError {
    const is =
      newest === undefined
        ? 'has no entry'
        : `is at entry ${newest.seq}: ${newest.state}, by ${newest.holder} ("${newest.reason}")`;
    return new CubeError(
      'CONFLICT',
      `${this.#name} ${is}; ${state} was decided on another entry: look at it and decide again`,
    );
  }
}

function toRolloutEntry(json: JsonReader, seq: number): RolloutEntry {
  const detail = json.field('detail');
  return {
    seq,
    state: json.field('state').oneOf(ROLLOUT_STATES),
    at: json.field('at').string(),
    holder: json.field('holder').string(),
    reason: json.field('reason').string(),
    ...(detail.missing ? {} : { detail: detail.value }),
  };
}
