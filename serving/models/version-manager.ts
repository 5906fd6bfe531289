/**
 * Loads, switches and retires the versions of one model, as its source asks. A channel serves its
 * target, or while that cannot be loaded the first of its fallbacks that can: so processes that
 * started at different times serve the same version. A version is served only after all of it is
 * loaded: tables available, graph in every instance, warm-up passed. New requests then use it, and
 * the old version drains. The first fallback stays loaded, also after a restart, so that a rollback
 * is a switch and not a load. Channels that want the same version share it. A version that no
 * channel wants is retired. A model that an operator unloaded stays unloaded.
 *
 * Invariants
 * - A quarantined version stops serving when the quarantine is read, even if no other version is
 *   loaded. Channels are read at every poll, also during a load, and again after a load before its
 *   version serves.
 * - Versions are loaded one at a time, so memory holds the desired versions, and at most one that
 *   loads and one that drains. A load that is not wanted any more is cancelled.
 */

import { CubeError } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import { type LoadFailure, LoadFailures } from './load-failures.ts';
import type { DesiredVersion, VersionSource } from './version-source.ts';

export interface VersionManagerOptions {
  /** The name that requests use. */
  readonly model: string;
  readonly source: VersionSource;
  readonly pollMs: number;
  readonly logger: Logger;
  readonly clock?: Clock;
  /**
   * Loads a version and warms it up. Releases everything when it throws. The signal cancels it as
   * soon as the load can be left.
   */
  readonly load: (
    version: string,
    onStep: (step: string) => void,
    signal: AbortSignal,
  ) => Promise<LoadedVersion>;
  readonly events?: VersionEvents;
  /**
   * Requests fail while a shard cannot be looked up in, so a process is not ready then: the active
   * version is checked at every poll. Default false.
   */
  readonly requiresAllShards?: boolean;
}

interface VersionEvents {
  onSwitch(from: string | undefined, to: string): void;
  onLoadFailed(version: string, error: CubeError): void;
}

export interface ChannelStatus {
  readonly channel: string;
  /** The version that serves requests, and since when. */
  readonly active: string | undefined;
  readonly activeSince: string | undefined;
  /** The version that the channel points to. */
  readonly target: string | undefined;
  /** Why nothing is served, or why the channel cannot be read. */
  readonly problem: string | undefined;
  /** Why requests fail although a version is active, where they do not tolerate a missing shard. */
  readonly unavailable: string | undefined;
}

/** The status of a model in `/v1/status`: that of its first channel, and of the whole model. */
export interface ModelStatus extends ChannelStatus {
  readonly model: string;
  /** Every channel, including the first. */
  readonly channels: readonly ChannelStatus[];
  readonly loading: string | undefined;
  /**
   * The current step of the load: `tables`, `model instances`, `warm-up, row 3 of 12`, `warm-up,
   * batches of 8`.
   */
  readonly loadingStep: string | undefined;
  /** Loaded versions: those that serve requests, and those kept for a rollback. */
  readonly held: readonly string[];
  readonly failed: readonly LoadFailure[];
  /** Unloaded by an operator: no version is loaded until the model is loaded again. */
  readonly unloaded: boolean;
  /** Why requests for a loaded ensemble fail. */
  readonly missingStep?: string | undefined;
}

/** The state of one channel. */
interface ChannelState {
  readonly channel: string;
  current: LoadedVersion | undefined;
  activeSince: string | undefined;
  desired: DesiredVersion | undefined;
  problem: string | undefined;
  unavailable: string | undefined;
}

/** The problem of an unloaded model. */
const UNLOADED = 'it was unloaded; load it again to serve it';

