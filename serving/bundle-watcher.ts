/**
 * Follows the channel: serving moves to its target only when that version is loaded as a whole (tables answerable, graph in
 * every instance, warm-up passed); then requests begin on it, and the old version drains. The channel's previous version stays
 * loaded, so that a rollback is a switch and not a load, also after a restart; what the channel wants no more is retired.
 * A target that fails leaves the old one serving, is visible in `status`, and is tried again. At boot: the target, then
 * the previous, else nothing is served. A quarantined version is never loaded.
 */
import { CubeError } from '../lib/core/errors.ts';
import { type Clock, systemClock } from '../lib/platform/clock.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { Repository } from '../lib/repository/repository.ts';
import type { LoadedBundle } from './bundle.ts';

export interface BundleWatcherOptions {
  readonly repository: Repository;
  readonly bundle: string;
  readonly channel: string;
  readonly pollMs: number;
  readonly logger: Logger;
  readonly clock?: Clock;
  /** Loads a version and tries it; nothing stays behind when it throws. */
  readonly load: (version: string) => Promise<LoadedBundle>;
  readonly events?: WatcherEvents;
}

interface WatcherEvents {
  onSwitch(from: string | undefined, to: string): void;
  onLoadFailed(version: string, error: CubeError): void;
}

export interface LoadFailure {
  readonly version: string;
  readonly code: string;
  readonly message: string;
  readonly at: string;
  readonly attempts: number;
}

export interface WatcherStatus {
  readonly bundle: string;
  readonly channel: string;
  /** The version that answers, and since when. */
  readonly active: string | undefined;
  readonly activeSince: string | undefined;
  /** The version that the channel wants. */
  readonly target: string | undefined;
  readonly loading: string | undefined;
  /** Loaded whole: the active one, and the one that a rollback leads to. */
  readonly held: readonly string[];
  readonly failed: readonly LoadFailure[];
  /** Why nothing is served, or why the channel cannot be followed. */
  readonly problem: string | undefined;
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
  /** Versions loaded whole: the one that answers, and the channel's previous one. */
  readonly #held = new Map<string, LoadedBundle>();
  /** Versions that drain; one is loaded again only when its retirement is complete. */
  readonly #retiring = new Map<string, Promise<void>>();
  #loop: Promise<void> | undefined;
  #current: LoadedBundle | undefined;
  #activeSince: string | undefined;
  #target: string | undefined;
  #loading: string | undefined;
  #problem: string | undefined = 'the channel has not been read yet';

  constructor(options: BundleWatcherOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
  }

  /** Begins to follow the channel; returns at once. */
  start(): void {
    this.#loop = this.#follow();
  }

