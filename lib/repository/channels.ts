/**
 * Moves the channels of a bundle: activate, roll back, pin, unpin, quarantine. Each move reads the
 * log, decides, and appends one entry. A writer that loses the race for the entry changes nothing.
 */
import { CubeError, type ErrorCode } from '../core/errors.ts';
import { NAME_PATTERN } from '../core/names.ts';
import { CANDIDATE_CHANNEL } from '../core/rollout.ts';
import type { Clock } from '../platform/clock.ts';
import type { Backend } from './backend.ts';
import {
  type AuditedAction,
  type ChannelEntry,
  ChannelLog,
  type ChannelState,
  computeChannelState,
  listQuarantinedByEntries,
  readQuarantineEntry,
} from './channel-log.ts';
import {
  channelFolder,
  channelsFolder,
  manifestPath,
  quarantineFolder,
  quarantinePath,
} from './layout.ts';
import { OutcomeReader } from './outcomes.ts';
import { putEntry, type RepositoryKeys } from './signed-entry.ts';

/** Codes of a manifest that exists and cannot be used. */
const UNREADABLE_CODES: ReadonlySet<ErrorCode> = new Set([
  'CORRUPT',
  'DENIED',
  'TOO_LARGE',
  'UNSUPPORTED',
]);

/** Who moves a channel, and why. */
export interface Attribution {
  readonly by: string;
  readonly reason: string;
}

export interface ActivateRequest extends Attribution {
  readonly version: string;
  /** Fails unless the newest entry has this seq; 0: unless the channel has no entry. */
  readonly expected?: number;
}

export interface ChannelsOptions {
  readonly backend: Backend;
  readonly keys: RepositoryKeys;
  readonly clock: Clock;
  /** @throws CubeError NOT_FOUND */
  requireVersion(bundle: string, version: string): Promise<unknown>;
}

export class Channels {
  readonly #options: ChannelsOptions;
  readonly #backend: Backend;
  readonly #logs = new Map<string, ChannelLog>();
  /** Paths of quarantine entries whose signature was verified. */
  readonly #trusted = new Set<string>();
  readonly #outcomes: OutcomeReader;

  constructor(options: ChannelsOptions) {
    this.#options = options;
    this.#backend = options.backend;
    this.#outcomes = new OutcomeReader(options.backend);
  }

  async list(bundle: string): Promise<string[]> {
    const names = await this.#backend.list(channelsFolder(bundle));
    return names.filter((name) => NAME_PATTERN.test(name));
  }

  async readState(bundle: string, channel: string): Promise<ChannelState> {
    const history = await this.#log(bundle, channel).readHistory();
    const quarantine = this.#backend.canList
      ? await this.listQuarantined(bundle)
      : await this.#probeQuarantined(bundle, history);
    const versions = [...new Set(history.map(({ version }) => version).reverse())];
    const outcomes = await this.#outcomes.read(bundle, channel, versions);
    return computeChannelState(history, quarantine, outcomes);
  }

