/**
 * Makes so what a model's source wants: each label (a channel) moves to its target only when that version is loaded as a whole
 * (tables answerable, graph in every instance, warm-up passed); then requests begin on it, and the old version drains. A
 * channel's previous version stays loaded, so that a rollback is a switch and not a load, also after a restart; labels that want
 * the same version share it; what none wants is retired. A target that fails leaves the old one serving, is visible in `status`,
 * and is tried again. At boot: the target, then the previous, else nothing is served. A model that was unloaded by hand stays so.
 *
 * Invariants: one version is loaded at a time, so memory holds the versions wanted and one more.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { LoadedBundle } from './bundle.ts';
import type { LabelStatus, LoadFailure, WatcherStatus } from './watcher-status.ts';
import type { Wish, WishSource } from './wish-source.ts';

export interface BundleWatcherOptions {
  /** What requests call it. */
  readonly model: string;
  readonly source: WishSource;
  readonly pollMs: number;
  readonly logger: Logger;
  readonly clock?: Clock;
  /** Loads a version and tries it; nothing stays behind when it throws. */
  readonly load: (version: string, onStep: (step: string) => void) => Promise<LoadedBundle>;
  readonly events?: WatcherEvents;
}

interface WatcherEvents {
  onSwitch(from: string | undefined, to: string): void;
  onLoadFailed(version: string, error: CubeError): void;
}

/** One label, and where it stands. */
interface Followed {
  readonly channel: string;
  current: LoadedBundle | undefined;
  activeSince: string | undefined;
  wish: Wish | undefined;
  problem: string | undefined;
}

/**
 * A broken version is tried again ever more rarely, and so is a previous one that cannot be held; a target that is merely
 * not there yet at every poll.
 */
const RETRY_MAX_MS = 60_000;

export class BundleWatcher {
  readonly #options: BundleWatcherOptions;
  readonly #clock: Clock;
  readonly #stopping = new AbortController();
  readonly #failures = new Map<string, LoadFailure & { readonly retryAtMs: number }>();
  readonly #followed: readonly Followed[];
  /** Versions loaded whole. */
  readonly #held = new Map<string, LoadedBundle>();
  /** Versions that drain; one is loaded again only when its retirement is complete. */
  readonly #retiring = new Map<string, Promise<void>>();
  #loop: Promise<void> | undefined;
  /** Polls come one after the other. */
  #polled: Promise<void> = Promise.resolve();
  #loading: string | undefined;
  #loadingStep: string | undefined;
  #unloaded = false;

