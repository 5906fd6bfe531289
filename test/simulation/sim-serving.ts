/**
 * A simulated serving process: the real version manager over simulated tables and graphs. It names
 * the version in every lookup. With store `remote` a version is loaded when every shard has it;
 * with store `local` the process fills its own copy, which takes a while.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { LoadedBundle } from '../../serving/engine/loaded-bundle.ts';
import { VersionManager } from '../../serving/models/version-manager.ts';
import { ChannelSource, type DesiredVersion } from '../../serving/models/version-source.ts';
import { BUNDLE } from './host-disk.ts';
import type { SimHost } from './sim-host.ts';
import type { SimServer } from './sim-server.ts';
import type { SimProcess } from './world.ts';

const POLL_MS = 1500;
const PREDICT_MS = 700;
/** The duration of a fill, at most: many polls long. */
const FILL_MAX_MS = 20_000;

export interface ServingOptions {
  readonly channel: string;
  readonly store: 'remote' | 'local';
  readonly hosts: readonly SimHost[];
  readonly findShardNum: (version: string) => number;
  /** The tag in the rows of a version. */
  readonly findTag: (version: string) => string | undefined;
  /** Whether the version's graph fails its warm-up in every process. */
  readonly failsWarmUp: (version: string) => boolean;
  readonly isDamaged: (version: string) => boolean;
  /** World call counts at which versions were quarantined. */
  readonly quarantined: ReadonlyMap<string, number>;
  /** Versions that have served in some process. */
  readonly everServed: Set<string>;
  readonly logger: Logger;
  /** An injected bug: lookups that name no version. */
  readonly ignoresVersion: boolean;
  /** An injected bug: quarantines are not read. */
  readonly ignoresQuarantine: boolean;
  /** An injected bug: a process that starts now prefers the rollback target. */
  readonly prefersPrevious: () => boolean;
}

/** Reads the channel as the real source does, and remembers what it learned. */
class ObservedSource extends ChannelSource {
  /** Quarantined versions of the newest complete read. */
  known: ReadonlySet<string> = new Set();
  /** World calls when the newest complete read began. */
  beganAtCall = 0;
  hasFailed = false;
  readonly #process: SimProcess;
  readonly #serving: ServingOptions;
  readonly #isOdd: boolean;

  constructor(process: SimProcess, repository: Repository, serving: ServingOptions) {
    const { channel, logger } = serving;
    super({ repository, bundle: BUNDLE, channels: [channel], author: process.name, logger });
    this.#process = process;
    this.#serving = serving;
    this.#isOdd = serving.prefersPrevious();
  }

  override async read(channel: string): Promise<DesiredVersion | undefined> {
    const { calls } = this.#process.world;
    this.hasFailed = true;
    const desired = await super.read(channel);
    this.hasFailed = false;
    this.beganAtCall = calls;
    if (desired === undefined) return undefined;
    this.known = desired.quarantined;
    const { ignoresQuarantine } = this.#serving;
    if (ignoresQuarantine) return { ...desired, quarantined: new Set(), target: desired.pointer };
    return this.#isOdd ? { ...desired, target: desired.fallbacks[0] } : desired;
  }
}

export class SimServing {
  answers = 0;
  failures = 0;
  readonly options: ServingOptions;
  #manager: VersionManager | undefined;
  #loadedAtCall = 0;

  constructor(options: ServingOptions) {
    this.options = options;
  }

  /** The version that it serves; undefined: not ready. */
  get version(): string | undefined {
    return this.#manager?.status.active;
  }

