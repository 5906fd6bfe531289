/**
 * The version that a request is parsed for. Its experiments may choose another one when its body
 * gives the key, at the latest when its rows are parsed.
 */
import type { SlicedWork } from '../../lib/core/json-slices.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import type { CancelSignal } from '../engine/prediction.ts';
import type { ExperimentedRequest, ParsedRows } from '../models/experiments.ts';
import type { SliceQueue } from './slice-queue.ts';

export class RequestVersion<V extends LoadedVersion> {
  readonly #find: () => V;
  readonly #experimented: ExperimentedRequest;
  #loaded: V;
  /** In use while the body is parsed in slices. */
  #held: LoadedVersion[] | undefined;

  /** @param find the version as `experimented` is assigned now, once it is admitted */
  constructor(experimented: ExperimentedRequest, find: () => V) {
    this.#find = find;
    this.#experimented = experimented;
    this.#loaded = find();
  }

  /**
   * The version to parse the request for. @param key the experiment key in the body; undefined: it
   * has none
   */
  readonly choose = (key?: string): V => {
    if (this.#experimented.assign(key)) this.#findAgain();
    return this.#loaded;
  };

  /** @returns whether the version is another one now, for which the request must be parsed again */
  chooseByRows(parsed: ParsedRows | undefined): boolean {
    const before = this.#loaded;
    if (this.#experimented.assignByRows(parsed)) this.#findAgain();
    return this.#loaded !== before;
  }

  /** Keeps the version until it is acquired for the prediction, before the next await. */
  async parseInSlices<T>(
    slices: SliceQueue,
    work: SlicedWork<T>,
    signal: CancelSignal,
  ): Promise<T> {
    const held: LoadedVersion[] = [];
    this.#held = held;
    this.#hold(this.#loaded);
    try {
      return await slices.run(work, signal);
    } finally {
      this.#held = undefined;
      // After the microtasks in which the caller continues.
      setImmediate(() => {
        for (const loaded of held) loaded.release();
      });
    }
  }

  #findAgain(): void {
    this.#loaded = this.#find();
    this.#hold(this.#loaded);
  }

  #hold(loaded: LoadedVersion): void {
    if (this.#held === undefined) return;
    loaded.acquire();
    this.#held.push(loaded);
  }
}