  constructor(options: BundleWatcherOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#followed = options.source.labels.map((channel) => ({
      channel,
      current: undefined,
      activeSince: undefined,
      wish: undefined,
      problem: 'the channel has not been read yet',
    }));
  }

  /** Begins to follow the source; returns at once. */
  start(): void {
    this.#loop = this.#follow();
  }

  /** The version that answers who names none. @throws CubeError NOT_READY saying why there is none */
  get current(): LoadedBundle {
    return currentOf(this.#options.model, this.#followed[0]!);
  }

  /** The version that a label stands for. @throws CubeError NOT_FOUND, NOT_READY */
  labelled(label: string): LoadedBundle {
    const followed = this.#followed.find(({ channel }) => channel === label);
    if (followed !== undefined) return currentOf(this.#options.model, followed);
    const known = this.#followed.map(({ channel }) => channel).join(', ');
    throw new CubeError(
      'NOT_FOUND',
      `label ${shown(label)} of ${this.#options.model} is not followed here (followed: ${known})`,
    );
  }

  /** A version that is held whole. @throws CubeError NOT_FOUND naming those held, NOT_READY when none is */
  versioned(version: string): LoadedBundle {
    const held = this.#held.get(version);
    if (held !== undefined) return held;
    if (this.#held.size === 0) void this.current;
    const known = [...this.#held.keys()].join(', ');
    throw new CubeError(
      'NOT_FOUND',
      `version ${shown(version)} of ${this.#options.model} is not served here (served: ${known})`,
    );
  }

  /** Every version that is held whole. */
  get held(): readonly LoadedBundle[] {
    return [...this.#held.values()];
  }

  get status(): WatcherStatus {
    const channels = this.#followed.map(labelStatus);
    return {
      model: this.#options.model,
      ...channels[0]!,
      channels,
      loading: this.#loading,
      loadingStep: this.#loadingStep,
      held: [...this.#held.keys()],
      failed: [...this.#failures.values()].map(({ retryAtMs: _, ...failure }) => failure),
      unloaded: this.#unloaded,
    };
  }

  /**
   * Reads the source now and serves what it wants, also after `unload`, and without the pause that failures earned.
   * @throws CubeError why the version wanted is not served; what was served still is
   */
  async load(): Promise<void> {
    this.#unloaded = false;
    this.#failures.clear();
    await this.#poll();
    const { current, wish, problem, channel } = this.#followed[0]!;
    if (current !== undefined && current.version === wish?.pointer) return;
    const failure = this.#failures.get(wish?.pointer ?? '');
    const why = failure?.message ?? problem ?? `channel ${channel} wants another version now`;
    throw new CubeError('NOT_READY', `${this.#options.model} was not loaded: ${why}`);
  }

  /** Lets go of every version once its requests are done; nothing is served until `load`. */
  async unload(): Promise<void> {
    this.#unloaded = true;
    this.#letGo('it was unloaded; load it again to serve it');
    await this.#polled;
    this.#letGo('it was unloaded; load it again to serve it');
    for (const held of this.#held.values()) this.#retire(held);
    await Promise.all(this.#retiring.values());
  }

  /**
   * Stops following, and closes the versions that are served once their requests are done. Their tables stay in the store: the
   * next start wants them again. A load under way ends when the store is closed.
   */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#loop;
    this.#letGo('the process is stopping');
    await Promise.all([...this.#held.values()].map((held) => held.close()));
    await Promise.all(this.#retiring.values());
  }

  #letGo(problem: string): void {
    for (const followed of this.#followed) {
      followed.current = undefined;
      followed.activeSince = undefined;
      followed.problem = problem;
    }
  }

  get #halted(): boolean {
    return this.#unloaded || this.#stopping.signal.aborted;
  }

  async #follow(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      await this.#poll();
      await this.#clock.sleep(this.#options.pollMs, signal);
    }
  }

  #poll(): Promise<void> {
    this.#polled = this.#polled.then(() => this.#advanceAll());
    return this.#polled;
  }

  async #advanceAll(): Promise<void> {
    for (const followed of this.#followed) {
      if (this.#halted) return;
      try {
        await this.#advance(followed);
      } catch (error) {
        this.#report(followed, CubeError.from(error).message);
      }
    }
    if (this.#halted) return;
    for (const version of this.#failures.keys()) {
      if (!this.#isWanted(version)) this.#failures.delete(version);
    }
    for (const held of this.#held.values()) {
      const answers = this.#followed.some(({ current }) => current === held);
      if (!answers && !this.#isWanted(held.version)) this.#retire(held);
    }
  }

  #isWanted(version: string): boolean {
    return this.#followed.some(
      ({ wish }) => wish?.pointer === version || wish?.previous === version,
    );
  }

  async #advance(followed: Followed): Promise<void> {
    const wish = await this.#readWish(followed);
    if (wish === undefined) return;
    const { target, previous } = wish;
    if (target !== undefined) await this.#serve(followed, target);
    if (followed.current === undefined && previous !== undefined) {
      await this.#serve(followed, previous);
    }
    if (followed.current === undefined || this.#halted) return;
    const { version } = followed.current;
    if (version !== target && version !== previous) await this.#keepInUse(followed.current);
    if (version === target && previous !== undefined) await this.#hold(previous);
  }

  async #readWish(followed: Followed): Promise<Wish | undefined> {
    const { source } = this.#options;
    const wish = await source.read(followed.channel);
    if (wish === undefined) {
      this.#report(followed, await source.whyNothing(followed.channel));
      return undefined;
    }
    followed.wish = wish;
    if (wish.rewritten) this.#failures.delete(wish.pointer);
    if (wish.problem !== undefined) this.#report(followed, wish.problem);
    else if (followed.current !== undefined) followed.problem = undefined;
    return wish;
  }

  /** Makes a version the one that answers, if it can be held. */
  async #serve(followed: Followed, version: string): Promise<void> {
    if (followed.current?.version === version) return;
    const startMs = this.#clock.nowMs();
    const held = this.#held.get(version);
    if (held === undefined) await this.#hold(version);
    else if (!(await this.#stillAnswerable(held))) return;
    const loaded = this.#held.get(version);
    if (loaded !== undefined && !this.#halted) this.#switch(followed, loaded, startMs);
  }

  /** A version was held a while ago: its shards may have lost it since. */
  async #stillAnswerable(held: LoadedBundle): Promise<boolean> {
    try {
      await held.confirm();
      this.#failures.delete(held.version);
      return true;
    } catch (error) {
      this.#noteFailure(held.version, CubeError.from(error));
      return false;
    }
  }

  /**
   * What answers is not what the channel wants, so servers would retire it once nobody asked for a while; asking keeps it.
   * What fails here fails requests too, and says why there.
   */
  async #keepInUse(current: LoadedBundle): Promise<void> {
    await current.confirm().catch(() => undefined);
  }

  /** Loads a version unless it is held; a failure is noted, and the version tried again later. */
  async #hold(version: string): Promise<void> {
    if (this.#held.has(version) || this.#halted) return;
    const failure = this.#failures.get(version);
    if (failure !== undefined && this.#clock.nowMs() < failure.retryAtMs) return;
    this.#loading = version;
    await this.#retiring.get(version);
    try {
      const loaded = await this.#options.load(version, (step) => {
        this.#loadingStep = step;
      });
      if (this.#stopping.signal.aborted) await loaded.close();
      else this.#held.set(version, loaded);
      this.#failures.delete(version);
    } catch (error) {
      this.#noteFailure(version, CubeError.from(error));
    } finally {
      this.#loading = undefined;
      this.#loadingStep = undefined;
    }
  }

  #switch(followed: Followed, loaded: LoadedBundle, startMs: number): void {
    const from = followed.current?.version;
    followed.current = loaded;
    followed.activeSince = this.#clock.isoTime();
    followed.problem = undefined;
    const loadMs = Math.round(this.#clock.nowMs() - startMs);
    const { model, events, logger } = this.#options;
    const { channel } = followed;
    logger.info({ model, channel, version: loaded.version, from, loadMs }, 'serving version');
    events?.onSwitch(from, loaded.version);
  }

  #noteFailure(version: string, error: CubeError): void {
    const { events, logger, pollMs, model } = this.#options;
    const known = this.#failures.get(version);
    const attempts = (known?.attempts ?? 0) + 1;
    const { code, message } = error;
    const urgent = this.#followed.some(
      ({ current, wish }) => current === undefined || wish?.target === version,
    );
    const pauseMs =
      error.status.retryable && urgent
        ? 0
        : Math.min(pollMs * 2 ** Math.min(attempts, 20), RETRY_MAX_MS);
    const at = this.#clock.isoTime();
    const retryAtMs = this.#clock.nowMs() + pauseMs;
    this.#failures.set(version, { version, code, message, at, attempts, retryAtMs });
    for (const followed of this.#followed) {
      if (followed.current === undefined && followed.wish?.pointer === version) {
        followed.problem = `version ${version}: ${message}`;
      }
    }
    events?.onLoadFailed(version, error);
    if (known?.message === message) return;
    logger.warn({ model, version, code, error: message }, 'version cannot be served yet');
  }

  /** Remembers why a channel cannot be followed; a line in the log only when it changes. */
  #report(followed: Followed, problem: string): void {
    if (followed.problem === problem) return;
    followed.problem = problem;
    const { model, logger } = this.#options;
    logger.warn({ model, channel: followed.channel, problem }, 'cannot follow the channel');
  }

  #retire(old: LoadedBundle): void {
    const { model, logger } = this.#options;
    const { version } = old;
    this.#held.delete(version);
    const done = old.retire().then(
      () => logger.info({ model, version }, 'version retired'),
      (error: unknown) =>
        logger.error({ model, version, error: CubeError.from(error).message }, 'retiring failed'),
    );
    this.#retiring.set(version, done);
    void done.finally(() => this.#retiring.delete(version));
  }
}

function labelStatus({ channel, current, activeSince, wish, problem }: Followed): LabelStatus {
  return { channel, active: current?.version, activeSince, target: wish?.pointer, problem };
}

function currentOf(model: string, { current, channel, problem }: Followed): LoadedBundle {
  if (current !== undefined) return current;
  throw new CubeError(
    'NOT_READY',
    `no version of ${model} (channel ${channel}) is served: ${problem ?? 'it is loading'}`,
  );
}

function shown(name: string): string {
  return JSON.stringify(name.slice(0, 128));
}