export class VersionManager {
  readonly #options: VersionManagerOptions;
  readonly #clock: Clock;
  readonly #stopping = new AbortController();
  readonly #failures: LoadFailures;
  /** Serves requests that name no channel. */
  readonly #defaultChannel: ChannelState;
  /** Every channel, including the default one. */
  readonly #channels: readonly ChannelState[];
  /** Completely loaded versions, by name. */
  readonly #loaded = new Map<string, LoadedVersion>();
  /** Draining versions. A version is loaded again only after its retirement is complete. */
  readonly #retiring = new Map<string, Promise<void>>();
  #loop: Promise<void> | undefined;
  /** Cycles run one after another. */
  #lastCycle: Promise<void> = Promise.resolve();
  #loading: string | undefined;
  #loadingStep: string | undefined;
  #unloaded = false;

  constructor(options: VersionManagerOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#failures = new LoadFailures(this.#clock, options.pollMs);
    const [first, ...others] = options.source.channels;
    this.#defaultChannel = createChannelState(first);
    this.#channels = [this.#defaultChannel, ...others.map(createChannelState)];
  }

  /** Starts polling the source; returns at once. */
  start(): void {
    this.#loop = this.#pollForever();
  }

  /** The version for requests that name none. @throws CubeError NOT_READY with the reason */
  get current(): LoadedVersion {
    return requireCurrent(this.#options.model, this.#defaultChannel);
  }

  /** The active version of a channel. @throws CubeError NOT_FOUND, NOT_READY */
  findByChannel(label: string): LoadedVersion {
    const state = this.#channels.find(({ channel }) => channel === label);
    if (state !== undefined) return requireCurrent(this.#options.model, state);
    const known = this.#channels.map(({ channel }) => channel).join(', ');
    throw new CubeError(
      'NOT_FOUND',
      `label ${quoteName(label)} of ${this.#options.model}: no such channel here (channels: ` +
        `${known})`,
    );
  }

  /** A loaded version. @throws CubeError NOT_FOUND naming those loaded, NOT_READY when none is */
  findByVersion(version: string): LoadedVersion {
    const loaded = this.#loaded.get(version);
    if (loaded !== undefined) return loaded;
    if (this.#loaded.size === 0) void this.current;
    const known = [...this.#loaded.keys()].join(', ');
    throw new CubeError(
      'NOT_FOUND',
      `version ${quoteName(version)} of ${this.#options.model} is not served here (served: ` +
        `${known})`,
    );
  }

  /** Every loaded version. */
  get loadedVersions(): readonly LoadedVersion[] {
    return [...this.#loaded.values()];
  }

  get status(): ModelStatus {
    return {
      model: this.#options.model,
      ...getChannelStatus(this.#defaultChannel),
      channels: this.#channels.map(getChannelStatus),
      loading: this.#loading,
      loadingStep: this.#loadingStep,
      held: [...this.#loaded.keys()],
      failed: this.#failures.list(),
      unloaded: this.#unloaded,
    };
  }

  /**
   * Reads the source now and serves the desired version, also after `unload`, and without the pause
   * after failures.
   * @throws CubeError with the reason when the desired version is not served; the old version keeps
   *   serving
   */
  async load(): Promise<void> {
    this.#unloaded = false;
    this.#failures.clear();
    await this.#runCycle();
    const { current, desired, problem, channel } = this.#defaultChannel;
    if (current !== undefined && current.version === desired?.pointer) return;
    const failure = this.#failures.find(desired?.pointer ?? '');
    const reason = failure?.message ?? problem ?? `channel ${channel} moved to another version`;
    throw new CubeError('NOT_READY', `${this.#options.model} was not loaded: ${reason}`);
  }

  /** Stops serving and releases every version after its requests finish. `load` serves again. */
  async unload(): Promise<void> {
    this.#unloaded = true;
    this.#stopServing(UNLOADED);
    await this.#lastCycle;
    this.#stopServing(UNLOADED);
    for (const loaded of this.#loaded.values()) this.#retire(loaded);
    await Promise.all(this.#retiring.values());
  }

  /**
   * Stops polling, and closes every version after its requests finish. Tables stay in the store for
   * the next start. A load in progress ends when the store is closed.
   */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#loop;
    this.#stopServing('the process is stopping');
    await Promise.all([...this.#loaded.values()].map((loaded) => loaded.close()));
    await Promise.all(this.#retiring.values());
  }

  #stopServing(problem: string): void {
    for (const state of this.#channels) {
      state.current = undefined;
      state.activeSince = undefined;
      state.unavailable = undefined;
      state.problem = problem;
    }
  }

  get #isHalted(): boolean {
    return this.#unloaded || this.#stopping.signal.aborted;
  }

  async #pollForever(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      await this.#runCycle();
      await this.#clock.sleep(this.#options.pollMs, signal);
    }
  }

  #runCycle(): Promise<void> {
    this.#lastCycle = this.#lastCycle.then(() => this.#cycle());
    return this.#lastCycle;
  }

  /** Follows the channels, and loads what they want: each version at most once. */
  async #cycle(): Promise<void> {
    await this.#followChannels();
    const tried = new Set<string>();
    for (;;) {
      const version = this.#chooseLoad(tried);
      if (version === undefined) break;
      tried.add(version);
      await this.#loadWhilePolling(version);
    }
    for (const state of this.#channels) await this.#checkActive(state);
  }

  /**
   * Shard servers retire a version that nobody asks for, so one that is not the target is asked
   * for. Requests meet its errors too and report them.
   */
  async #checkActive(state: ChannelState): Promise<void> {
    const { current, desired } = state;
    const { requiresAllShards = false } = this.#options;
    if (this.#isHalted || current === undefined) return;
    const { version } = current;
    const isLost = this.#failures.find(version) !== undefined;
    if (isLost) await this.#isStillAvailable(current);
    if (!requiresAllShards && version === desired?.target) return;
    const problem = await current.checkAvailable().then(
      () => undefined,
      (error: unknown) => CubeError.from(error).message,
    );
    if (requiresAllShards && state.current === current) state.unavailable = problem;
  }

  /** @param fresh the version that was loaded just now */
  async #followChannels(fresh?: string): Promise<void> {
    for (const state of this.#channels) {
      if (this.#isHalted) return;
      await this.#follow(state, fresh);
    }
    if (this.#isHalted) return;
    this.#failures.keepOnly((version) => this.#isWanted(version));
    for (const loaded of this.#loaded.values()) {
      const isActive = this.#channels.some(({ current }) => current === loaded);
      const isNeeded = this.#channels.some(({ desired }) => isKept(desired, loaded.version));
      if (!isActive && !isNeeded) this.#retire(loaded);
    }
  }

  /** Some channel would serve the version. */
  #isWanted(version: string): boolean {
    if (this.#isHalted) return false;
    return this.#channels.some(({ desired }) => listChoices(desired).includes(version));
  }

  /**
   * Reads the channel and switches to its best loaded version. A version that was loaded earlier is
   * checked first, and then the channel is read again.
   */
  async #follow(state: ChannelState, fresh: string | undefined): Promise<void> {
    try {
      await this.#readDesired(state);
    } catch (error) {
      // The last known state decides.
      this.#recordProblem(state, CubeError.from(error).message);
    }
    if (await this.#leaveQuarantined(state)) return;
    const best = this.#findBestLoaded(state);
    if (best === undefined || best === state.current || this.#isHalted) return;
    if (best.version === fresh) this.#switch(state, best);
    else if (await this.#isStillAvailable(best)) await this.#follow(state, best.version);
  }

  #findBestLoaded({ desired }: ChannelState): LoadedVersion | undefined {
    const version = listChoices(desired).find((choice) => this.#loaded.has(choice));
    return version === undefined ? undefined : this.#loaded.get(version);
  }

  /**
   * Another loaded version serves at once. It is checked afterwards, and reported as failed if it
   * is not available any more.
   * @returns whether the channel served a quarantined version
   */
  async #leaveQuarantined(state: ChannelState): Promise<boolean> {
    const { current, desired } = state;
    if (current === undefined || !desired?.quarantined.has(current.version)) return false;
    const choices = listChoices(desired).flatMap((version) => this.#loaded.get(version) ?? []);
    for (const choice of choices) {
      this.#switch(state, choice);
      // The shards may have lost a version that was loaded once: then the next one serves.
      if (await this.#isStillAvailable(choice)) return true;
    }
    if (choices[0] !== undefined) {
      if (choices.length > 1) this.#switch(state, choices[0]);
      return true;
    }
    state.current = undefined;
    state.activeSince = undefined;
    state.unavailable = undefined;
    // Others are tried at once, without the pause after failures.
    this.#failures.clear();
    const { version } = current;
    this.#recordProblem(state, `version ${version} was quarantined, and no other one is loaded`);
    return true;
  }

  /**
   * The next version to load: targets first, then what may serve instead, then rollback targets.
   */
  #chooseLoad(tried: ReadonlySet<string>): string | undefined {
    if (this.#isHalted) return undefined;
    const wanted: string[] = [];
    for (const { desired } of this.#channels) wanted.push(...listChoices(desired).slice(0, 1));
    for (const { desired, current } of this.#channels) {
      const choices = listChoices(desired);
      const found = current === undefined ? -1 : choices.indexOf(current.version);
      const better = found < 0 ? choices : choices.slice(0, found);
      const next = better.find((version) => !tried.has(version) && this.#failures.canTry(version));
      if (next !== undefined) wanted.push(next);
    }
    for (const { desired, current } of this.#channels) {
      const [rollbackTarget] = desired?.fallbacks ?? [];
      const isServed = current !== undefined && current.version === desired?.target;
      if (isServed && rollbackTarget !== undefined) wanted.push(rollbackTarget);
    }
    return wanted.find(
      (version) =>
        !tried.has(version) && !this.#loaded.has(version) && this.#failures.canTry(version),
    );
  }

  /** Keeps polling during the load, and then reads the channels again before the version serves. */
  async #loadWhilePolling(version: string): Promise<void> {
    const cancel = new AbortController();
    const ended = new AbortController();
    const loading = this.#load(version, cancel.signal).finally(() => ended.abort());
    while (!ended.signal.aborted) {
      await this.#clock.sleep(this.#options.pollMs, ended.signal);
      if (ended.signal.aborted) break;
      await this.#followChannels();
      if (!this.#isWanted(version)) cancel.abort();
    }
    await loading;
    await this.#followChannels(version);
  }

  /** A channel that points to no version keeps its last known state. */
  async #readDesired(state: ChannelState): Promise<void> {
    const { source } = this.#options;
    const desired = await source.read(state.channel);
    if (desired === undefined) {
      this.#recordProblem(state, await source.explainMissing(state.channel));
      return;
    }
    state.desired = desired;
    if (desired.isRewritten) this.#failures.delete(desired.pointer);
    if (desired.problem !== undefined) this.#recordProblem(state, desired.problem);
    else if (state.current !== undefined) state.problem = undefined;
    if (state.current !== undefined) void source.recordServed?.(state.current.version);
  }

  /** The shards may have lost a version since it was loaded. */
  async #isStillAvailable(loaded: LoadedVersion): Promise<boolean> {
    try {
      await loaded.checkAvailable();
      this.#failures.delete(loaded.version);
      return true;
    } catch (error) {
      this.#recordFailure(loaded.version, CubeError.from(error));
      return false;
    }
  }

  /** A failure is recorded, and the load is retried later. Never rejects. */
  async #load(version: string, signal: AbortSignal): Promise<void> {
    this.#loading = version;
    await this.#retiring.get(version);
    const startMs = this.#clock.nowMs();
    try {
      const onStep = (step: string): void => {
        this.#loadingStep = step;
      };
      const loaded = await this.#options.load(version, onStep, signal);
      if (this.#stopping.signal.aborted) await loaded.close();
      else this.#loaded.set(version, loaded);
      this.#failures.delete(version);
      const loadMs = Math.round(this.#clock.nowMs() - startMs);
      this.#options.logger.info({ model: this.#options.model, version, loadMs }, 'version loaded');
    } catch (error) {
      if (!signal.aborted) this.#recordFailure(version, CubeError.from(error));
    } finally {
      this.#loading = undefined;
      this.#loadingStep = undefined;
    }
  }

  #switch(state: ChannelState, loaded: LoadedVersion): void {
    const from = state.current?.version;
    const { version } = loaded;
    state.current = loaded;
    state.activeSince = this.#clock.isoTime();
    state.problem = undefined;
    state.unavailable = undefined;
    const { model, events, logger, source } = this.#options;
    logger.info({ model, channel: state.channel, version, from }, 'serving version');
    events?.onSwitch(from, version);
    void source.recordServed?.(version);
  }

  #recordFailure(version: string, error: CubeError): void {
    const { events, logger, model, source } = this.#options;
    const { code, message } = error;
    const isUrgent = this.#channels.some(
      ({ current, desired }) => current === undefined || desired?.target === version,
    );
    const level = this.#failures.record(version, error, isUrgent);
    for (const state of this.#channels) {
      if (state.current === undefined && state.desired?.pointer === version) {
        state.problem = `version ${version}: ${message}`;
      }
    }
    events?.onLoadFailed(version, error);
    void source.recordFailed?.(version, error);
    if (level === undefined) return;
    logger[level]({ model, version, code, error: message }, 'version cannot be served yet');
  }

  /** Records why a channel cannot be served. Logs only changes. */
  #recordProblem(state: ChannelState, problem: string): void {
    if (state.problem === problem) return;
    state.problem = problem;
    const { model, logger } = this.#options;
    logger.warn({ model, channel: state.channel, problem }, 'channel has a problem');
  }

  #retire(old: LoadedVersion): void {
    const { model, logger } = this.#options;
    const { version } = old;
    this.#loaded.delete(version);
    const done = old.retire().then(
      () => logger.info({ model, version }, 'version retired'),
      (error: unknown) =>
        logger.error(
          { model, version, error: CubeError.from(error).message },
          'cannot retire the version',
        ),
    );
    this.#retiring.set(version, done);
    void done.finally(() => this.#retiring.delete(version));
  }
}

/** The versions that may serve a channel, best first. */
function listChoices(desired: DesiredVersion | undefined): string[] {
  if (desired === undefined) return [];
  const { target, fallbacks } = desired;
  return target === undefined ? [...fallbacks] : [target, ...fallbacks];
}

/** The version stays loaded while it does not serve, so that a switch to it is immediate. */
function isKept(desired: DesiredVersion | undefined, version: string): boolean {
  return desired?.target === version || desired?.fallbacks[0] === version;
}

function createChannelState(channel: string): ChannelState {
  return {
    channel,
    current: undefined,
    activeSince: undefined,
    desired: undefined,
    problem: 'the channel has not been read yet',
    unavailable: undefined,
  };
}

function getChannelStatus({
  channel,
  current,
  activeSince,
  desired,
  problem,
  unavailable,
}: ChannelState): ChannelStatus {
  const [active, target] = [current?.version, desired?.pointer];
  return { channel, active, activeSince, target, problem, unavailable };
}

function requireCurrent(model: string, { current, channel, problem }: ChannelState): LoadedVersion {
  if (current !== undefined) return current;
  throw new CubeError(
    'NOT_READY',
    `no version of ${model} (channel ${channel}) is served: ${problem ?? 'it is loading'}`,
  );
}

function quoteName(name: string): string {
  return quoteInput(name);
}
