/**
 * Where the desired version of a model comes from: the channels of a repository, or one pinned
 * version. The version in a folder is in folder-source.ts. `VersionManager` loads what a source
 * reports.
 */
import type { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { OutcomeRecorder } from '../../lib/repository/outcome-recorder.ts';
import type { ChannelState, Repository } from '../../lib/repository/repository.ts';

/** What a source reports for one channel. */
export interface DesiredVersion {
  /** The version that the source names. It is shown in the status; it may be quarantined. */
  readonly pointer: string;
  /** The version to serve: the pointer, unless it is quarantined. */
  readonly target: string | undefined;
  /**
   * The versions to serve while the target cannot be loaded, best first. The first one is kept
   * loaded beside the target, so that a rollback does not load anything.
   */
  readonly fallbacks: readonly string[];
  /** Versions that must not serve, even where they are loaded. */
  readonly quarantined: ReadonlySet<string>;
  /** The source changed since the last read: a version that failed to load is retried at once. */
  readonly isRewritten?: boolean;
  /** Why the pointer is not the target. */
  readonly problem: string | undefined;
}

export interface VersionSource {
  /** Names that requests may use as labels; the first one serves requests without a label. */
  readonly channels: readonly [string, ...string[]];

  /**
   * @returns undefined when the channel points to no version: loaded versions stay loaded
   * @throws CubeError when the source cannot be read
   */
  read(channel: string): Promise<DesiredVersion | undefined>;

  /** Explains why `read` returned undefined, and what to do. */
  explainMissing(channel: string): Promise<string>;

  /** Told at every poll which version serves, so that rollbacks go to it. Never rejects. */
  recordServed?(version: string): Promise<void>;

  /** Told when a load fails. Never rejects. */
  recordFailed?(version: string, error: CubeError): Promise<void>;
}

/** Fallbacks that a process tries to load, at most. */
const FALLBACKS_MAX = 8;

export interface ChannelSourceOptions {
  readonly repository: Repository;
  readonly bundle: string;
  /** The first one serves requests that name none. */
  readonly channels: readonly [string, ...string[]];
  /** The author of the records that a version has served or failed. */
  readonly author: string;
  readonly logger: Logger;
}

/** The versions that the channels of a bundle point to. A quarantined version is never a target. */
export class ChannelSource implements VersionSource {
  readonly channels: readonly [string, ...string[]];
  readonly #options: ChannelSourceOptions;
  readonly #outcomes: OutcomeRecorder;

  constructor(options: ChannelSourceOptions) {
    this.#options = options;
    this.#outcomes = new OutcomeRecorder({ ...options, repository: () => options.repository });
    this.channels = options.channels;
  }

  async read(channel: string): Promise<DesiredVersion | undefined> {
    const { repository, bundle } = this.#options;
    const state = await repository.readChannel(bundle, channel);
    this.#outcomes.addKnown(state.outcomes);
    return toDesiredVersion(state);
  }

  recordServed(version: string): Promise<void> {
    return this.#outcomes.recordServed(version);
  }

  recordFailed(version: string, error: CubeError): Promise<void> {
    return this.#outcomes.recordFailed(version, error);
  }

  async explainMissing(channel: string): Promise<string> {
    const { repository, bundle } = this.#options;
    const { location, canList } = repository;
    const versions = canList ? await repository.listVersions(bundle) : [];
    const published = versions.length === 0 ? 'none' : versions.join(', ');
    const step = versions.length === 0 ? 'publish a version and activate it' : 'activate one';
    const version = versions.at(-1) ?? 'NAME';
    const options = `--bundle ${bundle} --version ${version} --channel ${channel}`;
    return (
      `${location} has no channel ${channel} for bundle ${bundle}` +
      `${canList ? ` (published versions: ${published})` : ''}; ` +
      `${step}: cube-agent activate --repository ${location} ${options} --reason first`
    );
  }
}

function toDesiredVersion(state: ChannelState): DesiredVersion | undefined {
  const { quarantined } = state;
  const pointer = state.pointer?.version;
  if (pointer === undefined) return undefined;
  const fallbacks = state.fallbacks.slice(0, FALLBACKS_MAX).map(({ version }) => version);
  const isQuarantined = quarantined.has(pointer);
  const problem = isQuarantined
    ? `the channel points to version ${pointer}, which is quarantined`
    : undefined;
  const target = isQuarantined ? undefined : pointer;
  return { pointer, target, fallbacks, quarantined, problem };
}

/** For sources that know one version only. */
export function makeSingleVersion(version: string): DesiredVersion {
  return {
    pointer: version,
    target: version,
    fallbacks: [],
    quarantined: new Set(),
    problem: undefined,
  };
}

/**
 * One version, regardless of channels: to compare versions, or to examine a quarantined one.
 */
export class PinnedVersionSource implements VersionSource {
  readonly channels: readonly [string] = ['pinned'];
  readonly #version: string;

  constructor(version: string) {
    this.#version = version;
  }

  async read(): Promise<DesiredVersion> {
    return makeSingleVersion(this.#version);
  }

  async explainMissing(): Promise<string> {
    return `version ${this.#version} is pinned`;
  }
}
