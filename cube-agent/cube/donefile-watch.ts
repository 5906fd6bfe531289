/**
 * Publishes what donefiles ask for. What was done is read from the repository: a version is built when it is not there, and
 * pointed to when the channel never pointed there. So it may be killed anywhere, run twice, or moved to another host.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import { runToEnd } from '../../lib/platform/finite-process.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ChannelState, Repository } from '../../lib/repository/repository.ts';
import { chainOf, type DonefileChain, type DonefileStep, stepsDone } from './donefile.ts';
import type { DonefileSource } from './donefile-source.ts';

/** dist/tools/cube-builder/main.js, seen from dist/cube-agent/cube. */
const BUILDER_SCRIPT = join(import.meta.dirname, '..', '..', 'tools', 'cube-builder', 'main.js');
/** Layers of a chain; beyond it the parent is merged into a base first. */
const CHAIN_MAX = 8;

/** A build that failed is tried again after pauses that double up to this. */
const FIRST_PAUSE_MS = 1000;
const PAUSE_MAX_MS = 300_000;

/** What follows a publication: the channel is pointed there, a rollout is opened for a controller, or nothing. */
export const AFTERWARDS = ['activate', 'rollout', 'nothing'] as const;
export type Afterwards = (typeof AFTERWARDS)[number];

export interface DonefileWatchOptions {
  readonly source: DonefileSource;
  /** Patches count too. */
  readonly patches: boolean;
  readonly repository: Repository;
  readonly bundle: string;
  readonly channel: string;
  readonly shardNum: number;
  readonly afterwards: Afterwards;
  readonly by: string;
  /** Further flags of cube-builder: how rows are read and stored. */
  readonly builderFlags: readonly string[];
  /** What is published is signed with the repository's key. */
  readonly signs: boolean;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** What is wrong now. */
export interface WatchProblem {
  readonly what: string;
  readonly code: string;
  readonly message: string;
}

/** A build that failed, and when it is tried again: what it fails for does not go away in seconds. */
interface FailedBuild {
  readonly version: string;
  readonly error: unknown;
  readonly pauseMs: number;
  readonly retryAtMs: number;
}

export class DonefileWatch {
  readonly #options: DonefileWatchOptions;
  #failed: FailedBuild | undefined;

  constructor(options: DonefileWatchOptions) {
    this.#options = options;
  }

  /** Does all that can be done now. @returns what could not; @throws CubeError STOPPING */
  async pass(signal?: AbortSignal): Promise<WatchProblem[]> {
    const problems: WatchProblem[] = [];
    const note = (what: string, error: unknown): void => {
      const { code, message } = CubeError.from(error);
      if (code === 'STOPPING') throw error;
      problems.push({ what, code, message });
    };
    try {
      const chain = await this.#readChain(problems);
      for (;;) {
        const next = await this.#next(chain);
        await this.#point(chain).catch((error: unknown) => note('move the channel', error));
        if (next === undefined) break;
        await this.#build(next, signal).catch((error: unknown) => this.#failedTo(next, error));
        this.#failed = undefined;
      }
    } catch (error) {
      note('publish', error);
    }
    return problems;
  }

  async #readChain(problems: WatchProblem[]): Promise<DonefileChain> {
    const { source, patches } = this.#options;
    const told = (lines: readonly { readonly why: string }[]): void => {
      for (const { why } of lines) {
        problems.push({ what: 'read donefiles', code: 'INVALID_ARGUMENT', message: why });
      }
    };
    const base = await source.read('base.txt');
    told(base.problems);
    const patch = patches ? await source.read('patch.txt').catch(absentIsNone) : undefined;
    told(patch?.problems ?? []);
    const chain = chainOf(base, patch);
    told(chain.problems);
    return chain;
  }

