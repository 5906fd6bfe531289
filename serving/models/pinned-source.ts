/** One version, whatever channels want: for who compares versions, and for looking into one that was quarantined. */
import type { Wish, WishSource } from './wish-source.ts';

export class PinnedSource implements WishSource {
  readonly labels: readonly [string] = ['pinned'];
  readonly #version: string;

  constructor(version: string) {
    this.#version = version;
  }

  async read(): Promise<Wish> {
    const version = this.#version;
    return { pointer: version, target: version, previous: undefined, problem: undefined };
  }

  async whyNothing(): Promise<string> {
    return `version ${this.#version} is all that is wanted here`;
  }
}