  async activate(bundle: string, channel: string, request: ActivateRequest): Promise<ChannelEntry> {
    const { version, by, reason, expected } = request;
    await this.#options.requireVersion(bundle, version);
    const history = await this.#log(bundle, channel).readHistory();
    const pointer = history.at(-1);
    if (expected !== undefined && expected !== (pointer?.seq ?? 0)) {
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} of ${bundle} is not at entry ${expected}: ` +
          `${describePointer(pointer)}; check its history and retry with the newest entry`,
      );
    }
    await this.#requireNotQuarantined(bundle, version, history);
    if (pointer?.version === version) return pointer;
    requireUnpinned(bundle, channel, pointer);
    const entry = await this.#append(bundle, channel, pointer, { version, by, reason });
    await this.#requireNotCollected(bundle, channel, entry, pointer);
    return entry;
  }

  /**
   * Appends one entry that points to the previous version, the newest that has served, and
   * quarantines the pointer's. The quarantine's own file follows. If a killed rollback did not
   * write it, the next rollback only writes that file.
   * @param attribution.from the version, or the seq of the entry, to leave: of concurrent rollbacks
   *   one moves the channel and the others get CONFLICT
   * @param attribution.quarantine false: the version that is left may serve again
   */
  async rollback(
    bundle: string,
    channel: string,
    attribution: Attribution & { readonly from?: string | number; readonly quarantine?: boolean },
  ): Promise<ChannelEntry> {
    const { by, reason, from, quarantine = true } = attribution;
    const state = await this.readState(bundle, channel);
    const { pointer, previous } = state;
    if (pointer !== undefined && (await this.#finish(bundle, pointer))) {
      const isSameRollback = [undefined, pointer.quarantines, pointer.seq - 1].includes(from);
      if (isSameRollback) return pointer;
    }
    if (from !== undefined && from !== pointer?.version && from !== pointer?.seq) {
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} of ${bundle} does not point to ${from}: ${describePointer(pointer)}; ` +
          'nothing was rolled back',
      );
    }
    requireUnpinned(bundle, channel, pointer);
    if (pointer === undefined || previous === undefined) {
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} of ${bundle} has no previous version to roll back to: ` +
          explainNoPrevious(state),
      );
    }
    const { version } = previous;
    await this.#options.requireVersion(bundle, version);
    const quarantines = quarantine ? { quarantines: pointer.version } : {};
    const move = { version, by, reason, ...quarantines };
    const entry = await this.#append(bundle, channel, pointer, move);
    await this.#finish(bundle, entry);
    return entry;
  }

  /** Keeps the channel at its version until `unpin`. Pinning a pinned channel adds nothing. */
  async pin(bundle: string, channel: string, attribution: Attribution): Promise<ChannelEntry> {
    const pointer = await this.#requirePointer(bundle, channel);
    if (pointer.pinned) return pointer;
    return this.#append(bundle, channel, pointer, {
      version: pointer.version,
      ...pickAttribution(attribution),
      pinned: true,
    });
  }

  async unpin(bundle: string, channel: string, attribution: Attribution): Promise<ChannelEntry> {
    const pointer = await this.#requirePointer(bundle, channel);
    if (!pointer.pinned) return pointer;
    return this.#append(bundle, channel, pointer, {
      version: pointer.version,
      ...pickAttribution(attribution),
    });
  }

  /**
   * @returns false if it was quarantined already
   * @throws CubeError CONFLICT while a channel points to it
   */
  async quarantine(bundle: string, version: string, attribution: Attribution): Promise<boolean> {
    await this.#requireExists(bundle, version);
    for (const channel of await this.list(bundle)) {
      // No traffic uses the candidate channel; agents unload a quarantined candidate.
      if (channel === CANDIDATE_CHANNEL) continue;
      if ((await this.#log(bundle, channel).readHistory()).at(-1)?.version !== version) continue;
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} of ${bundle} points to version ${version}; ` +
          'roll the channel back, which quarantines the version too',
      );
    }
    const action: AuditedAction = {
      at: this.#options.clock.isoTime(),
      ...pickAttribution(attribution),
    };
    return this.#putQuarantine(bundle, version, action);
  }

  /**
   * Lifts a quarantine: an entry in each channel whose history quarantines the version, or in
   * `channel`, then the quarantine's own file goes. After a kill, lifting again completes it.
   * @returns false if the version was not quarantined
   * @throws CubeError UNSUPPORTED if the repository cannot remove files
   */
  async lift(
    bundle: string,
    version: string,
    { channel, ...attribution }: Attribution & { readonly channel: string },
  ): Promise<boolean> {
    const { deleter } = this.#backend;
    if (deleter === undefined) {
      throw new CubeError('UNSUPPORTED', `${this.#backend.location} is read-only`);
    }
    await this.#options.requireVersion(bundle, version);
    const path = quarantinePath(bundle, version);
    const hasFile = (await this.#backend.size(path)) !== undefined;
    let lifted = 0;
    const lift = async (name: string, history: readonly ChannelEntry[]): Promise<void> => {
      const pointer = history.at(-1);
      if (pointer === undefined) return;
      const pinned = pointer.pinned ? { pinned: true } : {};
      const { by, reason } = attribution;
      const move = { version: pointer.version, by, reason, ...pinned, lifts: version };
      await this.#append(bundle, name, pointer, move);
      lifted++;
    };
    for (const name of await this.list(bundle)) {
      const history = await this.#log(bundle, name).readHistory();
      if (listQuarantinedByEntries(history).includes(version)) await lift(name, history);
    }
    if (!hasFile) return lifted > 0;
    if (lifted === 0) await lift(channel, await this.#log(bundle, channel).readHistory());
    await deleter.remove(path);
    this.#trusted.delete(path);
    return true;
  }

  /** A version that exists and cannot be read may be quarantined. */
  async #requireExists(bundle: string, version: string): Promise<void> {
    try {
      await this.#options.requireVersion(bundle, version);
    } catch (error) {
      if (!UNREADABLE_CODES.has(CubeError.from(error).code)) throw error;
    }
  }

  /** All of the bundle. @throws CubeError UNSUPPORTED if the store cannot list */
  async listQuarantined(bundle: string): Promise<Set<string>> {
    const names = await this.#backend.list(quarantineFolder(bundle));
    const versions = names
      .filter((name) => name.endsWith('.json'))
      .map((name) => name.slice(0, -'.json'.length))
      .filter((version) => NAME_PATTERN.test(version));
    for (const version of versions) await this.#requireTrusted(bundle, version);
    return new Set(versions);
  }

  /** For stores that cannot list: probes versions from the pointer back to the first good one. */
  async #probeQuarantined(bundle: string, history: readonly ChannelEntry[]): Promise<Set<string>> {
    const bad = new Set(listQuarantinedByEntries(history));
    const pointer = history.at(-1)?.version;
    for (const version of new Set(history.map((entry) => entry.version).reverse())) {
      if (bad.has(version)) continue;
      if ((await this.#backend.size(quarantinePath(bundle, version))) !== undefined) {
        await this.#requireTrusted(bundle, version);
        bad.add(version);
      } else if (version !== pointer) break;
    }
    return bad;
  }

  /** Without trusted keys the existence of an entry is enough. */
  async #requireTrusted(bundle: string, version: string): Promise<void> {
    const { trusted } = this.#options.keys;
    const path = quarantinePath(bundle, version);
    if (trusted === undefined || this.#trusted.has(path)) return;
    await readQuarantineEntry(this.#backend, bundle, version, trusted);
    this.#trusted.add(path);
  }

  /** Includes versions that unfinished rollbacks of other channels quarantine. */
  async #requireNotQuarantined(
    bundle: string,
    version: string,
    history: readonly ChannelEntry[],
  ): Promise<void> {
    const bad = await this.listQuarantined(bundle);
    for (const channel of await this.list(bundle)) {
      const entries = await this.#log(bundle, channel).readHistory();
      for (const name of listQuarantinedByEntries(entries)) bad.add(name);
    }
    for (const name of listQuarantinedByEntries(history)) bad.add(name);
    if (!bad.has(version)) return;
    throw new CubeError(
      'CONFLICT',
      `version ${version} of ${bundle} is quarantined ` +
        `(reason: ${this.#backend.location}/${quarantinePath(bundle, version)}); ` +
        'publish a new version',
    );
  }

  /**
   * A garbage collection that read the channel before the entry was written may have removed the
   * version since. Then the channel goes back to where it was.
   */
  async #requireNotCollected(
    bundle: string,
    channel: string,
    { seq, version, by }: ChannelEntry,
    before: ChannelEntry | undefined,
  ): Promise<void> {
    if ((await this.#backend.size(manifestPath(bundle, version))) !== undefined) return;
    if (before !== undefined) {
      const reason = `version ${version} was garbage-collected at the same time`;
      const back = { version: before.version, by, reason, expected: seq };
      await this.activate(bundle, channel, back).catch(rethrowUnlessConflictOrNotFound);
    }
    throw new CubeError(
      'NOT_FOUND',
      `version ${version} of ${bundle} was garbage-collected at the same time; check channel ` +
        `${channel}, then activate another version or publish this one again`,
    );
  }

  async #requirePointer(bundle: string, channel: string): Promise<ChannelEntry> {
    const pointer = (await this.#log(bundle, channel).readHistory()).at(-1);
    if (pointer !== undefined) return pointer;
    throw new CubeError(
      'CONFLICT',
      `channel ${channel} of ${bundle} does not point to a version yet; activate one first`,
    );
  }

  /** Writes the quarantine of an entry. @returns true if it was missing until now */
  async #finish(bundle: string, { quarantines, at, by, reason }: ChannelEntry): Promise<boolean> {
    if (quarantines === undefined) return false;
    return this.#putQuarantine(bundle, quarantines, { at, by, reason });
  }

  #putQuarantine(
    bundle: string,
    version: string,
    { at, by, reason }: AuditedAction,
  ): Promise<boolean> {
    const path = quarantinePath(bundle, version);
    return putEntry(this.#backend, path, { at, by, reason }, this.#options.keys.signing);
  }

  #append(
    bundle: string,
    channel: string,
    pointer: ChannelEntry | undefined,
    move: Omit<ChannelEntry, 'seq' | 'at'>,
  ): Promise<ChannelEntry> {
    const { version, by, reason, ...rest } = move;
    const at = this.#options.clock.isoTime();
    const seq = (pointer?.seq ?? 0) + 1;
    return this.#log(bundle, channel).append({ seq, version, at, by, reason, ...rest });
  }

  #log(bundle: string, channel: string): ChannelLog {
    const key = channelFolder(bundle, channel);
    const { keys } = this.#options;
    const log = this.#logs.get(key) ?? new ChannelLog(this.#backend, keys, bundle, channel);
    this.#logs.set(key, log);
    return log;
  }
}