  /** The first step that was never published. @throws CubeError CONFLICT when the one before it is quarantined */
  async #next(chain: DonefileChain): Promise<DonefileStep | undefined> {
    const { state, done } = await this.#progress(chain);
    const bad = chain.steps.slice(0, done).find(({ version }) => state.quarantined.has(version));
    const next = chain.steps[done];
    if (next === undefined || bad === undefined) return next;
    throw new CubeError(
      'CONFLICT',
      `version ${bad.version} is quarantined: its patches, ${next.version} the next, wait for a new base`,
    );
  }

  async #progress(chain: DonefileChain): Promise<{ state: ChannelState; done: number }> {
    const { repository, bundle, channel } = this.#options;
    const state = await repository.channel(bundle, channel);
    const published = new Set([
      ...(await repository.versions(bundle)),
      ...state.quarantined,
      ...state.history.map(({ version }) => version),
    ]);
    return { state, done: stepsDone(chain, (version) => published.has(version)) };
  }

  async #build(step: DonefileStep, signal: AbortSignal | undefined): Promise<void> {
    const { version, kind, input, parent, line } = step;
    const { shardNum, builderFlags, logger } = this.#options;
    this.#throwIfFailed(version);
    logger.info({ version, kind, input, line }, 'building');
    const depend =
      parent === undefined ? [] : ['--depend-version', await this.#whole(parent, signal)];
    await this.#runBuilder(
      version,
      [
        ...builderFlags,
        '--job-mode',
        kind,
        '--input-path',
        input,
        '--cur-version',
        version,
        ...depend,
      ]
        .concat('--dict-name', this.#options.bundle)
        .concat(kind === 'base' ? ['--shard-num', String(shardNum)] : []),
      signal,
    );
    logger.info({ version }, 'published');
    faultPoint('donefile.published');
  }

  #throwIfFailed(version: string): void {
    const failed = this.#failed;
    if (failed?.version !== version) return;
    if (this.#options.clock.nowMs() < failed.retryAtMs) throw failed.error;
  }

  #failedTo({ version }: DonefileStep, error: unknown): never {
    const before = this.#failed;
    if (error !== before?.error) {
      const pauseMs =
        before?.version === version ? Math.min(2 * before.pauseMs, PAUSE_MAX_MS) : FIRST_PAUSE_MS;
      const retryAtMs = this.#options.clock.nowMs() + pauseMs;
      this.#failed = { version, error, pauseMs, retryAtMs };
    }
    throw error;
  }

  /** The parent itself, or the same rows as a base when its chain is as long as it may be. */
  async #whole(parent: string, signal: AbortSignal | undefined): Promise<string> {
    const { repository, bundle, logger } = this.#options;
    const { tables } = await repository.manifest(bundle, parent);
    const depth = Math.max(...tables.flatMap(({ shards }) => shards.map(({ length }) => length)));
    if (depth < CHAIN_MAX) return parent;
    const whole = `${parent}.whole`;
    if (!(await repository.versions(bundle)).includes(whole)) {
      logger.info({ version: whole, layers: depth }, 'merging the chain');
      const flags = ['compact', '--version', parent, '--cur-version', whole];
      await this.#runBuilder(whole, flags, signal);
    }
    return whole;
  }

  /** Building the same again ends well, so that two of us at once do no harm. */
  async #runBuilder(
    version: string,
    flags: string[],
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const { repository, bundle } = this.#options;
    const where = ['--output-path', repository.location, '--bundle', bundle];
    const { code, lastLines } = await runToEnd({
      args: [BUILDER_SCRIPT, ...flags, ...where],
      signal,
    });
    if (code === 0) return;
    const why = lastLines.join('; ') || `ended with ${code ?? 'a signal'}`;
    throw new CubeError('INVALID_ARGUMENT', `building version ${version}: ${why}`);
  }

  /** Only what the channel never pointed to: where people went back from, nobody is led again. */
  async #point(chain: DonefileChain): Promise<void> {
    const { repository, bundle, channel, afterwards, by, logger } = this.#options;
    const { state, done } = await this.#progress(chain);
    const newest = chain.steps[done - 1];
    if (newest === undefined) return;
    const { version, line } = newest;
    if (this.#options.signs) await repository.sign(bundle, version);
    if (afterwards === 'nothing') return;
    const reason = `line ${line} of ${newest.kind === 'base' ? 'base.txt' : 'patch.txt'}`;
    if (state.quarantined.has(version)) return;
    if (state.history.some((entry) => entry.version === version)) return;
    if (afterwards === 'rollout') {
      const log = repository.rollout(bundle, version);
      if ((await log.history()).length > 0) return;
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

function absentIsNone(error: unknown): undefined {
  if (CubeError.from(error).code !== 'NOT_FOUND') throw error;
  return undefined;
}
