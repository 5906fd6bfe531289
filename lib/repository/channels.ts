/**
 * The moves of a bundle's channels: activate, roll back, pin, unpin, quarantine. Each reads the log, decides, and appends one
 * entry; whoever loses the race for that entry has changed nothing.
 */
import { CubeError, type ErrorCode } from '../core/errors.ts';
import { NAME_PATTERN } from '../core/names.ts';
import { CANDIDATE_CHANNEL } from '../core/rollout.ts';
import type { Clock } from '../platform/clock.ts';
import type { Backend } from './backend.ts';
import {
  type ChannelEntry,
  ChannelLog,
  type ChannelState,
  channelState,
  condemned,
  type Deed,
  readQuarantineEntry,
} from './channel-log.ts';
import { type Keys, putEntry } from './entries.ts';
import {
  channelFolder,
  channelsFolder,
  manifestPath,
  quarantineFolder,
  quarantinePath,
} from './layout.ts';

/** What a manifest says that is there and that nobody can use. */
const UNREADABLE: ReadonlySet<ErrorCode> = new Set([
  'CORRUPT',
  'DENIED',
  'TOO_LARGE',
  'UNSUPPORTED',
]);

/** Who moves a channel, and why. */
export interface Mover {
  readonly by: string;
  readonly reason: string;
}

export interface ActivateWish extends Mover {
  readonly version: string;
  /** Moves only a channel whose newest entry has this seq; 0: one that points nowhere yet. */
  readonly expected?: number;
}

export interface ChannelsOptions {
  readonly backend: Backend;
  readonly keys: Keys;
  readonly clock: Clock;
  /** @throws CubeError NOT_FOUND */
  requireVersion(bundle: string, version: string): Promise<unknown>;
}

export class Channels {
  readonly #options: ChannelsOptions;
  readonly #backend: Backend;
  readonly #logs = new Map<string, ChannelLog>();
  /** Paths of quarantine entries whose signature was seen to be good. */
  readonly #trusted = new Set<string>();

  constructor(options: ChannelsOptions) {
    this.#options = options;
    this.#backend = options.backend;
  }

  async names(bundle: string): Promise<string[]> {
    const names = await this.#backend.list(channelsFolder(bundle));
    return names.filter((name) => NAME_PATTERN.test(name));
  }

  async state(bundle: string, channel: string): Promise<ChannelState> {
    const history = await this.#log(bundle, channel).history();
    const quarantine = this.#backend.canList
      ? await this.quarantined(bundle)
      : await this.#quarantinedOnTheWay(bundle, history);
    return channelState(history, quarantine);
  }