  /** Runs until the process is killed. */
  async run(process: SimProcess, repository: Repository): Promise<void> {
    const source = new ObservedSource(process, repository, this.options);
    this.#manager = new VersionManager({
      model: BUNDLE,
      source,
      pollMs: POLL_MS * (0.8 + 0.4 * process.random.next()),
      logger: this.options.logger,
      clock: process.clock,
      load: (version, _onStep, signal) => this.#load(process, repository, version, signal),
      events: {
        onSwitch: (_from, to) => this.#checkSwitch(process, source, to),
        onLoadFailed: () => undefined,
      },
    });
    this.#manager.start();
    for (;;) {
      await process.clock.sleep(PREDICT_MS * (0.8 + 0.4 * process.random.next()));
      const { version } = this;
      if (version === undefined) continue;
      process.world.require(
        !source.known.has(version),
        'no process serves what it knows to be quarantined',
        () => `${process.name} serves ${version}`,
      );
      await this.#predict(process, version);
    }
  }

  /** The channel was read after the load, so the version was not quarantined before that read. */
  #checkSwitch(process: SimProcess, source: ObservedSource, version: string): void {
    const { world } = process;
    world.record(process.name, `serves ${version}`);
    this.options.everServed.add(version);
    const quarantinedAt = this.options.quarantined.get(version) ?? Number.POSITIVE_INFINITY;
    const isLate = quarantinedAt < source.beganAtCall;
    world.require(!isLate, 'no process begins to serve a quarantined version', () => {
      return `${process.name} serves ${version}, quarantined at call ${quarantinedAt}`;
    });
    if (source.hasFailed) return;
    const isRead = source.beganAtCall >= this.#loadedAtCall;
    world.require(isRead, 'no process begins to serve a quarantined version', () => {
      return `${process.name} serves ${version} without reading its channel after the load`;
    });
  }

  async #load(
    process: SimProcess,
    repository: Repository,
    version: string,
    signal: AbortSignal,
  ): Promise<LoadedBundle> {
    const { store, failsWarmUp, isDamaged } = this.options;
    await repository.readManifest(BUNDLE, version);
    if (store === 'local') {
      await process.clock.sleep(FILL_MAX_MS * process.random.next() ** 2, signal);
      if (signal.aborted) throw new CubeError('STOPPING', 'cancelled');
    } else await this.#requireHeld(process, version);
    if (isDamaged(version)) throw new CubeError('CORRUPT', 'a layer is damaged');
    if (failsWarmUp(version)) throw new CubeError('INVALID_ARGUMENT', 'the warm-up failed');
    this.#loadedAtCall = process.world.calls;
    const checkAvailable = async (): Promise<void> => {
      if (store === 'remote') await this.#requireHeld(process, version);
    };
    const end = async (): Promise<void> => undefined;
    return { version, checkAvailable, retire: end, close: end } as unknown as LoadedBundle;
  }

  async #requireHeld(process: SimProcess, version: string): Promise<void> {
    const shardNum = this.options.findShardNum(version);
    const held = new Set<number>();
    for (const host of this.#reachable()) {
      const server = host.getServer(shardNum);
      const holds = await process.call(() => {
        if (!server.isUp || !server.loaded.has(version)) return false;
        // As a probe of the version does: it counts as a use.
        server.lookup(version);
        return true;
      });
      if (holds) held.add(server.shardIndex);
    }
    if (held.size !== shardNum) throw new CubeError('NOT_READY', `${version} is not on all shards`);
  }

  /** One batch: every shard is asked, and another replica when one does not answer. */
  async #predict(process: SimProcess, version: string): Promise<void> {
    const { store, findShardNum, findTag, ignoresVersion } = this.options;
    if (store === 'local') {
      this.answers += 1;
      return;
    }
    const shardNum = findShardNum(version);
    const tags = new Set<string>();
    for (let shard = 0; shard < shardNum; shard++) {
      const replicas = this.#reachable()
        .map((host) => host.getServer(shardNum))
        .filter(({ shardIndex }) => shardIndex === shard);
      const tag = await this.#lookup(process, replicas, ignoresVersion ? undefined : version);
      if (tag === undefined) {
        this.failures += 1;
        return;
      }
      tags.add(tag);
    }
    this.answers += 1;
    const expected = findTag(version);
    const isWhole = tags.size === 1 && tags.has(expected ?? '');
    process.world.require(isWhole, 'one version per answer', () => {
      return `${process.name} asked for ${version} (${expected}) and got ${[...tags].join(', ')}`;
    });
  }

  /** @returns undefined when no replica answers */
  async #lookup(
    process: SimProcess,
    replicas: readonly SimServer[],
    version: string | undefined,
  ): Promise<string | undefined> {
    const first = process.random.integer(0, Math.max(1, replicas.length));
    for (let i = 0; i < replicas.length; i++) {
      const server = replicas[(first + i) % replicas.length]!;
      const tag = await process.call(() => {
        try {
          return server.isUp ? server.lookup(version ?? server.active) : undefined;
        } catch {
          return undefined;
        }
      });
      if (tag !== undefined) return tag;
    }
    return undefined;
  }

  #reachable(): SimHost[] {
    return this.options.hosts.filter((host) => !host.hasFault('cutOffUntilMs'));
  }
}