  /** The version that answers now. @throws CubeError NOT_READY saying why there is none */
  get current(): LoadedBundle {
    if (this.#current !== undefined) return this.#current;
    const { bundle, channel } = this.#options;
    throw new CubeError(
      'NOT_READY',
      `no version of ${bundle} (channel ${channel}) is served: ${this.#problem ?? 'it is loading'}`,
    );
  }

  get status(): WatcherStatus {
    return {
      bundle: this.#options.bundle,
      channel: this.#options.channel,
      active: this.#current?.version,
      activeSince: this.#activeSince,
      target: this.#target,
      loading: this.#loading,
      held: [...this.#held.keys()],
      failed: [...this.#failures.values()].map(({ retryAtMs: _, ...failure }) => failure),
      problem: this.#problem,
    };
  }

  /**
   * Stops following, and closes the version that is served once its requests are done. Its tables stay in the store: the
   * next start wants them again. A load under way ends when the store is closed.
   */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#loop;
    this.#current = undefined;
    this.#problem = 'the process is stopping';
    await Promise.all([...this.#held.values()].map((held) => held.close()));
    await Promise.all(this.#retiring.values());
  }

  async #follow(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      try {
        await this.#poll();
      } catch (error) {
        this.#report(CubeError.from(error).message);
      }
      await this.#clock.sleep(this.#options.pollMs, signal);
    }
  }

  async #poll(): Promise<void> {
    const wish = await this.#readChannel();
    if (wish === undefined) return;
    const { target, previous } = wish;
    if (target !== undefined) await this.#serve(target);
    if (this.#current === undefined && previous !== undefined) await this.#serve(previous);
    if (this.#current === undefined || this.#stopping.signal.aborted) return;
    const { version } = this.#current;
    if (version !== target && version !== previous) await this.#keepInUse(this.#current);
    if (version === target && previous !== undefined) await this.#hold(previous);
    for (const held of this.#held.values()) {
      const wanted = held.version === target || held.version === previous;
      if (!wanted && held !== this.#current) this.#retire(held);
    }
  }

  /**
   * What the channel wants; a target that is quarantined is none. Undefined when it points nowhere: a channel that is gone is
   * no wish, and what is loaded stays.
   */
  async #readChannel(): Promise<
    { target: string | undefined; previous: string | undefined } | undefined
  > {
    const { repository, bundle, channel } = this.#options;
    const state = await repository.channel(bundle, channel);
    const pointer = state.pointer?.version;
    const previous = state.previous?.version;
    this.#target = pointer;
    for (const version of this.#failures.keys()) {
      if (version !== pointer && version !== previous) this.#failures.delete(version);
    }
    if (pointer === undefined) {
      this.#report(await this.#whyNoPointer());
      return undefined;
    }
    const quarantined = (await repository.quarantined(bundle)).has(pointer);
    if (quarantined) this.#report(`the channel points to ${pointer}, which is quarantined`);
    else if (this.#current !== undefined) this.#problem = undefined;
    return { target: quarantined ? undefined : pointer, previous };
  }

  async #whyNoPointer(): Promise<string> {
    const { repository, bundle, channel } = this.#options;
    const versions = await repository.versions(bundle);
    const known = versions.length === 0 ? 'no version' : `the versions ${versions.join(', ')}`;
    return (
      `${repository.location} has no channel ${channel} for bundle ${bundle}, and ${known} of it; ` +
      'publish a version and activate it (cube-agent activate)'
    );
  }

  /** Makes a version the one that answers, if it can be held. */
  async #serve(version: string): Promise<void> {
    if (this.#current?.version === version) return;
    const startMs = this.#clock.nowMs();
    const held = this.#held.get(version);
    if (held === undefined) await this.#hold(version);
    else if (!(await this.#stillAnswerable(held))) return;
    const loaded = this.#held.get(version);
    if (loaded !== undefined) this.#switch(loaded, startMs);
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
    if (this.#held.has(version) || this.#stopping.signal.aborted) return;
    const failure = this.#failures.get(version);
    if (failure !== undefined && this.#clock.nowMs() < failure.retryAtMs) return;
    this.#loading = version;
    await this.#retiring.get(version);
    try {
      const loaded = await this.#options.load(version);
      if (this.#stopping.signal.aborted) await loaded.close();
      else this.#held.set(version, loaded);
      this.#failures.delete(version);
    } catch (error) {
      this.#noteFailure(version, CubeError.from(error));
    } finally {
      this.#loading = undefined;
    }
  }

  #switch(loaded: LoadedBundle, startMs: number): void {
    const from = this.#current?.version;
    this.#current = loaded;
    this.#activeSince = this.#clock.isoTime();
    this.#problem = undefined;
    const loadMs = Math.round(this.#clock.nowMs() - startMs);
    const { bundle, events, logger } = this.#options;
    logger.info({ bundle, version: loaded.version, from, loadMs }, 'serving version');
    events?.onSwitch(from, loaded.version);
  }

  #noteFailure(version: string, error: CubeError): void {
    const { events, logger, pollMs, bundle } = this.#options;
    const known = this.#failures.get(version);
    const attempts = (known?.attempts ?? 0) + 1;
    const { code, message } = error;
    const urgent = version === this.#target || this.#current === undefined;
    const pauseMs =
      error.status.retryable && urgent
        ? 0
        : Math.min(pollMs * 2 ** Math.min(attempts, 20), RETRY_MAX_MS);
    const at = this.#clock.isoTime();
    const retryAtMs = this.#clock.nowMs() + pauseMs;
    this.#failures.set(version, { version, code, message, at, attempts, retryAtMs });
    if (this.#current === undefined) this.#problem = `version ${version}: ${message}`;
    events?.onLoadFailed(version, error);
    if (known?.message === message) return;
    logger.warn({ bundle, version, code, error: message }, 'version cannot be served yet');
  }

  /** Remembers why the channel cannot be followed; a line in the log only when it changes. */
  #report(problem: string): void {
    if (this.#problem === problem) return;
    this.#problem = problem;
    this.#options.logger.warn({ problem }, 'cannot follow the channel');
  }

  #retire(old: LoadedBundle): void {
    const { bundle, logger } = this.#options;
    const { version } = old;
    this.#held.delete(version);
    const done = old.retire().then(
      () => logger.info({ bundle, version }, 'version retired'),
      (error: unknown) =>
        logger.error({ bundle, version, error: CubeError.from(error).message }, 'retiring failed'),
    );
    this.#retiring.set(version, done);
    void done.finally(() => this.#retiring.delete(version));
  }
}
