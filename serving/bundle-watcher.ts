/**
 * Follows the channel: serving moves to its target only when that version is loaded as a whole (tables answerable, graph in
 * every instance, warm-up passed); then requests begin on it, and the old version drains and is retired. A target that
 * fails leaves the old one serving, is visible in `status`, and is tried again. At boot: the target, then the previous,
 * else nothing is served. A quarantined version is never loaded.
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
  readonly failed: readonly LoadFailure[];
  /** Why nothing is served, or why the channel cannot be followed. */
  readonly problem: string | undefined;
}

/** A broken version is tried again ever more rarely; one that is merely not there yet at every poll. */
const RETRY_MAX_MS = 60_000;

export class BundleWatcher {
  readonly #options: BundleWatcherOptions;
  readonly #clock: Clock;
  readonly #stopping = new AbortController();
  readonly #failures = new Map<string, LoadFailure & { readonly retryAtMs: number }>();
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
    const last = this.#current;
    this.#current = undefined;
    this.#problem = 'the process is stopping';
    await last?.close();
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
    for (const version of await this.#wanted()) {
      if (this.#current?.version === version) return;
      if (this.#stopping.signal.aborted || (await this.#tryVersion(version))) return;
    }
  }

  /** The versions to try, in order. The previous one only while nothing is served. */
  async #wanted(): Promise<string[]> {
    const { repository, bundle, channel } = this.#options;
    const { pointer, previous } = await repository.channel(bundle, channel);
    this.#target = pointer?.version;
    for (const version of this.#failures.keys()) {
      if (version !== pointer?.version && version !== previous?.version) {
        this.#failures.delete(version);
      }
    }
    if (pointer === undefined) {
      this.#report(await this.#whyNoPointer());
      return [];
    }
    const quarantined = (await repository.quarantined(bundle)).has(pointer.version);
    if (quarantined) this.#report(`the channel points to ${pointer.version}, which is quarantined`);
    else if (this.#current !== undefined) this.#problem = undefined;
    const wanted = quarantined ? [] : [pointer.version];
    if (this.#current === undefined && previous !== undefined) wanted.push(previous.version);
    return wanted;
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

  /** @returns true when the version answers now */
  async #tryVersion(version: string): Promise<boolean> {
    const failure = this.#failures.get(version);
    if (failure !== undefined && this.#clock.nowMs() < failure.retryAtMs) return false;
    this.#loading = version;
    await this.#retiring.get(version);
    const startMs = this.#clock.nowMs();
    try {
      const loaded = await this.#options.load(version);
      if (this.#stopping.signal.aborted) await loaded.close();
      else this.#switch(loaded, startMs);
      return true;
    } catch (error) {
      this.#noteFailure(version, CubeError.from(error));
      return false;
    } finally {
      this.#loading = undefined;
    }
  }

  #switch(loaded: LoadedBundle, startMs: number): void {
    const old = this.#current;
    this.#current = loaded;
    this.#activeSince = this.#clock.isoTime();
    this.#problem = undefined;
    this.#failures.delete(loaded.version);
    const loadMs = Math.round(this.#clock.nowMs() - startMs);
    const { bundle, events, logger } = this.#options;
    logger.info({ bundle, version: loaded.version, from: old?.version, loadMs }, 'serving version');
    events?.onSwitch(old?.version, loaded.version);
    if (old !== undefined) this.#retire(old);
  }

  #noteFailure(version: string, error: CubeError): void {
    const { events, logger, pollMs, bundle } = this.#options;
    const known = this.#failures.get(version);
    const attempts = (known?.attempts ?? 0) + 1;
    const { code, message } = error;
    const pauseMs = error.status.retryable
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
    const done = old.retire().then(
      () => logger.info({ bundle, version }, 'version retired'),
      (error: unknown) =>
        logger.error({ bundle, version, error: CubeError.from(error).message }, 'retiring failed'),
    );
    this.#retiring.set(version, done);
    void done.finally(() => this.#retiring.delete(version));
  }
}
