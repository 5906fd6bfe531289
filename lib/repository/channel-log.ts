/**
 * A channel: an append-only log whose highest entry is the pointer. Entries are put if absent, so the log is
 * pointer, history and fence at once: of two writers one gets CONFLICT and reads again. No lock, no clock.
 */
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { NAME_PATTERN, NAME_RULE } from '../core/names.ts';
import type { Backend } from './backend.ts';
import { channelEntryPath, channelFolder, quarantinePath, seqOf } from './layout.ts';

/** Bytes of a channel or quarantine entry: a longer reason is refused when written. */
const ENTRY_BYTES_MAX = 65_536;

/** What reading an entry needs of a store. */
type EntryStore = Pick<Backend, 'location' | 'read'>;

/** Who did something, when (for people: nothing is decided by it) and why. */
export interface Deed {
  readonly at: string;
  readonly by: string;
  readonly reason: string;
}

export interface ChannelEntry extends Deed {
  readonly seq: number;
  readonly version: string;
}

export interface ChannelState {
  /** The newest entry: the version wanted. Undefined for a channel that nobody has written yet. */
  readonly pointer: ChannelEntry | undefined;
  /** Where a rollback leads: the newest earlier entry of another version that is not quarantined. */
  readonly previous: ChannelEntry | undefined;
  /** Oldest first; the last is the pointer. */
  readonly history: readonly ChannelEntry[];
}

/** The state that a history and a quarantine amount to. Pure. */
export function channelState(
  history: readonly ChannelEntry[],
  quarantined: ReadonlySet<string>,
): ChannelState {
  const pointer = history.at(-1);
  const previous = history.findLast(
    (entry) => entry.version !== pointer?.version && !quarantined.has(entry.version),
  );
  return { pointer, previous, history };
}

function readDeed(json: JsonReader): Deed {
  return {
    at: json.field('at').string(),
    by: json.field('by').string(),
    reason: json.field('reason').string(),
  };
}

/**
 * Reads and extends the log of one channel. Entries never change, so each is read once; but the newest one known is
 * read again, because a repository may be made anew, and a damaged entry removed and written again.
 */
export class ChannelLog {
  readonly #backend: Backend;
  readonly #bundle: string;
  readonly #channel: string;
  readonly #entries = new Map<number, ChannelEntry>();

  constructor(backend: Backend, bundle: string, channel: string) {
    this.#backend = backend;
    this.#bundle = bundle;
    this.#channel = channel;
  }

  /** Oldest first. @throws CubeError CORRUPT naming a damaged entry */
  async history(): Promise<ChannelEntry[]> {
    const names = await this.#backend.list(channelFolder(this.#bundle, this.#channel));
    const seqs = names.map(seqOf).filter((seq) => seq !== undefined);
    await this.#forgetOthers(seqs);
    const history: ChannelEntry[] = [];
    for (const seq of seqs.sort((a, b) => a - b)) {
      const entry = this.#entries.get(seq) ?? (await this.#read(seq));
      this.#entries.set(seq, entry);
      history.push(entry);
    }
    return history;
  }

  /** @throws CubeError CONFLICT when another writer was first */
  async append(entry: ChannelEntry): Promise<ChannelEntry> {
    const { seq, version, at, by, reason } = entry;
    const bytes = entryBytes({ version, at, by, reason });
    const path = channelEntryPath(this.#bundle, this.#channel, seq);
    if (await this.#backend.putIfAbsent(path, bytes)) return entry;
    const winner = await this.#read(seq);
    throw new CubeError(
      'CONFLICT',
      `channel ${this.#channel} of ${this.#bundle}: ${winner.by} was first to write entry ${seq} ` +
        `(version ${winner.version}, "${winner.reason}"); look at it and decide again`,
    );
  }

  /** Of a log that is not the one we knew, nothing known is true. @param seqs those there are */
  async #forgetOthers(seqs: readonly number[]): Promise<void> {
    if (this.#entries.size === 0) return;
    let newest = 0;
    for (const seq of this.#entries.keys()) newest = Math.max(newest, seq);
    const known = JSON.stringify(this.#entries.get(newest));
    const isThere = seqs.includes(newest);
    if (isThere && JSON.stringify(await this.#read(newest)) === known) return;
    this.#entries.clear();
  }

  #read(seq: number): Promise<ChannelEntry> {
    return readChannelEntry(this.#backend, this.#bundle, this.#channel, seq);
  }
}

/** @throws CubeError CORRUPT naming a damaged entry; NOT_FOUND */
export async function readChannelEntry(
  backend: EntryStore,
  bundle: string,
  channel: string,
  seq: number,
): Promise<ChannelEntry> {
  const json = await readEntry(backend, channelEntryPath(bundle, channel, seq));
  return corruptWhenUnreadable(() => ({
    seq,
    version: json.field('version').string(NAME_PATTERN, NAME_RULE),
    ...readDeed(json),
  }));
}

/** Who quarantined a version, and why. @throws CubeError CORRUPT naming a damaged entry; NOT_FOUND */
export async function readQuarantineEntry(
  backend: EntryStore,
  bundle: string,
  version: string,
): Promise<Deed> {
  const json = await readEntry(backend, quarantinePath(bundle, version));
  return corruptWhenUnreadable(() => readDeed(json));
}

/** @throws CubeError TOO_LARGE */
export function entryBytes(entry: Deed & { readonly version?: string }): Uint8Array {
  const bytes = new TextEncoder().encode(`${JSON.stringify(entry)}\n`);
  if (bytes.length <= ENTRY_BYTES_MAX) return bytes;
  throw new CubeError('TOO_LARGE', `the reason is too long: at most ${ENTRY_BYTES_MAX} bytes`);
}

async function readEntry(backend: EntryStore, path: string): Promise<JsonReader> {
  const bytes = await backend.read(path, ENTRY_BYTES_MAX);
  const source = `${backend.location}/${path}`;
  return corruptWhenUnreadable(() => JsonReader.parse(new TextDecoder().decode(bytes), source));
}

/** What a repository stores was checked when it was written: unreadable now means damaged. */
export function corruptWhenUnreadable<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof CubeError) || error.code !== 'INVALID_ARGUMENT') throw error;
    throw new CubeError('CORRUPT', error.message, { cause: error });
  }
}
