/**
 * fleet.json, read again when it changes. The file is checked when the fleet is requested, at most
 * once per second; no timer keeps the process alive. While a changed file is invalid, the previous
 * fleet stays.
 */
import type { CubeError } from '../core/errors.ts';
import { type Fleet, parseFleet } from '../core/fleet.ts';
import { type Clock, systemClock } from '../platform/clock.ts';
import { readText } from '../platform/files.ts';
import { RereadValue } from '../platform/reread-value.ts';

const CHECK_INTERVAL_MS = 1_000;
const FLEET_BYTES_MAX = 16 << 20;

export interface FleetFileOptions {
  /** Called once for each change to an invalid file; the previous fleet stays. */
  readonly onInvalid: (error: CubeError) => void;
  readonly clock?: Clock;
}

export class FleetFile {
  readonly path: string;
  readonly #fleet: RereadValue<Fleet>;

  /** @throws CubeError when the file cannot be read or is invalid */
  constructor(path: string, { onInvalid, clock = systemClock }: FleetFileOptions) {
    this.path = path;
    this.#fleet = new RereadValue({
      paths: [path],
      read: () => parseFleet(readText(path, FLEET_BYTES_MAX), path),
      intervalMs: CHECK_INTERVAL_MS,
      clock,
      onInvalid,
    });
  }

  /** Returns the fleet, at most a second old: the same object while the file is unchanged. */
  current(): Fleet {
    return this.#fleet.current;
  }
}
