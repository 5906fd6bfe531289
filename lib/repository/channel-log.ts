/**
 * A channel: an append-only log whose highest entry is the pointer. One entry is everything a move means: where to, whether
 * it is pinned there, and which version it condemns; so a move happens whole or not at all, and of two writers one gets
 * CONFLICT and decides again.
 */
import { CubeError } from '../core/errors.ts';
import type { JsonReader } from '../core/json.ts';
import { NAME_PATTERN, NAME_RULE } from '../core/names.ts';
import { faultPoint } from '../platform/fault-point.ts';
import type { Backend } from './backend.ts';
import { corruptWhenUnreadable, type Keys, readEntry } from './entries.ts';
import { EntryLog } from './entry-log.ts';
import { channelEntryPath, channelFolder, quarantinePath } from './layout.ts';
import type { TrustedKeys } from './signatures.ts';

/** Who did something, when (for people: nothing is decided by it) and why. */
export interface Deed {
  readonly at: string;
  readonly by: string;
  readonly reason: string;
}

export interface ChannelEntry extends Deed {
  readonly seq: number;
  readonly version: string;
  /** Nobody but an unpin moves the channel on from here. */
  readonly pinned?: boolean;
  /** The version that this entry left for good: it is quarantined from here on. */
  readonly quarantines?: string;
}

export interface ChannelState {
  /** The newest entry: the version wanted. Undefined for a channel that nobody has written yet. */
  readonly pointer: ChannelEntry | undefined;
  /** Where a rollback leads: the newest earlier entry of another version that is not quarantined. */
  readonly previous: ChannelEntry | undefined;
  /** Oldest first; the last is the pointer. */
  readonly history: readonly ChannelEntry[];
  /** The quarantined versions: all of the bundle, or where the store cannot list, those newer than `previous`. */
  readonly quarantined: ReadonlySet<string>;
}

/** The state that a history and a quarantine amount to. Pure. */
export function channelState(
  history: readonly ChannelEntry[],
  quarantine: ReadonlySet<string>,
): ChannelState {
  const quarantined = new Set([...quarantine, ...condemned(history)]);
  const pointer = history.at(-1);
  const previous = history.findLast(
    (entry) => entry.version !== pointer?.version && !quarantined.has(entry.version),
  );
  return { pointer, previous, history, quarantined };
}

/** Versions that entries of a log quarantine, whether or not that has been written beside it yet. */
export function condemned(history: readonly ChannelEntry[]): string[] {
  return history.flatMap(({ quarantines }) => quarantines ?? []);
}

export class ChannelLog {
  readonly #log: EntryLog<ChannelEntry>;
  readonly #name: string;

  constructor(backend: Backend, keys: Keys, bundle: string, channel: string) {
    this.#name = `channel ${channel} of ${bundle}`;
    this.#log = new EntryLog(backend, keys, {
      folder: channelFolder(bundle, channel),
      pathOf: (seq) => channelEntryPath(bundle, channel, seq),
      read: toChannelEntry,
    });
  }

  /** Oldest first. @throws CubeError CORRUPT or DENIED naming a bad entry */
  history(): Promise<ChannelEntry[]> {
    return this.#log.history();
  }

  /** @throws CubeError CONFLICT when another writer was first */
  async append(entry: ChannelEntry): Promise<ChannelEntry> {
    const { seq, ...fields } = entry;
    if (await this.#log.append(seq, fields)) {
      faultPoint('channel.entry');
      return entry;
    }
    const winner = await this.#log.read(seq);
    throw new CubeError(
      'CONFLICT',
      `${this.#name}: ${winner.by} was first to write entry ${seq} ` +
        `(version ${winner.version}, "${winner.reason}"); look at it and decide again`,
    );
  }
}

function toChannelEntry(json: JsonReader, seq: number): ChannelEntry {
  const pinned = json.optional('pinned', (field) => field.boolean());
  const quarantines = json.optional('quarantines', (field) =>
    field.string(NAME_PATTERN, NAME_RULE),
  );
  return {
    seq,
    version: json.field('version').string(NAME_PATTERN, NAME_RULE),
    ...toDeed(json),
    ...(pinned === undefined ? {} : { pinned }),
    ...(quarantines === undefined ? {} : { quarantines }),
  };
}

function toDeed(json: JsonReader): Deed {
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
  return corruptWhenUnreadable(() => toChannelEntry(json, seq));
}

/** Who quarantined a version, and why. @throws CubeError CORRUPT, DENIED; NOT_FOUND */
export async function readQuarantineEntry(
  source: Pick<Backend, 'location' | 'read'>,
  bundle: string,
  version: string,
  trusted?: TrustedKeys,
): Promise<Deed> {
  const json = await readEntry(source, quarantinePath(bundle, version), trusted);
  return corruptWhenUnreadable(() => toDeed(json));
}
