/** Versions wanted by the channels of a bundle in a repository. A quarantined version is never wanted. */
import type { Repository } from '../../lib/repository/repository.ts';
import type { Wish, WishSource } from './wish-source.ts';

export class ChannelSource implements WishSource {
  readonly labels: readonly [string, ...string[]];
  readonly #repository: Repository;
  readonly #bundle: string;

  /** @param channels the first answers requests that name none */
  constructor(repository: Repository, bundle: string, channels: readonly [string, ...string[]]) {
    this.#repository = repository;
    this.#bundle = bundle;
    this.labels = channels;
  }

  async read(channel: string): Promise<Wish | undefined> {
    const state = await this.#repository.channel(this.#bundle, channel);
    const pointer = state.pointer?.version;
    if (pointer === undefined) return undefined;
    const previous = state.previous?.version;
    const quarantined = state.quarantined.has(pointer);
    if (!quarantined) return { pointer, target: pointer, previous, problem: undefined };
    const problem = `the channel points to ${pointer}, which is quarantined`;
    return { pointer, target: undefined, previous, problem };
  }

  async whyNothing(channel: string): Promise<string> {
    const { location, canList } = this.#repository;
    const versions = canList ? await this.#repository.versions(this.#bundle) : [];
    const known = versions.length === 0 ? 'no version' : `the versions ${versions.join(', ')}`;
    return (
      `${location} has no channel ${channel} for bundle ${this.#bundle}${canList ? `, and ${known} of it` : ''}; ` +
      'publish a version and activate it (cube-agent activate)'
    );
  }
}
