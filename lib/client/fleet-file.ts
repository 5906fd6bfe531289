/**
 * fleet.json, reread when it changes. The file's stamp is looked at when the fleet is asked for, at most once a
 * second: there is no timer that keeps a process alive. A new file that cannot be read keeps the fleet of before.
 */
import { CubeError } from '../core/errors.ts';
import { type Fleet, parseFleet } from '../core/fleet.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import { fileStamp, readText } from '../platform/files.ts';

const CHECK_INTERVAL_MS = 1_000;
const FLEET_BYTES_MAX = 16 << 20;

export interface FleetFileOptions {
  /** Told once for each changed file that cannot be used; the fleet of before stays. */
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

  /** @throws CubeError when the file cannot be read now */
  constructor(path: string, options: FleetFileOptions) {
    this.path = path;
    this.#onInvalid = options.onInvalid;
    this.#clock = options.clock ?? systemClock;
    this.#stamp = fileStamp(path);
    this.#fleet = this.#read();
    this.#checkAtMs = this.#clock.nowMs() + CHECK_INTERVAL_MS;
  }

  /** The fleet as of at most a second ago: the same object while the file is unchanged. */
  current(): Fleet {
    const nowMs = this.#clock.nowMs();
    if (nowMs < this.#checkAtMs) return this.#fleet;
    this.#checkAtMs = nowMs + CHECK_INTERVAL_MS;
    // The stamp is taken before the read: a change in between is seen the next time.
    const stamp = fileStamp(this.path);
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
