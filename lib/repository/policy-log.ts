/** The policy of a bundle: an append-only log whose newest entry holds the limits for all its versions, `policy/<seq>.json`. */
import { CubeError } from '../core/errors.ts';
import type { JsonReader } from '../core/json.ts';
import type { Clock } from '../platform/clock.ts';
import type { Backend } from './backend.ts';
import type { Deed } from './channel-log.ts';
import type { Keys } from './entries.ts';
import { EntryLog } from './entry-log.ts';
import { policyEntryPath, policyFolder } from './layout.ts';

/** By the limit's name; null: switched off. Those left out have their defaults. */
export type PolicyLimits = Readonly<Record<string, number | null>>;

export interface PolicyEntry extends Deed {
  readonly seq: number;
  readonly limits: PolicyLimits;
}

export interface PolicyPlace {
  readonly backend: Backend;
  readonly keys: Keys;
  readonly clock: Clock;
  readonly bundle: string;
}

export class PolicyLog {
  readonly #place: PolicyPlace;
  readonly #log: EntryLog<PolicyEntry>;

  constructor(place: PolicyPlace) {
    const { backend, keys, bundle } = place;
    this.#place = place;
    this.#log = new EntryLog(backend, keys, {
      folder: policyFolder(bundle),
      pathOf: (seq) => policyEntryPath(bundle, seq),
      read: toPolicyEntry,
    });
  }

  /** Oldest first; the last one holds. @throws CubeError CORRUPT or DENIED naming a bad entry */
  history(): Promise<PolicyEntry[]> {
    return this.#log.history();
  }

  /**
   * The limits from now on. Those that hold already add nothing.
   * @param before the entry that the change was decided on; undefined for none
   * @throws CubeError CONFLICT when somebody changed them since then
   */
  async append(
    before: PolicyEntry | undefined,
    wish: Omit<PolicyEntry, 'seq' | 'at'>,
  ): Promise<PolicyEntry> {
    const { limits, by, reason } = wish;
    if (before !== undefined && textOf(before.limits) === textOf(limits)) return before;
    const seq = (before?.seq ?? 0) + 1;
    const fields = { limits, at: this.#place.clock.isoTime(), by, reason };
    if (await this.#log.append(seq, fields)) return { seq, ...fields };
    const winner = await this.#log.read(seq);
    throw new CubeError(
      'CONFLICT',
      `policy of ${this.#place.bundle}: ${winner.by} was first to write entry ${seq} ("${winner.reason}"); ` +
        'look at it and decide again',
    );
  }
}

function textOf(limits: PolicyLimits): string {
  return JSON.stringify(Object.entries(limits).sort(([a], [b]) => (a < b ? -1 : 1)));
}

function toPolicyEntry(json: JsonReader, seq: number): PolicyEntry {
  const limits = json
    .field('limits')
    .entries()
    .map(([name, field]) => [name, field.value === null ? null : field.number()] as const);
  return {
    seq,
    limits: Object.fromEntries(limits),
    at: json.field('at').string(),
    by: json.field('by').string(),
    reason: json.field('reason').string(),
  };
}
