/** A serving process: it follows a channel once every shard holds the version, and names that version in every lookup. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { BUNDLE } from './host-disk.ts';
import type { SimHost } from './sim-host.ts';
import type { SimServer } from './sim-server.ts';
import type { SimProcess } from './world.ts';

const POLL_MS = 1500;

export interface ServingOptions {
  readonly channel: string;
  readonly hosts: readonly SimHost[];
  readonly shardNumOf: (version: string) => number;
  /** Whose rows a version answers with. */
  readonly tagOf: (version: string) => string | undefined;
  /** What must be noticed: lookups that name no version. */
  readonly mixes: boolean;
}

export class SimServing {
  /** What it answers with; undefined: not ready. */
  version: string | undefined;
  answers = 0;
  failures = 0;
  readonly options: ServingOptions;

  constructor(options: ServingOptions) {
    this.options = options;
  }

  async run(process: SimProcess, repository: Repository): Promise<void> {
    for (;;) {
      await this.#follow(process, repository);
      if (this.version !== undefined) await this.#predict(process, this.version);
      await process.clock.sleep(POLL_MS * (0.8 + 0.4 * process.random.next()));
    }
  }

  /** At first the pointer, else the previous version; later only the pointer. */
  async #follow(process: SimProcess, repository: Repository): Promise<void> {
    const { channel } = this.options;
    try {
      const { pointer, previous, quarantined } = await repository.channel(BUNDLE, channel);
      const choices = [
        pointer?.version,
        this.version === undefined ? previous?.version : undefined,
      ];
      for (const version of choices) {
        if (version === undefined || version === this.version || quarantined.has(version)) continue;
        if (!(await this.#isHeld(process, version))) continue;
        process.world.note(process.name, `serves ${version}`);
        this.version = version;
        return;
      }
    } catch (error) {
      // It goes on with what it has.
      if (CubeError.from(error).code === 'INTERNAL') throw error;
    }
  }

  async #isHeld(process: SimProcess, version: string): Promise<boolean> {
    const shardNum = this.options.shardNumOf(version);
    const held = new Set<number>();
    for (const host of this.#reachable()) {
      const server = host.serverOf(shardNum);
      const holds = await process.call(() => server.isUp && server.held.has(version));
      if (holds) held.add(server.shardIndex);
    }
    return held.size === shardNum;
  }

  /** One batch: every shard is asked, another replica where one has no answer. */
  async #predict(process: SimProcess, version: string): Promise<void> {
    const { shardNumOf, tagOf, mixes } = this.options;
    const shardNum = shardNumOf(version);
    const tags = new Set<string>();
    for (let shard = 0; shard < shardNum; shard++) {
      const replicas = this.#reachable()
        .map((host) => host.serverOf(shardNum))
        .filter(({ shardIndex }) => shardIndex === shard);
      const tag = await this.#lookup(process, replicas, mixes ? undefined : version);
      if (tag === undefined) {
        this.failures += 1;
        return;
      }
      tags.add(tag);
    }
    this.answers += 1;
    const expected = tagOf(version);
    const isWhole = tags.size === 1 && tags.has(expected ?? '');
    process.world.require(isWhole, 'one version per answer', () => {
      return `${process.name} asked for ${version} (${expected}) and got ${[...tags].join(', ')}`;
    });
  }

  /** Undefined: nobody answers. */
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
    return this.options.hosts.filter((host) => !host.isIn('cutOffMs'));
  }
}
