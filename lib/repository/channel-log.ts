/**
 * The log of a channel: its newest entry is the pointer. One entry holds everything that a move
 * means: the version, whether the channel is pinned, and which version is quarantined. So a move
 * happens completely or not at all, and of two concurrent writers one gets CONFLICT.
 */
import { CubeError } from '../core/errors.ts';
import type { JsonReader } from '../core/json.ts';
import { NAME_PATTERN, NAME_RULE } from '../core/names.ts';
import { faultPoint } from '../platform/fault-point.ts';
import type { Backend } from './backend.ts';
import { EntryLog } from './entry-log.ts';
import { channelEntryPath, channelFolder, quarantinePath } from './layout.ts';
import { NO_OUTCOMES, type VersionOutcomes } from './outcomes.ts';
import type { TrustedKeys } from './signatures.ts';
import { type RepositoryKeys, readEntry, rethrowAsCorrupt } from './signed-entry.ts';

/** Who did something, when and why. The time is for people: no decision depends on it. */
export interface AuditedAction {
  readonly at: string;
  readonly by: string;
  readonly reason: string;
}

export interface ChannelEntry extends AuditedAction {
  readonly seq: number;
  readonly version: string;
  /** The channel does not move until it is unpinned. */
  readonly pinned?: boolean;
  /** The version that this entry quarantines. */
  readonly quarantines?: string;
  /** The version whose quarantine this entry lifts. */
  readonly lifts?: string;
}

export interface ChannelState {
  /** The newest entry, with the desired version; undefined for a channel without entries. */
  readonly pointer: ChannelEntry | undefined;
  /** The target of a rollback: the first of `fallbacks`. */
  readonly previous: ChannelEntry | undefined;
  /**
   * The newest entry of each other version that may serve instead of the pointer's: first those
   * that have served, then those of which nothing is known; newest first. Never a quarantined
   * version, and none that failed to load without ever having served.
   */
  readonly fallbacks: readonly ChannelEntry[];
  /** Oldest first; the last is the pointer. */
  readonly history: readonly ChannelEntry[];
  /** All of the bundle; if the store cannot list, those newer than `previous`. */
  readonly quarantined: ReadonlySet<string>;
  readonly outcomes: VersionOutcomes;
}

/** Pure. */
export function computeChannelState(
  history: readonly ChannelEntry[],
  quarantine: ReadonlySet<string>,
  outcomes: VersionOutcomes = NO_OUTCOMES,
): ChannelState {
  const quarantined = new Set([...quarantine, ...listQuarantinedByEntries(history)]);
  const pointer = history.at(-1);
  const newest = new Map<string, ChannelEntry>();
  for (const entry of history.toReversed()) {
    const { version } = entry;
    if (version === pointer?.version || quarantined.has(version)) continue;
    if (!newest.has(version)) newest.set(version, entry);
  }
  const hasServed = ({ version }: ChannelEntry): boolean => outcomes.served.has(version);
  const others = [...newest.values()];
  const fallbacks = [
    ...others.filter(hasServed),
    ...others.filter((entry) => !hasServed(entry) && !outcomes.failed.has(entry.version)),
  ];
  return { pointer, previous: fallbacks[0], fallbacks, history, quarantined, outcomes };
}

/** The versions that entries quarantine, even if the quarantine's own files are not written yet. */
export function listQuarantinedByEntries(history: readonly ChannelEntry[]): string[] {
  const versions = new Set<string>();
  for (const { quarantines, lifts } of history) {
    if (lifts !== undefined) versions.delete(lifts);
    if (quarantines !== undefined) versions.add(quarantines);
  }
  return [...versions];
}

export class ChannelLog {
  readonly #log: EntryLog<ChannelEntry>;
  readonly #name: string;

  constructor(backend: Backend, keys: RepositoryKeys, bundle: string, channel: string) {
    this.#name = `channel ${channel} of ${bundle}`;
    this.#log = new EntryLog(backend, keys, {
      folder: channelFolder(bundle, channel),
      entryPath: (seq) => channelEntryPath(bundle, channel, seq),
      parse: parseChannelEntry,
    });
  }

  /** Oldest first. @throws CubeError CORRUPT or DENIED naming a bad entry */
  readHistory(): Promise<ChannelEntry[]> {
    return this.#log.readHistory();
  }

  /** @throws CubeError CONFLICT if another writer was first */
  async append(entry: ChannelEntry): Promise<ChannelEntry> {
    const { seq, ...fields } = entry;
    if (await this.#log.append(seq, fields)) {
      faultPoint('channel.entry');
      return entry;
    }
    const winner = await this.#log.readEntry(seq);
    throw new CubeError(
      'CONFLICT',
      `${this.#name}: ${winner.by} wrote entry ${seq} first ` +
        `(version ${winner.version}, "${winner.reason}"); check the channel and retry`,
    );
  }
}

function parseChannelEntry(json: JsonReader, seq: number): ChannelEntry {
  const pinned = json.optional('pinned', (field) => field.boolean());
  const quarantines = json.optional('quarantines', (field) =>
    field.string(NAME_PATTERN, NAME_RULE),
  );
  const lifts = json.optional('lifts', (field) => field.string(NAME_PATTERN, NAME_RULE));
  return {
    seq,
    version: json.field('version').string(NAME_PATTERN, NAME_RULE),
    ...parseAuditedAction(json),
    ...(pinned === undefined ? {} : { pinned }),
    ...(quarantines === undefined ? {} : { quarantines }),
    ...(lifts === undefined ? {} : { lifts }),
  };
}

function parseAuditedAction(json: JsonReader): AuditedAction {
  return {
    at: json.field('at').string(),
    by: json.field('by').string(),
    reason: json.field('reason').string(),
  };
}

/** @throws CubeError CORRUPT naming a damaged entry; NOT_FOUND */
export async function readChannelEntry(
  source: Pick<Backend, 'location' | 'read'>,
  bundle: string,
  channel: string,
  seq: number,
): Promise<ChannelEntry> {
  const json = await readEntry(source, channelEntryPath(bundle, channel, seq));
  return rethrowAsCorrupt(() => parseChannelEntry(json, seq));
}

/** Reads who quarantined a version, and why. @throws CubeError CORRUPT, DENIED; NOT_FOUND */
export async function readQuarantineEntry(
  source: Pick<Backend, 'location' | 'read'>,
  bundle: string,
  version: string,
  trusted?: TrustedKeys,
): Promise<AuditedAction> {
  const json = await readEntry(source, quarantinePath(bundle, version), trusted);
  return rethrowAsCorrupt(() => parseAuditedAction(json));
}