  async activate(bundle: string, channel: string, wish: ActivateWish): Promise<ChannelEntry> {
    const { version, by, reason, expected } = wish;
    await this.#options.requireVersion(bundle, version);
    const history = await this.#log(bundle, channel).history();
    const pointer = history.at(-1);
    if (expected !== undefined && expected !== (pointer?.seq ?? 0)) {
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} of ${bundle} is at entry ${pointer?.seq ?? 0}` +
          `${pointer === undefined ? '' : ` (version ${pointer.version}, by ${pointer.by}, "${pointer.reason}")`}, ` +
          `not at ${expected}; look at it and decide again`,
      );
    }
    await this.#requireGood(bundle, version, history);
    if (pointer?.version === version) return pointer;
    requireUnpinned(bundle, channel, pointer);
    const entry = await this.#append(bundle, channel, pointer, { version, by, reason });
    await this.#requireStillThere(bundle, channel, entry, pointer);
    return entry;
  }

  /**
   * One entry that points to the previous version and quarantines the pointer's. The quarantine's own file follows; where a
   * killed rollback left it out, the next one writes it and is done.
   * @param from the version, or the seq of the entry, to leave: of parallel rollbacks one moves, the others are CONFLICT
   */
  async rollback(
    bundle: string,
    channel: string,
    mover: Mover & { readonly from?: string | number },
  ): Promise<ChannelEntry> {
    const { by, reason, from } = mover;
    const { pointer, previous } = await this.state(bundle, channel);
    if (pointer !== undefined && (await this.#finish(bundle, pointer))) {
      const isMeant = [undefined, pointer.quarantines, pointer.seq - 1].includes(from);
      if (isMeant) return pointer;
    }
    if (from !== undefined && from !== pointer?.version && from !== pointer?.seq) {
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} of ${bundle} is not at ${from} any more: ${said(pointer)}; nothing was rolled back`,
      );
    }
    requireUnpinned(bundle, channel, pointer);
    if (pointer === undefined || previous === undefined) {
      const why =
        pointer === undefined
          ? 'it points nowhere yet'
          : `no entry before the pointer (${pointer.version}) names another good version`;
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} of ${bundle} has no previous version to roll back to: ${why}`,
      );
    }
    const { version } = previous;
    await this.#options.requireVersion(bundle, version);
    const quarantines = pointer.version;
    const move = { version, by, reason, quarantines };
    const entry = await this.#append(bundle, channel, pointer, move);
    await this.#finish(bundle, entry);
    return entry;
  }

  /** Keeps everybody on the pointer's version until `unpin`. Pinning again adds nothing. */
  async pin(bundle: string, channel: string, mover: Mover): Promise<ChannelEntry> {
    const pointer = await this.#requirePointer(bundle, channel);
    if (pointer.pinned) return pointer;
    return this.#append(bundle, channel, pointer, {
      version: pointer.version,
      ...only(mover),
      pinned: true,
    });
  }

  async unpin(bundle: string, channel: string, mover: Mover): Promise<ChannelEntry> {
    const pointer = await this.#requirePointer(bundle, channel);
    if (!pointer.pinned) return pointer;
    return this.#append(bundle, channel, pointer, { version: pointer.version, ...only(mover) });
  }

  /** @returns false when it was quarantined already. @throws CubeError CONFLICT while a channel points there */
  async quarantine(bundle: string, version: string, mover: Mover): Promise<boolean> {
    await this.#requireThere(bundle, version);
    for (const channel of await this.names(bundle)) {
      // A candidate serves nobody: once it is quarantined no agent holds it for that channel.
      if (channel === CANDIDATE_CHANNEL) continue;
      if ((await this.#log(bundle, channel).history()).at(-1)?.version !== version) continue;
      throw new CubeError(
        'CONFLICT',
        `channel ${channel} of ${bundle} points to version ${version}: roll it back, that quarantines it too`,
      );
    }
    const deed: Deed = { at: this.#options.clock.isoTime(), ...only(mover) };
    return this.#putQuarantine(bundle, version, deed);
  }

  /** A version that cannot be read is all the more to be kept from coming back. */
  async #requireThere(bundle: string, version: string): Promise<void> {
    try {
      await this.#options.requireVersion(bundle, version);
    } catch (error) {
      if (!UNREADABLE.has(CubeError.from(error).code)) throw error;
    }
  }

  /** Of the whole bundle. @throws CubeError UNSUPPORTED where the store cannot list */
  async quarantined(bundle: string): Promise<Set<string>> {
    const names = await this.#backend.list(quarantineFolder(bundle));
    const versions = names
      .filter((name) => name.endsWith('.json'))
      .map((name) => name.slice(0, -'.json'.length))
      .filter((version) => NAME_PATTERN.test(version));
    for (const version of versions) await this.#requireTrusted(bundle, version);
    return new Set(versions);
  }

  /** Where nobody can list: of the pointer, and of earlier versions back to the first good one. */
  async #quarantinedOnTheWay(
    bundle: string,
    history: readonly ChannelEntry[],
  ): Promise<Set<string>> {
    const bad = new Set(condemned(history));
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

  /** Where nobody's signature is asked for, that an entry is there is enough. */
  async #requireTrusted(bundle: string, version: string): Promise<void> {
    const { trusted } = this.#options.keys;
    const path = quarantinePath(bundle, version);
    if (trusted === undefined || this.#trusted.has(path)) return;
    await readQuarantineEntry(this.#backend, bundle, version, trusted);
    this.#trusted.add(path);
  }

  /** Also by what rollbacks of other channels have only begun. */
  async #requireGood(
    bundle: string,
    version: string,
    history: readonly ChannelEntry[],
  ): Promise<void> {
    const bad = await this.quarantined(bundle);
    for (const channel of await this.names(bundle)) {
      for (const left of condemned(await this.#log(bundle, channel).history())) bad.add(left);
    }
    for (const left of condemned(history)) bad.add(left);
    if (!bad.has(version)) return;
    throw new CubeError(
      'CONFLICT',
      `version ${version} of ${bundle} is quarantined ` +
        `(${this.#backend.location}/${quarantinePath(bundle, version)} says why); publish a new one`,
    );
  }

  /** A collection that looked before the entry was there may have removed the version since: then back to where it was. */
  async #requireStillThere(
    bundle: string,
    channel: string,
    { seq, version, by }: ChannelEntry,
    before: ChannelEntry | undefined,
  ): Promise<void> {
    if ((await this.#backend.size(manifestPath(bundle, version))) !== undefined) return;
    if (before !== undefined) {
      const reason = `version ${version} was collected at the same moment`;
      const back = { version: before.version, by, reason, expected: seq };
      await this.activate(bundle, channel, back).catch(rethrowUnlessRefused);
    }
    throw new CubeError(
      'NOT_FOUND',
      `version ${version} of ${bundle} was removed by a garbage collection at the same moment; look where channel ` +
        `${channel} is now, and activate another version, or publish this one again`,
    );
  }

  async #requirePointer(bundle: string, channel: string): Promise<ChannelEntry> {
    const pointer = (await this.#log(bundle, channel).history()).at(-1);
    if (pointer !== undefined) return pointer;
    throw new CubeError('CONFLICT', `channel ${channel} of ${bundle} points nowhere yet`);
  }

  /** @returns whether the quarantine that this entry means was missing, and is written now */
  async #finish(bundle: string, { quarantines, at, by, reason }: ChannelEntry): Promise<boolean> {
    if (quarantines === undefined) return false;
    return this.#putQuarantine(bundle, quarantines, { at, by, reason });
  }

  #putQuarantine(bundle: string, version: string, { at, by, reason }: Deed): Promise<boolean> {
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

/** Somebody has moved the channel meanwhile, or there is nothing to go back to. */
function rethrowUnlessRefused(error: unknown): void {
  if (!['CONFLICT', 'NOT_FOUND'].includes(CubeError.from(error).code)) throw error;
}

function said(pointer: ChannelEntry | undefined): string {
  if (pointer === undefined) return 'it points nowhere yet';
  return `entry ${pointer.seq} by ${pointer.by} ("${pointer.reason}") points to version ${pointer.version}`;
}

/** A caller's object may hold more. */
function only({ by, reason }: Mover): Mover {
  return { by, reason };
}
