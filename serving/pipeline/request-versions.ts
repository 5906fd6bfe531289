/**
 * The models' versions that one request uses: each is chosen at its first use and stays in use
 * until the request is answered, so all predictions of the request that name a model have one
 * version.
 */
import { CubeError } from '../../lib/core/errors.ts';

/** A version that stays loaded until `release`. */
export interface PinnedVersion {
  /** The version, as answers report it. */
  readonly version: string;
  release(): void;
}

export class RequestVersions {
  /** Made at the first use, because many requests use no model. */
  #pinned: Map<string, PinnedVersion> | undefined;
  #recorded: Map<string, string> | undefined;
  #degraded = false;
  #activeCount = 0;
  #hasEnded = false;

  /** A prediction used default rows for keys that were unavailable. */
  get degraded(): boolean {
    return this.#degraded;
  }

  markDegraded(): void {
    this.#degraded = true;
  }

  /**
   * Runs work with the version of a model.
   * @param name of the model in the answer
   * @param pin chooses the version; called at the first use only
   * @throws CubeError STOPPING after the end of the request
   */
  async use<Pinned extends PinnedVersion, T>(
    name: string,
    pin: () => Pinned,
    work: (pinned: Pinned) => Promise<T>,
  ): Promise<T> {
    const pinned = this.#get(name, pin);
    this.#activeCount++;
    try {
      return await work(pinned);
    } finally {
      this.#activeCount--;
      this.#releaseIfUnused();
    }
  }

  /** Records the version with which a remote model answered. It is not pinned. */
  record(name: string, version: string): void {
    this.#recorded ??= new Map();
    const known = this.#recorded.get(name);
    if (known?.split(', ').includes(version)) return;
    this.#recorded.set(name, known === undefined ? version : `${known}, ${version}`);
  }

  /** Model → version. */
  report(): Record<string, string> {
    const report: Record<string, string> = {};
    for (const [name, version] of this.#recorded ?? []) report[name] = version;
    for (const [name, { version }] of this.#pinned ?? []) report[name] = version;
    return report;
  }

  /** Call when the request is answered: releases the versions once no work uses them. */
  end(): void {
    this.#hasEnded = true;
    this.#releaseIfUnused();
  }

  #get<Pinned extends PinnedVersion>(name: string, pin: () => Pinned): Pinned {
    if (this.#hasEnded) throw new CubeError('STOPPING', 'the request has ended');
    // One client makes all pins of a name.
    this.#pinned ??= new Map();
    const known = this.#pinned.get(name) as Pinned | undefined;
    if (known !== undefined) return known;
    const pinned = pin();
    this.#pinned.set(name, pinned);
    return pinned;
  }

  #releaseIfUnused(): void {
    if (!this.#hasEnded || this.#activeCount > 0) return;
    for (const { release } of this.#pinned?.values() ?? []) release();
    this.#pinned = undefined;
  }
}
