/**
 * Publishes what donefiles list. The repository is the only record of progress: a version is built
 * if it is not published, and the channel moves to it if it never pointed there. So the watcher may
 * be killed at any point, run twice, or moved to another host.
 */

import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { runOneShotProcess } from '../../lib/platform/one-shot-process.ts';
import type { ChannelState, Repository } from '../../lib/repository/repository.ts';
import {
  buildChain,
  countPublishedSteps,
  type DonefileChain,
  type DonefileStep,
} from './donefile.ts';
import type { DonefileSource } from './donefile-source.ts';

/** Path of dist/tools/cube-builder/main.js, relative to dist/cube-agent/cube. */
const BUILDER_SCRIPT = join(import.meta.dirname, '..', '..', 'tools', 'cube-builder', 'main.js');
/** The parent of a longer chain of layers is first merged into a base. */
const CHAIN_LENGTH_MAX = 8;

/** Backoff of retries after a failed build: doubles from the first to the maximum. */
const FIRST_BACKOFF_MS = 1000;
const BACKOFF_MAX_MS = 300_000;

/**
 * What follows a publication: the channel moves, a rollout is opened for a controller, or nothing.
 */
export const AFTER_PUBLISH_ACTIONS = ['activate', 'rollout', 'nothing'] as const;
export type AfterPublishAction = (typeof AFTER_PUBLISH_ACTIONS)[number];

export interface DonefileWatcherOptions {
  readonly source: DonefileSource;
  /** Publish patches too. */
  readonly includePatches: boolean;
  readonly repository: Repository;
  readonly bundle: string;
  readonly channel: string;
  readonly shardNum: number;
  readonly afterPublish: AfterPublishAction;
  readonly by: string;
  /** Further flags of cube-builder, such as how rows are read and stored. */
  readonly builderFlags: readonly string[];
  /** Whether versions are signed with the repository's key. */
  readonly isSigning: boolean;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** A problem of the last run. */
export interface WatchProblem {
  readonly what: string;
  readonly code: string;
  readonly message: string;
}

/** A failed build and the time of its retry. */
interface FailedBuild {
  readonly version: string;
  readonly error: unknown;
  readonly backoffMs: number;
  readonly retryAtMs: number;
}

export class DonefileWatcher {
  readonly #options: DonefileWatcherOptions;
  #failed: FailedBuild | undefined;
  /** Versions that the last run built. */
  published: string[] = [];

  constructor(options: DonefileWatcherOptions) {
    this.#options = options;
  }

  /** What a run would build now; changes nothing. */
  async plan(): Promise<{ steps: readonly DonefileStep[]; problems: readonly WatchProblem[] }> {
    const problems: WatchProblem[] = [];
    try {
      const chain = await this.#readChain(problems);
      const next = await this.#next(chain);
      const steps = next === undefined ? [] : chain.steps.slice(chain.steps.indexOf(next));
      return { steps, problems };
    } catch (error) {
      const { code, message } = CubeError.from(error);
      return { steps: [], problems: [...problems, { what: 'publish', code, message }] };
    }
  }

  /**
   * Publishes everything that can be published now. @returns problems. @throws CubeError STOPPING
   */
  async runOnce(signal?: AbortSignal): Promise<WatchProblem[]> {
    this.published = [];
    const problems: WatchProblem[] = [];
    const record = (what: string, error: unknown): void => {
      const { code, message } = CubeError.from(error);
      if (code === 'STOPPING') throw error;
      problems.push({ what, code, message });
    };
    try {
      const chain = await this.#readChain(problems);
      for (;;) {
        const next = await this.#next(chain);
        await this.#moveChannel(chain).catch((error: unknown) => record('move the channel', error));
        if (next === undefined) break;
        await this.#build(next, signal).catch((error: unknown) => this.#recordFailure(next, error));
        this.#failed = undefined;
      }
    } catch (error) {
      record('publish', error);
    }
    return problems;
  }

  async #readChain(problems: WatchProblem[]): Promise<DonefileChain> {
    const { source, includePatches } = this.#options;
    const report = (lines: readonly { readonly reason: string }[]): void => {
      for (const { reason } of lines) {
        problems.push({ what: 'read donefiles', code: 'INVALID_ARGUMENT', message: reason });
      }
    };
    const base = await source.readDonefile('base.txt');
    report(base.problems);
    const patch = includePatches
      ? await source.readDonefile('patch.txt').catch(undefinedWhenNotFound)
      : undefined;
    report(patch?.problems ?? []);
    const chain = buildChain(base, patch);
    report(chain.problems);
    return chain;
  }

