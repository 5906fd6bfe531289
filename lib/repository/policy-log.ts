/**
 * The policy of a bundle: an append-only log, `policy/<seq>.json`. Its newest entry holds the
 * gate's limits for all versions of the bundle.
 */
import { CubeError } from '../core/errors.ts';
import type { JsonReader } from '../core/json.ts';
import type { Clock } from '../platform/clock.ts';
import type { Backend } from './backend.ts';
import type { AuditedAction } from './channel-log.ts';
import { EntryLog } from './entry-log.ts';
import { policyEntryPath, policyFolder } from './layout.ts';
import type { RepositoryKeys } from './signed-entry.ts';

/** Values by limit name; null: switched off. Missing limits have their defaults. */
export type PolicyLimits = Readonly<Record<string, number | null>>;

export interface PolicyEntry extends AuditedAction {
  readonly seq: number;
  readonly limits: PolicyLimits;
}

export interface PolicyLogOptions {
  readonly backend: Backend;
  readonly keys: RepositoryKeys;
  readonly clock: Clock;
  readonly bundle: string;
}

export class PolicyLog {
  readonly #options: PolicyLogOptions;
  readonly #log: EntryLog<PolicyEntry>;

  constructor(options: PolicyLogOptions) {
    const { backend, keys, bundle } = options;
    this.#options = options;
    this.#log = new EntryLog(backend, keys, {
      folder: policyFolder(bundle),
      entryPath: (seq) => policyEntryPath(bundle, seq),
      parse: parsePolicyEntry,
    });
  }

  /** Oldest first; the last one applies. @throws CubeError CORRUPT or DENIED naming a bad entry */
  readHistory(): Promise<PolicyEntry[]> {
    return this.#log.readHistory();
  }

  /**
   * Sets the limits. Limits equal to the current ones add no entry.
   * @param before the entry that the change is based on; undefined for none
   * @throws CubeError CONFLICT if they were changed since then
   */
  async append(
    before: PolicyEntry | undefined,
    change: Omit<PolicyEntry, 'seq' | 'at'>,
  ): Promise<PolicyEntry> {
    const { limits, by, reason } = change;
    if (before !== undefined && toComparableText(before.limits) === toComparableText(limits))
      return before;
    const seq = (before?.seq ?? 0) + 1;
    const fields = { limits, at: this.#options.clock.isoTime(), by, reason };
    if (await this.#log.append(seq, fields)) return { seq, ...fields };
    const winner = await this.#log.readEntry(seq);
    throw new CubeError(
      'CONFLICT',
      `policy of ${this.#options.bundle}: ${winner.by} wrote entry ${seq} first ` +
        `("${winner.reason}"); check the policy and retry`,
    );
  }
}

function toComparableText(limits: PolicyLimits): string {
  return JSON.stringify(Object.entries(limits).sort(([a], [b]) => (a < b ? -1 : 1)));
}

function parsePolicyEntry(json: JsonReader, seq: number): PolicyEntry {
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