function requireUnpinned(bundle: string, channel: string, pointer: ChannelEntry | undefined): void {
  if (!pointer?.pinned) return;
  throw new CubeError(
    'CONFLICT',
    `channel ${channel} of ${bundle} is pinned to version ${pointer.version} by ${pointer.by} ` +
      `("${pointer.reason}", entry ${pointer.seq}); unpin it first`,
  );
}

/**
 * Ignores that another writer moved the channel meanwhile, or that there is nothing to go back to.
 */
function rethrowUnlessConflictOrNotFound(error: unknown): void {
  if (!['CONFLICT', 'NOT_FOUND'].includes(CubeError.from(error).code)) throw error;
}

function explainNoPrevious({ pointer, history, quarantined, outcomes }: ChannelState): string {
  if (pointer === undefined) return 'it does not point to a version yet';
  const failed = new Set(
    history
      .map(({ version }) => version)
      .filter(
        (version) =>
          version !== pointer.version && !quarantined.has(version) && outcomes.failed.has(version),
      ),
  );
  if (failed.size === 0) {
    return (
      `all versions before ${pointer.version} are quarantined or deleted, or there are none; ` +
      'activate another version'
    );
  }
  return (
    `of the versions before ${pointer.version}, ${[...failed].join(', ')} failed to load and ` +
    'never served, and all others are quarantined; activate another version'
  );
}

function describePointer(pointer: ChannelEntry | undefined): string {
  if (pointer === undefined) return 'it does not point to a version yet';
  const { seq, by, reason, version } = pointer;
  return `entry ${seq} by ${by} ("${reason}") points to version ${version}`;
}

/** Drops other properties of the caller's object. */
function pickAttribution({ by, reason }: Attribution): Attribution {
  return { by, reason };
}
