/**
 * fleet.json, read again when it changes. The file is checked when the fleet is requested, at most
 * once per second; no timer keeps the process alive. While a changed file is invalid, the previous
 * fleet stays.
 */
import { CubeError } from '../core/errors.ts';
import { type Fleet, parseFleet } from '../core/fleet.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import { getFileStamp, readText } from '../platform/files.ts';

const CHECK_INTERVAL_MS = 1_000;
const FLEET_BYTES_MAX = 16 << 20;

export interface FleetFileOptions {
  /** Called once for each change to an invalid file; the previous fleet stays. */
  readonly onInvalid: (error: CubeError) => void;
  readonly clock?: Clock;
}

export class FleetFile {
  readonly path: string;
  readonly #onInvalid: (error: CubeError) => void;
  readonly #clock: Clock;
  #fleet: Fleet;
  #stamp: string | undefined;
  #checkAtMs: number;

  /** @throws CubeError when the file cannot be read or is invalid */
  constructor(path: string, options: FleetFileOptions) {
    this.path = path;
    this.#onInvalid = options.onInvalid;
    this.#clock = options.clock ?? systemClock;
    this.#stamp = getFileStamp(path);
    this.#fleet = this.#read();
    this.#checkAtMs = this.#clock.nowMs() + CHECK_INTERVAL_MS;
  }

  /** Returns the fleet, at most a second old: the same object while the file is unchanged. */
  current(): Fleet {
    const nowMs = this.#clock.nowMs();
    if (nowMs < this.#checkAtMs) return this.#fleet;
    this.#checkAtMs = nowMs + CHECK_INTERVAL_MS;
    // The stamp is taken before the read, so that a change in between is noticed at the next check.
    const stamp = getFileStamp(this.path);
    if (stamp === this.#stamp) return this.#fleet;
    this.#stamp = stamp;
    try {
      this.#fleet = this.#read();
    } catch (error) {
      this.#onInvalid(CubeError.from(error));
    }
    return this.#fleet;
  }

  #read(): Fleet {
    return parseFleet(readText(this.path, FLEET_BYTES_MAX), this.path);
  }
}
