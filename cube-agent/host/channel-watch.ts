/** What the channels of one bundle want, as last read: from the repository, or, while it is away, from the host's notes. */
import { CubeError } from '../../lib/core/errors.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ChannelState, Repository } from '../../lib/repository/repository.ts';
import type { AgentMemory, HostData, PastVersion } from './host-data.ts';
import { versionsByMemory, type Wanted, wantedVersions } from './plan.ts';
import type { Problems } from './problems.ts';

/** How many earlier versions are known by name. */
const PAST_MAX = 50;

export interface ChannelWatchOptions {
  readonly repository: () => Repository;
  readonly bundle: string;
  /** The servers' active version follows the first. The candidate channel is followed beside them. */
  readonly channels: readonly string[];
  readonly host: HostData;
  readonly problems: Problems;
  readonly logger: Logger;
}

/** Undefined pointer: the channel was read, and nobody has pointed it anywhere. */
export interface ChannelView {
  readonly pointer: string | undefined;
  readonly previous: string | undefined;
  /** Distinct versions, newest pointer first, each with the time it was first pointed to. */
  readonly past: readonly PastVersion[];
}

export class ChannelWatch {
  readonly #options: ChannelWatchOptions;
  /** Those of the configuration, and the candidate's. */
  readonly names: readonly string[];
  readonly #views = new Map<string, ChannelView>();
  readonly #quarantined = new Set<string>();

  constructor(options: ChannelWatchOptions) {
    this.#options = options;
    this.names = [...new Set([...options.channels, CANDIDATE_CHANNEL])];
    for (const channel of this.names) {
      const memory = options.host.recall(channel);
      // That nothing was staged is no news to wait for; that a channel pointed nowhere is.
      if (memory === undefined) continue;
      if (memory.pointer === undefined && channel !== CANDIDATE_CHANNEL) continue;
      this.#views.set(channel, memory);
      for (const version of memory.quarantined) this.#quarantined.add(version);
    }
  }

  get bundle(): string {
    return this.#options.bundle;
  }

  get views(): ReadonlyMap<string, ChannelView> {
    return this.#views;
  }

  get allKnown(): boolean {
    return this.#views.size === this.names.length;
  }

  /** Undefined while no channel points anywhere that we know of. */
  get wanted(): Wanted | undefined {
    const [first = '', ...rest] = this.#options.channels;
    const view = this.#views.get(first);
    const others = rest.map((channel) => this.#views.get(channel));
    const held = [
      ...others.map((other) => other?.pointer),
      this.candidate,
      ...others.map((other) => other?.previous),
    ].filter((version) => version !== undefined);
    if (view?.pointer === undefined && held.length === 0) return undefined;
    const past = this.#options.channels.flatMap((name) => this.#views.get(name)?.past ?? []);
    return {
      pointer: view?.pointer,
      previous: view?.previous,
      others: held,
      quarantined: this.#quarantined,
      past: past.sort((a, b) => b.at.localeCompare(a.at)).map(({ version }) => version),
    };
  }

  /** What a rollout stages; what the candidate channel pointed to before is nobody's wish. */
  get candidate(): string | undefined {
    return this.#views.get(CANDIDATE_CHANNEL)?.pointer;
  }

  get versions(): string[] {
    const { wanted } = this;
    return wanted === undefined ? [] : wantedVersions(wanted);
  }

  /** The same, in the order in which they stay where memory is short. */
  get versionsByMemory(): string[] {
    const { wanted } = this;
    return wanted === undefined ? [] : versionsByMemory(wanted);
  }

  /** One channel that cannot be read stays as last known, and does not hold up the others. */
  async read(): Promise<void> {
    const { bundle, repository, problems } = this.#options;
    for (const channel of this.names) {
      const what = `read channel ${channel}`;
      try {
        const state = await repository().channel(bundle, channel);
        this.#take(channel, state, what);
        // For ever: a store that cannot list tells those of this channel only.
        for (const version of state.quarantined) this.#quarantined.add(version);
      } catch (error) {
        const { code, message } = CubeError.from(error);
        if (problems.add(what, error)) {
          this.#options.logger.warn({ code, error: message }, `cannot ${what}`);
        }
      }
    }
  }

  memory(channel: string): Omit<AgentMemory, 'problems'> {
    const { pointer, previous, past = [] } = this.#views.get(channel) ?? {};
    return { pointer, previous, past, quarantined: [...this.#quarantined] };
  }

  #take(channel: string, { pointer, previous, history }: ChannelState, what: string): void {
    const { bundle, repository, problems, logger } = this.#options;
    const known = this.#views.get(channel);
    if (pointer === undefined && known?.pointer !== undefined) {
      throw new CubeError(
        'NOT_FOUND',
        `channel ${channel} of ${bundle} is gone from ${repository().location}: it pointed to ` +
          `${known.pointer}, which is kept; bring the repository back, or activate a version`,
      );
    }
    if (problems.clear(what)) logger.info({ channel }, 'the repository answers again');
    if (pointer !== undefined && pointer.version !== known?.pointer) {
      const { version, seq, by, reason } = pointer;
      logger.info({ channel, version, previous: previous?.version, seq, by, reason }, 'wanted');
    }
    this.#views.set(channel, {
      pointer: pointer?.version,
      previous: previous?.version,
      past: pastOf(history),
    });
  }
}

function pastOf(history: ChannelState['history']): PastVersion[] {
  const firstAt = new Map<string, string>();
  for (const { version, at } of history) {
    if (!firstAt.has(version)) firstAt.set(version, at);
  }
  const newestFirst = new Set(history.map(({ version }) => version).reverse());
  return [...newestFirst]
    .slice(0, PAST_MAX)
    .map((version) => ({ version, at: firstAt.get(version) ?? '' }));
}