  /** The first unpublished step. @throws CubeError CONFLICT if an earlier one is quarantined */
  async #next(chain: DonefileChain): Promise<DonefileStep | undefined> {
    const { state, done } = await this.#progress(chain);
    const bad = chain.steps.slice(0, done).find(({ version }) => state.quarantined.has(version));
    const next = chain.steps[done];
    if (next === undefined || bad === undefined) return next;
    throw new CubeError(
      'CONFLICT',
      `version ${bad.version} is quarantined, so its patches (next: ${next.version}) are not ` +
        'published; publish a new base',
    );
  }

  async #progress(chain: DonefileChain): Promise<{ state: ChannelState; done: number }> {
    const { repository, bundle, channel } = this.#options;
    const state = await repository.readChannel(bundle, channel);
    const published = new Set([
      ...(await repository.listVersions(bundle)),
      ...state.quarantined,
      ...state.history.map(({ version }) => version),
    ]);
    return { state, done: countPublishedSteps(chain, (version) => published.has(version)) };
  }

  async #build(step: DonefileStep, signal: AbortSignal | undefined): Promise<void> {
    const { version, kind, input, parent, line } = step;
    const { bundle, shardNum, builderFlags, logger } = this.#options;
    this.#throwIfFailed(version);
    logger.info({ version, kind, input, line }, 'building');
    const dependVersion =
      parent === undefined ? undefined : await this.#compactIfDeep(parent, signal);
    const args = toArguments({
      jobMode: kind,
      inputPath: input,
      curVersion: version,
      dependVersion,
      dictName: bundle,
      shardNum: kind === 'base' ? shardNum : undefined,
    });
    await this.#runBuilder(version, [...builderFlags, ...args], signal);
    this.published.push(version);
    logger.info({ version }, 'published');
    faultPoint('donefile.published');
  }

  #throwIfFailed(version: string): void {
    const failed = this.#failed;
    if (failed?.version !== version) return;
    if (this.#options.clock.nowMs() < failed.retryAtMs) throw failed.error;
  }

  #recordFailure({ version }: DonefileStep, error: unknown): never {
    const before = this.#failed;
    if (error !== before?.error) {
      const pauseMs =
        before?.version === version
          ? Math.min(2 * before.backoffMs, BACKOFF_MAX_MS)
          : FIRST_BACKOFF_MS;
      const retryAtMs = this.#options.clock.nowMs() + pauseMs;
      this.#failed = { version, error, backoffMs: pauseMs, retryAtMs };
    }
    throw error;
  }

  /** The parent, or a base with the same rows if its chain has the maximum length. */
  async #compactIfDeep(parent: string, signal: AbortSignal | undefined): Promise<string> {
    const { repository, bundle, logger } = this.#options;
    const { tables } = await repository.readManifest(bundle, parent);
    const depth = Math.max(...tables.flatMap(({ shards }) => shards.map(({ length }) => length)));
    if (depth < CHAIN_LENGTH_MAX) return parent;
    const compacted = `${parent}.whole`;
    if (!(await repository.listVersions(bundle)).includes(compacted)) {
      logger.info({ version: compacted, layers: depth }, 'merging the chain');
      const flags = ['compact', '--version', parent, '--cur-version', compacted];
      await this.#runBuilder(compacted, flags, signal);
    }
    return compacted;
  }

  /** Building a published version again succeeds, so two watchers may run at the same time. */
  async #runBuilder(
    version: string,
    flags: string[],
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const { repository, bundle } = this.#options;
    const where = ['--output-path', repository.location, '--bundle', bundle];
    const { code, lastLines } = await runOneShotProcess({
      args: [BUILDER_SCRIPT, ...flags, ...where],
      signal,
    });
    if (code === 0) return;
    const reason = lastLines.join('; ') || `ended with ${code ?? 'a signal'}`;
    throw new CubeError('INVALID_ARGUMENT', `building version ${version} failed: ${reason}`);
  }

  /** Moves only to a version that the channel never pointed to: a rollback is not undone. */
  async #moveChannel(chain: DonefileChain): Promise<void> {
    const { repository, bundle, channel, afterPublish, by, logger } = this.#options;
    const { state, done } = await this.#progress(chain);
    const newest = chain.steps[done - 1];
    if (newest === undefined) return;
    const { version, line } = newest;
    if (this.#options.isSigning) await repository.sign(bundle, version);
    if (afterPublish === 'nothing') return;
    const reason = `line ${line} of ${newest.kind === 'base' ? 'base.txt' : 'patch.txt'}`;
    if (state.quarantined.has(version)) return;
    if (state.history.some((entry) => entry.version === version)) return;
    if (afterPublish === 'rollout') {
      const log = repository.rolloutLog(bundle, version);
      if ((await log.readHistory()).length > 0) return;
      await log.append(0, { state: 'seen', holder: by, reason });
      logger.info({ version }, 'rollout opened');
      faultPoint('donefile.moved');
      return;
    }
    const expected = state.pointer?.seq ?? 0;
    const { seq } = await repository.activate(bundle, channel, { version, by, reason, expected });
    logger.info({ version, channel, seq }, 'channel moved');
    faultPoint('donefile.moved');
  }
}

function undefinedWhenNotFound(error: unknown): undefined {
  if (CubeError.from(error).code !== 'NOT_FOUND') throw error;
  return undefined;
}
